"""Sparse rows of numbers, in numpy alone: the points that a model predicts labels for."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Rows:
    """A sparse matrix [n, width]: row i has values[starts[i]:starts[i + 1]] in distinct, ascending columns."""

    starts: np.ndarray  # int64 [n + 1]
    columns: np.ndarray  # int32
    values: np.ndarray  # float32
    width: int

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def owners(self) -> np.ndarray:
        """The row of each value."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))

    @classmethod
    def empty(cls, count: int, width: int) -> "Rows":
        """Return rows without values."""
        return cls(np.zeros(count + 1, np.int64), np.zeros(0, np.int32), np.zeros(0, np.float32), width)

    @classmethod
    def gather(cls, owners: np.ndarray, columns: np.ndarray, values: np.ndarray, shape: tuple[int, int]) -> "Rows":
        """Add up the values of each cell; cells whose sum is 0 are left out."""
        if not len(values):
            return cls.empty(*shape)
        cells = owners * np.int64(shape[1]) + columns
        order = np.argsort(cells, kind="stable")
        cells = cells[order]
        first = np.flatnonzero(np.diff(cells, prepend=-1))
        sums = np.add.reduceat(values[order].astype(np.float64), first).astype(np.float32)
        distinct, sums = cells[first][sums != 0], sums[sums != 0]
        rows = distinct // max(shape[1], 1)
        starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=shape[0]))])
        return cls(starts, (distinct % max(shape[1], 1)).astype(np.int32), sums, shape[1])

    @classmethod
    def join(cls, parts: "Sequence[Rows]") -> "Rows":
        """Return the rows of all parts, one below the other."""
        starts = np.cumsum([0, *np.concatenate([np.diff(part.starts) for part in parts])])
        columns, values = (np.concatenate([getattr(part, name) for part in parts]) for name in ("columns", "values"))
        return cls(starts, columns, values, parts[0].width)

    def scaled_to_one(self) -> "Rows":
        """Return rows of length 1; those without values stay as they are."""
        owners, squares = self.owners, self.values.astype(np.float64) ** 2
        lengths = np.sqrt(np.bincount(owners, weights=squares, minlength=len(self)))
        values = (self.values / np.where(lengths > 0, lengths, 1)[owners]).astype(np.float32)
        return Rows(self.starts, self.columns, values, self.width)

    def take(self, begin: int, end: int) -> "Rows":
        """Return the rows from `begin` up to `end`."""
        starts = self.starts[begin : end + 1]
        cells = slice(int(starts[0]), int(starts[-1]))
        return Rows(starts - starts[0], self.columns[cells], self.values[cells], self.width)
