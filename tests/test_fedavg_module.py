"""FedAvg as anyone would write it in torch (modules, dense targets, averaged state_dicts) against the product's."""

import copy
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from torch import nn

from federation import Federation
from fedmlh.config import Config
from fedmlh.data.dataset import Labels
from fedmlh.federated.task import Task
from fedmlh.model.local_training import HashedShard, draw_orders, train_shard
from fedmlh.model.recipe import Recipe
from fedmlh.model.stack import Stack
from fedmlh.randomness import generator

CPU = torch.device("cpu")
D, P, B = 20, 25, 10
SIZES = (11, 6, 15, 9, 8)
ROUNDS, EPOCHS, BATCH = 4, 2, 4
OPTIMIZERS = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
RATES = {"adam": 0.01, "sgd": 0.5}


pytestmark = pytest.mark.usefixtures("one_thread")


def make_module(widths):
    """Return a perceptron in float64, so that all rounding in a comparison is the product's."""
    layers = []
    for i, o in pairwise(widths):
        layers += [nn.Linear(i, o), nn.ReLU()]
    return nn.Sequential(*layers[:-1]).double()


def load(module, views, table):
    """Copy one sub-model of a stack into a module; torch keeps a weight as [out, in]."""
    with torch.no_grad():
        for parameter, view in zip(module.parameters(), views, strict=True):
            parameter.copy_(view[table].T if parameter.dim() == 2 else view[table])


def unload(modules):
    """Return sub-models of equal shape as the flat vector of a stack."""
    parts = []
    for same in zip(*(module.parameters() for module in modules), strict=True):
        parts += [torch.stack([w.T if w.dim() == 2 else w for w in same]).flatten()]
    return torch.cat(parts).detach().numpy()


def fit(module, x, z, orders, optimizer, batch=BATCH):
    """Train plainly on dense inputs and targets; return the last epoch's mean loss."""
    step, loss = OPTIMIZERS[optimizer](module.parameters(), lr=RATES[optimizer]), nn.BCEWithLogitsLoss()
    for order in orders:
        total = 0.0
        for rows in torch.from_numpy(order).split(batch):
            step.zero_grad()
            value = loss(module(x[rows]), z[rows])
            value.backward()
            step.step()
            total += value.item() * len(rows) / len(order)
    return total


def average(states, weights):
    total = sum(weights)
    return {key: sum(s[key] * (w / total) for s, w in zip(states, weights, strict=True)) for key in states[0]}


def make_clients(seed=5):
    rng = np.random.default_rng(seed)
    X = [(rng.normal(size=(n, D)) * (rng.random((n, D)) < 0.4)).astype(np.float32) for n in SIZES]
    return X, [(rng.random((n, P)) < 0.15).astype(np.float32) for n in SIZES]


def assert_same(product, expected, optimizer):
    """Check that both agree: SGD up to rounding; Adam may turn rounding error into part of a step (test_reference)."""
    apart = np.abs(product - expected)
    if optimizer == "sgd":
        assert apart.max() < 5e-7
    else:
        assert np.mean(apart > 5e-7) < 0.02
        assert apart.max() < 0.01 * RATES["adam"]


def run_both(config, targets):
    """Yield the product's model and the modules' after each round; `targets` gives a client's dense [R, n, B]."""
    X, Y = make_clients()
    fed = Federation(config, [(csr_matrix(x), csr_matrix(y)) for x, y in zip(X, Y, strict=True)])
    task, server = fed.task, fed.server

    modules = [make_module((D, *config.hidden_sizes, task.stack.num_outputs)) for _ in range(task.stack.num_tables)]
    for table, module in enumerate(modules):
        load(module, task.stack.views(fed.state.model), table)
    for t in range(1, ROUNDS + 1):
        sampled = server.sample(t, 0)
        weights = [SIZES[k] if config.weighting == "examples" else 1 for k in sampled]
        for table, module in enumerate(modules):
            states = []
            for k in sampled:
                rng = generator(config.seed, "local training", t, 0, k)
                orders = [rng.permutation(SIZES[k]) for _ in range(EPOCHS)]
                mine = copy.deepcopy(module)
                fit(mine, torch.from_numpy(X[k]).double(), targets(Y[k])[table], orders, config.optimizer)
                states.append(mine.state_dict())
            module.load_state_dict(average(states, weights))
        yield fed.run(1).model.numpy(), unload(modules)


