"""What a model found at each test point; paired comparisons of models draw their intervals from it.

In a run folder it is `test_points.safetensors`. Rows are the points of the test part in their order, columns the k:

- hits: how many of the first k labels are true; precision@k of a point is hits / k;
- psp_gain: the inverse propensities of these hits; psp_best: the most that k labels of the point could give. The sum of
  psp_gain over the sum of psp_best is psp@k;
- k: the columns; labels: SHA-256 of the true labels, which shows whether two files are about the same points.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save
from scipy.sparse import csr_matrix

from fedmlh.evaluation.metrics import canonical, find_hits


@dataclass(frozen=True)
class PointHits:
    """Hits and gains of one model, for each test point and k."""

    k: np.ndarray  # [m] uint16
    labels: np.ndarray  # [32] uint8
    hits: np.ndarray  # [n, m] uint8 or uint16
    psp_gain: np.ndarray  # [n, m] float32
    psp_best: np.ndarray  # [n, m] float32

    @classmethod
    def of(
        cls,
        ranked: Iterable[np.ndarray],  # [·, >= max k] each, one batch of points after another
        Y: csr_matrix,  # [n, p]
        ks: Sequence[int],
        inverse_propensity: np.ndarray,  # [p]
    ) -> "PointHits":
        """Compare ranked labels with the true ones."""
        Y, columns, width = canonical(Y), np.array(ks) - 1, max(ks)
        hits, gains, begin = [], [], 0
        for batch in ranked:
            top = batch[:, :width]
            hit = find_hits(top, Y[begin : begin + len(top)])
            begin += len(top)
            hits.append(hit.cumsum(axis=1)[:, columns].astype(np.uint8 if width < 256 else np.uint16))
            weights = np.where(hit, inverse_propensity[top], 0)
            gains.append(weights.cumsum(axis=1)[:, columns].astype(np.float32))
        return cls(
            np.array(ks, np.uint16),
            np.frombuffer(_digest(Y), np.uint8),
            np.concatenate(hits),
            np.concatenate(gains),
            _sum_best(Y, ks, inverse_propensity).astype(np.float32),
        )

    def __len__(self) -> int:
        return len(self.hits)

    def is_paired_with(self, other: "PointHits") -> bool:
        """Say whether both are about the same points, measured in the same way."""
        same = ("k", "labels", "psp_best")
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in same)

    def encode(self) -> bytes:
        """Return the content of the file."""
        return save({name: np.ascontiguousarray(getattr(self, name)) for name in _KINDS})

    @classmethod
    def decode(cls, content: bytes) -> "PointHits":
        """Read the content of a file; raise a ValueError or KeyError if it is not valid."""
        try:
            arrays = load(content)
        except SafetensorError as error:
            raise ValueError(str(error)) from None
        found = cls(**{name: arrays[name] for name in _KINDS})
        for name, kinds in _KINDS.items():
            if arrays[name].dtype not in kinds:
                raise ValueError(f"{name} are {arrays[name].dtype}")
        shape = (len(found.hits), len(found.k))
        fits = all(arrays[name].shape == shape for name in ("hits", "psp_gain", "psp_best"))
        if not fits or found.k.ndim != 1 or found.labels.shape != (32,):
            raise ValueError("its parts do not fit each other")
        gains = (found.psp_gain, found.psp_best)
        if not all(np.all((part >= 0) & np.isfinite(part)) for part in gains) or np.any(found.hits > found.k):
            raise ValueError("it holds hits that no point has")
        return found


_KINDS: dict[str, tuple[type, ...]] = {
    "k": (np.uint16,),
    "labels": (np.uint8,),
    "hits": (np.uint8, np.uint16),
    "psp_gain": (np.float32,),
    "psp_best": (np.float32,),
}


def _digest(Y: csr_matrix) -> bytes:
    digest = hashlib.sha256(np.array(Y.shape, np.int64).tobytes())
    digest.update(Y.indptr.astype(np.int64).tobytes())
    digest.update(Y.indices.astype(np.int64).tobytes())
    return digest.digest()


def _sum_best(Y: csr_matrix, ks: Sequence[int], inverse_propensity: np.ndarray) -> np.ndarray:  # [n, m]
    """Return the weights of the k heaviest true labels, summed per point."""
    sizes = np.diff(Y.indptr)
    rows, weights = np.repeat(np.arange(len(sizes)), sizes), inverse_propensity[Y.indices]
    ranked = weights[np.lexsort((-weights, rows))]
    rank = np.arange(len(ranked)) - np.repeat(Y.indptr[:-1], sizes)
    columns = [np.bincount(rows, np.where(rank < k, ranked, 0), len(sizes)) for k in ks]
    return np.stack(columns, axis=1)
