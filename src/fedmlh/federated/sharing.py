"""Points that everyone may see (Zhao et al. 2018): one message, which each client gets once.

The message is one safetensors buffer with the compressed sparse rows of features and labels as they lie in memory:
x_indptr, x_indices, x_values (float32), y_indptr, y_indices; labels are all 1, so they have no values. Indices are
int32 where that is enough.
"""

import numpy as np
from safetensors.numpy import load, save
from scipy.sparse import csr_matrix, vstack

from fedmlh.data.csr import build_csr
from fedmlh.data.dataset import Split


def encode_points(points: Split) -> bytes:
    """Return points with their labels as they travel."""
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
    """Return a client's own points, followed by the points of a shared message (empty: none)."""
    if not shared:
        return X, Y
    parts = load(shared)
    parts["y_values"] = np.ones(len(parts["y_indices"]), np.float32)
    more = []
    for part, own in (("x", X), ("y", Y)):
        data, indices, indptr = (parts[f"{part}_{array}"] for array in ("values", "indices", "indptr"))
        shape = (len(indptr) - 1, own.shape[1])
        more.append(vstack([own, build_csr("shared points", data, indices, indptr, shape)], "csr"))
    return more[0], more[1]
