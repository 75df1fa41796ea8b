"""What clients minimise and what holds them together: FedProx, SCAFFOLD, VRL-SGD, balanced softmax, shared points."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from fedmlh.config import Config
from fedmlh.data.dataset import Labels, Split
from fedmlh.data.division import divide
from fedmlh.data.source import open_dataset
from fedmlh.engines.local import LocalClients
from fedmlh.engines.run import run
from fedmlh.errors import UserError
from fedmlh.federated.client import Client, Memory
from fedmlh.federated.codecs import make_codec
from fedmlh.federated.corrections import correct, vrl_delta
from fedmlh.federated.messages import BroadcastHeader, Reason, Rejected, UpdateHeader, pack, unpack
from fedmlh.federated.server import Server
from fedmlh.federated.sharing import add_points, encode_points
from fedmlh.federated.task import Task
from fedmlh.model import local_training
from fedmlh.model.local_training import Shard, draw_orders, full_gradient, train_shard
from fedmlh.model.losses import find_loss
from fedmlh.model.recipe import Recipe
from fedmlh.model.stack import Stack, forward
from fedmlh.parts import OWN

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
D, P = 12, 15
SIZES = (11, 26, 15, 9, 18)
BASE = Config(
    seed=3, num_clients=5, clients_per_round=3, quorum=2, local_epochs=2, batch_size=6, num_tables=2, num_buckets=6,
    feature_map="none", hidden_sizes=(5,), optimizer="sgd", learning_rate=0.3, loss="softmax",
)  # fmt: skip
EVERYONE = {"clients_per_round": 5, "quorum": 5}
VRL = {"correction": "vrl-sgd", **EVERYONE}
ALGORITHMS = ("fedmlh", "fedavg")


def draw_points(sizes, seed=0, *, d=D, p=P):
    """Clients whose features and labels follow laws of their own."""
    rng = np.random.default_rng(seed)
    for n in sizes:
        shift, favoured = rng.normal(size=d), rng.random(p) ** 3
        X = (rng.normal(size=(n, d)) + shift) * (rng.random((n, d)) < 0.4)
        yield csr_matrix(X.astype(np.float32)), csr_matrix((rng.random((n, p)) < favoured / 2).astype(np.float32))


class Federation:
    """A server and its clients, whose replies may go wrong on the way."""

    def __init__(self, config, points, *, shared=b"", **settings):
        self.config = config.replace(**settings)
        (_, p), d = points[0][1].shape, points[0][0].shape[1]
        task = Task(self.config, d, p)
        self.clients = {k: Client(task, k, X, Y, Labels.numbered(p), CPU) for k, (X, Y) in enumerate(points)}
        self.server = Server(task, {k: len(client) for k, client in self.clients.items()}, CPU, shared)
        self.local, self.state = LocalClients(self.clients, 1), self.server.begin()
        self.down, self.up, self.asked = [], [], []
        self.attempt = 0

    def run(self, rounds, spoil=lambda round, attempt, client: False):
        """So many rounds; yields after each. A reply that `spoil` names loses its last byte."""
        for _ in range(rounds):
            self.attempt = -1

            def exchange(sampled, broadcast):
                self.attempt += 1
                self.asked.append(sampled)

                def noted(client):
                    self.down.append(broadcast(client))
                    return self.down[-1]

                for client, reply in self.local.exchange(sampled, noted):
                    assert isinstance(reply, bytes), reply
                    self.up.append(reply[:-1] if spoil(self.state.round + 1, self.attempt, client) else reply)
                    yield client, self.up[-1]

            self.state, report = self.server.run_round(self.state, exchange)
            yield report

    def finish(self, rounds):
        for _ in self.run(rounds):
            pass
        return self.state.model

    def settled(self, client):
        """What a client holds once it knows which of its updates was accepted."""
        memory = self.local.memories.get(client, Memory())
        return memory.settle(tuple(self.state.accepted.get(client, ())))


@pytest.fixture(scope="module")
def points():
    return list(draw_points(SIZES))


# FedProx.


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_fedprox_without_a_pull_is_fedavg(points, algorithm, optimizer):
    config = BASE.replace(algorithm=algorithm, optimizer=optimizer, learning_rate=0.05)
    plain = Federation(config, points).finish(3)
    assert torch.equal(Federation(config, points, prox_mu=0.0).finish(3), plain)
    assert not torch.equal(Federation(config, points, prox_mu=0.1).finish(3), plain)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_strong_pull_keeps_clients_at_the_global_model(points, algorithm):
    """They end where the pull balances the gradient, about 1 / μ of a gradient away."""
    moved = {}
    for mu in (0, 10, 100):
        config = BASE.replace(algorithm=algorithm, learning_rate=0.01, prox_mu=mu, local_epochs=100, batch_size=30)
        fed = Federation(config, points)
        moved[mu] = float((fed.finish(1) - fed.server.begin().model).norm())
    assert moved[0] > 5 * moved[10] > 45 * moved[100] > 0


def test_a_correction_of_zero_changes_no_bit_of_sgd(points):
    """Rows that are updated without need, by nothing, stay what they are."""
    stack, shard, recipe = linear_case(points, (5,))
    orders = draw_orders(len(shard), recipe, np.random.default_rng(0))
    start = stack.initial(0)
    zero = train_shard(stack, start, shard, recipe, orders, torch.zeros_like(start))
    assert torch.equal(zero[0], train_shard(stack, start, shard, recipe, orders)[0])


# Balanced losses.


def linear_case(points, hidden, loss="softmax", **settings):
    X, Y = points[1]
    shard = Shard((X,), (Y, Y[:, ::-1].tocsr()))
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


# SCAFFOLD.


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
def test_the_servers_control_is_the_mean_of_the_clients(points, settings):
    """After every round: where all went well, where an update was refused, where an attempt was given up."""

    def spoil(round, attempt, client):
        return (round == 2 and client == fed.asked[-1][0]) or (round == 3 and attempt == 0)

    fed = Federation(BASE.replace(correction="scaffold"), points, **settings)
    reports = []
    for report in fed.run(6, spoil):
        reports.append((report.attempts, len(report.refused)))
        controls = [fed.settled(k).get("control", torch.zeros_like(fed.state.model)) for k in fed.clients]
        mean = torch.stack(controls).double().mean(0).float()
        torch.testing.assert_close(fed.state.vectors["control"], mean, rtol=0, atol=3e-8)
        assert mean.norm() > 0.01
    assert reports == [(1, 0), (1, 1), (2, 3), (1, 0), (1, 0), (1, 0)]
    assert not torch.equal(controls[0], controls[1])


def test_a_control_is_the_gradient_at_the_model_that_was_sent(points):
    fed = Federation(BASE.replace(correction="scaffold", clients_per_round=5), points)
    fed.finish(2)
    before = fed.state.model
    fed.finish(1)
    for k, client in fed.clients.items():
        shard = client.prepare(fed.server.seeds)
        gradient = full_gradient(client.task.stack, before, shard, client.task.recipe)
        torch.testing.assert_close(fed.settled(k)["control"], gradient, rtol=0, atol=1e-7)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_scaffold_among_equal_clients_is_fedavg(points, algorithm):
    config = BASE.replace(algorithm=algorithm, clients_per_round=5)
    fed = Federation(config, [points[0]] * 5, correction="scaffold")
    plain = Federation(config, [points[0]] * 5).finish(4)
    torch.testing.assert_close(fed.finish(4), plain, rtol=0, atol=2e-6)
    assert (plain - fed.server.begin().model).abs().max() > 0.05
    unequal = Federation(config, points)
    assert not torch.allclose(Federation(config, points, correction="scaffold").finish(4), unequal.finish(4), atol=1e-3)


def test_no_control_of_the_servers_is_one_of_zeros(points):
    fed = Federation(BASE.replace(correction="scaffold"), points)
    header, _ = unpack(BroadcastHeader, fed.server.broadcast(fed.state, 0, 1), 1 << 20)
    model, mine = fed.state.model, fed.server.task.stack.initial(1)
    for kept, expected in (({"control": mine}, -mine), ({}, torch.zeros_like(mine))):
        for control in (None, torch.zeros_like(mine)):
            assert torch.equal(correct(fed.config, header, model, control, kept), expected)
    assert mine.norm() > 0.1


def test_controls_travel_in_the_messages_and_are_counted(points):
    fed = Federation(BASE.replace(correction="scaffold", update_codec="fp16"), points)
    reports = list(fed.run(3))
    size = len(fed.state.model)
    for message in fed.up:
        header, payload = unpack(UpdateHeader, message, 1 << 20)
        assert (header.control, len(payload)) == (2 * size, 2 * size + 2 * size)
    for number, message in enumerate(fed.down):
        header, payload = unpack(BroadcastHeader, message, 1 << 20)
        assert (header.control, len(payload)) == ((0, 0) if number < 3 else (4 * size, 4 * size + 4 * size))
    assert sum(report.bytes_up for report in reports) == sum(map(len, fed.up))
    assert sum(report.bytes_down for report in reports) == sum(map(len, fed.down))


def test_a_faulty_control_is_refused(points):
    """Sizes that do not add up, numbers that are not finite, in both directions; the state is left as it was."""
    fed = Federation(BASE.replace(correction="scaffold", quorum=1, max_attempts=1), points)
    fed.finish(2)
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
                fed.clients[1].accept(
                    pack(dataclasses.replace(header, control=control), payload), fed.local.memories.get(1, Memory())
                )
            assert refusal.value.reason is reason, name


def test_an_update_with_a_control_that_nobody_asked_for_is_refused(points):
    fed = Federation(BASE.replace(quorum=1, max_attempts=1), points)

    def exchange(sampled, broadcast):
        for client in sampled:
            header, payload = unpack(UpdateHeader, fed.clients[client].answer(broadcast(client), Memory())[0], 1 << 20)
            yield client, pack(dataclasses.replace(header, control=8), bytes(payload))

    with pytest.raises(UserError, match="8 bytes of control"):
        fed.server.run_round(fed.state, exchange)


# Variance-reduced local SGD.


@pytest.mark.parametrize("settings", [{}, {"algorithm": "fedavg"}, {"update_codec": "fp16"}], ids=str)
def test_what_is_taken_off_the_gradients_adds_up_to_nothing(points, settings):
    """Though clients take unequal numbers of steps, and after an attempt that was given up."""
    fed = Federation(BASE.replace(**VRL), points, **settings)
    assert len({fed.server.task.recipe.steps(n) for n in SIZES}) > 1
    for report in fed.run(5, lambda round, attempt, client: round == 3 and attempt == 0 and client == 2):
        assert report.attempts == (2 if report.round == 3 else 1)
        reach = fed.server.steps * fed.config.learning_rate
        deltas = torch.stack([vrl_delta(fed.state.model, fed.settled(k), reach) for k in fed.clients])
        assert deltas.sum(0).abs().max() < 1e-6
        assert deltas.norm(dim=1).min() > 0.01


def test_the_first_correction_is_liangs(points):
    """With equal numbers of steps: Δ_k = (x̂ − x_k) / (steps · γ), the negative goes into the next gradients."""
    fed = Federation(BASE.replace(**VRL), [points[k] for k in (1, 1, 1, 1, 1)])
    start = fed.server.begin().model
    fed.finish(1)
    steps = 2 * -(-SIZES[1] // 6)
    for k, client in fed.clients.items():
        _, payload = unpack(
            UpdateHeader, next(m for m in fed.up if unpack(UpdateHeader, m, 1 << 20)[0].client == k), 1 << 20
        )
        end = start + make_codec("fp32").decode(payload, len(start), np.random.default_rng(0))
        work = client.accept(fed.server.broadcast(fed.state, 0, k), fed.local.memories[k])
        torch.testing.assert_close(work.correction, -(fed.state.model - end) / (steps * 0.3), rtol=1e-5, atol=1e-7)


# Both, where a client loses what it kept, and on a problem whose answer is known.


@pytest.mark.parametrize(
    "settings", [VRL, {"correction": "scaffold", **EVERYONE, "quorum": 2}, {"correction": "scaffold"}], ids=str
)
@pytest.mark.parametrize("codec", ["fp32", "int8"])
def test_corrections_add_up_also_after_a_client_has_lost_its_own(points, settings, codec):
    fed = Federation(BASE.replace(**settings), points, update_codec=codec)
    fed.finish(4)
    del fed.local.memories[2]
    asked_anew = 0
    for _ in range(6):
        fed.state, report = fed.server.run_round(fed.state, fed.local.exchange)
        asked_anew += sum(entry["reason"] == str(Reason.STATE) for entry in report.refused)
        if fed.config.correction == "scaffold":
            controls = [fed.settled(k).get("control", torch.zeros_like(fed.state.model)) for k in fed.clients]
            off = fed.state.vectors["control"] - torch.stack(controls).double().mean(0).float()
        else:
            reach = fed.server.steps * fed.config.learning_rate
            off = torch.stack([vrl_delta(fed.state.model, fed.settled(k), reach) for k in fed.clients]).sum(0)
        assert off.abs().max() < 1e-6
    assert asked_anew == 1


def test_a_client_whose_labels_do_not_fit_the_model_does_not_train(points):
    X, Y = points[0]
    client = Client(Task(BASE.replace(algorithm="fedavg"), D, P), 0, X, Y[:, :-1].tocsr(), Labels.numbered(P - 1), CPU)
    fed = Federation(BASE.replace(algorithm="fedavg"), points)
    with pytest.raises(Rejected, match="do not fit the outputs"):
        client.answer(fed.server.broadcast(fed.state, 0, 0), Memory())


@pytest.fixture(scope="module")
def convex():
    """Three clients that disagree, a linear model, steps over all points; and where the clients' mean loss is least."""
    parts = list(draw_points((60, 60, 60), seed=1, d=4, p=3))
    config = BASE.replace(
        algorithm="fedavg", hidden_sizes=(), loss="bce", num_clients=3, clients_per_round=3, quorum=3, batch_size=60,
        local_epochs=30, learning_rate=1.0,
    )  # fmt: skip
    fed = Federation(config, parts)
    best = fed.server.begin().model.double().requires_grad_()
    inputs = torch.from_numpy(np.concatenate([X.toarray() for X, _ in parts]))[None].double()
    targets = torch.from_numpy(np.concatenate([Y.toarray() for _, Y in parts])).double()
    search = torch.optim.LBFGS(
        [best], lr=1, max_iter=500, tolerance_grad=1e-9, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure():
        search.zero_grad()
        logits = forward(fed.server.task.stack.views(best), inputs)[0]
        value = torch.nn.functional.binary_cross_entropy_with_logits(logits, targets)
        value.backward()
        return value

    search.step(closure)
    assert best.grad.abs().max() < 1e-6
    return config, parts, best.detach().float()


@pytest.mark.parametrize("correction", ["scaffold", "vrl-sgd"])
def test_corrections_find_the_joint_optimum_that_fedavg_misses(convex, correction):
    config, parts, best = convex
    missed = float((Federation(config, parts).finish(40) - best).norm())
    found = float((Federation(config, parts, correction=correction).finish(40) - best).norm())
    assert missed > 0.1
    assert found < missed / 500


# One result, however the work is done.


@pytest.mark.parametrize(
    "settings",
    [{"correction": "scaffold"}, VRL, {"prox_mu": 0.2}, {"learning_rate_decay": 0.5}],
    ids=["scaffold", "vrl", "prox", "decay"],
)
def test_trained_together_or_one_by_one(points, settings):
    """What a GPU's trainer is handed is what each client would train with alone."""
    fed, other = Federation(BASE.replace(**settings), points), Federation(BASE.replace(**settings), points)
    task, seeds = fed.server.task, fed.server.seeds

    class Together:
        def train_clients(self, models, clients, orders, learning_rate, corrections):
            recipe = dataclasses.replace(task.recipe, learning_rate=learning_rate)
            corrections = corrections or [None] * len(clients)
            shards = [fed.clients[k].prepare(seeds) for k in clients]
            return [
                train_shard(task.stack, model, shard, recipe, order, correction)
                for model, shard, order, correction in zip(models, shards, orders, corrections, strict=True)
            ]

    fed.local.trainer = Together()
    assert torch.equal(fed.finish(4), other.finish(4))


SMALL = Config(
    synthetic_points=200, synthetic_features=60, synthetic_labels=40, num_buckets=10, num_tables=2, feature_dim=16,
    hidden_sizes=(8,), num_clients=4, clients_per_round=2, local_epochs=1, batch_size=40, rounds=4, learning_rate=0.02,
)  # fmt: skip


@pytest.mark.parametrize(
    "settings",
    [
        {"correction": "scaffold", "server_optimizer": "momentum"},
        {"correction": "scaffold", "update_codec": "fp16", "loss": "balanced-softmax", "algorithm": "fedavg"},
        {"correction": "scaffold", "update_codec": "int8", "broadcast_codec": "int4+zlib"},
        {"correction": "scaffold", "update_codec": "grid-100%", "broadcast_codec": "grid-150%"},
        {"correction": "vrl-sgd", "clients_per_round": 4, "quorum": 4, "optimizer": "sgd", "prox_mu": 0.1},
        {"shared_fraction": 0.1, "prox_mu": 0.1, "loss": "balanced-softmax"},
    ],
    ids=["scaffold", "scaffold-fp16", "scaffold-coarse", "scaffold-grid", "vrl-sgd", "shared"],
)
def test_a_resumed_run_has_the_same_bits(tmp_path, settings):
    config = SMALL.replace(**settings)
    data = open_dataset(config)
    run(config, data, tmp_path / "whole")
    run(config.replace(rounds=2), data, tmp_path / "parts")
    run(config, data, tmp_path / "parts", resume=True)
    whole, parts = (tmp_path / name / "checkpoint" / "round-000004" for name in ("whole", "parts"))
    names = sorted(path.name for path in whole.glob("*.safetensors"))
    assert names == sorted(path.name for path in parts.glob("*.safetensors"))
    assert ("server-control.safetensors" in names) == (config.correction == "scaffold")
    for name in names:
        assert (whole / name).read_bytes() == (parts / name).read_bytes()
    assert bytes_down(tmp_path / "whole") == bytes_down(tmp_path / "parts")


def test_a_client_alone_needs_no_corrections_and_sends_nothing(tmp_path):
    """The baseline beside a corrected or a coded run is the one beside a plain run."""
    rows = []
    server = {"server_optimizer": "adam", "server_learning_rate": 0.01}
    codecs = {"update_codec": "topk-1%", "broadcast_codec": "int4"}
    for number, settings in enumerate([{}, {"correction": "scaffold", "prox_mu": 0.1}, {**server, **codecs}]):
        config = SMALL.replace(local_baseline=True, rounds=2, **settings)
        summary = run(config, open_dataset(config), tmp_path / str(number)).summary
        rows.append([row["precision_alone"] for row in summary["clients"]])
    assert rows[0] == rows[1] == rows[2]


# Points for everyone.


def bytes_down(folder):
    return [json.loads(line)["bytes_down"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def ids(split):
    """Points by their content."""
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
        # Four bytes a value or index, but for the names and lengths of five arrays.
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
    reports = list(fed.run(4, lambda round, attempt, client: (round, attempt) == (1, 0) or client == 3))
    assert reports[0].attempts > 1
    reached = set().union(*fed.asked)
    assert fed.state.reached == reached
    assert sum(report.bytes_down for report in reports) == sum(map(len, fed.down)) + 1000 * len(reached)


# A learning rate that falls from round to round.


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_falling_learning_rate_scales_the_steps_of_later_rounds(points, optimizer):
    plain = Federation(BASE, points, optimizer=optimizer)
    fading = Federation(BASE, points, optimizer=optimizer, learning_rate_decay=0.001)
    first = plain.finish(1)
    assert torch.equal(fading.finish(1), first)
    moved, crept = plain.finish(1) - first, fading.finish(1) - first
    # A thousandth of the rate: the gradients hardly change on the way, nor does what is clipped by rounding.
    assert 0.2e-3 < float(crept.norm() / moved.norm()) < 5e-3
    assert fading.server.task.recipe_in(3).learning_rate == pytest.approx(0.3e-6)


# What is refused.


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"prox_mu": 4, "learning_rate": 0.5}, "overshoot the global model"),
        ({"correction": "scaffold", "weighting": "examples"}, "use weighting 'uniform'"),
        ({**VRL, "weighting": "examples"}, "use weighting 'uniform'"),
        ({**VRL, "optimizer": "adam"}, "needs optimizer 'sgd'"),
        ({**VRL, "learning_rate": 0.0}, "learning_rate above 0"),
        ({**VRL, "learning_rate_decay": 0.9}, "set learning_rate_decay=1"),
        ({**VRL, "clients_per_round": 4, "quorum": 4}, "every client in every round"),
        ({**VRL, "quorum": 4}, "every client in every round"),
        ({**VRL, "server_optimizer": "adam"}, "server_optimizer 'average'"),
        ({**VRL, "server_learning_rate": 0.5}, "server_learning_rate 1"),
        ({**VRL, "broadcast_codec": "fp16"}, "broadcast_codec 'fp32'"),
        ({**VRL, "update_codec": "topk-10%"}, "again and again"),
        ({**VRL, "update_codec": "sketch-25%+zlib"}, "again and again"),
        ({"correction": "scaffold", "update_codec": "int2"}, "would grow from round to round"),
        ({"correction": "scaffold", "update_codec": "sketch-25%"}, "would grow from round to round"),
        ({"correction": "drift"}, "choose one of none, scaffold, vrl-sgd"),
        ({"server_optimizer": "adam", "server_tau": 0.0}, "set server_tau above 0"),
        ({"server_optimizer": "fedexp", "server_tau": 0.0}, "set server_tau above 0"),
        ({"algorithm": "fedavg", "label_key": "name"}, "FedAvg has an output for each label .* must be 'id'"),
        ({"label_map": "identity", "label_key": "name"}, "'identity' has an output for each label .* must be 'id'"),
        ({"label_map": "balanced", "label_key": "name"}, "'balanced' deals out one list .* must be 'id'"),
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
