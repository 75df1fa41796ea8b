"""The linear solution W = (G + λI)⁻¹ C by a factorisation or by conjugate gradients, to a residual that is checked."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from scipy.sparse import csr_matrix, diags_array, triu
from torch import Tensor

from fedmlh.errors import UserError
from fedmlh.oneround.eliminate import Elimination
from fedmlh.oneround.eliminate import NotPositive as NotPositive
from fedmlh.oneround.products import Inverse
from fedmlh.oneround.products import multiply as multiply_sparse
from fedmlh.oneround.sums import Sums

#: The largest residual of a column, relative to its right-hand side, in double precision.
RESIDUAL = 1e-5
#: Up to this many slots, a factorisation in double precision is faster than single precision with corrections.
_MOST_DOUBLE = 20_000
#: If columns are this many times as many as slots, the inverse is faster, since most columns are mostly 0.
_MANY_COLUMNS = 1.5
#: The most corrections, and steps of conjugate gradients for each, before the system counts as unsolvable.
_MOST_CORRECTIONS, _MOST_STEPS = 10, 200
#: How far conjugate gradients go in single precision before the residual is computed again.
_INNER = 1e-3
#: Slots whose block preconditions conjugate gradients: the most frequent, which make the sums ill-conditioned.
_HEAD = 4_000
#: Rough operations per second of a factorisation and of sparse products, and rough steps, to choose between them.
_DENSE_RATE, _SPARSE_RATE, _EXPECTED_STEPS = 1e11, 1.5e9, 12


@dataclass(frozen=True)
class System:
    """G + λI in double precision, sparse as the sums are."""

    matrix: csr_matrix  # float64 [1 + s, 1 + s]

    @classmethod
    def of(cls, sums: Sums, bits: int, ridge: float) -> "System":
        """Scale the sums back to points of length 1 and add λ to the diagonal."""
        upper = sums.gram.astype(np.float64) / 4.0**bits
        mirrored = upper + triu(upper, k=1).T
        return cls(csr_matrix(mirrored + ridge * diags_array(np.ones(upper.shape[0]))))

    @property
    def size(self) -> int:
        """1 + s."""
        return int(self.matrix.shape[0])

    def dense(self, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return the matrix with all its zeros."""
        kind = np.float64 if dtype == torch.float64 else np.float32
        return torch.from_numpy(self.matrix.astype(kind).toarray()).to(device)

    def residual(self, right: Tensor, solution: Tensor) -> Tensor:
        """Return the residual of the right-hand sides, in double precision."""
        product = torch.from_numpy(multiply_sparse(self.matrix, solution.cpu().numpy()))
        return right - product.to(right.device)


