"""From scores to probabilities: one rising curve per model, which leaves the order of labels as it is.

Held-out points are asked for their best labels. Bins of scores count these labels and how many of them are true; such
counts add up over sites. The curve goes through the shares of true labels in the bins, made to rise (isotonic
regression). It is fitted on one half of the points, and its error is measured on the other.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

#: Best labels per point that are counted, and those whose probabilities are judged.
BEST, JUDGED = 50, 5
NUM_BINS = 32
#: Fewer points say too little to judge a curve, and too much about each of them to leave a site.
LEAST_POINTS = 50
#: Bins of the error, each with as many labels.
_ERROR_BINS = 15
#: What every curve has of a curve that rises everywhere, so that no two scores get the same probability.
_SHARE = 1e-3
#: Probabilities are at least this.
_LOWEST = 1e-6


@dataclass(frozen=True)
class Scale:
    """Bins of scores, which are taken as they are or as the log-odds of the probability that they stand for."""

    form: str  # "plain", "log-probs" or "probs"
    edges: tuple[float, ...]  # rising, one more than bins

    @classmethod
    def fit(cls, form: str, scores: np.ndarray) -> "Scale":
        """Return bins: half of them separate all scores of these points, the others those of their best labels."""
        spread_scores, shares = _spread(form, scores), np.linspace(0, 1, NUM_BINS // 2)
        # A point with few labels left has -inf in place of the others.
        parts = (part[np.isfinite(part)] for part in (spread_scores, spread_scores[:, :JUDGED]))
        edges = np.unique(np.concatenate([np.quantile(part, shares) for part in parts]))
        low, high = edges[0], max(edges[-1], edges[0] + 1e-6 * max(1, abs(edges[0])))
        # Where scores are equal there are fewer edges: the others are spread evenly, the closer the more are missing.
        spread = NUM_BINS + 3 - len(edges)
        while len(edges) <= NUM_BINS:
            edges = np.union1d(edges, np.linspace(low, high, spread))
            spread += 1
        return cls(form, tuple(edges[np.linspace(0, len(edges) - 1, NUM_BINS + 1).astype(int)].tolist()))

    @property
    def middles(self) -> np.ndarray:
        """The place in the middle of each bin."""
        edges = np.array(self.edges)
        return np.asarray((edges[1:] + edges[:-1]) / 2)

    def find_bins(self, scores: np.ndarray) -> np.ndarray:
        """Return the bin of each score; the outermost have no end."""
        return np.searchsorted(np.array(self.edges[1:-1]), _spread(self.form, scores), side="right")


def find_form(decoding: str) -> str:
    """Return the form of the scores that networks give with this decoding."""
    return "plain" if decoding == "logits" else decoding


def _spread(form: str, scores: np.ndarray) -> np.ndarray:
    """Return scores as they are, or the log-odds of the probabilities that they stand for."""
    scores = np.asarray(scores, np.float64)
    if form == "plain":
        return scores
    chances = np.clip(np.exp(np.minimum(scores, 0)) if form == "log-probs" else scores, 1e-12, 1 - 1e-12)
    return np.asarray(np.log(chances) - np.log1p(-chances))


@dataclass(frozen=True)
class Curve:
    """A model's probabilities: how many labels of each bin of scores were counted, and how many of them are true."""

    scale: Scale
    points: int
    counts: tuple[int, ...]
    hits: tuple[int, ...]

    @classmethod
    def count(cls, scale: Scale, labels: np.ndarray, scores: np.ndarray, Y: "csr_matrix") -> "Curve":
        """Count the ranked labels of points; -1 is no label.  # [n, k], [n, k], [n, p]"""
        from fedmlh.evaluation.metrics import find_hits

        there = labels >= 0
        bins = scale.find_bins(scores)
        hit = find_hits(labels, Y)
        counts, hits = (np.bincount(bins[some], minlength=NUM_BINS) for some in (there, there & hit))
        return cls(scale, len(labels), tuple(counts.tolist()), tuple(hits.tolist()))

    def __add__(self, other: "Curve") -> "Curve":
        """Return the curve of the points of both."""
        counts, hits = (
            tuple(map(sum, zip(mine, theirs, strict=True)))
            for mine, theirs in ((self.counts, other.counts), (self.hits, other.hits))
        )
        return Curve(self.scale, self.points + other.points, counts, hits)

    def apply(self, scores: np.ndarray) -> np.ndarray:
        """Return the probability of each score, above 0 and at most 1; a higher score never has a lower one."""
        return self.look_up(_spread(self.scale.form, scores))

    def look_up(self, where: np.ndarray) -> np.ndarray:
        """Return the probabilities of places on the scale."""
        places, shares = self._knots
        steady = 0.5 + np.arctan((where - places[0]) / (places[-1] - places[0])) / np.pi
        chances = (1 - _SHARE) * np.interp(where, places, shares) + _SHARE * steady
        return np.asarray(np.clip(chances, _LOWEST, 1.0))

    @cached_property
    def _knots(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the middles of bins with labels, and the shares of true labels in them, made to rise."""
        counts, hits = np.array(self.counts, np.float64), np.array(self.hits, np.float64)
        full, middles = np.flatnonzero(counts), self.scale.middles
        if len(full) < 2:
            return np.array(self.scale.edges)[[0, -1]], np.full(2, (hits.sum() + 0.5) / (counts.sum() + 1))
        # Half a hit in one more label: a bin of few labels is never quite sure.
        blocks: list[list[float]] = []  # hits, labels, bins
        for place in full:
            blocks.append([hits[place] + 0.5, counts[place] + 1.0, 1])
            while len(blocks) > 1 and blocks[-2][0] * blocks[-1][1] >= blocks[-1][0] * blocks[-2][1]:
                last = blocks.pop()
                blocks[-1] = [mine + theirs for mine, theirs in zip(blocks[-1], last, strict=True)]
        shares = np.concatenate([np.full(int(bins), found / labels) for found, labels, bins in blocks])
        return middles[full], shares

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads."""
        scale = {"form": self.scale.form, "edges": list(self.scale.edges)}
        return {**scale, "points": self.points, "counts": list(self.counts), "hits": list(self.hits)}

    @classmethod
    def from_json(cls, content: Any) -> "Curve":
        """Read what `to_json` returned; ValueError for anything else."""
        scale = Scale(content["form"], tuple(map(float, content["edges"])))
        sound = scale.form in ("plain", "log-probs", "probs") and len(scale.edges) == NUM_BINS + 1
        sound &= all(-math.inf < low < high < math.inf for low, high in pairwise(scale.edges))
        counts, hits = content["counts"], content["hits"]
        for numbers in (counts, hits, [content["points"]]):
            sound &= all(type(number) is int and 0 <= number < 2**53 for number in numbers)
        if not sound or not len(counts) == len(hits) == NUM_BINS:
            raise ValueError("a curve that no model has")
        if any(hit > count for hit, count in zip(hits, counts, strict=True)):
            raise ValueError("more true labels than there are")
        return cls(scale, content["points"], tuple(counts), tuple(hits))


def calibrate(
    form: str,
    labels: np.ndarray,
    scores: np.ndarray,
    Y: "csr_matrix",
    bands: Mapping[str, np.ndarray],
    fits: np.ndarray | None = None,
) -> tuple[Curve | None, dict[str, Any]]:
    """Fit a curve on half of the held-out points, and measure its error on the rest; of few points, fit on all.

    `form` is that of the scores, `bands` say which labels are how frequent, and `fits` which points fit the curve:
    default is every other one.  # [n, k], [n, k], [n, p], [p] each, bool [n]
    """
    from fedmlh.evaluation.metrics import find_hits

    if not len(labels):
        return None, {}
    scale = Scale.fit(form, scores)  # needs no labels, so all points may choose it
    if len(labels) < 2 * LEAST_POINTS:
        return Curve.count(scale, labels, scores, Y), {}
    fits = halve(len(labels)) if fits is None else fits
    curve = Curve.count(scale, labels[fits], scores[fits], Y[fits])
    best, values = labels[~fits, :JUDGED], scores[~fits, :JUDGED]
    hit = find_hits(best, Y[~fits])
    there = best >= 0
    chances = curve.apply(values)
    figures: dict[str, Any] = {"points": len(best), "error": find_error(chances[there], hit[there])}
    figures["error_by_count"] = {
        name: find_error(chances[some], hit[some])
        for name, members in bands.items()
        if (some := there & members[np.maximum(best, 0)]).any()
    }
    return curve, {"calibration": figures}


def halve(points: int, rows_by_site: Iterable[np.ndarray] = ()) -> np.ndarray:
    """Say for each point whether it fits the curve: every other one, and every other one of each large site.

    Sites halve their own points; one process that has the points of all of them does it in this way as they do.
    """
    fits = np.zeros(points, bool)
    fits[::2] = True
    for rows in rows_by_site:
        if len(rows) >= LEAST_POINTS:
            fits[rows[1::2]], fits[rows[::2]] = False, True
    return fits


def find_error(chances: np.ndarray, hits: np.ndarray) -> float:
    """Return how far probabilities are from shares of true labels, in the mean over bins with as many labels each."""
    order = np.argsort(chances, kind="stable")
    bins = np.array_split(order, min(_ERROR_BINS, max(1, len(order))))
    gaps = [abs(chances[some].mean() - hits[some].mean()) * len(some) for some in bins if len(some)]
    return float(sum(gaps) / max(1, len(order)))


def find_gap(fit: Curve, judge: Curve) -> float:
    """Return how far a curve is from the shares of true labels of others, in the mean over all that were counted.

    Where only counts are known, a bin has the probability of its middle.
    """
    counts, hits = np.array(judge.counts, np.float64), np.array(judge.hits, np.float64)
    return float(np.abs(counts * fit.look_up(judge.scale.middles) - hits).sum() / max(1, counts.sum()))
