"""Sparse matrices as bytes and arrays: the same bits come back, and what is no matrix is refused by a sentence."""

import numpy as np
import pytest
from safetensors.numpy import load, save
from scipy.sparse import csr_matrix, random_array

from fedmlh.data.csr import join_arrays, list_arrays, pack_matrices, unpack_matrices
from fedmlh.data.dataset import Split
from fedmlh.errors import UserError
from fedmlh.federated.sharing import add_points, encode_points


def draw(rows, columns, seed=0):
    return csr_matrix(random_array((rows, columns), density=0.3, rng=np.random.default_rng(seed)), dtype=np.float32)


def parts(matrix):
    return [matrix.data, matrix.indices, matrix.indptr]


def test_what_was_packed_comes_back_with_the_same_bits():
    matrices = {"X": draw(7, 11), "held_Y": draw(3, 5, 1), "none": csr_matrix((0, 4), dtype=np.float32)}
    back = unpack_matrices(pack_matrices(matrices), "here")
    assert back.keys() == matrices.keys()
    for name, matrix in matrices.items():
        assert back[name].shape == matrix.shape
        for old, new in zip(parts(matrix), parts(back[name]), strict=True):
            assert old.dtype == new.dtype
            assert old.tobytes() == new.tobytes()
        arrays = list_arrays(name, matrix)
        assert (join_arrays(name, arrays.__getitem__, "here") != matrix).nnz == 0


def spoil(name, change):
    arrays = list_arrays("X", draw(7, 11))
    arrays[f"X.{name}"] = change(arrays[f"X.{name}"])
    return save({name: array for name, array in arrays.items() if array is not None})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (spoil("indices", lambda indices: indices + 11), "a column number is outside 0 to 10"),
        (spoil("indices", lambda indices: indices - 11), "a column number is outside 0 to 10"),
        (spoil("indptr", lambda indptr: indptr + 1), "indptr should start at 0"),
        (spoil("indptr", lambda indptr: indptr[:-1]), "7 rows need 8"),
        (spoil("data", lambda data: data[:-1]), "values in data"),
        (spoil("shape", lambda shape: shape[:1]), r"does not hold points \(ValueError"),
        (spoil("shape", lambda shape: None), r"does not hold points \(KeyError"),
        (b"not safetensors", r"does not hold points \(SafetensorError"),
    ],
)
def test_what_is_no_matrix_is_refused_and_its_source_is_named(content, said):
    with pytest.raises(UserError, match=f"^the site's shard.*{said}"):
        unpack_matrices(content, "the site's shard")


def test_shared_points_that_are_no_matrix_are_refused():
    """Without the check, scipy would read beyond the arrays."""
    X, Y = draw(6, 11), draw(6, 5, 1)
    message = encode_points(Split(X, Y))
    assert add_points(X, Y, message)[0].shape == (12, 11)
    for name, number in (("x_indices", 11), ("y_indices", -1), ("y_indptr", 10**6)):
        arrays = load(message)
        arrays[name][-1] = number
        with pytest.raises(UserError, match="shared points: "):
            add_points(X, Y, save(arrays))
