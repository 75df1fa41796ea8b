"""Points as whole numbers: each point is weighted, scaled to length 1 and rounded by itself.

Sums of whole numbers do not depend on the order of additions. All steps before that are done one by one in double
precision, so that a point becomes the same numbers on every machine.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedmlh.hashing.families import murmur3
from fedmlh.hashing.features import SIGN_SEED

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

#: If there are fewer slots than features: the share of slots that belong to one feature each.
OWN_SHARE = (3, 4)
#: Weights of words are rounded to this part of one, so that machines whose logarithms differ agree.
_WEIGHT_STEP = 2**10
#: The place of features that have no slot.
NOWHERE = -1


@dataclass(frozen=True)
class Slots:
    """The slot of each feature. The most frequent features come first, and have a slot of their own."""

    places: np.ndarray  # int32 [d]
    signs: np.ndarray  # int8 [d]
    weights: np.ndarray  # float64 [d]
    count: int

    @classmethod
    def fit(cls, frequencies: np.ndarray, num_points: int, limit: int, seed: int, *, weigh: bool) -> "Slots":
        """Derive the slots from the number of points that have each feature; at most `limit`, 0: one per feature.

        If `weigh`, rare features count more (inverse document frequency).
        """
        occurring = int(np.count_nonzero(frequencies))
        order = np.argsort(-frequencies, kind="stable")[:occurring]
        places = np.full(len(frequencies), NOWHERE, np.int32)
        signs = np.ones(len(frequencies), np.int8)
        count = occurring if limit == 0 else min(limit, occurring)
        own = occurring if count == occurring else count * OWN_SHARE[0] // OWN_SHARE[1]
        places[order[:own]] = np.arange(own)
        rest = order[own:]
        if len(rest):
            places[rest] = own + murmur3(rest, seed, count - own)
            signs[rest] = 1 - 2 * murmur3(rest, seed ^ SIGN_SEED, 2).astype(np.int8)
        weights = np.ones(len(frequencies))
        if weigh:
            rarity = 1 + np.log((1 + num_points) / (1 + frequencies))
            weights = np.rint(rarity * _WEIGHT_STEP) / _WEIGHT_STEP
        return cls(places, signs, weights, count)

    def apply(self, X: "csr_matrix") -> "csr_matrix":
        """Return the points in slots, each of length 1, in double precision.  # [n, d] -> [n, s]"""
        from scipy.sparse import csr_matrix

        num_points = X.shape[0]
        rows = np.repeat(np.arange(num_points), np.diff(X.indptr))
        known = self.places[X.indices] != NOWHERE
        rows, features = rows[known], X.indices[known]
        values = X.data[known].astype(np.float64) * self.signs[features] * self.weights[features]
        keys = rows * np.int64(max(self.count, 1)) + self.places[features]
        order = np.argsort(keys, kind="stable")
        distinct, group = np.unique(keys[order], return_inverse=True)
        # bincount adds one value after the other, whatever the machine.
        summed = np.bincount(group, weights=values[order], minlength=len(distinct))
        rows, slots = distinct // max(self.count, 1), distinct % max(self.count, 1)
        lengths = np.sqrt(np.bincount(rows, weights=summed**2, minlength=num_points))
        scaled = summed / np.where(lengths > 0, lengths, 1)[rows]
        indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=num_points))])
        points = csr_matrix((scaled, slots.astype(np.int32), indptr), shape=(num_points, self.count))
        points.eliminate_zeros()
        return points


def round_points(X: "csr_matrix", bits: int) -> "csr_matrix":
    """Round points of length 1 to multiples of 2^-bits and put 1 in front, all times 2^bits.  # [n, s] -> [n, 1 + s]"""
    from scipy.sparse import csr_matrix

    levels = np.rint(X.data * 2.0**bits).astype(np.int64)
    rounded = csr_matrix((levels, X.indices, X.indptr), shape=X.shape)
    rounded.eliminate_zeros()
    return add_one(rounded, 2**bits)


def add_one(X: "csr_matrix", one: float) -> "csr_matrix":
    """Put a column in front in which every point has the value `one`.  # [n, s] -> [n, 1 + s]"""
    from scipy.sparse import csr_matrix

    num_points = X.shape[0]
    starts = X.indptr[:-1]
    data = np.insert(X.data, starts, one)
    indices = np.insert(X.indices.astype(np.int64) + 1, starts, 0)
    return csr_matrix((data, indices, X.indptr + np.arange(num_points + 1)), shape=(num_points, X.shape[1] + 1))


def most_square(bits: int) -> int:
    """Return the most that the squares of a rounded point can add up to, without the 1 in front.

    Rounding no more than doubles what it does not make 0.
    """
    return 1 << (2 * bits + 2)
