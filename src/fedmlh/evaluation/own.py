"""Metrics that users add, counted beside ours."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Protocol

import numpy as np
from scipy.sparse import csr_matrix

from fedmlh.errors import UserError
from fedmlh.evaluation.metrics import Metrics, Sums
from fedmlh.parts import find


class Metric(Protocol):
    """Counts batches of points. It is made with the k that are asked for and the number of labels."""

    def add(self, labels: np.ndarray, Y: csr_matrix) -> None:
        """Count points by their predicted labels, best first, -1 for none, and their true ones.  # [n, k], [n, p]"""

    def values(self) -> Mapping[int, float]:
        """Return the value for each k."""


class Measures:
    """Our metrics and those of users over the same points."""

    def __init__(self, metrics: Metrics, names: Sequence[str], ks: Sequence[int], num_labels: int) -> None:
        self._metrics, self._ks = metrics, ks
        self._own: dict[str, Metric] = {name: find("metric", name)(tuple(ks), num_labels) for name in names}

    def add(self, labels: np.ndarray, Y: csr_matrix) -> None:
        """Count a batch of points with their predicted and true labels."""
        self._metrics.add(labels, Y)
        for metric in self._own.values():
            metric.add(labels, Y)

    def sums(self) -> Sums:
        """Return the numbers behind our metrics, which add up over sites."""
        return self._metrics.sums()

    def values(self) -> dict[str, dict[str, float]]:
        """Return every metric by its name and k."""
        values = self._metrics.values()
        for name, metric in self._own.items():
            if name in values:
                raise UserError(f"the metric '{name}' is one of fedmlh's own: choose another name")
            found = metric.values()
            if found.keys() != set(self._ks) or not all(isfinite(value) for value in found.values()):
                raise UserError(f"the metric '{name}' gave {found!r:.80}: it must give a number for each k")
            values[name] = {str(k): float(found[k]) for k in self._ks}
        return values
