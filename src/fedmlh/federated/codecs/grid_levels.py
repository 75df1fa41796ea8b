"""Levels on a grid as bytes: whole numbers, entropy-coded, and the step that they are multiples of.

A payload is: a byte with the step's exponent (as in a float32, biased by 127), then the classes of all blocks, then the
levels of blocks that are not all zero. The class of a block is the bit length of the sum of its magnitudes. It is the
context of the block's levels, so that rows that training did not touch cost next to nothing.
"""

import math

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
#: Stands for the exponent if the vector was not finite, or went beyond float32 by rounding.
NOT_FINITE = 255


def round_at_random(flat: np.ndarray, exponent: int, draws: np.ndarray) -> np.ndarray:
    """Return levels, each one of the two around its value; `draws` from 0 to 1 say which."""
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
    if payload == bytes([NOT_FINITE]):
        return torch.full((length,), math.nan)
    levels, exponent = read_levels(payload, length)
    with np.errstate(over="ignore"):
        return torch.from_numpy(levels * np.float32(2.0**exponent))


def read_levels(payload: memoryview, length: int) -> tuple[np.ndarray, int]:
    """Return the levels of a finite vector, as float32, and the exponent of their step, or raise ValueError."""
    if not payload or not 0 < payload[0] < NOT_FINITE:
        raise ValueError("an invalid step")
    steps, rest = coding.decode(payload[1:], np.zeros(-(-length // BLOCK), np.uint8))
    if steps.size and steps.max() > 2 * _CLASSES:
        raise ValueError("an invalid class")
    classes = np.cumsum(_unfold(steps))
    if classes.size and not 0 <= classes.min() <= classes.max() <= _CLASSES:
        raise ValueError("an invalid class")
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
