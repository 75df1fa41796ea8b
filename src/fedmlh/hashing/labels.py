"""Label maps: which bucket of which table each label falls into (Alg. 2, lines 2-7)."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from scipy.sparse import csr_matrix

from fedmlh.hashing.families import canonical, murmur3, universal
from fedmlh.randomness import generator


@dataclass(frozen=True)
class LabelMap:
    """R tables of B buckets over p labels; only what names it (family and seeds) ever travels."""

    buckets: np.ndarray  # [R, p] int64
    num_buckets: int  # B

    @property
    def num_tables(self) -> int:
        """R."""
        return int(self.buckets.shape[0])

    def union(self, Y: csr_matrix) -> tuple[csr_matrix, ...]:
        """Bucket labels: a bucket is positive if any of its labels is (Alg. 2, line 6).  # [n, p] -> R × [n, B]"""
        return tuple(self._union(Y, buckets) for buckets in self.buckets)

    def _union(self, Y: csr_matrix, buckets: np.ndarray) -> csr_matrix:
        merged = csr_matrix(
            (np.ones(Y.nnz, np.float32), buckets[Y.indices], Y.indptr.copy()), shape=(Y.shape[0], self.num_buckets)
        )
        merged.sum_duplicates()
        merged.data[:] = 1
        return merged


@lru_cache(maxsize=2)
def make_label_map(
    family: Literal["murmur3", "universal", "balanced", "identity"],
    labels: tuple[str, ...] | int,
    seeds: tuple[int, ...],
    num_buckets: int,
) -> LabelMap:
    """One table a seed over `labels`: their keys where sites join by name, or just how many there are.

    Kept for the next who asks: thousands of simulated clients share one map. Nobody may write to it.
    """
    count = labels if isinstance(labels, int) else len(labels)
    if family == "identity":
        return LabelMap(np.tile(np.arange(count, dtype=np.int64), (len(seeds), 1)), count)
    if family == "balanced":
        orders = [generator(seed, "balanced labels").permutation(count) for seed in seeds]
        return LabelMap(np.stack([order % num_buckets for order in orders]), num_buckets)
    hash_function = murmur3 if family == "murmur3" else universal
    keys = np.arange(count) if isinstance(labels, int) else [canonical(key) for key in labels]
    return LabelMap(np.stack([hash_function(keys, seed, num_buckets) for seed in seeds]), num_buckets)
