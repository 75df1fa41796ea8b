"""Evaluation of a model on a set of points, by every metric, in batches."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from scipy.sparse import csr_matrix

from fedmlh.config import Config
from fedmlh.data.dataset import Labels, Split
from fedmlh.evaluation.calibration import BEST, Curve, calibrate, find_form
from fedmlh.evaluation.label_figures import LabelFigures
from fedmlh.evaluation.label_recall import LabelRecall, list_bands
from fedmlh.evaluation.metrics import Metrics, Sums, frequent_labels, inverse_propensities
from fedmlh.evaluation.own import Measures, OwnSums
from fedmlh.evaluation.point_hits import PointHits
from fedmlh.evaluation.proposals import DEPTH, Gatherer, Proposals, Rule
from fedmlh.federated.task import Seeds, Task
from fedmlh.hashing.features import FeatureMap
from fedmlh.model.ranking import Ranker

Values = dict[str, dict[str, float]]


@dataclass(frozen=True)
class HashedSplit:
    """A `Split` to evaluate on: its features hashed once for the whole run, its labels as they are."""

    features: tuple[csr_matrix, ...]
    Y: csr_matrix
    excluded: csr_matrix | None

    def __len__(self) -> int:
        return int(self.Y.shape[0])


@dataclass(frozen=True)
class Examined:
    """The results of a model on a test part that lies in one process."""

    values: Values  # every metric that sites can measure as well
    by_label: Values  # recall per label, averaged over all labels and over bins
    points: PointHits
    proposals: Proposals
    labels: LabelFigures


@dataclass(frozen=True)
class LabelCounts:
    """How many points carry each label, out of how many: this tells frequent labels from rare ones."""

    counts: np.ndarray  # [p]
    points: int

    @classmethod
    def of(cls, split: Split) -> "LabelCounts":
        """Return the counts of a set of points."""
        return cls(np.bincount(split.Y.indices, minlength=split.Y.shape[1]), len(split))


class Features(Protocol):
    """Maps from raw features to the inputs of a model."""

    def apply(self, X: csr_matrix) -> tuple[csr_matrix, ...]:
        """Return one matrix per map."""


class Ranks(Protocol):
    """A ranking of labels by models of one kind."""

    def rank(
        self, model: Any, features: tuple[csr_matrix, ...], k: int, excluded: csr_matrix | None = None
    ) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Yield rows, labels [n, k] and scores [n, k] of one batch after another."""


def make_network_tools(
    task: Task, seeds: Seeds, labels: Labels, device: str | torch.device
) -> tuple[FeatureMap, Ranker]:
    """Return the feature map of the networks of a task, and what ranks labels by their outputs."""
    buckets = torch.from_numpy(task.label_map(seeds, labels.keys).buckets).to(device)
    return task.feature_map(seeds), Ranker(task.stack, buckets, task.config.loss, task.config.decoding)


