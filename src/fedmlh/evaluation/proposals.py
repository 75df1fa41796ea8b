"""Labels that a model proposes for points, next to the labels that the points have.

A rule says which of the ranked labels are proposed. With them:

- precision of a label: the share of the points it is proposed for that carry it; recall: the share of the points that
  carry it for which it is proposed; F1: 2 · found / (proposed + carried). A share of nothing is 0;
- micro F1: that of all pairs (point, label) together; macro F1: the mean over the labels that occur in the test part;
  per document: the mean over points of 2 · hits / (proposed labels + true labels);
- average rank of a label: the mean rank at the points that carry it. Ranks beyond the first 100 labels count as 101;
- the label it is most confused with: at the points that carry this label, the wrong label that is proposed most often,
  of several the first in the catalogue.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, vstack

from fedmlh.display import count
from fedmlh.errors import UserError
from fedmlh.evaluation.calibration import Curve
from fedmlh.evaluation.metrics import canonical, find_hits

#: Labels that are ranked for each point; more are never proposed.
DEPTH = 100
#: Labels that are kept for each point even if they are not proposed, to be shown.
SHOWN = 5
#: Averages of F1 in words, with their names in summary.json.
AVERAGES = {"micro F1": "micro_f1", "macro F1": "macro_f1", "F1 per document": "per_document_f1"}
#: Labels whose confusions are counted at once.
_LABELS_AT_ONCE = 4096


@dataclass(frozen=True)
class Rule:
    """Says which of a point's ranked labels are proposed: the first `top`, if they are probable enough."""

    top: int
    threshold: float | None = None

    @classmethod
    def of(cls, curve: Curve | None, k: int, threshold: float | None = None, top: int | None = None) -> "Rule":
        """Return the rule that was asked for; by default a probability of 0.5, or the first k without probabilities."""
        if top is not None and not 1 <= top <= DEPTH:
            raise UserError(f"top is {top}: from 1 to {DEPTH} labels can be proposed for a point")
        if threshold is not None and not 0 <= threshold <= 1:
            raise UserError(f"the threshold is {threshold:g}: a probability lies between 0 and 1")
        if curve is not None:
            return cls(top or DEPTH, 0.5 if threshold is None else threshold)
        if threshold is not None:
            raise UserError("this model has no probabilities, since no points were held out: set no threshold")
        return cls(top or min(k, DEPTH))

    def __str__(self) -> str:
        if self.threshold is None:
            return f"the first {count(self.top, 'label')}"
        return f"labels with a probability of at least {self.threshold:g}, at most {self.top}"


