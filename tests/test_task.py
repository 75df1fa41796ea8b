"""What the task makes of the settings on which all parties agree (which these are: test_settings.py)."""

import math

import pytest
import torch

from fedmlh.config import Config
from fedmlh.federated.task import Task
from fedmlh.model.forward import forward

BASE = Config(num_clients=4, num_buckets=20, hidden_sizes=(8,), optimizer="sgd", learning_rate=0.1)


def test_a_recipe_says_what_the_config_does():
    others = {"loss": "softmax", "optimizer": "adam", "learning_rate": 0.2, "batch_size": 17, "prox_mu": 0.3}
    for setting, value in {**others, "loss_tau": 0.5, "local_epochs": 7}.items():
        recipe = Task(BASE.replace(**{setting: value}), 400, 50).recipe
        assert getattr(recipe, setting.removeprefix("local_")) == value


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


def test_tasks_over_other_sizes_are_told_apart():
    assert len({Task(BASE, *sizes).fingerprint for sizes in ((400, 50), (401, 50), (400, 51))}) == 3


def test_a_site_of_a_version_that_trains_otherwise_is_refused(monkeypatch):
    before = Task(BASE, 400, 50).fingerprint
    monkeypatch.setattr("fedmlh.federated.task.TRAINING", 0)
    assert Task(BASE, 400, 50).fingerprint != before
