"""Multiples of one step, entropy-coded; the step is a power of two, so that sums of such vectors are exact.

A payload is: a byte with the step's exponent (as in a float32, biased by 127), then the classes of all blocks, then the
levels of blocks that are not all zero. The class of a block is the bit length of the sum of its magnitudes. It is the
context of the block's levels, so that rows that training did not touch cost next to nothing.
"""

import math
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from fedmlh.oneround import coding

#: Values that share a class: fewer cost more for classes, more mix rows that training did and did not touch.
BLOCK = 32
#: Levels are smaller, so that a float32 holds them exactly.
LEVELS = 1 << 24
_CLASSES = 29
_BIAS = 127
#: In place of an exponent: the vector was not finite, or beyond float32 once it was rounded.
_NOT_FINITE = 255


class GridCodec:
    """Rounding to the nearest multiple of the largest power of two that a share of the root mean square allows.

    Values that are 0 do not count for the mean: how many rows were touched does not change how the others are rounded.
    What rounding leaves out is at most half a step per value, so at most share² / 4 of the squared length in all. It is
    not kept: a client that is asked now and then would send it when it is old.
    """

    feedback = False
    #: A value becomes a level other than 0 from half a step on, so that it is at most doubled.
    inflation = 2.0

    def __init__(self, share: Fraction) -> None:
        self.share = float(share)
        # The entropy of levels is at most that of a normal distribution with their variance, which is largest if the
        # step was rounded down to half. A third of a bit is for the classes.
        self.bits = 0.5 * math.log2(2 * math.pi * math.e * (4 / self.share**2 + 1 / 3)) + 1 / 3

    def size(self, length: int) -> int:
        """Return a bound that holds since a vector that takes more is rounded to a larger step."""
        return math.ceil(self.bits * length / 8) + 8 * math.isqrt(length) + 64

    def encode(self, values: Tensor, rng: np.random.Generator) -> bytes:
        """Nothing is random here."""
        flat = values.detach().cpu().numpy()
        exponent = self.choose_exponent(flat)
        while exponent < 128:
            payload = write_levels(round_to_step(flat, exponent), exponent)
            if len(payload) <= self.size(len(flat)):
                return payload
            exponent += 1
        return bytes([_NOT_FINITE])

    def decode(self, payload: memoryview, length: int, rng: np.random.Generator) -> Tensor:
        """The vector; bytes that encode never writes are refused."""
        if len(payload) > self.size(length):
            raise ValueError(f"{len(payload):,} bytes of payload, at most {self.size(length):,} expected")
        return read_levels(payload, length)

    def choose_exponent(self, flat: np.ndarray) -> int:
        """Return the exponent of the step; 128 if a value is not finite."""
        square, count = float(np.square(flat, dtype=np.float64).sum()), int(np.count_nonzero(flat))
        if not math.isfinite(square):
            return 128
        if not count:
            return 0
        return max(-126, math.frexp(self.share * math.sqrt(square / count))[1] - 1)


def round_to_step(flat: np.ndarray, exponent: int) -> np.ndarray:
    """Return the nearest whole number of steps per value, of two equally near ones the even one."""
    levels: np.ndarray = np.rint(np.ldexp(flat, -exponent))
    return levels


def write_levels(levels: np.ndarray, exponent: int) -> bytes:
    """Return the payload for levels below 2^24 in magnitude, given as float32."""
    numbers = levels.astype(np.int64)
    classes = _classify(numbers)
    steps = np.diff(classes, prepend=0)
    contexts = np.repeat(classes.astype(np.uint8), BLOCK)[: len(numbers)]
    live = contexts > 0
    head = coding.encode(_fold(steps), np.zeros(len(steps), np.uint8))
    return bytes([exponent + _BIAS]) + head + coding.encode(_fold(numbers[live]), contexts[live])


def read_levels(payload: memoryview, length: int) -> Tensor:
    """Return the vector that a payload stands for, or raise ValueError."""
    if payload == bytes([_NOT_FINITE]):
        return torch.full((length,), math.nan)
    if not payload or not 0 < payload[0] < _NOT_FINITE:
        raise ValueError("a step that is none")
    steps, rest = coding.decode(payload[1:], np.zeros(-(-length // BLOCK), np.uint8))
    if steps.size and steps.max() > 2 * _CLASSES:
        raise ValueError("a class that is none")
    classes = np.cumsum(_unfold(steps))
    if classes.size and not 0 <= classes.min() <= classes.max() <= _CLASSES:
        raise ValueError("a class that is none")
    contexts = np.repeat(classes.astype(np.uint8), BLOCK)[:length]
    live = contexts > 0
    folded, rest = coding.decode(rest, contexts[live])
    if rest:
        raise ValueError(f"{len(rest):,} bytes after the last level")
    if folded.size and folded.max() >= 2 * LEVELS - 1:
        raise ValueError("a level that is too large")
    numbers = np.zeros(length, np.int64)
    numbers[live] = _unfold(folded)
    if not np.array_equal(_classify(numbers), classes):
        raise ValueError("a class that its block does not have")
    with np.errstate(over="ignore"):
        return torch.from_numpy(np.ldexp(numbers.astype(np.float32), payload[0] - _BIAS))


def _classify(numbers: np.ndarray) -> np.ndarray:
    """Return the bit length of the sum of magnitudes per block."""
    blocks = np.zeros((-(-len(numbers) // BLOCK), BLOCK), np.int64)
    blocks.reshape(-1)[: len(numbers)] = np.abs(numbers)
    return np.frexp(blocks.sum(axis=1).astype(np.float64))[1].astype(np.int64)


def _fold(numbers: np.ndarray) -> np.ndarray:
    """Return whole numbers from 0 for 0, 1, −1, 2, −2, …"""
    folded: np.ndarray = np.where(numbers > 0, 2 * numbers - 1, -2 * numbers)
    return folded


def _unfold(folded: np.ndarray) -> np.ndarray:
    numbers: np.ndarray = np.where(folded & 1, folded + 1, -folded) >> 1
    return numbers
