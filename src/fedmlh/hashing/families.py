"""Hash families: from integers or strings to buckets; a seed alone determines a function."""

import hashlib
import unicodedata
from collections.abc import Sequence

import numpy as np

from fedmlh.hashing.murmur import hash_integers, hash_strings
from fedmlh.randomness import generator

#: A Mersenne prime above every key, the modulus of the 2-universal family.
PRIME = 2**61 - 1


def murmur3(keys: Sequence[str] | np.ndarray, seed: int, num_buckets: int) -> np.ndarray:
    """Hash by MurmurHash3 (32 bit, unsigned) modulo the number of buckets; integers are 4 little-endian bytes."""
    hashed = hash_integers(keys, seed) if isinstance(keys, np.ndarray) else hash_strings(keys, seed)
    return hashed.astype(np.int64) % num_buckets


def universal(keys: Sequence[str] | np.ndarray, seed: int, num_buckets: int) -> np.ndarray:
    """Hash by Carter and Wegman's 2-universal family: ((a·x + b) mod 2^61 − 1) mod B, with a and b from the seed."""
    rng = generator(seed, "universal hash")
    a, b = int(rng.integers(1, PRIME)), int(rng.integers(0, PRIME))
    if isinstance(keys, np.ndarray):
        numbers = [int(key) for key in keys]
    else:
        # A string is first mapped to a number below the prime; 61 bits make a clash of two names unlikely.
        numbers = [
            int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little") % PRIME for key in keys
        ]
    return np.fromiter(((a * x + b) % PRIME % num_buckets for x in numbers), np.int64, len(numbers))


def canonical(name: str) -> str:
    """Return the form of a label's key that all sites agree on: NFC, no surrounding blanks."""
    return unicodedata.normalize("NFC", name).strip()
