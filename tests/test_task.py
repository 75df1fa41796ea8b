"""What all parties agree on: whoever would train otherwise is told apart, whoever only looks on otherwise is not."""

import math

import pytest
import torch

from fedmlh.config import Config
from fedmlh.federated.task import Task
from fedmlh.model.stack import forward

BASE = Config(num_clients=4, num_buckets=20, hidden_sizes=(8,), optimizer="sgd", learning_rate=0.1)
#: Another value of every setting on which a client's work depends.
OTHERS = {
    "algorithm": "fedavg",
    "local_epochs": 7,
    "batch_size": 17,
    "weighting": "examples",
    "shared_fraction": 0.1,
    "update_codec": "fp16",
    "broadcast_codec": "fp16",
    "label_map": "universal",
    "label_key": "name",
    "num_tables": 3,
    "num_buckets": 21,
    "feature_map": "per-table",
    "feature_dim": 299,
    "feature_signed": True,
    "normalize": True,
    "hidden_sizes": (9,),
    "loss": "softmax",
    "output_bias": "rare",
    "loss_tau": 0.5,
    "optimizer": "adam",
    "learning_rate": 0.2,
    "learning_rate_decay": 0.9,
    "prox_mu": 0.3,
    "correction": "scaffold",
}
#: What the server does with the updates, and what a site writes down, is their own affair.
OWN = {
    "seed": 1,
    "rounds": 3,
    "quorum": 2,
    "clients_per_round": 2,
    "server_optimizer": "adam",
    "server_learning_rate": 0.5,
    "model_average": 0.5,
    "max_share": 0.5,
    "clip": "off",
    "top_k": (1,),
    "local_baseline": True,
}


def test_whoever_would_train_otherwise_has_another_fingerprint():
    configs = [BASE, *(BASE.replace(**{name: value}) for name, value in OTHERS.items())]
    tasks = [*(Task(config, 400, 50) for config in configs), Task(BASE, 401, 50), Task(BASE, 400, 51)]
    assert len({task.fingerprint for task in tasks}) == len(tasks)


@pytest.mark.parametrize("name", OWN)
def test_what_does_not_concern_the_clients_leaves_the_fingerprint(name):
    assert Task(BASE.replace(**{name: OWN[name]}), 400, 50).fingerprint == Task(BASE, 400, 50).fingerprint


def test_a_recipe_says_what_the_config_does():
    names = {name: name for name in ("loss", "optimizer", "learning_rate", "batch_size", "prox_mu", "loss_tau")}
    for setting, field in {**names, "local_epochs": "epochs"}.items():
        config = BASE.replace(**{setting: OTHERS[setting]})
        assert getattr(Task(config, 400, 50).recipe, field) == OTHERS[setting]


@pytest.mark.parametrize("hidden", [(), (9,), (9, 7)])
def test_rare_outputs_start_at_odds_of_one_to_all_and_nothing_else_changes(hidden):
    tasks = [
        Task(BASE.replace(hidden_sizes=hidden, num_buckets=50, output_bias=start), 400, 60)
        for start in ("random", "rare")
    ]
    random, rare = (task.stack.views(task.initial(3)) for task in tasks)
    for a, b in zip(random[:-1], rare[:-1], strict=True):
        assert torch.equal(a, b)
    torch.testing.assert_close(rare[-1], random[-1] - math.log(50))
    scores = torch.stack([forward(layers, torch.zeros(1, 1, layers[0].shape[1])) for layers in (random, rare)])
    assert scores.sigmoid().mean(dim=(1, 2, 3)).tolist() == pytest.approx([1 / 2, 1 / 51], rel=0.1)


def test_the_learning_rate_falls_by_the_same_factor_after_every_round():
    task = Task(BASE.replace(learning_rate_decay=0.9), 400, 50)
    assert task.recipe == task.recipe_in(1)
    assert [task.recipe_in(t).learning_rate for t in range(1, 5)] == pytest.approx([0.1, 0.09, 0.081, 0.0729])


def test_a_site_of_a_version_that_trains_otherwise_is_refused(monkeypatch):
    before = Task(BASE, 400, 50).fingerprint
    monkeypatch.setattr("fedmlh.federated.task.TRAINING", 0)
    assert Task(BASE, 400, 50).fingerprint != before