def make_config(**changes):
    return Config(
        seed=11,
        num_clients=len(SIZES),
        clients_per_round=3,
        local_epochs=EPOCHS,
        batch_size=BATCH,
        num_buckets=B,
        feature_map="none",
    ).replace(**changes)


@pytest.mark.parametrize("hidden", [(), (7,), (7, 5)], ids=str)
@pytest.mark.parametrize("weighting", ["uniform", "examples"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_fedavg_is_the_textbook_one(optimizer, weighting, hidden):
    config = make_config(
        algorithm="fedavg",
        optimizer=optimizer,
        learning_rate=RATES[optimizer],
        weighting=weighting,
        hidden_sizes=hidden,
    )
    first = Task(config, D, P).stack.initial(config.seed).numpy()
    for product, expected in run_both(config, lambda y: [torch.from_numpy(y).double()]):
        assert_same(product, expected, optimizer)
    assert np.abs(expected - first).max() > 0.02


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_fedmlh_is_fedavg_on_bucket_labels_once_a_table(optimizer):
    """R separate federations of plain modules, which know nothing of each other, give the stack."""
    config = make_config(optimizer=optimizer, learning_rate=RATES[optimizer], num_tables=3, hidden_sizes=(7,))
    task = Task(config, D, P)
    buckets = task.label_map(task.draw_seeds(), Labels.numbered(P).keys).buckets

    def targets(y):
        merged = np.zeros((3, len(y), B))
        for table, point, label in np.ndindex(3, *y.shape):
            merged[table, point, buckets[table, label]] = max(
                merged[table, point, buckets[table, label]], y[point, label]
            )
        return torch.from_numpy(merged)

    for product, expected in run_both(config, targets):
        assert_same(product, expected, optimizer)


@pytest.mark.parametrize("maps", [1, 4])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_stack_trains_as_its_sub_models_would_alone(optimizer, maps):
    """Inputs shared or one per table, targets one per table; the loss is the mean of the sub-models' losses."""
    tables, n = 4, 17
    rng = np.random.default_rng(0)
    X = rng.normal(size=(maps, n, D)).astype(np.float32)
    Z = (rng.random((tables, n, B)) < 0.3).astype(np.float32)
    stack = Stack(tables, D, (8, 6), B)
    start = stack.initial(1)
    shard = HashedShard(tuple(csr_matrix(x) for x in X), tuple(csr_matrix(z) for z in Z))
    recipe = Recipe("bce", optimizer, RATES[optimizer], epochs=3, batch_size=5)
    flat, loss = train_shard(stack, start, shard, recipe, draw_orders(n, recipe, np.random.default_rng(9)))

    modules, losses = [make_module((D, 8, 6, B)) for _ in range(tables)], []
    for table, module in enumerate(modules):
        load(module, stack.views(start), table)
        shuffle = np.random.default_rng(9)
        orders = [shuffle.permutation(n) for _ in range(3)]
        x, z = torch.from_numpy(X[table % maps]).double(), torch.from_numpy(Z[table]).double()
        losses.append(fit(module, x, z, orders, optimizer, batch=5))
    assert_same(flat.numpy(), unload(modules), optimizer)
    assert loss == pytest.approx(np.mean(losses), rel=1e-5)


def test_training_leaves_the_model_it_starts_from():
    stack = Stack(2, D, (4,), B)
    start = stack.initial(0)
    kept = start.clone()
    X, Y = make_clients()
    shard = HashedShard((csr_matrix(X[0]),), (csr_matrix(Y[0][:, :B]),) * 2)
    recipe = Recipe("softmax", "adam", 0.1, epochs=1, batch_size=4)
    moved, _ = train_shard(stack, start, shard, recipe, draw_orders(len(shard), recipe, np.random.default_rng(0)))
    assert torch.equal(start, kept)
    assert not torch.equal(moved, kept)
    assert not moved.requires_grad
