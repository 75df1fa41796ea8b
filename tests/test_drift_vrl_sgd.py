"""Variance-reduced local SGD: what is taken off the gradients adds up to nothing over all clients."""

import numpy as np
import pytest
import torch

from federation import BASE, EVERYONE, POINTS, SIZES, Federation
from fedmlh.errors import UserError
from fedmlh.federated.codecs import make_codec
from fedmlh.federated.drift.vrl_sgd import find_delta
from fedmlh.federated.messages import UpdateHeader, unpack

pytestmark = pytest.mark.usefixtures("one_thread")

VRL = {"correction": "vrl-sgd", **EVERYONE}


@pytest.mark.parametrize("settings", [{}, {"algorithm": "fedavg"}, {"update_codec": "fp16"}], ids=str)
def test_what_is_taken_off_the_gradients_adds_up_to_nothing(settings):
    """Though clients take unequal numbers of steps, and after an attempt that was given up."""
    fed = Federation(BASE.replace(**VRL), POINTS, **settings)
    assert len({fed.server.task.recipe.steps(n) for n in SIZES}) > 1

    def spoil(attempt, client, reply):
        return [reply[:-1] if (fed.state.round, attempt, client) == (2, 0, 2) else reply]

    for report in fed.rounds(5, spoil):
        assert report.attempts == (2 if report.round == 3 else 1)
        reach = fed.server.steps * fed.config.learning_rate
        deltas = torch.stack([find_delta(fed.state.model, fed.settled(k), reach) for k in fed.clients])
        assert deltas.sum(0).abs().max() < 1e-6
        assert deltas.norm(dim=1).min() > 0.01


def test_the_first_correction_is_liangs():
    """With equal numbers of steps: Δ_k = (x̂ − x_k) / (steps · γ), the negative goes into the next gradients."""
    fed = Federation(BASE.replace(**VRL), [POINTS[k] for k in (1, 1, 1, 1, 1)])
    start = fed.server.begin().model
    fed.run(1)
    steps = 2 * -(-SIZES[1] // 6)
    for k, client in fed.clients.items():
        _, payload = unpack(
            UpdateHeader, next(m for m in fed.received if unpack(UpdateHeader, m, 1 << 20)[0].client == k), 1 << 20
        )
        end = start + make_codec("fp32").decode(payload, len(start), np.random.default_rng(0))
        work = client.accept(client.read(fed.server.broadcast(fed.state, 0, k)), fed.local.memories[k])
        torch.testing.assert_close(work.correction, -(fed.state.model - end) / (steps * 0.3), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"weighting": "examples"}, "'vrl-sgd' counts every client the same: use weighting 'uniform'"),
        ({"optimizer": "adam"}, "needs optimizer 'sgd'"),
        ({"learning_rate": 0.0}, "learning_rate above 0"),
        ({"learning_rate_decay": 0.9}, "set learning_rate_decay=1"),
        ({"clients_per_round": 4, "quorum": 4}, "every client in every round"),
        ({"quorum": 4}, "every client in every round"),
        ({"server_optimizer": "adam"}, "server_optimizer 'average'"),
        ({"server_learning_rate": 0.5}, "server_learning_rate 1"),
        ({"broadcast_codec": "fp16"}, "broadcast_codec 'fp32'"),
        ({"update_codec": "topk-10%"}, "again and again"),
        ({"update_codec": "sketch-25%+zlib"}, "again and again"),
    ],
)
def test_what_would_keep_the_deltas_from_adding_up_is_refused(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        BASE.replace(**VRL | settings)
