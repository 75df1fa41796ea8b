"""Every random choice in a run comes from here, keyed by what it is for (law 1: randomness is an argument)."""

from zlib import crc32

import numpy as np


def generator(seed: int, purpose: str, *key: int) -> np.random.Generator:
    """A generator that depends on (seed, purpose, key) alone: never on what was drawn before."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, crc32(purpose.encode()), *key])))
