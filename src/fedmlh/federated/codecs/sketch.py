"""A Count Sketch of the vector (the paper's Algorithm 1): fewer cells than values, hashed anew for every message."""

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from fedmlh.federated.codecs.floats import check_size

#: Rows of the sketch. The estimate is their mean: updates have few outliers, and the median of five errs a fifth more.
ROWS = 5
_CHUNK = 1 << 18


class SketchCodec:
    """Rows of fp16 cells, of so large a share of the fp32 vector's bytes in all.

    Both sides draw the hash functions from the generator that the message's key names, so none is sent, and what
    collides in one message does not in the next: the estimate is unbiased over the draws, up to the cells' rounding.
    What a sketch leaves out is more than what it was given, so it is not kept for later.
    """

    feedback = False

    def __init__(self, share: Fraction) -> None:
        self.share = share
        # A cell holds all values that fall into it: the mean over rows adds P / (ROWS · width) of the squared length.
        self.inflation = math.sqrt(1 + 1 / (2 * share))

    def width(self, length: int) -> int:
        """Cells a row."""
        return max(1, math.floor(self.share * length * 2 / ROWS)) if length else 0

    def size(self, length: int) -> int:
        """Exactly 2 bytes a cell."""
        return 2 * ROWS * self.width(length)

    def encode(self, values: Tensor, rng: np.random.Generator) -> bytes:
        """All rows, one after the other."""
        flat, hashes = values.detach().cpu().numpy(), _draw(rng)
        cells = np.zeros((ROWS, self.width(len(flat))))
        for start in range(0, len(flat), _CHUNK):
            part = flat[start : start + _CHUNK]
            for row, (cell, sign) in zip(cells, _places(hashes, start, len(part), cells.shape[1]), strict=True):
                with np.errstate(invalid="ignore"):
                    row += np.bincount(cell, part * sign, len(row))
        with np.errstate(over="ignore"):  # A cell out of range becomes infinite, and so is refused later.
            return cells.astype("<f2").tobytes()

    def decode(self, payload: memoryview, length: int, rng: np.random.Generator) -> Tensor:
        """The mean over the rows of what each holds for a value."""
        check_size(payload, self.size(length))
        hashes, width = _draw(rng), self.width(length)
        cells = np.frombuffer(payload, "<f2").astype(np.float32).reshape(ROWS, width)
        values = np.zeros(length, np.float32)
        for start in range(0, length, _CHUNK):
            part = values[start : start + _CHUNK]
            for row, (cell, sign) in zip(cells, _places(hashes, start, len(part), width), strict=True):
                with np.errstate(invalid="ignore"):
                    part += row[cell] * sign
        return torch.from_numpy(values / np.float32(ROWS))


def _draw(rng: np.random.Generator) -> np.ndarray:
    """Multiplier and summand of each row's hash function.  # [ROWS, 2]"""
    return rng.integers(0, 2**64, (ROWS, 2), np.uint64)


def _places(hashes: np.ndarray, start: int, count: int, width: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each row the cells and signs of so many values: multiply-shift, whose 33 upper bits are 2-universal."""
    keys = np.arange(start, start + count, dtype=np.uint64)
    for factor, summand in hashes:
        mixed = keys * factor + summand
        cell = (mixed << np.uint64(1) >> np.uint64(32)) * np.uint64(width) >> np.uint64(32)
        sign = 1 - 2 * (mixed >> np.uint64(63)).astype(np.float32)
        yield cell.astype(np.int64), sign