@dataclass(frozen=True)
class Proposals:
    """Ranked labels of points, best first: those that the rule proposes, and at least the first few."""

    rule: Rule
    curve: Curve | None
    Y: csr_matrix  # true labels [n, p]
    starts: np.ndarray  # [n + 1]
    labels: np.ndarray  # [m]
    scores: np.ndarray  # [m]
    proposed: np.ndarray  # [m] bool
    ranks: np.ndarray  # [p]: the ranks of each label at the points that carry it, added up

    @cached_property
    def chosen(self) -> csr_matrix:
        """The labels that are proposed, as ones.  # [n, p]"""
        rows = np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))[self.proposed]
        columns = self.labels[self.proposed]
        return csr_matrix((np.ones(len(rows), np.int64), (rows, columns)), shape=self.Y.shape)

    @cached_property
    def true(self) -> csr_matrix:
        """The labels that the points have, as whole numbers.  # [n, p]"""
        return csr_matrix(self.Y, dtype=np.int64)

    @cached_property
    def found(self) -> csr_matrix:
        """The labels that are proposed and true.  # [n, p]"""
        return csr_matrix(self.chosen.multiply(self.true))

    @cached_property
    def point_f1(self) -> np.ndarray:
        """The F1 of each point.  # [n]"""
        return find_f1(*(_sum(matrix, 1) for matrix in (self.found, self.chosen, self.true)))

    def list_points(self) -> np.ndarray:
        """List all points, the worst first: the lowest F1, then the most labels that differ, then the first point."""
        return np.lexsort((-self._differences, self.point_f1))

    def list_misses(self) -> np.ndarray:
        """List the points whose proposed labels are not those they have, the worst first."""
        points = self.list_points()
        return np.asarray(points[self._differences[points] > 0])

    @cached_property
    def _differences(self) -> np.ndarray:
        return np.asarray(_sum(self.chosen, 1) + _sum(self.true, 1) - 2 * _sum(self.found, 1))

    def list_true(self, row: int) -> list[int]:
        """List the labels that a point has."""
        return list(map(int, self.Y.indices[self.Y.indptr[row] : self.Y.indptr[row + 1]]))

    def list_ranked(self, row: int) -> list[tuple[int, float | None, float, bool]]:
        """List the labels that stand first for a point: label, probability, score, and whether it is proposed."""
        some = slice(self.starts[row], self.starts[row + 1])
        scores = self.scores[some]
        chances = [None] * len(scores) if self.curve is None else self.curve.apply(scores).tolist()
        return list(
            zip(self.labels[some].tolist(), chances, scores.tolist(), self.proposed[some].tolist(), strict=True)
        )

    def summarize(self) -> dict[str, Any]:
        """Return the rule, and the three averages of F1."""
        found, proposed, true = (_sum(matrix, 0) for matrix in (self.found, self.chosen, self.true))
        there = true > 0
        by_label = find_f1(found, proposed, true)[there]
        return {
            "rule": str(self.rule),
            "micro_f1": float(find_f1(found.sum(), proposed.sum(), true.sum())),
            "macro_f1": float(by_label.mean()) if there.any() else 0.0,
            "per_document_f1": float(self.point_f1.mean()),
        }

    def count_confusions(self) -> tuple[np.ndarray, np.ndarray]:
        """Return for each label the wrong label most often proposed beside it, -1 if there is none, and how often."""
        wrong = (self.chosen - self.found).tocsr()
        wrong.eliminate_zeros()
        by_label = self.true.T.tocsr()
        number = self.Y.shape[1]
        partners, times = np.full(number, -1), np.zeros(number, np.int64)
        for begin in range(0, number, _LABELS_AT_ONCE):
            counts = (by_label[begin : begin + _LABELS_AT_ONCE] @ wrong).tocoo()
            order = np.lexsort((counts.col, -counts.data, counts.row))
            rows, first = np.unique(counts.row[order], return_index=True)
            partners[begin + rows], times[begin + rows] = counts.col[order][first], counts.data[order][first]
        return partners, times


class Gatherer:
    """Gathers proposals over batches of points."""

    def __init__(self, rule: Rule, curve: Curve | None, num_labels: int) -> None:
        self._rule, self._curve = rule, curve
        self._ranks = np.zeros(num_labels, np.int64)
        self._parts: list[tuple[np.ndarray, ...]] = []
        self._true: list[csr_matrix] = []

    def add(self, labels: np.ndarray, scores: np.ndarray, Y: csr_matrix) -> None:
        """Take a batch of points: labels in the order of their rank, -1 where there is none.  # [n, k] twice, [n, p]"""
        Y = canonical(Y)
        labels, scores = labels[:, :DEPTH], scores[:, :DEPTH]
        there, places = labels >= 0, np.arange(labels.shape[1])
        proposed = there & (places < self._rule.top)
        if self._curve is not None and self._rule.threshold is not None:
            proposed &= self._curve.apply(scores) >= self._rule.threshold
        kept = proposed | (there & (places < SHOWN))
        self._parts.append((kept.sum(1), labels[kept].astype(np.int32), scores[kept], proposed[kept]))
        self._true.append(Y)
        hits = find_hits(labels, Y)
        ranks = np.broadcast_to(places + 1, hits.shape)[hits]
        # A label that is not among those ranked stands behind them.
        beyond = np.bincount(Y.indices, minlength=len(self._ranks))
        beyond -= np.bincount(labels[hits], minlength=len(self._ranks))
        self._ranks += np.bincount(labels[hits], ranks, len(self._ranks)).astype(np.int64) + beyond * (DEPTH + 1)

    def proposals(self) -> Proposals:
        """Return the proposals for all points added so far."""
        counts, labels, scores, proposed = (np.concatenate(parts) for parts in zip(*self._parts, strict=True))
        starts = np.concatenate([[0], np.cumsum(counts)])
        Y = vstack(self._true, format="csr")
        return Proposals(self._rule, self._curve, Y, starts, labels, scores, proposed, self._ranks)


def find_f1(found: np.ndarray, proposed: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Return F1 from counts; 0 where nothing is proposed and nothing true."""
    return share(2 * found, proposed + true)


def share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Return part / whole; 0 where there is nothing to divide by."""
    return np.asarray(part / np.maximum(whole, 1))


def _sum(matrix: csr_matrix, axis: int) -> np.ndarray:
    return np.asarray(matrix.sum(axis=axis)).ravel()
