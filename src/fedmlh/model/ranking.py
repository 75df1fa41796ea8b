"""From hashed features to the best labels: bucket scores of all tables, decoded into exact top-k by score, then id.

The reference is fedmlh.model.kernels.plain. `Decoder` gives the same bits faster, by the compiled filter of
fedmlh.model.kernels.decode where that pays. `Ranker` runs a model in batches, so that scores of all points for all
labels are never in memory at once.
"""

import importlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from fedmlh.model.forward import forward_sparse
from fedmlh.model.kernels.plain import decode
from fedmlh.model.losses import Loss, find_loss
from fedmlh.model.stack import Stack

#: Labels times tables below which compiled code gains nothing, and (times points) below which a second thread does not.
_SMALL = 1 << 11
_SMALL_FOR_THREADS = 1 << 22
#: Compiled code keeps the k best in order by insertion, which pays up to this k and this share of all labels.
_LARGEST_K, _LARGEST_SHARE = 1024, 1 / 32
#: The most label scores that plain code keeps in memory.
_PLAIN_SCORES = 1 << 23
#: The most values of a batch in the widest layer, over all tables.
_BATCH_NUMBERS = 1 << 24
_LARGEST_BATCH = 1024
#: The decoder works on whole blocks of points.
_BLOCK = 64
#: What is averaged over tables, computed from the logits, by the name of the decoding.
_SCORES: dict[str, Callable[[Loss, Tensor], Tensor]] = {
    "log-probs": lambda loss, logits: loss.log_likelihood(logits),
    "logits": lambda loss, logits: logits,
    "probs": lambda loss, logits: loss.log_likelihood(logits).exp(),
}


@cache
def _kernels() -> Any:
    """Load the compiled twin when it is first needed; return None if numba is not installed (extra `fast`)."""
    try:
        return importlib.import_module("fedmlh.model.kernels.decode")
    except (ImportError, RuntimeError):  # RuntimeError: there is nowhere to keep what numba compiles
        return None


class Decoder:
    """Decodes as `decode` does, to the bit, in the fastest way for a batch; the label map is prepared once."""

    def __init__(self, buckets: Tensor, num_buckets: int) -> None:
        self.buckets = buckets  # [R, p]
        self.num_buckets = num_buckets
        self._compiled = buckets.device.type == "cpu" and buckets.numel() >= _SMALL and _kernels() is not None

    @cached_property
    def is_identity(self) -> bool:
        """Whether the scores of the one table are those of the labels."""
        num_tables, num_labels = self.buckets.shape
        return num_tables == 1 and self.num_buckets == num_labels and bool((self.buckets[0].diff() == 1).all())

    @cached_property
    def _narrow(self) -> np.ndarray:
        """The label map in as few bytes as its bucket numbers need."""
        buckets = self.buckets.numpy()
        if buckets.min() < 0 or buckets.max() >= self.num_buckets:
            raise IndexError(f"the label map names buckets outside 0 … {self.num_buckets - 1:,}")
        return np.ascontiguousarray(buckets.astype(np.uint16 if self.num_buckets <= 1 << 16 else np.uint32))

    @cached_property
    def _order(self) -> Any:
        return _kernels().arrange(self._narrow, self.num_buckets)

    def __call__(self, bucket_scores: Tensor, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the top-k labels, as `decode` does.  # [R, n, B] -> labels [n, min(k, p)], scores [n, min(k, p)]"""
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
        """List calls that each decode consecutive points: in blocks by the filter, the rest one at a time."""
        kernels, num_points = _kernels(), len(labels)
        rest = num_points % kernels.BLOCK
        blocked = 0 if self.is_identity else num_points - (rest if rest < kernels.FEW else 0)
        blocks = [
            partial(kernels.filter_blocks, scores, *run, self._order, self._narrow, labels, values, fit)
            for run in _runs(0, blocked, kernels.BLOCK, 4 * threads)
        ]
        return blocks + [
            partial(kernels.scan, scores, *run, self._narrow, self.is_identity, labels, values, fit)
            for run in _runs(blocked, num_points, 1, 4 * threads)
        ]


def _runs(begin: int, end: int, unit: int, at_most: int) -> list[tuple[int, int]]:
    """Split a range into runs of whole units, the last one perhaps shorter."""
    size = unit * max(1, -(-(end - begin) // (unit * at_most)))
    return [(first, min(first + size, end)) for first in range(begin, end, size)]


@dataclass(frozen=True)
class Ranker:
    """Ranks labels for points, with any model of one shape and one label map."""

    stack: Stack
    buckets: Tensor  # [R, p]
    loss: str
    decoding: str

    @cached_property
    def _decoder(self) -> Decoder:
        return Decoder(self.buckets, self.stack.num_outputs)

    def _batch_size(self) -> int:
        widest = max((*self.stack.hidden, self.stack.num_outputs))
        size = max(1, min(_LARGEST_BATCH, _BATCH_NUMBERS // (self.stack.num_tables * widest)))
        return size if size < _BLOCK else size - size % _BLOCK

    @torch.no_grad()
    def rank(
        self, model: Tensor, features: tuple[csr_matrix, ...], k: int, excluded: csr_matrix | None = None
    ) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Yield rows, labels [n, k] and scores [n, k] per batch; label -1 where a point has fewer than k."""
        num_points = features[0].shape[0]
        size = self._batch_size()
        for begin in range(0, num_points, size):
            rows = slice(begin, min(begin + size, num_points))
            scores = self.score(model, tuple(x[rows] for x in features))
            yield rows, *best_labels(self._decoder, scores, k, None if excluded is None else excluded[rows])

    @torch.no_grad()
    def score(self, model: Tensor, features: tuple[csr_matrix, ...]) -> Tensor:
        """Score each bucket for each point, as the decoding needs it.  # M × [n, d̃] -> [R, n, B]"""
        layers = self.stack.views(model.to(self.buckets.device))
        logits = forward_sparse(layers, features)
        return _SCORES[self.decoding](find_loss(self.loss), logits)


def best_labels(
    decoder: Decoder, scores: Tensor, k: int, excluded: csr_matrix | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Decode bucket scores [R, n, B] into labels [n, k] and scores [n, k]; label -1 where a point has fewer than k."""
    # Rank as many more as the point with the most excluded labels has, so that k are left for every point.
    more = 0 if excluded is None or excluded.nnz == 0 else int(np.diff(excluded.indptr).max())
    labels, values = decoder(scores, k + more)
    if more and excluded is not None:
        labels, values = _drop(labels, values, excluded, decoder.buckets.shape[1])
    return _padded(labels, k, -1), _padded(values, k, -np.inf)


def _drop(
    labels: np.ndarray, values: np.ndarray, excluded: csr_matrix, num_labels: int
) -> tuple[np.ndarray, np.ndarray]:
    """Move excluded labels behind all others, as -1."""
    row = np.arange(len(labels))[:, None]
    barred = np.repeat(np.arange(len(labels)), np.diff(excluded.indptr)) * num_labels + excluded.indices
    hit = np.isin(row * num_labels + labels, barred)
    order = np.argsort(hit, axis=1, kind="stable")
    labels, values = np.where(hit, -1, labels), np.where(hit, -np.inf, values)
    return np.take_along_axis(labels, order, axis=1), np.take_along_axis(values, order, axis=1)


def _padded(values: np.ndarray, k: int, fill: float) -> np.ndarray:
    missing = k - values.shape[1]
    return values[:, :k] if missing <= 0 else np.pad(values, ((0, 0), (0, missing)), constant_values=fill)
