"""Products with sparse matrices on all threads; one thread sums each value, so that threads change no bit."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

#: Operations from which a second thread pays.
_LARGE = 1 << 22
#: Columns per panel of an inverse: all their rows stay in the cache of a core while a product is computed.
_PANEL = 64
#: Columns of an inverse that are computed at once.
_AT_ONCE = 16 * _PANEL
#: The share of numbers other than 0 up to which a sparse product is faster than a dense one.
_SPARSE_SHARE = 1 / 16


def multiply(matrix: csr_matrix, columns: np.ndarray) -> np.ndarray:
    """Return the product of a sparse matrix with dense columns.  # [n, d], [d, k] -> [n, k]"""
    threads = torch.get_num_threads()
    if threads == 1 or matrix.nnz * columns.shape[1] < _LARGE:
        return np.asarray(matrix @ columns)
    # Threads get rows with about equally many nonzeros.
    edges = np.searchsorted(matrix.indptr, np.linspace(0, matrix.nnz, 4 * threads + 1)[1:-1])
    product = np.empty((matrix.shape[0], columns.shape[1]), np.result_type(matrix, columns))

    def fill(begin: int, end: int) -> None:
        product[begin:end] = matrix[begin:end] @ columns

    _run(fill, zip([0, *edges], [*edges, matrix.shape[0]], strict=True), threads)
    return product


@dataclass(frozen=True)
class Inverse:
    """The inverse of a symmetric matrix, in panels of columns, for right-hand sides that are mostly 0."""

    factor: Tensor  # for those that are not
    panels: tuple[np.ndarray, ...]  # [d, 64] each

    @classmethod
    def of(cls, factor: Tensor) -> "Inverse":
        """Invert the matrix of this Cholesky factor."""
        size, panels = len(factor), list[np.ndarray]()
        for begin in range(0, size, _AT_ONCE):
            identity = torch.zeros(size, min(_AT_ONCE, size - begin), dtype=factor.dtype)
            identity[begin : begin + _AT_ONCE].fill_diagonal_(1)
            columns = torch.cholesky_solve(identity, factor).numpy()
            panels += (columns[:, at : at + _PANEL].copy() for at in range(0, columns.shape[1], _PANEL))
        return cls(factor, tuple(panels))

    def solve(self, right: Tensor) -> Tensor:
        """Return the solution for columns.  # [d, k] -> [d, k]"""
        if torch.count_nonzero(right) > _SPARSE_SHARE * right.numel():
            return torch.cholesky_solve(right, self.factor)
        rows, solution = csr_matrix(right.numpy().T), np.empty(right.shape)

        def fill(number: int, panel: np.ndarray) -> None:
            # A panel of columns is a panel of rows too, since the matrix is symmetric.
            solution[number * _PANEL : (number + 1) * _PANEL] = (rows @ panel).T

        _run(fill, enumerate(self.panels), torch.get_num_threads())
        return torch.from_numpy(solution)


def _run(task: Callable[..., None], arguments: Iterable[tuple[Any, ...]], threads: int) -> None:
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(task, *each) for each in arguments]:
            done.result()
