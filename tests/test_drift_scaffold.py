"""SCAFFOLD: the server's control is the mean of the clients', whatever happens on the way."""

import dataclasses

import numpy as np
import pytest
import torch

from federation import ALGORITHMS, BASE, POINTS, Federation
from fedmlh.errors import UserError
from fedmlh.federated.client import Memory
from fedmlh.federated.drift.scaffold import Scaffold
from fedmlh.federated.messages import MAX_HEADER, BroadcastHeader, Reason, Rejected, UpdateHeader, pack, unpack
from fedmlh.model.local_training import full_gradient

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"algorithm": "fedavg", "optimizer": "adam", "learning_rate": 0.01},
        {"update_codec": "fp16", "broadcast_codec": "fp16"},
        {"update_codec": "int4+zlib", "broadcast_codec": "int8+zlib"},
        {"update_codec": "grid-150%", "broadcast_codec": "grid-150%"},
        {"server_optimizer": "adam", "server_learning_rate": 0.05, "model_average": 0.5},
    ],
    ids=["sgd", "fedavg-adam", "fp16", "coarse", "grid", "server-adam"],
)
def test_the_servers_control_is_the_mean_of_the_clients(settings):
    """After every round: where all went well, where an update was refused, where an attempt was given up."""

    def spoil(attempt, client, reply):
        spoilt = attempt == 0 if fed.state.round == 2 else fed.state.round == 1 and client == fed.asked[-1][0]
        return [reply[:-1] if spoilt else reply]

    fed = Federation(BASE.replace(correction="scaffold"), POINTS, **settings)
    reports = []
    for report in fed.rounds(6, spoil):
        reports.append((report.attempts, len(report.refused)))
        controls = [fed.settled(k).get("control", torch.zeros_like(fed.state.model)) for k in fed.clients]
        mean = torch.stack(controls).double().mean(0).float()
        torch.testing.assert_close(fed.state.vectors["control"], mean, rtol=0, atol=3e-8)
        assert mean.norm() > 0.01
    assert reports == [(1, 0), (1, 1), (2, 3), (1, 0), (1, 0), (1, 0)]
    assert not torch.equal(controls[0], controls[1])


def test_a_control_is_the_gradient_at_the_model_that_was_sent():
    fed = Federation(BASE.replace(correction="scaffold", clients_per_round=5), POINTS)
    fed.run(2)
    before = fed.state.model
    fed.run(1)
    for k, client in fed.clients.items():
        shard = client.prepare(fed.server.seeds)
        gradient = full_gradient(client.task.stack, before, shard, client.task.recipe)
        torch.testing.assert_close(fed.settled(k)["control"], gradient, rtol=0, atol=1e-7)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_scaffold_among_equal_clients_is_fedavg(algorithm):
    config = BASE.replace(algorithm=algorithm, clients_per_round=5)
    fed = Federation(config, [POINTS[0]] * 5, correction="scaffold")
    plain = Federation(config, [POINTS[0]] * 5).run(4).model
    torch.testing.assert_close(fed.run(4).model, plain, rtol=0, atol=2e-6)
    assert (plain - fed.server.begin().model).abs().max() > 0.05
    unequal = Federation(config, POINTS)
    assert not torch.allclose(
        Federation(config, POINTS, correction="scaffold").run(4).model, unequal.run(4).model, atol=1e-3
    )


def test_no_control_of_the_servers_is_one_of_zeros():
    fed = Federation(BASE.replace(correction="scaffold"), POINTS)
    model, mine = fed.state.model, fed.server.task.stack.initial(1)
    for kept, expected in (({"control": mine}, -mine), ({}, torch.zeros_like(mine))):
        for control in (None, torch.zeros_like(mine)):
            assert torch.equal(Scaffold().correct(fed.config, 0, model, control, kept), expected)
    assert mine.norm() > 0.1


