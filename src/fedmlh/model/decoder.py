"""Exact top-k for one label map, by the fastest way there is for a batch; all ways give the same bits."""

import importlib
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedmlh.model.decode import decode

#: Labels times tables below which there is nothing to gain, and from which a second thread pays (times points).
_SMALL = 1 << 11
_SMALL_FOR_THREADS = 1 << 22
#: The compiled way keeps the k best in order by insertion: so many of all labels, and no more, pay.
_LARGEST_K, _LARGEST_SHARE = 1024, 1 / 32
#: Label scores that the plain way holds at once.
_PLAIN_SCORES = 1 << 23


@cache
def _kernels() -> Any:
    """The compiled twin, loaded when first needed; None where numba is not installed (extra `fast`)."""
    try:
        return importlib.import_module("fedmlh.model.kernels.decode")
    except (ImportError, RuntimeError):  # RuntimeError: there is nowhere to keep what numba compiles
        return None


class Decoder:
    """Top-k labels from bucket scores of B buckets a table, with what can be prepared once kept."""

    def __init__(self, buckets: Tensor, num_buckets: int) -> None:
        self.buckets = buckets  # [R, p]
        self.num_buckets = num_buckets
        self._compiled = buckets.device.type == "cpu" and buckets.numel() >= _SMALL and _kernels() is not None

    @cached_property
    def _identity(self) -> bool:
        num_tables, num_labels = self.buckets.shape
        return num_tables == 1 and self.num_buckets == num_labels and bool((self.buckets[0].diff() == 1).all())

    @cached_property
    def _narrow(self) -> np.ndarray:
        """The label map in as few bytes as its numbers need."""
        buckets = self.buckets.numpy()
        if buckets.min() < 0 or buckets.max() >= self.num_buckets:
            raise IndexError(f"the label map names buckets outside 0 … {self.num_buckets - 1:,}")
        return np.ascontiguousarray(buckets.astype(np.uint16 if self.num_buckets <= 1 << 16 else np.uint32))

    @cached_property
    def _order(self) -> Any:
        return _kernels().arrange(self._narrow, self.num_buckets)

    def __call__(self, bucket_scores: Tensor, k: int) -> tuple[np.ndarray, np.ndarray]:
        """What `decode` returns.  # [R, n, B] -> labels [n, min(k, p)], scores [n, min(k, p)]"""
        num_tables, num_points, num_buckets = bucket_scores.shape
        k = min(k, self.buckets.shape[1])
        if (
            not self._compiled
            or bucket_scores.dtype != torch.float32
            or (num_tables, num_buckets) != (len(self.buckets), self.num_buckets)
            or num_points == 0
            or not 1 <= k <= min(_LARGEST_K, _LARGEST_SHARE * self.buckets.shape[1])
        ):
            return self._plain(bucket_scores, k)
        scores = bucket_scores.detach().contiguous().numpy()
        labels, values = np.empty((num_points, k), np.int64), np.empty((num_points, k), np.float32)
        fit = np.empty(num_points, np.bool_)
        threads = torch.get_num_threads() if num_points * self.buckets.numel() >= _SMALL_FOR_THREADS else 1
        tasks = self._tasks(scores, labels, values, fit, threads)
        if threads == 1 or len(tasks) == 1:
            for task in tasks:
                task()
        else:
            with ThreadPoolExecutor(threads) as pool:
                for done in [pool.submit(task) for task in tasks]:
                    done.result()
        odd = np.flatnonzero(~fit)
        if len(odd):
            labels[odd], values[odd] = self._plain(bucket_scores[:, torch.from_numpy(odd)], k)
        return labels, values

    def _plain(self, bucket_scores: Tensor, k: int) -> tuple[np.ndarray, np.ndarray]:
        at_once = max(1, _PLAIN_SCORES // self.buckets.shape[1])
        begins = range(0, max(1, bucket_scores.shape[1]), at_once)
        parts = [decode(bucket_scores[:, begin : begin + at_once], self.buckets, k) for begin in begins]
        return np.concatenate([labels for labels, _ in parts]), np.concatenate([values for _, values in parts])

    def _tasks(
        self, scores: np.ndarray, labels: np.ndarray, values: np.ndarray, fit: np.ndarray, threads: int
    ) -> list[partial[None]]:
        """The points in runs that fill rows of their own: blocks for the filter, and what is left one at a time."""
        kernels, num_points = _kernels(), len(labels)
        rest = num_points % kernels.BLOCK
        blocked = 0 if self._identity else num_points - (rest if rest < kernels.FEW else 0)
        blocks = [
            partial(kernels.filter_blocks, scores, *run, self._order, self._narrow, labels, values, fit)
            for run in _runs(0, blocked, kernels.BLOCK, 4 * threads)
        ]
        return blocks + [
            partial(kernels.scan, scores, *run, self._narrow, self._identity, labels, values, fit)
            for run in _runs(blocked, num_points, 1, 4 * threads)
        ]


def _runs(begin: int, end: int, unit: int, at_most: int) -> list[tuple[int, int]]:
    """A range in runs of whole units, the last one perhaps shorter."""
    size = unit * max(1, -(-(end - begin) // (unit * at_most)))
    return [(first, min(first + size, end)) for first in range(begin, end, size)]
