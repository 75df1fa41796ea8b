"""Generators for every random choice of a run, keyed by purpose: randomness is an argument, never global."""

from zlib import crc32

import numpy as np


def generator(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """Return a generator that depends on (seed, purpose, key) alone, never on earlier draws."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, crc32(purpose.encode()), *key])))
