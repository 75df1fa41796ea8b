"""What clients minimise: balanced losses, points for everyone, a learning rate that falls; and what is refused."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from federation import BASE, CPU, POINTS, SMALL, D, Federation, P, bytes_down
from fedmlh.data.dataset import Labels, Split
from fedmlh.data.division import divide
from fedmlh.data.source import open_dataset
from fedmlh.engines.run import run
from fedmlh.errors import UserError
from fedmlh.federated.client import Client, Memory
from fedmlh.federated.messages import Rejected
from fedmlh.federated.sharing import add_points, encode_points
from fedmlh.federated.task import Task
from fedmlh.model import local_training
from fedmlh.model.forward import forward
from fedmlh.model.local_training import HashedShard, draw_orders, full_gradient, train_shard
from fedmlh.model.losses import find_loss
from fedmlh.model.recipe import Recipe
from fedmlh.model.stack import Stack
from fedmlh.parts import OWN

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def points():
    return POINTS


# Balanced losses.


def linear_case(points, hidden, loss="softmax", **settings):
    X, Y = points[1]
    shard = HashedShard((X,), (Y, Y[:, ::-1].tocsr()))
    return Stack(2, D, hidden, P), shard, Recipe(loss, "sgd", 0.3, 2, 7, **settings)


@pytest.mark.parametrize("compiled", [local_training.compiled, None], ids=["compiled", "plain"])
@pytest.mark.parametrize("hidden", [(), (5,)])
@pytest.mark.parametrize("base", ["bce", "softmax"])
def test_a_balanced_loss_with_tau_zero_is_the_other_to_the_bit(points, base, hidden, compiled, monkeypatch):
    monkeypatch.setattr(local_training, "compiled", compiled)
    results = []
    for loss, tau in ((base, 1.0), (f"balanced-{base}", 0.0), (f"balanced-{base}", 1.0)):
        stack, shard, recipe = linear_case(points, hidden, loss, loss_tau=tau)
        orders = draw_orders(len(shard), recipe, np.random.default_rng(0))
        results.append(train_shard(stack, stack.initial(0), shard, recipe, orders))
    plain, none, whole = results
    assert torch.equal(plain[0], none[0])
    assert plain[1] == none[1]
    assert not torch.allclose(plain[0], whole[0], atol=1e-3)


@pytest.mark.parametrize("tau", [0.5, 1.0])
def test_balanced_softmax_is_the_papers(points, tau):
    """Cross-entropy of π_b^τ e^z_b / Σ π^τ e^z, with π the client's (count + 1) / (Σ counts + B); float64."""
    stack, shard, recipe = linear_case(points, (), "balanced-softmax", loss_tau=tau)
    start = stack.initial(4)
    x = shard.features[0].toarray().astype(np.float64)
    expected = []
    for table, z in enumerate(shard.buckets):
        target = z.toarray().astype(np.float64)
        counts = target.sum(0) + 1
        weight = (counts / counts.sum()) ** tau
        w, b = (layer[table].double().numpy() for layer in stack.views(start))
        e = weight * np.exp(x @ w + b)
        wanted = target / np.maximum(target.sum(1, keepdims=True), 1)
        slope = (e / e.sum(1, keepdims=True) * (target.sum(1, keepdims=True) > 0) - wanted) / len(x)
        expected.append((x.T @ slope, slope.sum(0)))
    got = stack.views(full_gradient(stack, start, shard, recipe))
    for table, (weight, bias) in enumerate(expected):
        np.testing.assert_allclose(got[0][table], weight, rtol=2e-5, atol=1e-7)
        np.testing.assert_allclose(got[1][table], bias, rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("compiled", [local_training.compiled, None], ids=["compiled", "plain"])
@pytest.mark.parametrize("tau", [0.5, 1.0])
def test_balanced_bce_is_what_its_page_says(points, tau, compiled, monkeypatch):
    """Binary cross-entropy at z + τ log(π / (1 − π)), with π the client's own shares as of one more point; float64."""
    monkeypatch.setattr(local_training, "compiled", compiled)
    stack, shard, recipe = linear_case(points, (), "balanced-bce", loss_tau=tau)
    start = stack.initial(4)
    x = shard.features[0].toarray().astype(np.float64)
    got = stack.views(full_gradient(stack, start, shard, recipe))
    for table, z in enumerate(shard.buckets):
        target = z.toarray().astype(np.float64)
        average = (target.sum() + 1) / (target.size + 2)
        share = (target.sum(0) + average) / (len(x) + 1)
        w, b = (layer[table].double().numpy() for layer in stack.views(start))
        shown = 1 / (1 + np.exp(-(x @ w + b)) * ((1 - share) / share) ** tau)
        slope = (shown - target) / target.size
        np.testing.assert_allclose(got[0][table], x.T @ slope, rtol=2e-5, atol=1e-7)
        np.testing.assert_allclose(got[1][table], slope.sum(0), rtol=2e-5, atol=1e-7)


def test_a_model_that_says_nothing_is_calibrated_under_balanced_bce(points):
    """With τ = 1 it predicts each client's own frequencies, so that but for the smoothing no bias has to move."""
    stack, shard, recipe = linear_case(points, (), "balanced-bce", loss_tau=1.0)
    nothing = torch.zeros(stack.num_parameters)
    one_point = 1 / (len(shard) * P)
    moves = {
        loss: stack.views(full_gradient(stack, nothing, shard, dataclasses.replace(recipe, loss=loss)))[1].abs().max()
        for loss in ("balanced-bce", "bce")
    }
    assert moves["balanced-bce"] <= 1.001 * one_point
    assert moves["bce"] > 8 * one_point


@pytest.mark.parametrize(("count", "points"), [(0, 0), (0, 9), (9, 9)], ids=["no point", "no label", "all labels"])
@pytest.mark.parametrize("base", ["bce", "softmax"])
def test_frequencies_at_the_ends_are_finite(base, count, points):
    known = find_loss(f"balanced-{base}").known
    assert np.isfinite(known(np.full((2, P), count), points)).all()


@pytest.mark.parametrize("base", ["bce", "softmax"])
def test_prediction_does_not_see_the_frequencies(base):
    logits = torch.randn(2, 3, 4)
    assert torch.equal(find_loss(f"balanced-{base}").log_likelihood(logits), find_loss(base).log_likelihood(logits))


@pytest.mark.parametrize("loss", OWN["loss"])
@pytest.mark.parametrize("compiled", [local_training.compiled, None], ids=["compiled", "plain"])
def test_a_full_gradient_is_autograds(points, loss, compiled, monkeypatch):
    monkeypatch.setattr(local_training, "compiled", compiled)
    stack, shard, recipe = linear_case(points, (5,), loss, loss_tau=0.0, prox_mu=0.5)
    start = stack.initial(4)
    exact = start.double().requires_grad_()
    logits = forward(stack.views(exact), torch.from_numpy(shard.features[0].toarray())[None].double())
    find_loss(loss).value(logits, local_training._positives(shard.buckets, 0, len(shard), CPU)).backward()
    got = full_gradient(stack, start, shard, recipe)
    torch.testing.assert_close(got, exact.grad.float(), rtol=1e-4, atol=1e-8)
    assert got.norm() > 0.01


def test_a_client_whose_labels_do_not_fit_the_model_does_not_train(points):
    X, Y = points[0]
    client = Client(Task(BASE.replace(algorithm="fedavg"), D, P), 0, X, Y[:, :-1].tocsr(), Labels.numbered(P - 1), CPU)
    fed = Federation(BASE.replace(algorithm="fedavg"), points)
    with pytest.raises(Rejected, match="do not fit the outputs"):
        client.answer(fed.server.broadcast(fed.state, 0, 0), Memory())


# Points for everyone.


def ids(split):
    """Return points by their content."""
    return sorted(row.toarray().tobytes() for row in split.X)


@pytest.mark.parametrize("partition", ["iid", "paper-code", "dirichlet"])
def test_shared_points_leave_their_shards_and_all_else_stays(partition):
    config = SMALL.replace(partition=partition)
    data = open_dataset(config)
    plain, shared = (divide(data.train, config.replace(shared_fraction=f)) for f in (0.0, 0.1))
    assert len(plain.shared) == 0
    assert len(shared.shared) == round(0.1 * (len(data.train) - len(plain.validation)))
    assert ids(shared.validation) == ids(plain.validation)
    public = set(ids(shared.shared))
    for client, shard in plain.shards.items():
        assert ids(shared.shards[client]) == [point for point in ids(shard) if point not in public]
    assert public < set(ids(data.train)) - set(ids(plain.validation))
    other = divide(data.train, config.replace(shared_fraction=0.1, seed=1))
    assert ids(other.shared) != ids(shared.shared)


def test_a_message_of_points_brings_them_over(points):
    config = SMALL.replace(shared_fraction=0.1)
    division = divide(open_dataset(config).train, config)
    signed = [Split(X, Y) for X, Y in points]
    wide = Split(csr_matrix(np.eye(1, 100_000, 99_999, np.float32)), csr_matrix(np.eye(1, 90_000, 89_999, np.float32)))
    for own, shared in ((division.shards[0], division.shared), (signed[0], signed[1]), (wide, wide)):
        message = encode_points(shared)
        X, Y = add_points(own.X, own.Y, message)
        np.testing.assert_array_equal(X.toarray(), np.vstack([own.X.toarray(), shared.X.toarray()]))
        np.testing.assert_array_equal(Y.toarray(), np.vstack([own.Y.toarray(), shared.Y.toarray()]))
        assert X.has_canonical_format
        assert X.dtype == Y.dtype == np.float32
        # Four bytes per value or index, besides the names and lengths of five arrays.
        assert len(message) < 4 * (2 * shared.X.nnz + shared.Y.nnz + 2 * len(shared) + 2) + 500
        assert add_points(own.X, own.Y, b"")[0] is own.X
    assert signed[1].X.min() < 0


def test_shared_points_are_counted_once_for_each_client(tmp_path):
    config = SMALL.replace(num_clients=6, rounds=6)
    data = open_dataset(config)
    for name, fraction in (("plain", 0.0), ("shared", 0.1)):
        run(config.replace(shared_fraction=fraction), data, tmp_path / name)
    message = len(encode_points(divide(data.train, config.replace(shared_fraction=0.1)).shared))
    records = [json.loads(line) for line in (tmp_path / "shared" / "metrics.jsonl").read_text().splitlines()]
    known, expected = set(), []
    for record in records:
        expected.append(message * len(set(record["clients"]) - known))
        known |= set(record["clients"])
    more = [a - b for a, b in zip(bytes_down(tmp_path / "shared"), bytes_down(tmp_path / "plain"), strict=True)]
    assert more == expected
    assert 0 in expected


def test_shared_points_are_not_sent_again_after_a_refusal_or_an_abandoned_attempt(points):
    fed = Federation(BASE.replace(clients_per_round=3, quorum=2), points, shared=b"x" * 1000)

    def spoil(attempt, client, reply):
        return [reply[:-1] if (fed.state.round, attempt) == (0, 0) or client == 3 else reply]

    reports = list(fed.rounds(4, spoil))
    assert reports[0].attempts > 1
    reached = set().union(*fed.asked)
    assert fed.state.reached == reached
    assert sum(report.bytes_down for report in reports) == sum(map(len, fed.sent)) + 1000 * len(reached)


# A learning rate that falls from round to round.


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_falling_learning_rate_scales_the_steps_of_later_rounds(points, optimizer):
    plain = Federation(BASE, points, optimizer=optimizer)
    fading = Federation(BASE, points, optimizer=optimizer, learning_rate_decay=0.001)
    first = plain.run(1).model
    assert torch.equal(fading.run(1).model, first)
    moved, crept = plain.run(1).model - first, fading.run(1).model - first
    # A thousandth of the rate: the gradients hardly change on the way, nor does what is clipped by rounding.
    assert 0.2e-3 < float(crept.norm() / moved.norm()) < 5e-3
    assert fading.server.task.recipe_in(3).learning_rate == pytest.approx(0.3e-6)


# What is refused.


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"server_optimizer": "adam", "server_tau": 0.0}, "set server_tau above 0"),
        ({"server_optimizer": "fedexp", "server_tau": 0.0}, "set server_tau above 0"),
        ({"algorithm": "fedavg", "label_key": "name"}, "FedAvg has an output for each label .* must be 'id'"),
        ({"label_map": "identity", "label_key": "name"}, "'identity' has an output for each label .* must be 'id'"),
        ({"label_map": "balanced", "label_key": "name"}, "'balanced' spreads one list .* must be 'id'"),
        ({"shared_fraction": 0.95}, "from 0 to 0.9"),
    ],
)
def test_what_does_not_go_together_is_refused(settings, sentence):
    with pytest.raises(UserError, match=sentence):
        BASE.replace(**settings)


def test_a_share_of_no_points_is_refused():
    config = SMALL.replace(shared_fraction=0.001)
    with pytest.raises(UserError, match="is none: make it larger, or 0"):
        divide(open_dataset(config).train, config)
