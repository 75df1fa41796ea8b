"""Feature maps: from the raw features of a point to the narrow input that the networks see."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedmlh.hashing.families import murmur3

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

#: Keeps the sign of a feature independent of its bucket, which comes from the plain seed.
SIGN_SEED = 0x5EED


@dataclass(frozen=True)
class FeatureMap:
    """Feature hashing with one map for all tables or one per table; without seeds, the features as they are."""

    num_features: int  # d
    dim: int  # d̃
    seeds: tuple[int, ...]
    signed: bool
    normalize: bool

    def apply(self, X: "csr_matrix") -> "tuple[csr_matrix, ...]":
        """Hash features, a matrix per map; values of colliding features are summed.  # [n, d] -> M × [n, d̃]"""
        hashed = [self._hash(X, seed) for seed in self.seeds] or [X.copy()]
        return tuple(_unit_rows(part) if self.normalize else part for part in hashed)

    def _hash(self, X: "csr_matrix", seed: int) -> "csr_matrix":
        from scipy.sparse import csr_matrix

        # Only features that occur are hashed: d may be far larger than a client's share of it.
        features, places = np.unique(X.indices, return_inverse=True)
        data = np.array(X.data, np.float32)
        if self.signed:
            data *= (1 - 2 * murmur3(features, seed ^ SIGN_SEED, 2).astype(np.float32))[places]
        buckets = murmur3(features, seed, self.dim)[places]
        hashed = csr_matrix((data, buckets, X.indptr.copy()), shape=(X.shape[0], self.dim))
        hashed.sum_duplicates()
        hashed.eliminate_zeros()
        return hashed


def _unit_rows(X: "csr_matrix") -> "csr_matrix":
    from scipy.sparse import csr_matrix, diags_array

    # In double precision: squares of small and large values leave the range of float32.
    norms = np.sqrt(np.asarray(X.astype(np.float64).power(2).sum(axis=1)).ravel())
    scaled = csr_matrix(diags_array(1 / np.where(norms > 0, norms, 1)) @ X, dtype=np.float32)
    scaled.sort_indices()
    return scaled


def make_feature_map(num_features: int, dim: int, seeds: Sequence[int], *, signed: bool, normalize: bool) -> FeatureMap:
    """Return the map that these seeds name; without seeds, features stay as they are."""
    return FeatureMap(num_features, dim if seeds else num_features, tuple(seeds), signed, normalize)
