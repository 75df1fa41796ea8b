"""From bucket scores to the best labels, with numpy alone; of many labels by compiled code where that is at hand."""

import importlib
from functools import cache
from typing import Any

import numpy as np

from fedmlh.serving.scores import Part

#: Labels from which compiled code pays, although it takes a second to load.
_MANY = 50_000
#: Compiled code keeps the k best in order by insertion.
_LARGEST_K = 1024


def rank_labels(parts: list[Part], scores: list[np.ndarray], k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the k best labels of each point and their scores, the lower number first where scores tie.

    # scores of each part [R, n, B] -> [n, k], [n, k]
    """
    num_points, num_labels = scores[0].shape[1], parts[0].buckets.shape[1]
    if num_labels >= _MANY and k <= _LARGEST_K and len(parts) == 1 and (kernels := _load_kernels()) is not None:
        part, found = parts[0], np.ascontiguousarray(scores[0])
        labels, values = np.empty((num_points, k), np.int64), np.empty((num_points, k), np.float32)
        fit = np.empty(num_points, np.bool_)
        kernels.scan(found, 0, num_points, part.narrow, part.is_identity, labels, values, fit)
        if fit.all():
            return labels, values
    ranked = [_rank_one(score_labels(parts, [part[:, point] for part in scores]), k) for point in range(num_points)]
    return np.stack([labels for labels, _ in ranked]), np.stack([values for _, values in ranked])


def score_labels(parts: list[Part], scores: list[np.ndarray]) -> np.ndarray:
    """Return the scores of all labels for one point.  # scores of each part [R, B] -> [p]"""
    total = np.zeros(parts[0].buckets.shape[1], np.float32)
    for part, tables in zip(parts, scores, strict=True):
        if part.is_identity:
            total += np.float32(part.weight) * tables[0]
        else:
            mine = sum(table[buckets] for table, buckets in zip(tables, part.buckets, strict=True))
            total += np.float32(part.weight) * (mine / np.float32(len(tables)))
    return total


def _rank_one(scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Rank the labels of one point.  # [p] -> [k], [k]"""
    bound = np.partition(scores, len(scores) - k)[len(scores) - k]
    candidates = np.flatnonzero(scores >= bound)
    best = candidates[np.argsort(-scores[candidates], kind="stable")[:k]]
    return best, scores[best]


@cache
def _load_kernels() -> Any:
    """Return the compiled code; None where numba is not installed (extra `fast`)."""
    try:
        return importlib.import_module("fedmlh.model.kernels.decode")
    except (ImportError, RuntimeError):  # RuntimeError: there is nowhere to keep what numba compiles
        return None
