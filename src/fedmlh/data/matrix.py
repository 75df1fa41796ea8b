"""The one form of sparse matrix the product works on: float32 CSR, sorted, without duplicates or zeros."""

from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_matrix

from fedmlh.errors import UserError


class Head(NamedTuple):
    """Shape and type of an array, known before its numbers are looked at."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @classmethod
    def of(cls, array: np.ndarray) -> "Head":
        """Return the head of an array that has been read."""
        return cls(array.shape, array.dtype)


def check_heads(source: str, data: Head, indices: Head, indptr: Head, shape: tuple[int, int]) -> None:
    """Refuse arrays that cannot be a CSR matrix of that shape, whatever numbers they hold."""
    if not len(data.shape) == len(indices.shape) == len(indptr.shape) == 1:
        raise UserError(f"{source}: data, indices and indptr should each be one row of numbers")
    if data.dtype.kind not in "biuf" or indices.dtype.kind not in "iu" or indptr.dtype.kind not in "iu":
        raise UserError(
            f"{source}: data, indices and indptr should be numbers, whole numbers, whole numbers; "
            f"they are {data.dtype}, {indices.dtype}, {indptr.dtype}"
        )
    if indptr.shape[0] != shape[0] + 1:
        raise UserError(f"{source}: indptr has {indptr.shape[0]:,} entries, {shape[0]:,} rows need {shape[0] + 1:,}")
    if indices.shape != data.shape:
        raise UserError(f"{source}: there are {indices.shape[0]:,} indices, but {data.shape[0]:,} values in data")


def check_csr(source: str, data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, shape: tuple[int, int]) -> None:
    """Refuse arrays that are not a CSR matrix: scipy would read beyond them."""
    check_heads(source, Head.of(data), Head.of(indices), Head.of(indptr), shape)
    if indptr[0] != 0 or np.any(indptr[1:] < indptr[:-1]):
        raise UserError(f"{source}: indptr should start at 0 and never fall")
    if indptr[-1] != len(indices):
        raise UserError(f"{source}: indptr ends at {indptr[-1]:,}, but there are {len(indices):,} indices")
    if len(indices) and (indices.min() < 0 or indices.max() >= shape[1]):
        raise UserError(f"{source}: a column number is outside 0 to {shape[1] - 1:,}")


def build_features(
    source: str, values: np.ndarray, indices: np.ndarray, indptr: np.ndarray, shape: tuple[int, int]
) -> tuple[csr_matrix, int]:
    """Return X in canonical form, and how many duplicate features were summed into others."""
    with np.errstate(over="ignore"):
        data = values.astype(np.float32)
    X = csr_matrix((data, indices, indptr), shape=shape)
    before = X.nnz
    X.sum_duplicates()
    merged = before - X.nnz
    if not np.isfinite(X.data).all():
        raise UserError(f"{source}: a feature value is NaN, infinite or too large for a 32-bit float")
    X.eliminate_zeros()
    return X, merged


def build_labels(indices: np.ndarray, indptr: np.ndarray, shape: tuple[int, int]) -> tuple[csr_matrix, int]:
    """Return Y in canonical form, and how many duplicate labels were merged into others."""
    Y = csr_matrix((np.ones(len(indices), np.float32), indices, indptr), shape=shape)
    Y.sum_duplicates()
    Y.data.fill(1.0)
    return Y, len(indices) - Y.nnz


def build_marks(
    source: str, data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, shape: tuple[int, int]
) -> tuple[csr_matrix, int]:
    """Return Y of a matrix that holds 0 or 1 per label, and how many duplicate labels were merged into others."""
    if not ((data == 0) | (data == 1)).all():
        raise UserError(f"{source}: labels are 0 or 1, and a value is neither")
    if not data.all():
        kept = data != 0
        indptr = np.concatenate([[0], np.cumsum(kept)])[indptr]
        indices = indices[kept]
    return build_labels(indices, indptr, shape)


def build_indptr(counts: np.ndarray) -> np.ndarray:
    """Return where each row starts, from how many entries each row has."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def count_merged(source: str, features: int, labels: int) -> tuple[str, ...]:
    """Return the notes that a user gets about duplicates."""
    notes = []
    if features:
        notes.append(f"{source}: duplicate features in a point: {features:,} summed")
    if labels:
        notes.append(f"{source}: duplicate labels of a point: {labels:,} merged")
    return tuple(notes)
