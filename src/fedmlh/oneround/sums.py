"""The sums over a client's points: Σ x xᵀ and Σ x yᵀ, in whole numbers that add up over clients."""

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix, triu

from fedmlh.errors import UserError
from fedmlh.oneround.points import most_square

#: No sum may reach it, so that int64 never overflows, intermediate results included.
_MOST_SUM = 2**62


@dataclass(frozen=True)
class Sums:
    """Sums over points x with labels y: the number of points, Σ x xᵀ on and above the diagonal, Σ x yᵀ."""

    points: int
    gram: csr_matrix  # int64 [1 + s, 1 + s]; row 0 belongs to the 1 in front of each point
    cross: csr_matrix  # int64 [1 + s, m]

    @classmethod
    def of(cls, X: csr_matrix, Y: csr_matrix) -> "Sums":
        """Add up points that were rounded.  # [n, 1 + s], [n, m]"""
        transposed = X.T.tocsr()
        gram = triu(transposed @ X, format="csr")
        return cls(int(X.shape[0]), _tidy(gram), _tidy(transposed @ Y.astype(np.int64)))

    @classmethod
    def empty(cls, num_slots: int, num_outputs: int) -> "Sums":
        """Return the sums over no points."""
        size = num_slots + 1
        return cls(0, csr_matrix((size, size), dtype=np.int64), csr_matrix((size, num_outputs), dtype=np.int64))

    def __add__(self, other: "Sums") -> "Sums":
        """Return the sums over the points of both."""
        return Sums(self.points + other.points, _tidy(self.gram + other.gram), _tidy(self.cross + other.cross))

    def __sub__(self, other: "Sums") -> "Sums":
        """Return the sums without those over some of the points."""
        return Sums(self.points - other.points, _tidy(self.gram - other.gram), _tidy(self.cross - other.cross))

    @property
    def num_slots(self) -> int:
        """The number of slots, s."""
        return int(self.gram.shape[0]) - 1

    @property
    def diagonal(self) -> np.ndarray:
        """Σ x² of each slot.  # [s]"""
        return np.asarray(self.gram.diagonal()[1:])

    @property
    def totals(self) -> np.ndarray:
        """Σ x of each slot, times that of the 1 in front.  # [s]"""
        return np.asarray(self.gram[0].toarray()[0, 1:])

    def counts(self, bits: int) -> np.ndarray:
        """Return how many points have each label.  # [m]"""
        return np.asarray(self.cross[0].toarray()[0]) >> bits


class Adder:
    """Adds up the sums of many clients in any order, with few large additions: an aggregation rule for sums."""

    streams = True

    def __init__(self, num_slots: int, num_outputs: int) -> None:
        self._empty = Sums.empty(num_slots, num_outputs)
        self._parts: list[tuple[int, Sums]] = []

    def add(self, sums: Sums, weight: int = 1) -> None:
        """Add the sums of one client, or of `weight` clients."""
        # As in counting: two parts of equal weight become one of twice the weight.
        while self._parts and self._parts[-1][0] <= weight:
            before, part = self._parts.pop()
            sums, weight = part + sums, before + weight
        self._parts.append((weight, sums))

    def merge(self, other: "Adder") -> None:
        """Add all that another adder has added."""
        for weight, part in other._parts:
            self.add(part, weight)

    def result(self) -> Sums:
        """Return the sum of all."""
        whole = self._empty
        for _, part in reversed(self._parts):
            whole = part + whole
        return whole


def check_room(num_points: int, bits: int) -> None:
    """Refuse a number of points for which a sum could overflow."""
    if num_points * most_square(bits) >= _MOST_SUM:
        raise UserError(f"{num_points:,} points with point_bits = {bits} could overflow a sum: use fewer bits")


def _tidy(matrix: csr_matrix) -> csr_matrix:
    """Bring a matrix into its one canonical form."""
    matrix = csr_matrix(matrix, dtype=np.int64)
    matrix.sum_duplicates()
    matrix.eliminate_zeros()
    return matrix
