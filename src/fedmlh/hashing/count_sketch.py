"""Count Sketch (the paper's Algorithm 1), the structure that label hashing generalises."""

from collections.abc import Iterator

import numpy as np

#: Values worked on at a time.
_CHUNK = 1 << 18


class CountSketch:
    """A vector kept in `num_tables` × `num_buckets` cells, from which single values are estimated.

    A table's hash function is multiply-shift on 64 bits. Its upper 33 bits are 2-universal: 32 choose the bucket, one
    the sign. Multiplier and summand come from the generator.
    """

    def __init__(self, num_tables: int, num_buckets: int, rng: np.random.Generator) -> None:
        self.hashes = rng.integers(0, 2**64, (num_tables, 2), np.uint64)
        self.cells: np.ndarray = np.zeros((num_tables, num_buckets))  # [R, B]

    def insert(self, values: np.ndarray) -> None:
        """Add a vector to what is stored (Alg. 1, line 4).  # [p]"""
        for start in range(0, len(values), _CHUNK):
            part = values[start : start + _CHUNK]
            for cells, (buckets, signs) in zip(self.cells, self._places(start, len(part)), strict=True):
                cells += np.bincount(buckets, part * signs, len(cells))

    def retrieve(self, num_values: int) -> np.ndarray:
        """Return estimates of all values: the mean of what tables hold for each (Alg. 1, line 6).  # [p]

        The paper also names the median, which suits vectors with outliers. Where there are few, as in updates, the
        median of five errs a fifth more.
        """
        values = np.zeros(num_values, self.cells.dtype)
        for start in range(0, num_values, _CHUNK):
            part = values[start : start + _CHUNK]
            for cells, (buckets, signs) in zip(self.cells, self._places(start, len(part)), strict=True):
                part += cells[buckets] * signs
        values /= values.dtype.type(len(self.cells))
        return values

    def _places(self, start: int, count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the buckets and signs of `count` values, table by table."""
        keys = np.arange(start, start + count, dtype=np.uint64)
        for factor, summand in self.hashes:
            mixed = keys * factor + summand
            buckets = (mixed << np.uint64(1) >> np.uint64(32)) * np.uint64(self.cells.shape[1]) >> np.uint64(32)
            signs = 1 - 2 * (mixed >> np.uint64(63)).astype(np.float32)
            yield buckets.astype(np.int64), signs
