"""Clients trained together on a GPU end up where each would by the plain loop, alone.

Without a GPU the kernels can be run by Triton's interpreter: TRITON_INTERPRET=1 pytest tests/test_cuda.py
"""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix, random_array

from fedmlh.model.local_training import HashedShard, train_plain
from fedmlh.model.recipe import Recipe
from fedmlh.model.stack import Stack
from fedmlh.parts import OWN

pytest.importorskip("triton", reason="the GPU's kernels need triton")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not (torch.cuda.is_available() or INTERPRETED):
    pytest.skip("there is no GPU here", allow_module_level=True)
cuda = pytest.importorskip("fedmlh.model.kernels.cuda")

DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
LENGTHS = {3: 21, 7: 8, 8: 30}


def make_shards(maps, *, tables=2, inputs=30, outputs=11):
    """Make clients of unequal size; some points have no feature, some no label."""
    rng = np.random.default_rng(0)
    shards = {}
    for client, n in LENGTHS.items():
        features = []
        for _ in range(maps):
            x = random_array((n, inputs), density=0.15, rng=rng).toarray().astype(np.float32)
            x[3] = 0
            features.append(csr_matrix(x))
        buckets = []
        for _ in range(tables):
            z = (rng.random((n, outputs)) < 0.2).astype(np.float32)
            z[5] = 0
            buckets.append(csr_matrix(z))
        shards[client] = HashedShard(tuple(features), tuple(buckets))
    return shards


def draw_correction(stack, seed):
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 0.01, stack.num_parameters)).float().to(DEVICE)


def together_and_alone(maps, hidden, recipe, *, corrected=False):
    shards, stack = make_shards(maps), Stack(2, 30, hidden, 11)
    trainer = cuda.CudaTrainer(stack, recipe, shards, DEVICE, tf32=False)
    # Twice, with others and a smaller step the second time: nothing may be left over.
    for clients, decay in (([7, 8], 1.0), ([8, 3], 0.5)):
        recipe = replace(recipe, learning_rate=decay * recipe.learning_rate)
        models = [stack.initial(client).to(DEVICE) for client in clients]
        orders = [
            np.stack([np.random.default_rng(c + e).permutation(LENGTHS[c]) for e in range(recipe.epochs)])
            for c in clients
        ]
        corrections = [draw_correction(stack, client) for client in clients] if corrected else []
        got = trainer.train_clients(models, clients, orders, recipe.learning_rate, corrections)
        for client, model, order, extra, (trained, loss) in zip(
            clients, models, orders, corrections or [None] * len(clients), got, strict=True
        ):
            assert torch.equal(model, stack.initial(client).to(DEVICE))
            shard = shards[client]
            yield model, trained, loss, *train_plain(stack, model, shard.features, shard.buckets, order, recipe, extra)


@pytest.mark.parametrize("loss", OWN["loss"])
@pytest.mark.parametrize("hidden", [(), (7,), (20, 9)])
@pytest.mark.parametrize("maps", [1, 2])
def test_sgd_agrees_within_rounding(loss, hidden, maps):
    for start, trained, mean, plain, plain_mean in together_and_alone(maps, hidden, Recipe(loss, "sgd", 0.5, 2, 8)):
        assert (plain - start).abs().max() > 1e-3
        torch.testing.assert_close(trained, plain, rtol=0, atol=3e-6)
        assert mean == pytest.approx(plain_mean, rel=1e-5)


@pytest.mark.parametrize("loss", OWN["loss"])
def test_adam_agrees_but_for_what_it_amplifies(loss):
    rate = 1e-3
    for start, trained, mean, plain, plain_mean in together_and_alone(1, (20, 9), Recipe(loss, "adam", rate, 3, 8)):
        assert (plain - start).abs().mean() > rate
        apart = (trained - plain).abs()
        assert (apart > rate / 100).float().mean() < 0.01
        assert apart.max() < 3 * rate
        assert mean == pytest.approx(plain_mean, rel=1e-5)


@pytest.mark.parametrize("hidden", [(), (20, 9)])
@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_what_ties_clients_together_reaches_every_parameter(optimizer, corrected, hidden):
    """FedProx and a correction give each row of the first layer a gradient at every step."""
    rate = {"sgd": 0.5, "adam": 1e-3}[optimizer]
    recipe = Recipe("softmax", optimizer, rate, 2, 8, prox_mu=0.3)
    for start, trained, mean, plain, plain_mean in together_and_alone(1, hidden, recipe, corrected=corrected):
        assert (plain - start).abs().max() > 1e-3
        assert not corrected or bool((trained != start).all())
        apart = (trained - plain).abs()
        if optimizer == "sgd":
            assert apart.max() < 3e-6
        else:
            assert (apart > rate / 100).float().mean() < 0.01
            assert apart.max() < 3 * rate
        assert mean == pytest.approx(plain_mean, rel=1e-5)
