"""Metrics that users add, counted beside ours; real sites measure only those that add up over sites."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import Any, Protocol

import numpy as np
from scipy.sparse import csr_matrix

from fedmlh.errors import UserError
from fedmlh.evaluation.metrics import Metrics, Sums
from fedmlh.federated.task import Task
from fedmlh.parts import blame, find

#: Sums of users' metrics, by the metric's name and by the names that it gives its sums.
OwnSums = dict[str, dict[str, list[int]]]
#: The largest number that a site may report: JSON readers of every language keep it exactly.
LARGEST = 2**53


class Metric(Protocol):
    """A metric of a user: counts batches of points. It is made with the k of interest and the number of labels."""

    def add(self, labels: np.ndarray, Y: csr_matrix) -> None:
        """Count points by their predicted labels (best first, -1 for none) and their true labels.  # [n, k], [n, p]"""

    def values(self) -> Mapping[int, float]:
        """Return the value for each k."""


class Additive(Metric, Protocol):
    """A metric that real sites can measure: the sums that they report are added up."""

    def sums(self) -> dict[str, list[int]]:
        """Return whole numbers from 0 that describe the points counted; their number does not depend on the points."""

    def add_sums(self, sums: dict[str, list[int]]) -> None:
        """Count points that are known only by their sums."""


class Measures:
    """Our metrics and those of users over the same points."""

    def __init__(self, metrics: Metrics, names: Sequence[str], ks: Sequence[int], num_labels: int) -> None:
        self._metrics, self._ks = metrics, ks
        self._own: dict[str, Metric] = {name: _make(name, ks, num_labels) for name in names}

    def add(self, labels: np.ndarray, Y: csr_matrix) -> None:
        """Count a batch of points with their predicted and true labels."""
        self._metrics.add(labels, Y)
        for name, metric in self._own.items():
            with blame("metric", name):
                metric.add(labels, Y)

    def sums(self) -> Sums:
        """Return the numbers behind our metrics, which add up over sites."""
        return self._metrics.sums()

    def own_sums(self) -> OwnSums:
        """Return the numbers behind users' metrics; every metric must add up over sites."""
        return {name: _sum(name, metric) for name, metric in self._own.items()}

    def values(self) -> dict[str, dict[str, float]]:
        """Return every metric by its name and k."""
        values = self._metrics.values()
        for name, metric in self._own.items():
            values[name] = _evaluate(name, metric, self._ks)
        return values


@dataclass(frozen=True)
class AddedMetrics:
    """Users' metrics over sites that report sums: which sums are expected, and the values that they give."""

    names: tuple[str, ...]
    ks: tuple[int, ...]
    num_labels: int

    @classmethod
    def of(cls, task: Task) -> "AddedMetrics":
        """Return the metrics that a task's config names."""
        return cls(task.config.metrics, task.config.top_k, task.num_labels)

    @cached_property
    def nothing(self) -> OwnSums:
        """Return the sums over no points, which show what sums are expected."""
        return {name: _sum(name, _make(name, self.ks, self.num_labels)) for name in self.names}

    def check_additive(self) -> None:
        """Refuse metrics that cannot be added up over sites."""
        _ = self.nothing

    @property
    def most_bytes(self) -> int:
        """Return the most bytes that the sums of a site take as JSON."""
        digits = len(f"{LARGEST}, ")
        return sum(
            len(json.dumps(name)) + sum(len(json.dumps(key)) + digits * len(row) + 8 for key, row in rows.items()) + 8
            for name, rows in self.nothing.items()
        )

    def check(self, sums: Any) -> None:
        """Raise a ValueError unless a site's sums are as many as expected and give each metric a value."""
        if not isinstance(sums, dict) or sums.keys() != self.nothing.keys():
            raise ValueError("names of metrics")
        for name, expected in self.nothing.items():
            rows = sums[name]
            if not isinstance(rows, dict) or rows.keys() != expected.keys():
                raise ValueError("names of sums")
            for key, numbers in rows.items():
                if not isinstance(numbers, list) or len(numbers) != len(expected[key]):
                    raise ValueError("how many sums there are")
                if not all(type(number) is int and 0 <= number <= LARGEST for number in numbers):
                    raise ValueError("sums that are not whole numbers from 0")
        self.values([sums])

    def values(self, reports: Sequence[OwnSums]) -> dict[str, dict[str, float]]:
        """Return every metric by name and k over the points of several sites, from sums that were checked."""
        values = {}
        for name in self.names:
            metric: Additive = _make(name, self.ks, self.num_labels)
            parts = [report[name] for report in reports]
            total = {key: list(map(sum, zip(*(part[key] for part in parts), strict=True))) for key in parts[0]}
            with blame("metric", name):
                metric.add_sums(total)
            values[name] = _evaluate(name, metric, self.ks)
        return values


def _make(name: str, ks: Sequence[int], num_labels: int) -> Any:
    with blame("metric", name):
        return find("metric", name)(tuple(ks), num_labels)


def _sum(name: str, metric: Metric) -> dict[str, list[int]]:
    """Return the sums of a metric that can be added up over sites."""
    if not hasattr(metric, "sums") or not hasattr(metric, "add_sums"):
        raise UserError(
            f"the metric '{name}' cannot be added up over sites (it has no sums and add_sums), so real sites cannot "
            f"measure it: leave it out of metrics"
        )
    with blame("metric", name):
        given = {key: list(numbers) for key, numbers in metric.sums().items()}
        rows = {str(key): [int(number) for number in numbers] for key, numbers in given.items()}
        if rows != given or not all(0 <= number <= LARGEST for row in rows.values() for number in row):
            raise ValueError(f"sums() must give lists of whole numbers from 0 to 2^53 by name, and gave {given!r:.80}")
    return rows


def _evaluate(name: str, metric: Metric, ks: Sequence[int]) -> dict[str, float]:
    with blame("metric", name):
        found = metric.values()
        if found.keys() != set(ks) or not all(isfinite(value) for value in found.values()):
            raise UserError(f"the metric '{name}' gave {found!r:.80}: it must give a number for each k")
        return {str(k): float(found[k]) for k in ks}
