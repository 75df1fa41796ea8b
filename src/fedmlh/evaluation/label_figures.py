"""How well each label is found: a row of figures per label (`evaluation/proposals.py` defines them)."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedmlh.evaluation.proposals import Proposals, find_f1, share

#: A label with fewer test points is not among the best and the worst: its figures are luck.
LEAST_POINTS = 5


@dataclass(frozen=True)
class LabelFigures:
    """Figures of all labels, in the order of the catalogue.  # [p] each"""

    training_points: np.ndarray
    test_points: np.ndarray
    proposed: np.ndarray
    found: np.ndarray
    average_rank: np.ndarray  # NaN without test points
    confused_with: np.ndarray  # -1: no other label was proposed
    confused_times: np.ndarray

    @classmethod
    def of(cls, proposals: Proposals, training_points: np.ndarray) -> "LabelFigures":
        """Count for each label what was proposed for the points; training points are known."""
        test, proposed, found = (
            np.bincount(matrix.indices, minlength=len(training_points))
            for matrix in (proposals.Y, proposals.chosen, proposals.found)
        )
        average = np.where(test > 0, share(proposals.ranks, test), np.nan)
        return cls(training_points, test, proposed, found, average, *proposals.count_confusions())

    @cached_property
    def precision(self) -> np.ndarray:
        """The share of the points a label is proposed for that carry it."""
        return share(self.found, self.proposed)

    @cached_property
    def recall(self) -> np.ndarray:
        """The share of the points that carry a label for which it is proposed."""
        return share(self.found, self.test_points)

    @cached_property
    def f1(self) -> np.ndarray:
        """The harmonic mean of precision and recall."""
        return find_f1(self.found, self.proposed, self.test_points)

    def pick(self, most: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the worst and the best labels by F1, at most `most` of each and none in both.

        Of labels with the same F1, those with more test points come first; labels with few test points are left out.
        """
        enough = np.flatnonzero(self.test_points >= LEAST_POINTS)
        points = -self.test_points[enough]
        rising, falling = (enough[np.lexsort((enough, points, sign * self.f1[enough]))] for sign in (1, -1))
        best = falling[: min(most, len(enough) // 2)]
        return rising[~np.isin(rising, best)][:most], best
