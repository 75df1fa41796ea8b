"""Label maps: the bucket of each label in each table (Alg. 2, lines 2-7)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from fedmlh.hashing.families import canonical, murmur3, universal
from fedmlh.parts import find, register
from fedmlh.randomness import generator

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


@dataclass(frozen=True)
class LabelMap:
    """R tables of B buckets over p labels; only hash family and seeds travel, never the tables."""

    buckets: np.ndarray  # [R, p] int64
    num_buckets: int  # B

    @property
    def num_tables(self) -> int:
        """R, the number of tables."""
        return int(self.buckets.shape[0])

    def union(self, Y: "csr_matrix") -> "tuple[csr_matrix, ...]":
        """Return bucket labels: a bucket is positive if a label in it is (Alg. 2, line 6).  # [n, p] -> R × [n, B]"""
        return tuple(self._union(Y, buckets) for buckets in self.buckets)

    def _union(self, Y: "csr_matrix", buckets: np.ndarray) -> "csr_matrix":
        from scipy.sparse import csr_matrix

        merged = csr_matrix(
            (np.ones(Y.nnz, np.float32), buckets[Y.indices], Y.indptr.copy()), shape=(Y.shape[0], self.num_buckets)
        )
        merged.sum_duplicates()
        merged.data[:] = 1
        return merged


#: The keys of the labels if sites know labels by name; else the number of labels.
Labels = tuple[str, ...] | int


@lru_cache(maxsize=2)
def make_label_map(family: str, labels: Labels, seeds: tuple[int, ...], num_buckets: int) -> LabelMap:
    """Return one table per seed over the labels.

    The last two maps are cached, so that thousands of simulated clients share one. It must not be changed.
    """
    made: LabelMap = find("label map", family)(labels, seeds, num_buckets)
    return made


@register("label map", "identity")
def _keep_all(labels: Labels, seeds: tuple[int, ...], num_buckets: int) -> LabelMap:
    """Give every label a bucket of its own."""
    count = _count(labels)
    return LabelMap(np.tile(np.arange(count, dtype=np.int64), (len(seeds), 1)), count)


@register("label map", "balanced")
def _balance(labels: Labels, seeds: tuple[int, ...], num_buckets: int) -> LabelMap:
    """Spread labels over buckets at random, so that bucket sizes differ by at most one."""
    orders = [generator(seed, "balanced labels").permutation(_count(labels)) for seed in seeds]
    return LabelMap(np.stack([order % num_buckets for order in orders]), num_buckets)


def _hash_with(family: Callable[..., np.ndarray]) -> Callable[[Labels, tuple[int, ...], int], LabelMap]:
    def make(labels: Labels, seeds: tuple[int, ...], num_buckets: int) -> LabelMap:
        keys = np.arange(labels) if isinstance(labels, int) else [canonical(key) for key in labels]
        return LabelMap(np.stack([family(keys, seed, num_buckets) for seed in seeds]), num_buckets)

    return make


register("label map", "murmur3", _hash_with(murmur3))
register("label map", "universal", _hash_with(universal))


def _count(labels: Labels) -> int:
    return labels if isinstance(labels, int) else len(labels)
