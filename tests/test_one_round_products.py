"""Products with sparse matrices: the same bits on any number of threads, and inverses that solve."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix, random_array

from fedmlh.oneround import products
from fedmlh.oneround.products import Inverse, multiply
from fedmlh.oneround.solve import RESIDUAL, Solver, System

CPU = torch.device("cpu")


@pytest.fixture
def threads():
    """Set the number of threads, and set it back."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def draw_sparse(rows, columns, share, seed=0):
    return csr_matrix(random_array((rows, columns), density=share, rng=np.random.default_rng(seed)))


def draw_factor(size, seed=0):
    X = np.random.default_rng(seed).normal(size=(size + 20, size))
    matrix = X.T @ X / size + np.eye(size)
    return matrix, torch.linalg.cholesky(torch.from_numpy(matrix))


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_a_product_has_the_same_bits_on_any_number_of_threads(monkeypatch, threads, kind):
    monkeypatch.setattr(products, "_LARGE", 0)
    matrix = draw_sparse(300, 200, 0.1).astype(kind)
    matrix.data[: matrix.indptr[3]] = 0  # rows of very different length
    columns = np.random.default_rng(1).normal(size=(200, 7)).astype(kind)
    for count in (1, 2, 3, 50):
        threads(count)
        found = multiply(matrix, columns)
        assert found.dtype == kind
        assert np.array_equal(found, matrix @ columns)
    assert multiply(csr_matrix((5, 200)), columns.astype(np.float64)).tolist() == [[0.0] * 7] * 5


@pytest.mark.parametrize("share", [0.02, 1.0])  # below and above what a sparse product is for
@pytest.mark.parametrize("size", [1, 64, 65, 150])
def test_an_inverse_solves_for_sparse_and_dense_columns(threads, size, share):
    matrix, factor = draw_factor(size)
    inverse = Inverse.of(factor)
    right = draw_sparse(size, 9, share, seed=2).toarray()
    expected = np.linalg.solve(matrix, right)
    solutions = []
    for count in (1, 3):
        threads(count)
        solutions.append(inverse.solve(torch.from_numpy(right)).numpy())
    assert np.allclose(solutions[0], expected, rtol=1e-9, atol=1e-12)
    if share < 1:  # a dense solution is torch's own
        assert np.array_equal(*solutions)


def test_many_columns_are_solved_for_by_an_inverse_and_corrected_where_it_is_too_coarse(monkeypatch):
    made, invert = [], Inverse.of

    def invert_badly(factor):
        made.append(len(factor))
        return Inverse(factor, tuple(1.001 * panel for panel in invert(factor).panels))

    monkeypatch.setattr(Inverse, "of", invert_badly)
    matrix, _ = draw_factor(60)
    system, right = System(csr_matrix(matrix)), torch.from_numpy(draw_sparse(60, 200, 0.05).toarray())
    for columns, expected in ((200, [60]), (10, [])):
        made.clear()
        left = system.residual(right, Solver(system, columns, CPU)(right))
        assert (left.norm(dim=0) <= RESIDUAL * right.norm(dim=0)).all()
        assert made == expected
