"""Count Sketch (the paper's Algorithm 1), the structure that label hashing generalises."""

from typing import Literal

import numpy as np

from fedmlh.hashing.families import murmur3
from fedmlh.hashing.features import SIGN_SEED
from fedmlh.randomness import generator


class CountSketch:
    """A vector of p values kept in `num_tables` × `num_buckets` cells, from which single values are estimated."""

    def __init__(self, num_values: int, num_tables: int, num_buckets: int, seed: int = 0) -> None:
        keys = np.arange(num_values)
        seeds = [int(draw) for draw in generator(seed, "count sketch").integers(0, 2**31, num_tables)]
        self.buckets = np.stack([murmur3(keys, s, num_buckets) for s in seeds])  # [R, p]
        self.signs = np.stack([1 - 2 * murmur3(keys, s ^ SIGN_SEED, 2) for s in seeds])  # [R, p]
        self.cells = np.zeros((num_tables, num_buckets))  # [R, B]

    def insert(self, values: np.ndarray) -> None:
        """Add a vector to what is stored (Alg. 1, line 4).  # [p]"""
        for cells, buckets, signs in zip(self.cells, self.buckets, self.signs, strict=True):
            np.add.at(cells, buckets, signs * values)

    def retrieve(self, how: Literal["median", "mean"] = "median") -> np.ndarray:
        """Estimate all values (Alg. 1, line 6; the mean is the paper's alternative).  # [p]"""
        stored = np.take_along_axis(self.cells, self.buckets, axis=1) * self.signs  # [R, p]
        return np.asarray(np.median(stored, axis=0) if how == "median" else stored.mean(axis=0))
