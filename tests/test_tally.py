"""Replies that are tallied in parts, by whomever and in any order, add up to what one tally of all of them gives."""

import dataclasses

import numpy as np
import pytest
import torch

from federation import Federation
from fedmlh.federated.aggregate import LIMIT
from fedmlh.federated.codecs import make_codec
from fedmlh.federated.messages import Reason, Rejected, UpdateHeader, pack, unpack
from fedmlh.federated.tally import Tally
from fedmlh.federated.transforms.clipping import Bounds
from fedmlh.federated.validate import Expected

CPU = torch.device("cpu")


def hear(**settings):
    """Return an empty tally of a round, and all replies to it: good ones, a cut one, a refusal, a silent client."""
    fed = Federation(clients_per_round=5, quorum=1, **settings)
    state = fed.run(2)
    heard = []

    def exchange(sampled, outbox):
        heard.append(outbox)
        replies = dict(fed.local.exchange(sampled, outbox))
        replies[0] = replies[0][:-1]
        replies[1] = Rejected(Reason.FAILED, "out of paper")
        heard.append({client: reply for client, reply in replies.items() if client != 2})
        return iter(heard[1].items())

    fed.server.run_round(state, exchange)
    whole = heard[0].part()
    for client, reply in heard[1].items():
        whole.add(client, reply)
    return heard[0].part, heard[1], whole


def content(tally):
    """Return all that the server makes of a tally, as bits if it is numbers."""
    delta, extra = tally.mean_delta(), tally.extra()
    return (
        delta.mean.numpy().tobytes(),
        delta.square,
        None if extra is None else extra.numpy().tobytes(),
        tally.losses,
        tally.lengths,
        tally.extra_lengths,
        tally.clipped,
        tally.bytes_up,
        tally.close(),
    )


SETTINGS = pytest.mark.parametrize(
    "settings",
    [
        {"update_codec": "topk-10%+zlib", "weighting": "examples"},
        {"update_codec": "int4", "correction": "scaffold", "server_optimizer": "fedexp"},
    ],
    ids=["examples", "scaffold"],
)


@SETTINGS
def test_a_tally_is_what_the_replies_say(settings):
    """Means, lengths, losses and bytes, made once more from the messages alone."""
    _, replies, whole = hear(**settings)
    codec, size = make_codec(settings["update_codec"]), whole.expected.num_parameters
    updates, controls, weights = [], [], []
    for client in (3, 4):
        header, payload = unpack(UpdateHeader, replies[client], 1 << 20)
        end = len(payload) - header.control
        updates.append(codec.decode(payload[:end], size, np.random.default_rng(0)).double().numpy())
        if header.control:
            controls.append(codec.decode(payload[end:], size, np.random.default_rng(0)).double().numpy())
        weights.append(header.examples if "weighting" in settings else 1)
        assert whole.losses[client] == header.loss
        assert header.loss > 0
    delta, control = whole.mean_delta(), whole.extra()
    np.testing.assert_allclose(delta.mean, np.average(updates, 0, weights), rtol=1e-6, atol=1e-9)
    lengths = [float(update @ update) for update in updates]
    assert delta.square == pytest.approx(np.average(lengths, weights=weights), rel=1e-12)
    if controls:
        np.testing.assert_allclose(control, np.mean(controls, 0), rtol=1e-6, atol=1e-9)
    assert (control is not None) == bool(controls) == ("correction" in settings)
    assert whole.bytes_up == sum(len(reply) for reply in replies.values() if isinstance(reply, bytes))


@pytest.mark.parametrize("uniform", [True, False])
def test_the_largest_updates_of_the_largest_clients_do_not_overflow(uniform):
    sampled = dict.fromkeys(range(3), 2**24)
    bounds = dict.fromkeys(sampled, LIMIT)
    expected = Expected("run", "config", 1, 0, "fp32", 2, sampled, Bounds(bounds, LIMIT, True), 2**24, 0)
    tally = Tally(expected, uniform=uniform, device=CPU)
    payload = np.array([LIMIT, -LIMIT], "<f4").tobytes()
    for client, examples in sampled.items():
        tally.add(client, pack(UpdateHeader("run", "config", 1, 0, client, "fp32", examples, 0.5), payload))
    assert tally.mean_delta().mean.tolist() == [LIMIT, -LIMIT]


def test_a_second_reply_of_a_client_does_not_count():
    make, replies, _ = hear()
    once, twice = make(), make()
    for tally, clients in ((once, (3, 4)), (twice, (3, 4, 3))):
        for client in clients:
            tally.add(client, replies[client])
    assert torch.equal(once.mean_delta().mean, twice.mean_delta().mean)
    assert [(entry.client, entry.reason) for entry in twice.refused] == [(3, Reason.DUPLICATE)]


@SETTINGS
def test_parts_add_up_to_the_whole(settings):
    make, replies, whole = hear(**settings)
    rng = np.random.default_rng(1)
    expected = content(whole)
    assert [entry.client for entry in expected[-1].refused] == [0, 1, 2]
    assert [entry.reason for entry in expected[-1].refused] == [Reason.CORRUPT, Reason.FAILED, Reason.LATE]
    assert expected[-1].accepted == [3, 4]
    for _ in range(10):
        parts = [make() for _ in range(3)]
        for client in rng.permutation(sorted(replies)):
            parts[rng.integers(3)].add(int(client), replies[int(client)])
        total = make()
        for part in rng.permutation(3):
            total.merge(parts[part])
        assert content(total) == expected


def test_updates_that_are_too_long_are_scaled_alike_in_every_part():
    _, replies, whole = hear()
    bounds = dataclasses.replace(whole.expected.bounds, updates=dict.fromkeys(range(5), whole.lengths[3] / 3))
    tight = dataclasses.replace(whole.expected, bounds=bounds)
    together, first, second = (Tally(tight, uniform=True, device=CPU) for _ in range(3))
    for tally, client in ((together, 3), (together, 4), (second, 4), (first, 3)):
        tally.add(client, replies[client])
    second.merge(first)
    assert content(second) == content(together)
    assert together.clipped == pytest.approx({3: 1 / 3, 4: whole.lengths[3] / 3 / whole.lengths[4]})
    assert together.lengths == pytest.approx(dict.fromkeys((3, 4), whole.lengths[3] / 3))


def test_what_does_not_belong_together_is_not_added():
    make, replies, whole = hear()
    twice = make()
    twice.add(4, replies[4])
    before = whole.mean_delta().mean
    other = Tally(dataclasses.replace(whole.expected, attempt=1), uniform=True, device=CPU)
    for stranger in (twice, other):
        with pytest.raises(ValueError, match="do not add up"):
            whole.merge(stranger)
    assert torch.equal(whole.mean_delta().mean, before)
