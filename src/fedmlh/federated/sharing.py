"""Points that everyone may see (Zhao et al. 2018): one message, which each client gets once.

The message is one safetensors buffer with the compressed sparse rows of features and labels as they lie in memory:
x_indptr, x_indices, x_values (float32), y_indptr, y_indices; labels are all 1, so they have no values. Indices are
int32 where that is enough.
"""

import numpy as np
from safetensors.numpy import load, save
from scipy.sparse import csr_matrix, vstack

from fedmlh.data.dataset import Split


def encode_points(points: Split) -> bytes:
    """Points with their labels as they travel."""
    X, Y = points.X, points.Y
    arrays = {
        "x_indptr": X.indptr,
        "x_indices": X.indices,
        "x_values": X.data,
        "y_indptr": Y.indptr,
        "y_indices": Y.indices,
    }
    return bytes(save({name: np.ascontiguousarray(array) for name, array in arrays.items()}))


def add_points(X: csr_matrix, Y: csr_matrix, shared: bytes) -> tuple[csr_matrix, csr_matrix]:
    """A client's own points, and after them those of a message of shared ones (empty: none)."""
    if not shared:
        return X, Y
    parts = load(shared)
    more_x = csr_matrix(
        (parts["x_values"], parts["x_indices"], parts["x_indptr"]), (len(parts["x_indptr"]) - 1, X.shape[1])
    )
    ones = np.ones(len(parts["y_indices"]), np.float32)
    more_y = csr_matrix((ones, parts["y_indices"], parts["y_indptr"]), (len(parts["y_indptr"]) - 1, Y.shape[1]))
    return vstack([X, more_x], "csr"), vstack([Y, more_y], "csr")
