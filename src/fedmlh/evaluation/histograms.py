"""What a real site tells about the probabilities of a model: how many labels of each score, and how many are true.

The server chooses bins of scores by its own points, for which it needs no labels. A site halves its held-out points:
every other one fits the curve, as in a simulation, and the rest judge it. Histograms add up over sites, and a site
of few points sends none.
"""

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmlh.evaluation.calibration import BEST, JUDGED, LEAST_POINTS, NUM_BINS, Curve, Scale, find_gap

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

_EDGES = struct.Struct(f"<{NUM_BINS + 1}d")


@dataclass(frozen=True)
class Histogram:
    """The counts of both halves of a site's held-out points, or of those of several sites."""

    fit: Curve
    #: Of the five best labels of each point, as the error of calibration is.
    judge: Curve

    def __add__(self, other: "Histogram") -> "Histogram":
        """Return the histogram of the points of both."""
        return Histogram(self.fit + other.fit, self.judge + other.judge)

    @property
    def figures(self) -> dict[str, Any]:
        """Return how far the probabilities of one half are from the shares of true labels of the other."""
        return {"points": self.judge.points, "error": find_gap(self.fit, self.judge)}

    def to_json(self) -> dict[str, dict[str, list[int]]]:
        """Return the counts, which `Bins.read` reads."""
        halves = {"fit": self.fit, "judge": self.judge}
        return {name: {"counts": list(half.counts), "hits": list(half.hits)} for name, half in halves.items()}


@dataclass(frozen=True)
class Bins:
    """The bins of scores by which all sites count, and the number of labels that a model ranks."""

    scale: Scale
    num_labels: int

    def encode(self) -> bytes:
        """Return the edges as they travel."""
        return _EDGES.pack(*self.scale.edges)

    @classmethod
    def decode(cls, form: str, payload: bytes | memoryview, num_labels: int) -> "Bins":
        """Read what `encode` wrote; ValueError for anything else."""
        if len(payload) != _EDGES.size:
            raise ValueError(f"{len(payload)} bytes for the edges of {NUM_BINS} bins")
        nothing = {"points": 0, "counts": [0] * NUM_BINS, "hits": [0] * NUM_BINS}
        edges = list(_EDGES.unpack(payload))
        return cls(Curve.from_json({"form": form, "edges": edges, **nothing}).scale, num_labels)

    def count(self, labels: np.ndarray, scores: np.ndarray, Y: "csr_matrix") -> Histogram | None:
        """Count the best labels of points; return None if there are too few points.  # [n, k], [n, k], [n, p]"""
        if not sends_histogram(len(labels)):
            return None
        fit = Curve.count(self.scale, labels[::2], scores[::2], Y[::2])
        return Histogram(fit, Curve.count(self.scale, labels[1::2, :JUDGED], scores[1::2, :JUDGED], Y[1::2]))

    def read(self, content: Any, points: int) -> Histogram:
        """Return what a site of this many points wrote; ValueError (or KeyError, TypeError) for what no points give."""
        if content.keys() != {"fit", "judge"}:
            raise ValueError("names of a histogram")
        fit = self._read_half(content["fit"], points - points // 2, BEST)
        return Histogram(fit, self._read_half(content["judge"], points // 2, JUDGED))

    def _read_half(self, content: Any, points: int, best: int) -> Curve:
        if content.keys() != {"counts", "hits"}:
            raise ValueError("names of half a histogram")
        about = {"form": self.scale.form, "edges": self.scale.edges, "points": points}
        half = Curve.from_json({**about, **content})
        # A point has fewer labels only if some are excluded for it.
        if not 0 < sum(half.counts) <= points * min(best, self.num_labels):
            raise ValueError("more or fewer labels than the points have")
        return half


def sends_histogram(points: int) -> bool:
    """Say whether a site that holds out this many points sends a histogram."""
    return points >= LEAST_POINTS
