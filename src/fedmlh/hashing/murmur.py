"""MurmurHash3 (32 bit, x86; Austin Appleby, public domain) of many keys at once."""

from collections.abc import Sequence

import numpy as np

_C1, _C2 = np.uint32(0xCC9E2D51), np.uint32(0x1B873593)
#: Longer strings are hashed one by one: few strings are that long, so that numpy would gain nothing.
_LONG = 256


def hash_integers(keys: np.ndarray, seed: int | np.ndarray) -> np.ndarray:
    """Return the hash of each whole number as 4 little-endian bytes, with one seed or one each.  # [n] -> uint32 [n]"""
    state = np.full(len(keys), seed, np.uint32)
    return _finish(_mix(state, keys.astype(np.int32).view(np.uint32)), 4)


def hash_strings(keys: Sequence[str], seed: int) -> np.ndarray:
    """Return the hash of each string's UTF-8 bytes.  # [n] -> uint32 [n]"""
    coded = [key.encode() for key in keys]
    sizes = np.fromiter(map(len, coded), np.int64, len(coded))
    hashed = np.empty(len(coded), np.uint32)
    for row in np.flatnonzero(sizes > _LONG).tolist():
        hashed[row] = _hash_one(coded[row], seed)
    # The longest first: the strings that still have a block are then always the first ones.
    rows = np.argsort(-sizes, kind="stable")[np.count_nonzero(sizes > _LONG) :]
    if len(rows):
        hashed[rows] = _hash_short([coded[row] for row in rows.tolist()], sizes[rows], seed)
    return hashed


def _hash_short(coded: list[bytes], sizes: np.ndarray, seed: int) -> np.ndarray:
    """Hash strings, sorted by falling size, block by block, all strings at once."""
    width = -(-int(sizes[0]) // 4) * 4
    padded = b"".join(key.ljust(width, b"\0") for key in coded)
    blocks = np.frombuffer(padded, "<u4").reshape(len(coded), -1).T
    whole, state = sizes // 4, np.full(len(coded), seed, np.uint32)
    for place, block in enumerate(blocks):
        full = np.searchsorted(-whole, -place)  # the number of strings with a whole block here
        state[:full] = _mix(state[:full], block[:full])
        # The last bytes of a string, if they are less than a block; the padding is 0.
        begin, end = full, np.searchsorted(-whole, 1 - place)
        tail = np.flatnonzero(sizes[begin:end] % 4) + begin
        state[tail] ^= _scramble(block[tail])
    return _finish(state, sizes)


def _scramble(block: np.ndarray) -> np.ndarray:
    block = block * _C1
    return (block << 15 | block >> 17) * _C2


def _mix(state: np.ndarray, block: np.ndarray) -> np.ndarray:
    state = state ^ _scramble(block)
    return (state << 13 | state >> 19) * np.uint32(5) + np.uint32(0xE6546B64)


def _finish(state: np.ndarray, size: np.ndarray | int) -> np.ndarray:
    state = state ^ np.asarray(size).astype(np.uint32)
    state = (state ^ state >> 16) * np.uint32(0x85EBCA6B)
    state = (state ^ state >> 13) * np.uint32(0xC2B2AE35)
    return np.asarray(state ^ state >> 16)


def _hash_one(key: bytes, seed: int) -> int:
    """Hash one string, in plain Python."""
    state, whole = seed, len(key) // 4 * 4
    for begin in range(0, len(key), 4):
        block = int.from_bytes(key[begin : begin + 4], "little") * 0xCC9E2D51 & 0xFFFFFFFF
        state ^= ((block << 15 | block >> 17) & 0xFFFFFFFF) * 0x1B873593 & 0xFFFFFFFF
        if begin < whole:
            state = ((state << 13 | state >> 19) & 0xFFFFFFFF) * 5 + 0xE6546B64 & 0xFFFFFFFF
    state ^= len(key)
    state = (state ^ state >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    state = (state ^ state >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return state ^ state >> 16