class Evaluator:
    """Measures models of one kind; label frequencies and propensities come from training points."""

    def __init__(self, config: Config, frequencies: LabelCounts, feature_map: Features, ranker: Ranks) -> None:
        counts, points = frequencies.counts, frequencies.points
        self.ks = config.top_k
        self.own = config.metrics
        self.counts = counts
        self.frequent = frequent_labels(counts, points, config.frequent_threshold)
        self.inverse_propensity = inverse_propensities(counts, points, config.propensity_a, config.propensity_b)
        self.feature_map = feature_map
        self.ranker = ranker

    @classmethod
    def of_task(
        cls, task: Task, seeds: Seeds, labels: Labels, frequencies: LabelCounts, device: torch.device
    ) -> "Evaluator":
        """Return an evaluator of the networks of a task."""
        return cls(task.config, frequencies, *make_network_tools(task, seeds, labels, device))

    def prepare(self, split: Split) -> HashedSplit:
        """Hash the features of a split, once."""
        return HashedSplit(self.feature_map.apply(split.X), split.Y, split.excluded)

    def evaluate(self, model: Any, points: HashedSplit) -> Values:
        """Return every metric of a model on these points."""
        return self._count(model, points).values()

    def measure(self, model: Any, points: HashedSplit) -> tuple[Sums, OwnSums]:
        """Return every metric as sums, ours and those of users; sums over other points can be added to them."""
        measures = self._count(model, points)
        return measures.sums(), measures.own_sums()

    def _count(self, model: Any, points: HashedSplit) -> Measures:
        metrics = self.metrics()
        for rows, labels, _ in self.ranker.rank(model, points.features, max(self.ks), points.excluded):
            metrics.add(labels, points.Y[rows])
        return metrics

    def examine(
        self, model: Any, points: HashedSplit, curve: Curve | None = None, rule: Rule | None = None
    ) -> Examined:
        """Return every metric of a model, and how it does label by label and point by point.

        Each point is ranked once. `curve` turns scores into probabilities, `rule` says which labels are proposed.
        """
        most, num_labels = max(self.ks), len(self.counts)
        metrics, recall, ranked = self.metrics(), LabelRecall(self.ks, self.counts), []
        proposals = Gatherer(rule or Rule.of(curve, most), curve, num_labels)
        depth = max(most, min(DEPTH, num_labels))
        for rows, labels, scores in self.ranker.rank(model, points.features, depth, points.excluded):
            Y, first = points.Y[rows], labels[:, :most].copy()
            metrics.add(first, Y)
            recall.add(first, Y)
            ranked.append(first)
            proposals.add(labels, scores, Y)
        hits = PointHits.of(ranked, points.Y, self.ks, self.inverse_propensity)
        found = proposals.proposals()
        return Examined(metrics.values(), recall.values(), hits, found, LabelFigures.of(found, self.counts))

    def evaluate_parts(self, model: Any, points: HashedSplit, parts: Mapping[int, np.ndarray]) -> dict[int, Values]:
        """Return every metric for several parts of the points, given by their rows; each point is ranked once."""
        ranked = self.ranker.rank(model, points.features, max(self.ks), points.excluded)
        return self.judge_parts(np.concatenate([labels for _, labels, _ in ranked]), points.Y, parts)

    def judge(self, labels: np.ndarray, Y: csr_matrix) -> Values:
        """Return every metric of labels that were ranked before.  # [n, k], [n, p]"""
        metrics = self.metrics()
        metrics.add(labels, Y)
        return metrics.values()

    def judge_parts(self, labels: np.ndarray, Y: csr_matrix, parts: Mapping[int, np.ndarray]) -> dict[int, Values]:
        """Return every metric of labels that were ranked before, per part of the points (its rows).  # [n, k]"""
        return {part: self.judge(labels[rows], Y[rows]) for part, rows in parts.items()}

    def rank_best(self, model: Any, points: HashedSplit) -> tuple[np.ndarray, np.ndarray]:
        """Return the labels of each point that calibration counts, and their scores.  # [n, k], [n, k]"""
        ranked = list(self.ranker.rank(model, points.features, min(BEST, points.Y.shape[1]), points.excluded))
        return np.concatenate([labels for _, labels, _ in ranked]), np.concatenate([scores for *_, scores in ranked])

    def calibrate(
        self, decoding: str, model: Any, points: HashedSplit, fits: np.ndarray | None = None
    ) -> tuple[Curve | None, dict[str, Any]]:
        """Return what turns the model's scores into probabilities, and how well it does."""
        if not len(points):
            return None, {}
        ranked = self.rank_best(model, points)
        return calibrate(find_form(decoding), *ranked, points.Y, list_bands(self.counts), fits)

    def metrics(self) -> Measures:
        """Return metrics that have counted no points yet."""
        ours = Metrics(self.ks, self.frequent, self.inverse_propensity)
        return Measures(ours, self.own, self.ks, len(self.counts))


def selection_score(values: Values, metric: str = "precision") -> float:
    """Return the number by which rounds are compared: the mean of the metric over all k."""
    return sum(values[metric].values()) / len(values[metric])
