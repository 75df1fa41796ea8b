"""A trained model of one round: its features and its ranker."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix
from torch import Tensor

from fedmlh.model.ranking import Decoder, best_labels
from fedmlh.oneround.choose import fold
from fedmlh.oneround.linear import Linear
from fedmlh.oneround.points import Slots, add_one

_BATCH_NUMBERS = 1 << 24
_LARGEST_BATCH = 1024


@dataclass(frozen=True)
class SlotFeatures:
    """Maps raw features to the input of the linear model: slots of points of length 1, and a 1 in front."""

    slots: Slots

    def apply(self, X: csr_matrix) -> tuple[csr_matrix, ...]:
        """Return the one matrix.  # [n, d] -> [n, 1 + s]"""
        return (csr_matrix(add_one(self.slots.apply(X), 1.0), dtype=np.float32),)


class LinearRanker:
    """Ranks labels for points with linear models over one label map."""

    def __init__(self, buckets: Tensor, num_buckets: int) -> None:
        self.decoder = Decoder(buckets, num_buckets)  # [R, p]

    def score(self, model: Linear, X: csr_matrix) -> Tensor:
        """Return the score of each point for each bucket.  # [n, 1 + s] -> [R, n, B]"""
        return fold(model.score(X), self.decoder)

    def rank(
        self, model: Linear, features: tuple[csr_matrix, ...], k: int, excluded: csr_matrix | None = None
    ) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Yield rows, labels [n, k] and scores [n, k] per batch; label -1 where a point has fewer than k."""
        (X,) = features
        size = max(1, min(_LARGEST_BATCH, _BATCH_NUMBERS // model.num_outputs))
        for begin in range(0, X.shape[0], size):
            rows = slice(begin, min(begin + size, X.shape[0]))
            scores = self.score(model, X[rows])
            yield rows, *best_labels(self.decoder, scores, k, None if excluded is None else excluded[rows])
