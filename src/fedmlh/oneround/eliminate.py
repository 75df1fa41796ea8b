"""Elimination of slots that occur with few others, before the rest of a system is made dense.

Slots that never occur together do not stand in each other's equations, so that one sparse product eliminates a whole
set of slots. The rest is smaller and less sparse: its factorisation takes time in the cube of its size.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from fedmlh.oneround.products import multiply

#: A step pays if it eliminates this share of the slots, and slots that stand in no more than this share of equations.
_LEAST_SHARE, _MOST_SHARE = 1 / 16, 1 / 16
#: The most numbers that a step may add to a system.
_MOST_FILL = 2**26
#: Passes in which slots are picked for one step; slots that are still open then wait for the next step.
_PASSES = 12


class NotPositive(Exception):
    """Sums that no points have: some direction has a negative square."""


@dataclass(frozen=True)
class Step:
    """Slots that are eliminated together, and their effect on the slots before them in the order."""

    roots: Tensor  # [gone, 1] of the squares on the diagonal
    forward: csr_matrix  # [kept, gone] their entries in the equations of the others, divided by the roots
    backward: csr_matrix  # the same, transposed


@dataclass(frozen=True)
class Elimination:
    """A symmetric system as steps of elimination and the core that is left."""

    order: np.ndarray  # of all slots: those of the core, then those of the last step, …, those of the first
    steps: tuple[Step, ...]
    core: csr_matrix  # float64

    @classmethod
    def of(cls, matrix: csr_matrix, *, at_all: bool = True) -> "Elimination":
        """Eliminate as long as it pays; nothing unless `at_all`."""
        left, parts = np.arange(matrix.shape[0]), []
        while at_all and (gone := pick_slots(matrix)).any():
            squares = matrix.diagonal()[gone]
            if squares.min() <= 0:
                raise NotPositive("the square of a slot is negative")
            roots, rows = np.sqrt(squares), matrix[~gone]
            # The same numbers in both factors: the product is symmetric to the bit.
            forward = csr_matrix(rows[:, gone].multiply(1 / roots))
            matrix = csr_matrix(rows[:, ~gone] - forward @ forward.T)
            parts.append((left[gone], left[~gone], roots, forward))
            left = left[~gone]
        order = np.concatenate([left, *(gone for gone, *_ in reversed(parts))])
        places, steps = np.argsort(order), []
        for _, kept, roots, forward in parts:
            forward = forward[np.argsort(places[kept])]
            steps.append(Step(torch.from_numpy(roots[:, None]), forward, csr_matrix(forward.T)))
        return cls(order, tuple(steps), matrix)

    def to(self, dtype: torch.dtype) -> "Elimination":
        """Return the same steps for columns in another precision."""
        kind = np.float64 if dtype == torch.float64 else np.float32
        steps = (
            Step(s.roots.to(dtype), s.forward.astype(kind, copy=False), s.backward.astype(kind, copy=False))
            for s in self.steps
        )
        return Elimination(self.order, tuple(steps), self.core)

    def solve(self, right: Tensor, solve_core: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the solution for columns in the precision of the steps.  # [size, k] -> [size, k]"""
        if not self.steps:
            return solve_core(right)
        order = torch.from_numpy(self.order)
        ordered = right[order]
        for step in self.steps:
            before, gone = _part(ordered, step)
            gone /= step.roots
            before -= torch.from_numpy(multiply(step.forward, gone.numpy()))
        core = ordered[: self.core.shape[0]]
        core[:] = solve_core(core)
        for step in reversed(self.steps):
            before, gone = _part(ordered, step)
            gone -= torch.from_numpy(multiply(step.backward, before.numpy()))
            gone /= step.roots
        solution = torch.empty_like(ordered)
        solution[order] = ordered
        return solution


def _part(ordered: Tensor, step: Step) -> tuple[Tensor, Tensor]:
    """Return the rows that a step keeps, and those that it eliminates."""
    kept, gone = step.forward.shape
    return ordered[:kept], ordered[kept : kept + gone]


def pick_slots(matrix: csr_matrix) -> np.ndarray:
    """Return which slots a step eliminates: no two that occur together, and none if it does not pay.  # [size]"""
    size, degrees = matrix.shape[0], np.diff(matrix.indptr)
    found = np.zeros(size, bool)
    places = np.flatnonzero(degrees <= _MOST_SHARE * size)
    if len(places) < _LEAST_SHARE * size:
        return found
    few, degrees = matrix[places][:, places], degrees[places]
    # Slots in few equations go first; among equals in mixed order, so that few passes are needed.
    mixed = np.arange(len(places), dtype=np.uint32) * np.uint32(2654435761)
    rank = np.empty(len(places), np.int64)
    rank[np.lexsort((mixed, degrees))] = np.arange(len(places))
    rows, columns = np.repeat(np.arange(len(places)), np.diff(few.indptr)), few.indices
    is_open, picked = np.ones(len(places), bool), np.zeros(len(places), bool)
    for _ in range(_PASSES):
        left = is_open[rows] & is_open[columns] & (rows != columns)
        rows, columns = rows[left], columns[left]
        least = np.full(len(places), len(places))
        np.minimum.at(least, rows, rank[columns])
        chosen = is_open & (rank < least)
        picked |= chosen
        is_open &= ~chosen
        is_open[columns[chosen[rows]]] = False
    fill = np.square(degrees[picked], dtype=np.float64).sum()
    if picked.sum() < _LEAST_SHARE * size or fill > _MOST_FILL:
        return found
    found[places[picked]] = True
    return found