class Solver:
    """Solves one system for many right-hand sides."""

    def __init__(self, system: System, num_columns: int, device: torch.device, *, exact: bool = True) -> None:
        """Prepare for about `num_columns` columns; without `exact`, in single precision and unchecked."""
        self.system = system
        self.device = device
        self.exact = exact
        # A GPU factorises the whole system in less time than its elimination would take.
        self._elimination = Elimination.of(system.matrix, at_all=device.type == "cpu")
        self._core = System(self._elimination.core)
        self.double = exact and is_double(self._core.size, device)
        self.direct = self.double or is_direct(self._core.size, system.matrix.nnz, num_columns, device)
        self._num_columns = num_columns
        self._inner = self._factorise() if self.direct else self._precondition()

    def __call__(self, right: Tensor) -> Tensor:
        """Return the solution for columns, in double precision where it is exact.  # [1 + s, k] -> [1 + s, k]"""
        right = right.to(self.device)
        solution = self._inner(right)
        if not self.exact:
            return solution
        bounds = RESIDUAL * right.norm(dim=0)
        if self.double:  # double precision is exact far beyond the bound: checking a few columns suffices
            few = slice(0, 8)
            if (self.system.residual(right[:, few], solution[:, few]).norm(dim=0) <= bounds[few]).all():
                return solution
        late = torch.arange(right.shape[1], device=self.device)
        for _ in range(_MOST_CORRECTIONS):
            some = slice(None) if len(late) == right.shape[1] else late  # a slice copies nothing
            left = self.system.residual(right[:, some], solution[:, some])
            far = ~(left.norm(dim=0) <= bounds[some])
            late = late[far]
            if not len(late):
                return solution
            solution[:, late] += self._inner(left[:, far])
        raise NotPositive("the residual does not become small")

    def _factorise(self) -> Callable[[Tensor], Tensor]:
        if not self.double:
            try:
                return self._factorise_in(torch.float32)
            except NotPositive:
                pass  # perhaps single precision is too coarse for this many points: double precision decides
        return self._factorise_in(torch.float64)

    def _factorise_in(self, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
        factor = _factor(self._core.dense(dtype, self.device))

        outer = torch.float64 if self.exact else dtype
        elimination = self._elimination.to(outer)
        if self.double and self.device.type == "cpu" and self._num_columns >= _MANY_COLUMNS * len(factor):
            return partial(elimination.solve, solve_core=Inverse.of(factor).solve)

        def solve_core(right: Tensor) -> Tensor:
            solution: Tensor = torch.cholesky_solve(right.to(dtype), factor)
            return solution.to(outer)

        return lambda right: elimination.solve(right.to(outer), solve_core)

    def _precondition(self) -> Callable[[Tensor], Tensor]:
        """Return conjugate gradients in single precision, exact for the most frequent slots in each step."""
        matrix = self.system.matrix.astype(np.float32)
        head = min(_HEAD, self.system.size)
        factor = _factor(torch.from_numpy(matrix[:head, :head].toarray()).to(self.device))
        diagonal = torch.from_numpy(matrix.diagonal()[head:, None]).to(self.device)

        def precondition(left: Tensor) -> Tensor:
            return torch.cat([torch.cholesky_solve(left[:head], factor), left[head:] / diagonal])

        def multiply(vectors: Tensor) -> Tensor:
            return torch.from_numpy(multiply_sparse(matrix, vectors.cpu().numpy())).to(self.device)

        def solve(right: Tensor) -> Tensor:
            scale: Tensor = right.norm(dim=0).clamp_min(1e-300)
            return conjugate(multiply, precondition, (right / scale).float()).double() * scale

        return solve


def conjugate(multiply: Callable[[Tensor], Tensor], precondition: Callable[[Tensor], Tensor], right: Tensor) -> Tensor:
    """Solve for columns of length 1 by preconditioned conjugate gradients, each by itself."""
    solution, left = torch.zeros_like(right), right.clone()
    ahead = precondition(left)
    direction, energy = ahead.clone(), (left * ahead).sum(dim=0)
    for _ in range(_MOST_STEPS):
        product = multiply(direction)
        curvature = (direction * product).sum(dim=0)
        if (curvature < 0).any():
            raise NotPositive("a direction with a negative square")
        step = energy / curvature.clamp_min(1e-30)
        solution += step * direction
        left -= step * product
        if (left.norm(dim=0) <= _INNER).all():
            break
        ahead = precondition(left)
        before, energy = energy, (left * ahead).sum(dim=0)
        direction = ahead + energy / before.clamp_min(1e-30) * direction
    return solution


def is_double(size: int, device: torch.device) -> bool:
    """Say whether a factorisation in double precision is affordable; on a GPU it is if memory suffices."""
    fits = factor_bytes(size, 8) <= available_memory(device) // 2
    return fits and (size <= _MOST_DOUBLE or device.type == "cuda")


def is_direct(size: int, cells: int, num_columns: int, device: torch.device) -> bool:
    """Say whether a factorisation in single precision fits into memory, and is likely to be faster.

    `size` is that of the system to factorise; `cells` are the nonzeros in a step of conjugate gradients.
    """
    if factor_bytes(size, 4) > available_memory(device) // 2:
        return False
    if device.type == "cuda":
        return True
    factorise = (size**3 / 3 + 2.0 * size**2 * num_columns) / _DENSE_RATE
    iterate = 2.0 * _EXPECTED_STEPS * cells * num_columns / _SPARSE_RATE
    return bool(factorise <= iterate)


def describe_solution(size: int, cells: int, num_columns: int, device: torch.device) -> tuple[str, int]:
    """Return how a system with `cells` nonzero cells is solved, and about how much memory that takes."""
    columns = 6 * 8 * size * block_columns(size, num_columns)
    if is_double(size, device):
        return "a factorisation in double precision", factor_bytes(size, 8) + columns
    if is_direct(size, cells, num_columns, device):
        return "a factorisation in single precision, with corrections", factor_bytes(size, 4) + columns
    # The cells in both precisions, each with its column.
    return "conjugate gradients", factor_bytes(min(size, _HEAD), 4) + 20 * cells + columns


def factor_bytes(size: int, width: int) -> int:
    """Return the memory of a matrix and its factor, in numbers of `width` bytes."""
    return 2 * width * size**2


def check_memory(size: int, num_columns: int) -> None:
    """Refuse a system that no method can solve in the free memory, before anything is allocated."""
    # Conjugate gradients need the head's block, and some vectors of the length of a block of columns.
    needed = factor_bytes(min(size, _HEAD), 4) + 6 * 8 * size * block_columns(size, num_columns)
    free = available_memory(torch.device("cpu"))
    if needed > free:
        raise UserError(
            f"solving for {size - 1:,} slots needs {needed / 2**30:.1f} GiB of memory, and {free / 2**30:.1f} GiB are "
            f"free: set a smaller feature_slots"
        )


def block_columns(size: int, num_columns: int) -> int:
    """Return how many columns are solved for at once."""
    return max(1, min(num_columns, 1024, 2**26 // size))


def available_memory(device: torch.device) -> int:
    """Return the memory that a process may still take, in bytes."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        found = re.search(r"^MemAvailable:\s+(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return pages // 2 if found is None else int(found[1]) * 1024


def _factor(matrix: Tensor) -> Tensor:
    factor: Tensor
    factor, info = torch.linalg.cholesky_ex(matrix)
    if int(info) != 0:
        raise NotPositive("the square of a direction is negative")
    return factor