def test_controls_travel_in_the_messages_and_are_counted():
    fed = Federation(BASE.replace(correction="scaffold", update_codec="fp16"), POINTS)
    reports = list(fed.rounds(3))
    size = len(fed.state.model)
    for message in fed.received:
        header, payload = unpack(UpdateHeader, message, 1 << 20)
        assert (header.control, len(payload)) == (2 * size, 2 * size + 2 * size)
    for number, message in enumerate(fed.sent):
        header, payload = unpack(BroadcastHeader, message, 1 << 20)
        assert (header.control, len(payload)) == ((0, 0) if number < 3 else (4 * size, 4 * size + 4 * size))
    assert sum(report.bytes_up for report in reports) == sum(map(len, fed.received))
    assert sum(report.bytes_down for report in reports) == sum(map(len, fed.sent))


def test_a_faulty_control_is_refused():
    """Sizes that do not add up, numbers that are not finite, in both directions; the state is left as it was."""
    fed = Federation(BASE.replace(correction="scaffold", quorum=1, max_attempts=1), POINTS)
    fed.run(2)
    size, good = 4 * len(fed.state.model), np.zeros(len(fed.state.model), "<f4").tobytes()
    bad = {
        "missing": (Reason.SIZE, 0, good),
        "in place of the model": (Reason.SIZE, size, good),
        "short": (Reason.SIZE, size - 4, good + good[4:]),
        "more than there is": (Reason.SIZE, 3 * size, good + good),
        "not finite": (Reason.NON_FINITE, size, good + good[4:] + np.float32(np.nan).tobytes()),
        "huge": (Reason.RANGE, size, good + good[4:] + np.float32(2000).tobytes()),
        "large all over": (Reason.RANGE, size, good + np.full(len(fed.state.model), 11, "<f4").tobytes()),
    }
    for name, (reason, control, payload) in bad.items():

        def exchange(sampled, broadcast, control=control, payload=payload):
            for client in sampled:
                reply, _ = fed.clients[client].answer(broadcast(client), fed.local.memories.get(client, Memory()))
                header, _ = unpack(UpdateHeader, reply, 1 << 20)
                yield client, pack(dataclasses.replace(header, control=control), payload)

        with pytest.raises(UserError, match=str(reason)):
            fed.server.run_round(fed.state, exchange)
        if reason is not Reason.RANGE:
            header, _ = unpack(BroadcastHeader, fed.server.broadcast(fed.state, 0, 1), 1 << 20)
            with pytest.raises(Rejected) as refusal:
                fed.clients[1].answer(
                    pack(dataclasses.replace(header, control=control), payload), fed.local.memories.get(1, Memory())
                )
            assert refusal.value.reason is reason, name


def test_an_update_with_a_control_that_nobody_asked_for_is_refused():
    fed = Federation(BASE.replace(quorum=1, max_attempts=1), POINTS)

    def exchange(sampled, broadcast):
        for client in sampled:
            header, payload = unpack(UpdateHeader, fed.clients[client].answer(broadcast(client), Memory())[0], 1 << 20)
            yield client, pack(dataclasses.replace(header, control=8), bytes(payload))

    with pytest.raises(UserError, match="8 bytes of control"):
        fed.server.run_round(fed.state, exchange)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"weighting": "examples"}, "'scaffold' counts every client the same: use weighting 'uniform'"),
        ({"update_codec": "int2"}, "would grow from round to round"),
        ({"update_codec": "sketch-25%"}, "would grow from round to round"),
    ],
)
def test_what_would_keep_the_control_from_being_the_mean_is_refused(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        BASE.replace(correction="scaffold", **settings)


def test_the_control_of_a_large_model_fits_into_the_largest_messages():
    """Both doors leave room for two vectors of a model that is longer than any header."""
    fed = Federation(BASE.replace(correction="scaffold", hidden_sizes=(800,), learning_rate=0.01), POINTS)
    reports = list(fed.rounds(2))
    assert not any(report.refused for report in reports)
    assert min(len(message) for message in fed.received + fed.sent[3:]) > MAX_HEADER + 4 * len(fed.state.model)
