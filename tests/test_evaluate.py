"""Evaluating parts of a set, ranked once, gives what evaluating each part alone would."""

import numpy as np
import torch

from fedmlh.config import Config
from fedmlh.data.source import open_dataset
from fedmlh.evaluation.evaluate import Evaluator, LabelCounts
from fedmlh.federated.task import Task
from fedmlh.model.forward import forward, forward_sparse

CONFIG = Config(
    synthetic_points=200, synthetic_features=60, synthetic_labels=40, num_buckets=10, num_tables=3, feature_dim=16,
    hidden_sizes=(8,), feature_map="per-table",
)  # fmt: skip
CPU = torch.device("cpu")


def test_parts_are_measured_as_if_alone():
    data = open_dataset(CONFIG)
    task = Task(CONFIG, data.num_features, data.num_labels)
    seeds = task.draw_seeds()
    evaluator, model = (
        Evaluator.of_task(task, seeds, data.labels, LabelCounts.of(data.train), CPU),
        task.stack.initial(1),
    )
    rng = np.random.default_rng(0)
    parts = {3: np.array([5]), 7: rng.choice(len(data.test), 20), 1: np.arange(len(data.test))}
    found = evaluator.evaluate_parts(model, evaluator.prepare(data.test), parts)
    assert list(found) == [3, 7, 1]
    for client, rows in parts.items():
        assert found[client] == evaluator.evaluate(model, evaluator.prepare(data.test.take(rows)))


def test_sparse_inputs_give_the_logits_of_dense_ones():
    data = open_dataset(CONFIG)
    for maps in ("per-table", "shared", "none"):
        task = Task(CONFIG.replace(feature_map=maps, hidden_sizes=(8, 7)), data.num_features, data.num_labels)
        features = task.feature_map(task.draw_seeds()).apply(data.test.X)
        layers = task.stack.views(task.stack.initial(2))
        dense = torch.from_numpy(np.stack([x.toarray() for x in features]))
        torch.testing.assert_close(forward_sparse(layers, features), forward(layers, dense), rtol=0, atol=1e-6)
