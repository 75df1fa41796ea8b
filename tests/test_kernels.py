"""The compiled training loop computes what the plain one does, in whatever thread it runs."""

import hashlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix, random_array

from fedmlh.model import local_training
from fedmlh.model.local_training import HashedShard, draw_orders, train_plain, train_shard
from fedmlh.model.recipe import Recipe
from fedmlh.model.stack import Stack
from fedmlh.parts import OWN

pytest.importorskip("numba", reason="the compiled loop needs numba")
from fedmlh.model.kernels import training as kernels

pytestmark = pytest.mark.usefixtures("one_thread")


def make_case(hidden, maps, *, tables=3, inputs=40, outputs=12, n=57, density=0.1, seed=0):
    """Return a stack with random sparse points; some have no feature, some no label, some features never occur."""
    rng = np.random.default_rng(seed)
    features = []
    for _ in range(maps):
        dense = random_array((n, inputs), density=density, rng=rng).toarray().astype(np.float32)
        dense[:, inputs - 5 :] = 0
        dense[3] = 0
        features.append(csr_matrix(dense))
    buckets = []
    for _ in range(tables):
        z = (rng.random((n, outputs)) < 0.15).astype(np.float32)
        z[5] = 0
        buckets.append(csr_matrix(z))
    return Stack(tables, inputs, hidden, outputs), tuple(features), tuple(buckets), rng


def draw_correction(stack, seed=4):
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 0.01, stack.num_parameters).astype(np.float32))


#: What FedProx and corrections add to the gradient: settings of the recipe, and whether a constant vector comes along.
TIES = {"prox": ({"prox_mu": 0.3}, False), "correction": ({}, True), "both": ({"prox_mu": 0.3}, True)}


def both(case, *, loss, optimizer, learning_rate, batch_size=8, epochs=3, tie=({}, False)):
    stack, features, buckets, rng = case
    orders = np.stack([rng.permutation(features[0].shape[0]) for _ in range(epochs)])
    start = stack.initial(1)
    settings, corrected = tie
    recipe = Recipe(loss, optimizer, learning_rate, epochs, batch_size, **settings)
    arguments = (stack, start, features, buckets, orders, recipe, draw_correction(stack) if corrected else None)
    results = [f(*arguments) for f in (kernels.train_compiled, train_plain)]
    assert torch.equal(start, stack.initial(1))
    return start, *results


@pytest.mark.parametrize("loop", [kernels.train_compiled, train_plain])
def test_an_optimizer_that_there_is_not_trains_in_no_loop(loop):
    stack, features, buckets, _ = make_case((7,), 1)
    with pytest.raises(KeyError, match="adagrad"):
        loop(stack, stack.initial(1), features, buckets, np.arange(57)[None], Recipe("bce", "adagrad", 0.1, 1, 8))


@pytest.mark.parametrize("loss", OWN["loss"])
@pytest.mark.parametrize("hidden", [(), (7,), (16, 9), (8, 8, 8)])
@pytest.mark.parametrize("maps", [1, 3])
@pytest.mark.parametrize("batch_size", [8, 1000])
def test_sgd_agrees_within_rounding(loss, hidden, maps, batch_size):
    start, fast, plain = both(
        make_case(hidden, maps), loss=loss, optimizer="sgd", learning_rate=0.5, batch_size=batch_size
    )
    assert (plain[0] - start).abs().max() > 1e-3
    torch.testing.assert_close(fast[0], plain[0], rtol=0, atol=2e-6)
    assert fast[1] == pytest.approx(plain[1], rel=1e-5)


@pytest.mark.parametrize("loss", OWN["loss"])
@pytest.mark.parametrize("hidden", [(), (7,), (16, 9)])
@pytest.mark.parametrize("maps", [1, 3])
def test_adam_agrees_but_for_what_it_amplifies(loss, hidden, maps):
    """Where a gradient is near zero Adam turns rounding into steps, so a few weights may differ, by little."""
    rate = 1e-3
    start, fast, plain = both(make_case(hidden, maps), loss=loss, optimizer="adam", learning_rate=rate)
    assert (plain[0] - start).abs().mean() > 3 * rate
    apart = (fast[0] - plain[0]).abs()
    assert (apart > rate / 100).float().mean() < 0.01
    assert apart.max() < 3 * rate
    assert fast[1] == pytest.approx(plain[1], rel=1e-5)


@pytest.mark.parametrize("tie", TIES)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("hidden", [(), (16, 9)])
def test_what_ties_clients_together_reaches_every_parameter(optimizer, hidden, tie):
    """Also rows of features that no point carries; there Adam's steps are the same to rounding, as all else of SGD."""
    case, rate = make_case(hidden, 3), {"sgd": 0.5, "adam": 1e-3}[optimizer]
    start, fast, plain = both(case, loss="softmax", optimizer=optimizer, learning_rate=rate, tie=TIES[tie])
    apart = (fast[0] - plain[0]).abs()
    if optimizer == "sgd":
        assert apart.max() < 2e-6
    else:
        assert (apart > rate / 100).float().mean() < 0.01
        assert apart.max() < 3 * rate
    assert fast[1] == pytest.approx(plain[1], rel=1e-5)
    moved = (case[0].views(fast[0])[0] - case[0].views(start)[0])[:, -5:]
    assert bool((moved != 0).all()) == TIES[tie][1]
    untied = both(make_case(hidden, 3), loss="softmax", optimizer=optimizer, learning_rate=rate)[1][0]
    assert (untied - fast[0]).abs().max() > rate / 10


