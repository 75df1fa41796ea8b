"""Sparse matrices as Ray's object store can share them between processes."""

import numpy as np
from scipy.sparse import csr_matrix

#: Data, indices and indptr of a sparse matrix.
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray]


def cut(arrays: Arrays, begin: int, end: int, width: int) -> csr_matrix:
    """Return rows begin … end of a matrix, copied."""
    data, indices, indptr = arrays
    first, last = indptr[begin], indptr[end]
    part = (data[first:last], indices[first:last], indptr[begin : end + 1] - first)
    return csr_matrix(part, shape=(end - begin, width), copy=True)
