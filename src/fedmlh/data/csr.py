"""Sparse matrices as named arrays and as bytes: the form that they have in files of sites and of the cache.

A matrix `name` is four arrays, its rows compressed as they lie in memory: `name.data`, `name.indices`, `name.indptr`
and `name.shape`. What is read is checked before anything indexes with it.
"""

from collections.abc import Callable, Mapping

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save
from scipy.sparse import csr_matrix

from fedmlh.data.matrix import check_csr
from fedmlh.errors import UserError


def list_arrays(name: str, matrix: csr_matrix) -> dict[str, np.ndarray]:
    """Return the arrays of a matrix by their names."""
    shape = np.array(matrix.shape, np.int64)
    parts = {"data": matrix.data, "indices": matrix.indices, "indptr": matrix.indptr, "shape": shape}
    return {f"{name}.{part}": np.ascontiguousarray(array) for part, array in parts.items()}


def build_csr(
    source: str, data: np.ndarray, indices: np.ndarray, indptr: np.ndarray, shape: tuple[int, int]
) -> csr_matrix:
    """Return the matrix of these arrays with the same bits, or raise a UserError that names the source."""
    check_csr(source, data, indices, indptr, shape)
    return csr_matrix((data, indices, indptr), shape=shape)


def join_arrays(name: str, read: Callable[[str], np.ndarray], source: str) -> csr_matrix:
    """Return the matrix of that name, whose arrays `read` returns by their names."""
    rows, columns = read(f"{name}.shape").tolist()
    data, indices, indptr = (read(f"{name}.{part}") for part in ("data", "indices", "indptr"))
    return build_csr(source, data, indices, indptr, (rows, columns))


def pack_matrices(matrices: Mapping[str, csr_matrix]) -> bytes:
    """Return named matrices as one safetensors buffer."""
    return bytes(save({part: array for name in matrices for part, array in list_arrays(name, matrices[name]).items()}))


def unpack_matrices(content: bytes, source: str) -> dict[str, csr_matrix]:
    """Return the matrices by name, or raise a UserError that names the source."""
    try:
        arrays = load(content)
        names = [name.removesuffix(".data") for name in arrays if name.endswith(".data")]
        return {name: join_arrays(name, arrays.__getitem__, source) for name in names}
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise UserError(f"{source} does not hold points ({type(error).__name__}: {error})") from None
