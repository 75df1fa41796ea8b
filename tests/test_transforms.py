"""What happens to a delta between training and codec, and between codec and sum, is a list each; they are followed."""

import dataclasses

import pytest
import torch

from federation import BASE, POINTS, Federation
from fedmlh.federated import client, validate
from fedmlh.federated.client import Memory, keeps_state
from fedmlh.federated.codecs import make_codec, update_draws
from fedmlh.federated.messages import UpdateHeader, unpack
from fedmlh.federated.transforms import list_at_client, list_at_server
from fedmlh.federated.transforms.clipping import Bounds, Clip
from fedmlh.federated.transforms.feedback import ErrorFeedback
from fedmlh.federated.transforms.transform import Delta

pytestmark = pytest.mark.usefixtures("one_thread")


class Shift:
    """Adds what was kept to every value, and keeps one more."""

    def apply(self, delta, kept):
        self.kept = kept.get("count", torch.zeros(()))
        return delta + 0.25 * self.kept

    def keep(self, applied, sent):
        self.applied, self.sent = applied, sent
        return {"count": self.kept + 1}


def sent_by(fed, k, **memory):
    """Return the delta that a client sends, decoded, and what it stages."""
    reply, after = fed.clients[k].answer(fed.server.broadcast(fed.state, 0, k), Memory(**memory))
    header, payload = unpack(UpdateHeader, reply, len(reply))
    codec = make_codec(fed.config.update_codec)
    draws = update_draws(fed.server.seeds.run, header)
    return codec.decode(payload, len(fed.state.model), draws), after.staged


def test_only_a_codec_that_leaves_something_out_is_made_up_for():
    assert list_at_client(BASE) == []
    assert not keeps_state(BASE)
    assert [type(step) for step in list_at_client(BASE.replace(update_codec="topk-10%"))] == [ErrorFeedback]
    assert keeps_state(BASE.replace(update_codec="topk-10%"))


def test_what_is_in_the_list_of_a_client_is_sent_and_keeps_its_state(monkeypatch):
    fed = Federation(BASE, POINTS)
    assert sent_by(fed, 1)[1] == {}
    shift = Shift()
    monkeypatch.setattr(client, "list_at_client", lambda config: [shift, shift])
    fed.state = dataclasses.replace(fed.state, round=1, accepted={1: (1, 0)})
    base, _ = sent_by(fed, 1, kept_in=(1, 0))
    moved, staged = sent_by(fed, 1, kept={"count": torch.tensor(2.0)}, kept_in=(1, 0))
    torch.testing.assert_close(moved, base + 0.5 + 0.5)
    assert staged == {"count": torch.tensor(3.0)}
    assert torch.equal(shift.sent, moved)
    assert torch.equal(shift.applied, moved), "the codec leaves nothing out"


def test_what_is_in_the_list_of_the_server_is_done_before_the_sum(monkeypatch):
    class Negate:
        def apply(self, delta):
            return delta.scale(-1.0)

    plain, negated = (Federation(BASE.replace(clip="off"), POINTS) for _ in range(2))
    moved = plain.run(1).model - plain.server.begin().model
    monkeypatch.setattr(validate, "list_at_server", lambda *args: [*list_at_server(*args), Negate()])
    torch.testing.assert_close(negated.run(1).model - negated.server.begin().model, -moved)
    assert moved.abs().max() > 0.01


def test_a_delta_beyond_its_clients_bound_is_scaled_to_it():
    (clip,) = list_at_server(Bounds({3: 0.5, 4: 9.0}, 1.0, True), 3)
    assert clip == Clip(0.5, True)
    short, long = Delta.of(torch.full((4,), 0.5)), Delta.of(torch.full((4,), -2.0))
    assert clip.apply(short) is short
    scaled = clip.apply(long)
    assert (scaled.factor, scaled.length, scaled.values.tolist()) == (0.25, 0.5, [-0.5] * 4)
