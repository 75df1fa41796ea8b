"""The model of one round: a row of weights per slot, the small ones left out, the others in eight bits."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from fedmlh.tensors import look_through

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix
    from torch import Tensor

#: Levels of a weight: -127 … 127 times the scale of its row.
_LEVELS = 127
#: Columns by which the size of a weight that is worth keeping is judged before all columns are known.
_SAMPLE = 256


@dataclass(frozen=True)
class Linear:
    """Weights [1 + s, m], row by row: those that were kept, as levels of the row's scale."""

    starts: np.ndarray  # int64 [2 + s]
    columns: np.ndarray  # uint16 or uint32, ascending within a row
    levels: np.ndarray  # int8
    scales: np.ndarray  # float32 [1 + s]
    num_outputs: int  # m

    @cached_property
    def weights(self) -> "csr_matrix":
        """The weights as numbers.  # [1 + s, m]"""
        from scipy.sparse import csr_matrix

        rows = np.repeat(np.arange(len(self.scales)), np.diff(self.starts))
        values = self.levels.astype(np.float32) * self.scales[rows]
        shape = (len(self.scales), self.num_outputs)
        return csr_matrix((values, self.columns.astype(np.int32), self.starts), shape=shape)

    def score(self, X: "csr_matrix") -> "Tensor":
        """Return the score of each point for each output.  # [n, 1 + s] -> [n, m]"""
        import torch

        return torch.from_numpy((X @ self.weights).toarray())

    def __len__(self) -> int:
        return len(self.levels)

    def encode(self) -> bytes:
        """Return the arrays as bytes, one after the other."""
        return b"".join(array.tobytes() for array in (self.starts, self.columns, self.levels, self.scales))

    @classmethod
    def decode(cls, payload: memoryview, num_slots: int, num_outputs: int) -> "Linear":
        """Return the model that encode wrote; raise ValueError if it is none of these sizes."""
        starts = np.frombuffer(payload[: 8 * (num_slots + 2)], np.int64)
        count, width = int(starts[-1]), np.dtype(index_type(num_outputs)).itemsize
        ends = np.cumsum([starts.nbytes, count * width, count, 4 * (num_slots + 1)])
        if len(starts) != num_slots + 2 or count < 0 or ends[-1] != len(payload):
            raise ValueError("a model of another size")
        columns = np.frombuffer(payload[ends[0] : ends[1]], index_type(num_outputs))
        levels, scales = (np.frombuffer(payload[ends[i] : ends[i + 1]], t) for i, t in ((1, np.int8), (2, np.float32)))
        model = cls(starts, columns, levels, scales, num_outputs)
        if not model.sound:
            raise ValueError("weights that do not fit each other")
        return model

    @property
    def nbytes(self) -> int:
        """The bytes of the arrays."""
        return self.starts.nbytes + self.columns.nbytes + self.levels.nbytes + self.scales.nbytes

    @property
    def sound(self) -> bool:
        """Whether the arrays fit each other; those from a file may not."""
        return (
            self.starts.dtype == np.int64
            and self.levels.dtype == np.int8
            and self.scales.dtype == np.float32
            and self.columns.dtype == index_type(self.num_outputs)
            and self.scales.ndim == 1
            and self.starts.shape == (len(self.scales) + 1,)
            and self.columns.shape == self.levels.shape == (self.starts[-1],)
            and self.starts[0] == 0
            and bool((np.diff(self.starts) >= 0).all())
            and self._rises
            and bool(np.isfinite(self.scales).all())
            and bool((self.scales >= 0).all())
        )

    @property
    def _rises(self) -> bool:
        """Whether columns are those of outputs, and rise within each row."""
        starts = np.array(self.starts)  # a copy: what is mapped leaves memory after each part
        before, at = -1, 0
        for part in look_through(self.columns):
            columns = np.append(before, part.astype(np.int64))
            falls = at + np.flatnonzero(np.diff(columns) <= 0)
            if columns.max() >= self.num_outputs or (starts[np.searchsorted(starts, falls)] != falls).any():
                return False
            before, at = columns[-1], at + len(part)
        return True


def index_type(num_outputs: int) -> type[np.unsignedinteger]:
    """Return the smallest integer type for the numbers of all outputs."""
    return np.uint16 if num_outputs <= 2**16 else np.uint32


def compress(
    solve: Callable[[np.ndarray], np.ndarray], blocks: Iterator[np.ndarray], usage: np.ndarray, sizes: tuple[int, int]
) -> Linear:
    """Solve for all outputs, block by block, and keep of all weights the `most` that matter most.

    `solve` returns the weights of some outputs [1 + s, k]. A weight matters by its square times the usage of its slot
    [1 + s]: this is what leaving it out adds to the squared error if slots are independent. sizes: m, most.
    """
    from scipy.sparse import coo_matrix

    num_outputs, most = sizes
    relevance = np.sqrt(usage).astype(np.float32)[:, None]
    cells = len(usage) * num_outputs
    few = np.unique(np.linspace(0, num_outputs - 1, min(_SAMPLE, num_outputs)).astype(np.int64))
    least = 0.0
    if most < cells:
        sample = np.abs(solve(few) * relevance)
        # Slightly more than fit are kept here: the exact bound is found among them.
        least = float(np.quantile(sample, max(0.0, 1 - 1.1 * most / cells)))
    rows, columns, values = [], [], []
    for block in blocks:
        weights = solve(block).astype(np.float32)
        worth = (np.abs(weights * relevance) >= least) & (weights != 0)
        row, column = np.nonzero(worth)
        rows.append(row.astype(np.int32))
        columns.append(block[column].astype(index_type(num_outputs)))
        values.append(weights[worth])
    row, column, value = (np.concatenate(parts) for parts in (rows, columns, values))
    if len(value) > most:
        matters = np.abs(value) * relevance[row, 0]
        bound = np.partition(matters, len(matters) - most)[len(matters) - most]
        kept = matters > bound
        # Among weights that matter equally, the first are kept.
        kept[np.flatnonzero(matters == bound)[: most - np.count_nonzero(kept)]] = True
        row, column, value = row[kept], column[kept], value[kept]
    # In the order of rows; within a row columns ascend, since blocks do.
    kept_weights = coo_matrix((value, (row, column)), shape=(len(usage), num_outputs)).tocsr()
    starts, value = kept_weights.indptr.astype(np.int64), kept_weights.data
    filled = np.flatnonzero(np.diff(starts))
    scales = np.zeros(len(usage), np.float32)
    if len(filled):
        scales[filled] = np.maximum.reduceat(np.abs(value), starts[filled]) / _LEVELS
    levels = np.rint(value / np.repeat(np.where(scales > 0, scales, 1), np.diff(starts))).astype(np.int8)
    return Linear(starts, kept_weights.indices.astype(index_type(num_outputs)), levels, scales, num_outputs)
