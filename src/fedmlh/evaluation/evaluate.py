"""How good a model is on a set of points, by every metric, in batches."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from fedmlh.data.dataset import Labels, Split
from fedmlh.evaluation.metrics import Metrics, Sums, frequent_labels, inverse_propensities, summarize_sums
from fedmlh.federated.task import Seeds, Task
from fedmlh.model.ranking import Ranker

Values = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Prepared:
    """Points to evaluate on, their features hashed once for the whole run."""

    features: tuple[csr_matrix, ...]
    Y: csr_matrix
    excluded: csr_matrix | None

    def __len__(self) -> int:
        return int(self.Y.shape[0])


@dataclass(frozen=True)
class LabelCounts:
    """How many of how many points carry each label: what tells frequent labels from rare ones."""

    counts: np.ndarray  # [p]
    points: int

    @classmethod
    def of(cls, split: Split) -> "LabelCounts":
        """The counts of a set of points."""
        return cls(np.bincount(split.Y.indices, minlength=split.Y.shape[1]), len(split))


class Evaluator:
    """Measures models of one task; label frequencies and propensities come from training points."""

    def __init__(
        self, task: Task, seeds: Seeds, labels: Labels, frequencies: LabelCounts, device: torch.device
    ) -> None:
        config, counts, points = task.config, frequencies.counts, frequencies.points
        self.ks = config.top_k
        self.frequent = frequent_labels(counts, points, config.frequent_threshold)
        self.inverse_propensity = inverse_propensities(counts, points, config.propensity_a, config.propensity_b)
        self.feature_map = task.feature_map(seeds)
        buckets = torch.from_numpy(task.label_map(seeds, labels.keys).buckets).to(device)
        self.ranker = Ranker(task.stack, buckets, config.loss, config.decoding)
        self.device = device

    def prepare(self, split: Split) -> Prepared:
        """Hash the features of a split, once."""
        return Prepared(self.feature_map.apply(split.X), split.Y, split.excluded)

    def evaluate(self, model: Tensor, points: Prepared) -> Values:
        """Every metric of a model on these points."""
        return summarize_sums(self.measure(model, points))

    def measure(self, model: Tensor, points: Prepared) -> Sums:
        """The same as sums, which may be added to those of other points."""
        metrics = Metrics(self.ks, self.frequent, self.inverse_propensity)
        for rows, labels, _ in self.ranker.rank(model.to(self.device), points.features, max(self.ks), points.excluded):
            metrics.add(labels, points.Y[rows])
        return metrics.sums()

    def evaluate_parts(self, model: Tensor, points: Prepared, parts: Mapping[int, np.ndarray]) -> dict[int, Values]:
        """The same for parts of the points, given by their rows; every point is ranked once."""
        ranked = self.ranker.rank(model.to(self.device), points.features, max(self.ks), points.excluded)
        labels = np.concatenate([labels for _, labels, _ in ranked])
        values = {}
        for part, rows in parts.items():
            metrics = Metrics(self.ks, self.frequent, self.inverse_propensity)
            metrics.add(labels[rows], points.Y[rows])
            values[part] = metrics.values()
        return values


def selection_score(values: Values, metric: str = "precision") -> float:
    """The number by which rounds are compared: the mean of the metric over all k."""
    return sum(values[metric].values()) / len(values[metric])
