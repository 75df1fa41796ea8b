"""Sparse matrices as bytes: points on a site's disk, read back with the same bits and checked like any file."""

from collections.abc import Mapping

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save
from scipy.sparse import csr_matrix

from fedmlh.data.matrix import check_csr
from fedmlh.errors import UserError

_PARTS = ("data", "indices", "indptr", "shape")


def pack_matrices(matrices: Mapping[str, csr_matrix]) -> bytes:
    """Named matrices, their rows compressed as they lie in memory."""
    arrays: dict[str, np.ndarray] = {}
    for name, matrix in matrices.items():
        parts = (matrix.data, matrix.indices, matrix.indptr, np.array(matrix.shape, np.int64))
        arrays |= {f"{name}.{part}": np.ascontiguousarray(array) for part, array in zip(_PARTS, parts, strict=True)}
    return bytes(save(arrays))


def unpack_matrices(content: bytes, source: str) -> dict[str, csr_matrix]:
    """The matrices by name, or a UserError that names the source."""
    try:
        arrays = load(content)
        names = [name.removesuffix(".data") for name in arrays if name.endswith(".data")]
        matrices = {}
        for name in names:
            data, indices, indptr, shape = (arrays[f"{name}.{part}"] for part in _PARTS)
            rows, columns = shape.tolist()
            check_csr(source, data, indices, indptr, (rows, columns))
            matrices[name] = csr_matrix((data, indices, indptr), shape=(rows, columns))
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        raise UserError(f"{source} does not hold points ({type(error).__name__}: {error})") from None
    return matrices
