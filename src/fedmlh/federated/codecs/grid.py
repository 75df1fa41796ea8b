"""Multiples of one step, entropy-coded; the step is a power of two, so that sums of such vectors are exact."""

import math
from fractions import Fraction
from typing import TYPE_CHECKING

from fedmlh.federated.codecs.codec import Codec
from fedmlh.parts import register

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

#: Values worked on at a time, so that what a step leaves is still in the cache for the next one.
_CHUNK = 1 << 16


@register("codec", "grid")
class GridCodec(Codec):
    """Rounding to multiples of the largest power of two that a share of the root mean square allows.

    Values that are 0 do not count for the mean: how many rows were touched does not change how the others are rounded.
    A value moves to one of the two multiples around it, at random, so that the mean is the value. What is left out
    averages out by itself, and is share² / 4 of the squared length at most.
    """

    # A grid of 200 % could leave out the whole vector.
    percent = (Fraction(25), Fraction(199))
    deflates = False  # levels are coded near their entropy: deflating finds nothing more

    def __init__(self, share: Fraction) -> None:
        from fedmlh.federated.codecs.grid_changes import GridChanges

        super().__init__(share)
        # A value a < 1 in steps, rounded to 0 or 1, gives a when squared, not a².
        self.inflation = math.sqrt(1 + float(share))
        # The entropy of levels is at most that of a normal distribution with their variance, which is largest if the
        # step was rounded down to half. A third of a bit is for the classes.
        self.bits = 0.5 * math.log2(2 * math.pi * math.e * (4 / float(share) ** 2 + 1 / 3)) + 1 / 3
        self.sums = GridChanges(self.choose_exponent)

    def size(self, length: int) -> int:
        """Return a bound on the bytes; a vector that would take more is rounded to a larger step."""
        return math.ceil(self.bits * length / 8) + 8 * math.isqrt(length) + 64

    def encode(self, values: "Tensor", rng: "np.random.Generator") -> bytes:
        """Return the payload; E[decode(encode(x))] = x over the generator's draws."""
        import numpy as np

        from fedmlh.federated.codecs.grid_levels import NOT_FINITE, round_at_random, write_levels

        flat = values.detach().cpu().numpy()
        draws = rng.random(len(flat), np.float32)
        exponent = self.choose_exponent(flat)
        while exponent < 128:
            payload = write_levels(round_at_random(flat, exponent, draws), exponent)
            if len(payload) <= self.size(len(flat)):
                return payload
            exponent += 1
        return bytes([NOT_FINITE])

    def decode(self, payload: memoryview, length: int, rng: "np.random.Generator") -> "Tensor":
        """Return the vector; bytes that encode never writes are refused."""
        from fedmlh.federated.codecs.grid_levels import read_vector

        if len(payload) > self.size(length):
            raise ValueError(f"{len(payload):,} bytes of payload, at most {self.size(length):,} expected")
        return read_vector(payload, length)

    def choose_exponent(self, flat: "np.ndarray") -> int:
        """Return the exponent of the step; 128 if a value is not finite."""
        import numpy as np

        parts = (flat[start : start + _CHUNK] for start in range(0, len(flat), _CHUNK))
        with np.errstate(invalid="ignore"):
            square = sum(float(np.square(part, dtype=np.float64).sum()) for part in parts)
        count = np.count_nonzero(flat)
        if not math.isfinite(square):
            return 128
        if not count:
            return 0
        return max(-126, math.frexp(float(self.share) * math.sqrt(square / count))[1] - 1)
