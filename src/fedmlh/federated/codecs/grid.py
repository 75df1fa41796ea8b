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

from fedmlh.entropy import coding

#: Values that share a class: fewer cost more for classes, more mix rows that training did and did not touch.
BLOCK = 32
#: Levels are smaller, so that a float32 holds them exactly.
LEVELS = 1 << 24
_CLASSES = 29
_BIAS = 127
#: Values worked on at a time, so that what a step leaves is still in the cache for the next one.
_CHUNK = 1 << 16
#: In place of an exponent: the vector was not finite, or beyond float32 once it was rounded.
_NOT_FINITE = 255


class GridCodec:
    """Rounding to multiples of the largest power of two that a share of the root mean square allows.

    Values that are 0 do not count for the mean: how many rows were touched does not change how the others are rounded.
    A value moves to one of the two multiples around it, at random, so that the mean is the value. What is left out
    averages out by itself, and is share² / 4 of the squared length at most.
    """

    feedback = False

    def __init__(self, share: Fraction) -> None:
        self.share = float(share)
        # A value a < 1 in steps, rounded to 0 or 1, gives a when squared, not a².
        self.inflation = math.sqrt(1 + self.share)
        # The entropy of levels is at most that of a normal distribution with their variance, which is largest if the
        # step was rounded down to half. A third of a bit is for the classes.
        self.bits = 0.5 * math.log2(2 * math.pi * math.e * (4 / self.share**2 + 1 / 3)) + 1 / 3

    def size(self, length: int) -> int:
        """Return a bound that holds since a vector that takes more is rounded to a larger step."""
        return math.ceil(self.bits * length / 8) + 8 * math.isqrt(length) + 64

    def encode(self, values: Tensor, rng: np.random.Generator) -> bytes:
        """Return the payload; E[decode(encode(x))] = x over the generator's draws."""
        flat = values.detach().cpu().numpy()
        draws = rng.random(len(flat), np.float32)
        exponent = self.choose_exponent(flat)
        while exponent < 128:
            payload = write_levels(_round_at_random(flat, exponent, draws), exponent)
            if len(payload) <= self.size(len(flat)):
                return payload
            exponent += 1
        return bytes([_NOT_FINITE])

    def decode(self, payload: memoryview, length: int, rng: np.random.Generator) -> Tensor:
        """The vector; bytes that encode never writes are refused."""
        if len(payload) > self.size(length):
            raise ValueError(f"{len(payload):,} bytes of payload, at most {self.size(length):,} expected")
        return read_vector(payload, length)

    def choose_exponent(self, flat: np.ndarray) -> int:
        """Return the exponent of the step; 128 if a value is not finite."""
        parts = (flat[start : start + _CHUNK] for start in range(0, len(flat), _CHUNK))
        with np.errstate(invalid="ignore"):
            square = sum(float(np.square(part, dtype=np.float64).sum()) for part in parts)
        count = np.count_nonzero(flat)
        if not math.isfinite(square):
            return 128
        if not count:
            return 0
        return max(-126, math.frexp(self.share * math.sqrt(square / count))[1] - 1)


def _round_at_random(flat: np.ndarray, exponent: int, draws: np.ndarray) -> np.ndarray:
    levels = flat * np.float32(2.0**-exponent)
    low: np.ndarray = np.floor(levels)
    levels -= low
    low += draws < levels
    return low


def write_levels(levels: np.ndarray, exponent: int) -> bytes:
    """Return the payload for levels below 2^24 in magnitude."""
    blocks = np.zeros((-(-len(levels) // BLOCK), BLOCK), np.int32)
    blocks.reshape(-1)[: len(levels)] = levels
    classes = _classify(blocks)
    steps = np.diff(classes, prepend=np.int32(0))
    live = np.flatnonzero(classes)
    folded = _fold(blocks[live] if len(live) < len(blocks) else blocks)
    head = coding.encode(_fold(steps), np.zeros(len(steps), np.uint8))
    body = coding.encode(folded.reshape(-1), np.repeat(classes[live].astype(np.uint8), BLOCK))
    return bytes([exponent + _BIAS]) + head + body


def read_vector(payload: memoryview, length: int) -> Tensor:
    """Return the vector that a payload stands for, or raise ValueError."""
    if payload == bytes([_NOT_FINITE]):
        return torch.full((length,), math.nan)
    levels, exponent = read_levels(payload, length)
    with np.errstate(over="ignore"):
        return torch.from_numpy(levels * np.float32(2.0**exponent))


def read_levels(payload: memoryview, length: int) -> tuple[np.ndarray, int]:
    """Return the levels of a finite vector, as float32, and the exponent of their step, or raise ValueError."""
    if not payload or not 0 < payload[0] < _NOT_FINITE:
        raise ValueError("a step that is none")
    steps, rest = coding.decode(payload[1:], np.zeros(-(-length // BLOCK), np.uint8))
    if steps.size and steps.max() > 2 * _CLASSES:
        raise ValueError("a class that is none")
    classes = np.cumsum(_unfold(steps))
    if classes.size and not 0 <= classes.min() <= classes.max() <= _CLASSES:
        raise ValueError("a class that is none")
    live = np.flatnonzero(classes)
    folded, rest = coding.decode(rest, np.repeat(classes[live].astype(np.uint8), BLOCK))
    if rest:
        raise ValueError(f"{len(rest):,} bytes after the last level")
    if folded.size and folded.max() >= 2 * LEVELS - 1:
        raise ValueError("a level that is too large")
    found = _unfold(folded.astype(np.int32)).reshape(-1, BLOCK)
    if not np.array_equal(_classify(found), classes[live]):
        raise ValueError("a class that its block does not have")
    levels = np.zeros((len(classes), BLOCK), np.float32)
    levels[live] = found
    flat = levels.reshape(-1)
    if flat[length:].any():
        raise ValueError("a level beyond the end")
    return flat[:length], payload[0] - _BIAS


def _classify(blocks: np.ndarray) -> np.ndarray:
    """Return the bit length of the sum of magnitudes per block."""
    sums = np.abs(blocks).sum(axis=1, dtype=np.int32)
    classes: np.ndarray = np.frexp(sums.astype(np.float64))[1]
    return classes


def _fold(numbers: np.ndarray) -> np.ndarray:
    """Return whole numbers from 0 for 0, −1, 1, −2, 2, …"""
    folded: np.ndarray = numbers << 1 ^ numbers >> 31
    return folded


def _unfold(folded: np.ndarray) -> np.ndarray:
    numbers: np.ndarray = folded >> 1 ^ -(folded & 1)
    return numbers
