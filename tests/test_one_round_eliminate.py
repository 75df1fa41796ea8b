"""Slots that occur with few others are eliminated first: the same solution, from a smaller factorisation."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix, hstack, identity, lil_matrix

from fedmlh.oneround import eliminate, solve
from fedmlh.oneround.eliminate import Elimination, NotPositive, pick_slots
from fedmlh.oneround.solve import Solver, System

CPU = torch.device("cpu")


def draw_system(seed=0, num_points=400, num_slots=899):
    """Draw G + λI of points with few slots each, most of them rare, as words are."""
    rng = np.random.default_rng(seed)
    columns = (num_slots ** rng.random((num_points, 6))).astype(int) - 1
    X = csr_matrix((rng.random(columns.size), columns.ravel(), np.arange(num_points + 1) * 6), (num_points, num_slots))
    X = hstack([np.ones((num_points, 1)), X], "csr")  # the one in front occurs with everything
    return System(csr_matrix(X.T @ X + identity(num_slots + 1)))


@pytest.mark.parametrize("seed", range(3))
def test_slots_of_one_step_never_occur_together(seed):
    matrix = draw_system(seed).matrix
    gone = pick_slots(matrix)
    assert gone.sum() > 200
    among = matrix[gone][:, gone]
    assert (among != csr_matrix(np.diag(among.diagonal()))).nnz == 0
    assert not gone[0]


def test_what_is_left_is_the_schur_complement():
    matrix = draw_system().matrix
    elimination = Elimination.of(matrix)
    size = elimination.core.shape[0]
    assert len(elimination.steps) > 1
    assert size < 450
    assert sorted(elimination.order) == list(range(900))
    dense = matrix.toarray()
    core, gone = elimination.order[:size], elimination.order[size:]
    inner = np.linalg.solve(dense[np.ix_(gone, gone)], dense[np.ix_(gone, core)])
    expected = dense[np.ix_(core, core)] - dense[np.ix_(core, gone)] @ inner
    assert np.abs(elimination.core.toarray() - expected).max() < 1e-12
    assert (elimination.core != elimination.core.T).nnz == 0


@pytest.mark.parametrize(("exact", "limit"), [(True, 1e-12), (False, 1e-4)])
def test_the_solution_is_that_of_the_whole_system(monkeypatch, exact, limit):
    monkeypatch.setattr(solve, "is_direct", lambda *_: True)
    system = draw_system(1)
    right = np.random.default_rng(2).normal(size=(900, 7))
    given = torch.from_numpy(right.copy())
    found = Solver(system, 7, CPU, exact=exact)(given).double().numpy()
    expected = np.linalg.solve(system.matrix.toarray(), right)
    assert np.abs(found - expected).max() < limit * np.abs(expected).max()
    assert np.array_equal(given.numpy(), right), "right-hand sides belong to the caller"


def test_a_dense_system_or_one_that_would_fill_up_is_left_as_it_is(monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 40))
    elimination = Elimination.of(csr_matrix(X.T @ X))
    assert (elimination.steps, elimination.core.shape) == ((), (40, 40))
    monkeypatch.setattr(eliminate, "_MOST_FILL", 100)
    assert Elimination.of(draw_system().matrix).steps == ()


@pytest.mark.parametrize("place", ["eliminated", "core"])
def test_a_negative_square_is_found_wherever_it_is(place):
    system = draw_system()
    elimination = Elimination.of(system.matrix)
    slot = elimination.order[-1 if place == "eliminated" else 1]
    matrix = lil_matrix(system.matrix)
    matrix[slot, slot] = -1.0
    with pytest.raises(NotPositive):
        Solver(System(csr_matrix(matrix)), 5, CPU)
