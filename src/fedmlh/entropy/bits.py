"""Fields of bits, packed one after the other from the lowest bit of the first byte."""

import numpy as np


def pack(fields: np.ndarray, widths: np.ndarray) -> bytes:
    """Return fields of at most 58 bits each, one after the other."""
    at, shift = _places(widths)
    num_bits = int(widths.sum(dtype=np.int64))
    words, bits = np.zeros(num_bits // 64 + 2, np.uint64), fields.astype(np.uint64)
    # Fields do not overlap, so that a sum is a union.
    np.add.at(words, at, bits << shift)
    np.add.at(words, at + 1, bits >> np.uint64(1) >> np.uint64(63) - shift)
    return words.astype("<u8").tobytes()[: -(-num_bits // 8)]


def unpack(body: memoryview, widths: np.ndarray) -> np.ndarray:
    """Return the fields of these widths that fill the bytes."""
    num_bits = int(widths.sum(dtype=np.int64))
    if len(body) != -(-num_bits // 8):
        raise ValueError("raw bits that are cut off, or more than there should be")
    check_padding(body, num_bits)
    words = np.frombuffer(bytes(body) + bytes(16 - len(body) % 8), "<u8").astype(np.uint64)
    at, shift = _places(widths)
    bits = words[at] >> shift | words[at + 1] << np.uint64(1) << np.uint64(63) - shift
    fields: np.ndarray = bits & (np.uint64(1) << widths.astype(np.uint64)) - np.uint64(1)
    return fields.astype(np.int64)


def check_padding(body: memoryview, num_bits: int) -> None:
    """Raise ValueError if the last byte has bits set beyond this number of bits."""
    if num_bits % 8 and body[-1] >> num_bits % 8:
        raise ValueError("bits after the last one")


def _places(widths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    starts = np.cumsum(widths, dtype=np.int64) - widths
    return starts >> 6, (starts & 63).astype(np.uint64)