def test_rows_left_alone_for_long_catch_up_to_where_plain_adam_would_be():
    """Feature 0 occurs in the first of 500 steps only; its momentum must carry it as far as plain Adam does."""
    n = 500
    x = np.zeros((n, 4), np.float32)
    x[:, 1] = 1
    x[0, 0] = x[0, 2] = x[300, 2] = 1
    z = np.zeros((n, 3), np.float32)
    z[:, 0] = 1
    stack = Stack(1, 4, (), 3)
    start, orders = stack.initial(0), np.arange(n)[None]
    arguments = (stack, start, (csr_matrix(x),), (csr_matrix(z),), orders, Recipe("bce", "adam", 1e-3, 1, 1))
    fast, _ = kernels.train_compiled(*arguments)
    plain, _ = train_plain(*arguments)
    moved = (plain - start)[:3].abs()
    assert moved.min() > 4e-3  # several steps' worth, though it had one gradient
    torch.testing.assert_close(fast, plain, rtol=0, atol=2e-6)
    assert torch.equal(fast[9:12], start[9:12])  # a feature that never occurs does not move


def test_the_exponential_is_that_of_float32():
    x = -np.geomspace(1e-8, 200, 4001).astype(np.float32)
    got = np.append(x, np.float32([0, -np.inf]))
    kernels._exp(got, np.empty(len(got), np.int32))
    true = np.exp(np.maximum(x.astype(np.float64), -87))
    assert np.abs(got[:-2] / true - 1).max() < 3e-7
    assert got[-2] == 1
    assert got[-1] < 1e-37


def test_the_same_bits_alone_and_side_by_side():
    stack, features, buckets, _ = make_case((32, 16), 1, inputs=200, outputs=60, n=300)
    shard, start, recipe = HashedShard(features, buckets), stack.initial(3), Recipe("bce", "adam", 1e-2, 2, 20)

    def work(_):
        return train_shard(stack, start, shard, recipe, draw_orders(300, recipe, np.random.default_rng(5)))

    alone = work(0)
    with ThreadPoolExecutor(4) as pool:
        for flat, loss in pool.map(work, range(8)):
            assert torch.equal(flat, alone[0])
            assert loss == alone[1]


def work_of_a_process():
    """Train models in one process: with both losses, with momentum and without, tied to a start and free."""
    stack, features, buckets, rng = make_case((17, 9), 1, outputs=23)
    orders = np.stack([rng.permutation(features[0].shape[0]) for _ in range(2)])
    for loss in ("bce", "softmax"):
        for optimizer in ("adam", "sgd"):
            for mu in (0.0, 0.1):
                recipe = Recipe(loss, optimizer, 0.01, 2, 8, prox_mu=mu)
                model, mean = kernels.train_compiled(stack, stack.initial(1), features, buckets, orders, recipe)
                print(loss, optimizer, mu, mean.hex(), hashlib.sha256(model.numpy().tobytes()).hexdigest())


def test_the_same_bits_just_compiled_and_from_the_cache(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", "import test_kernels; test_kernels.work_of_a_process()"]
    first, second = (
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
        for _ in range(2)
    )
    assert list(tmp_path.rglob("*.nbc")), "nothing was cached"
    assert len(first) == 8
    assert second == first


def test_without_numba_training_gives_the_same_model(monkeypatch):
    stack, features, buckets, _ = make_case((7,), 1)
    shard, recipe = HashedShard(features, buckets), Recipe("softmax", "sgd", 0.3, 2, 10)
    models = []
    for compiled in (local_training.compiled, None):
        monkeypatch.setattr(local_training, "compiled", compiled)
        models.append(
            train_shard(stack, stack.initial(2), shard, recipe, draw_orders(57, recipe, np.random.default_rng(1)))[0]
        )
    torch.testing.assert_close(models[0], models[1], rtol=0, atol=2e-6)
    assert not torch.equal(models[0], stack.initial(2))


def test_read_only_or_unaligned_points_run_through_the_same_code():
    """Else who trained before, in the same process, could change a bit: numba prefers what it has compiled already."""
    stack, features, buckets, rng = make_case((7,), 1)
    orders = np.stack([rng.permutation(features[0].shape[0]) for _ in range(2)])
    recipe = Recipe("softmax", "adam", 0.01, 2, 8)
    wanted = kernels.train_compiled(stack, stack.initial(1), features, buckets, orders, recipe)
    known = len(kernels.train_table.signatures)

    def awkward(array, *, shifted):
        raw = np.frombuffer(bytes(1) + array.tobytes() if shifted else array.tobytes(), np.uint8)
        return raw[1:].view(array.dtype) if shifted else raw.view(array.dtype)

    for shifted in (False, True):
        parts = []
        for matrix in (*features, *buckets):
            copy = matrix.copy()
            copy.data, copy.indices, copy.indptr = (
                awkward(array, shifted=shifted) for array in (matrix.data, matrix.indices, matrix.indptr)
            )
            assert not copy.data.flags.writeable
            parts.append(copy)
        got = kernels.train_compiled(stack, stack.initial(1), tuple(parts[:1]), tuple(parts[1:]), orders, recipe)
        assert torch.equal(got[0], wanted[0])
        assert got[1] == wanted[1]
    assert len(kernels.train_table.signatures) == known
