"""Vectors of whole numbers that are mostly 0, as bytes."""

import struct

import numpy as np

from fedmlh.entropy.coding import decode, encode, most_values

_COUNT = struct.Struct("<I")


def encode_sparse(values: np.ndarray) -> bytes:
    """Encode a vector of whole numbers from 0: the places of those above 0, then their values."""
    places = np.flatnonzero(values)
    gaps = np.diff(places, prepend=-1) - 1
    nowhere = np.zeros(len(places), np.uint8)
    return _COUNT.pack(len(places)) + encode(gaps, nowhere) + encode(values[places] - 1, by_size(places + 1))


def decode_sparse(payload: memoryview, length: int) -> tuple[np.ndarray, memoryview]:
    """Return a vector of that length and the bytes that follow; raise ValueError if there is none."""
    if len(payload) < _COUNT.size:
        raise ValueError("it ends too early")
    (count,) = _COUNT.unpack_from(payload)
    rest = payload[_COUNT.size :]
    if count > min(length, most_values(len(rest))):
        raise ValueError("it has more numbers than there is room for")
    gaps, rest = decode(rest, np.zeros(count, np.uint8))
    if gaps.max(initial=-1) >= length or (places := np.cumsum(gaps + 1) - 1).max(initial=-1) >= length:
        raise ValueError("a number lies outside its vector")
    found, rest = decode(rest, by_size(places + 1))
    values = np.zeros(length, np.int64)
    values[places] = found + 1
    return values, rest


def by_size(values: np.ndarray) -> np.ndarray:
    """Return a context for each number: its octave."""
    return octave(values.astype(np.float64)).astype(np.uint8)


def octave(values: np.ndarray) -> np.ndarray:
    """Return ⌊log2⌋ of each value, exactly; 0 for those below 1."""
    return np.asarray(np.maximum(np.frexp(values)[1] - 1, 0))
