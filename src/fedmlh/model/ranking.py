"""A model at work: hashed features in, top-k labels out, in batches that never hold points × labels for a whole set."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from fedmlh.model.decoder import Decoder
from fedmlh.model.losses import Loss, find_loss
from fedmlh.model.stack import Stack, forward_sparse

#: Numbers held at once for a batch of points: their bucket scores in all tables.
_BATCH_NUMBERS = 1 << 24
_LARGEST_BATCH = 1024
#: The decoder works on whole blocks of points.
_BLOCK = 64
#: What is averaged over tables, from the logits: by the name of the decoding.
_SCORES: dict[str, Callable[[Loss, Tensor], Tensor]] = {
    "log-probs": lambda loss, logits: loss.log_likelihood(logits),
    "logits": lambda loss, logits: logits,
    "probs": lambda loss, logits: loss.log_likelihood(logits).exp(),
}


@dataclass(frozen=True)
class Ranker:
    """Ranks labels for points with any model of one shape and one label map."""

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
        """Rows, labels [n, k] and scores [n, k] of one batch after another; label -1 where there are fewer than k."""
        num_points = features[0].shape[0]
        size = self._batch_size()
        for begin in range(0, num_points, size):
            rows = slice(begin, min(begin + size, num_points))
            scores = self.score(model, tuple(x[rows] for x in features))
            yield rows, *best_labels(self._decoder, scores, k, None if excluded is None else excluded[rows])

    @torch.no_grad()
    def score(self, model: Tensor, features: tuple[csr_matrix, ...]) -> Tensor:
        """Return what each point has of each bucket.  # M × [n, d̃] -> [R, n, B]"""
        layers = self.stack.views(model.to(self.buckets.device))
        logits = forward_sparse(layers, features)
        return _SCORES[self.decoding](find_loss(self.loss), logits)


def best_labels(
    decoder: Decoder, scores: Tensor, k: int, excluded: csr_matrix | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Labels [n, k] and their scores [n, k] from bucket scores [R, n, B]; label -1 where there are fewer than k."""
    # With pairs to leave out, rank so many more that k are left for every point.
    more = 0 if excluded is None or excluded.nnz == 0 else int(np.diff(excluded.indptr).max())
    labels, values = decoder(scores, k + more)
    if more and excluded is not None:
        labels, values = _drop(labels, values, excluded, decoder.buckets.shape[1])
    return _padded(labels, k, -1), _padded(values, k, -np.inf)


def _drop(
    labels: np.ndarray, values: np.ndarray, excluded: csr_matrix, num_labels: int
) -> tuple[np.ndarray, np.ndarray]:
    """Excluded labels moved behind all others, as -1."""
    row = np.arange(len(labels))[:, None]
    barred = np.repeat(np.arange(len(labels)), np.diff(excluded.indptr)) * num_labels + excluded.indices
    hit = np.isin(row * num_labels + labels, barred)
    order = np.argsort(hit, axis=1, kind="stable")
    labels, values = np.where(hit, -1, labels), np.where(hit, -np.inf, values)
    return np.take_along_axis(labels, order, axis=1), np.take_along_axis(values, order, axis=1)


def _padded(values: np.ndarray, k: int, fill: float) -> np.ndarray:
    missing = k - values.shape[1]
    return values[:, :k] if missing <= 0 else np.pad(values, ((0, 0), (0, missing)), constant_values=fill)
