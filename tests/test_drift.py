"""Remedies for drift: they find the joint optimum that FedAvg misses, however the work is done and whoever forgets."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import torch

from federation import BASE, EVERYONE, POINTS, SMALL, D, Federation, P, bytes_down, draw_points
from fedmlh.data.source import open_dataset
from fedmlh.engines.local import ClientsTogether
from fedmlh.engines.run import run
from fedmlh.errors import UserError
from fedmlh.federated.drift.vrl_sgd import find_delta
from fedmlh.federated.messages import Reason
from fedmlh.model.forward import forward
from fedmlh.model.local_training import HashedShard, draw_orders, train_shard
from fedmlh.model.recipe import Recipe
from fedmlh.model.stack import Stack
from fedmlh.parts import OWN

pytestmark = pytest.mark.usefixtures("one_thread")

VRL = {"correction": "vrl-sgd", **EVERYONE}


@pytest.mark.parametrize(
    "settings", [VRL, {"correction": "scaffold", **EVERYONE, "quorum": 2}, {"correction": "scaffold"}], ids=str
)
@pytest.mark.parametrize("codec", ["fp32", "int8"])
def test_corrections_add_up_also_after_a_client_has_lost_its_own(settings, codec):
    fed = Federation(BASE.replace(**settings), POINTS, update_codec=codec)
    fed.run(4)
    del fed.local.memories[2]
    asked_again = 0
    for _ in range(6):
        fed.state, report = fed.server.run_round(fed.state, fed.local.exchange)
        asked_again += sum(entry.reason == Reason.STATE for entry in report.refused)
        if fed.config.correction == "scaffold":
            controls = [fed.settled(k).get("control", torch.zeros_like(fed.state.model)) for k in fed.clients]
            off = fed.state.vectors["control"] - torch.stack(controls).double().mean(0).float()
        else:
            reach = fed.server.steps * fed.config.learning_rate
            off = torch.stack([find_delta(fed.state.model, fed.settled(k), reach) for k in fed.clients]).sum(0)
        assert off.abs().max() < 1e-6
    assert asked_again == 1


@pytest.fixture(scope="module")
def convex():
    """Return three clients that disagree, a linear model with steps over all points, and where mean loss is least."""
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
    missed = float((Federation(config, parts).run(40).model - best).norm())
    found = float((Federation(config, parts, correction=correction).run(40).model - best).norm())
    assert missed > 0.1
    assert found < missed / 500


@pytest.mark.parametrize(
    "settings",
    [{"correction": "scaffold"}, VRL, {"prox_mu": 0.2}, {"learning_rate_decay": 0.5}],
    ids=["scaffold", "vrl", "prox", "decay"],
)
def test_trained_together_or_one_by_one(settings):
    """What a GPU's trainer is handed is what each client would train with alone."""
    fed, other = Federation(BASE.replace(**settings), POINTS), Federation(BASE.replace(**settings), POINTS)
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

    fed.local = ClientsTogether(fed.clients, Together())
    assert torch.equal(fed.run(4).model, other.run(4).model)


def test_a_correction_of_zero_changes_no_bit_of_sgd():
    """Rows that are updated without need, by nothing, stay what they are."""
    X, Y = POINTS[1]
    shard, stack, recipe = (
        HashedShard((X,), (Y, Y[:, ::-1].tocsr())),
        Stack(2, D, (5,), P),
        Recipe("softmax", "sgd", 0.3, 2, 7),
    )
    orders = draw_orders(len(shard), recipe, np.random.default_rng(0))
    start = stack.initial(0)
    zero = train_shard(stack, start, shard, recipe, orders, torch.zeros_like(start))
    assert torch.equal(zero[0], train_shard(stack, start, shard, recipe, orders)[0])


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


def test_an_unknown_remedy_is_refused_with_the_names_of_all():
    with pytest.raises(UserError, match="choose one of none, scaffold, vrl-sgd"):
        BASE.replace(correction="drift")


@pytest.mark.parametrize("settings", [{"correction": "scaffold"}, VRL], ids=["scaffold", "vrl-sgd"])
def test_what_adds_up_over_clients_needs_a_rule_that_adds_up(settings, monkeypatch):
    monkeypatch.setitem(OWN["aggregation"], "other", "fedmlh.federated.aggregate")
    with pytest.raises(UserError, match="adds up over clients: use aggregation 'mean'"):
        BASE.replace(aggregation="other", **settings)


def test_premises_are_checked_without_torch():
    """Commands that only show a config do not wait for it."""
    code = (
        "import sys; from fedmlh.config import Config; c = Config(optimizer='sgd', learning_rate=0.1, prox_mu=0.1);"
        "c.replace(correction='scaffold');"
        "c.replace(correction='vrl-sgd', num_clients=4, clients_per_round=4, quorum=4);"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
