"""Only the values of largest magnitude: their positions, and the values as fp16."""

import math
from fractions import Fraction
from typing import TYPE_CHECKING

from fedmlh.federated.codecs.codec import Codec, check_size
from fedmlh.parts import register

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


@register("codec", "topk")
class TopCodec(Codec):
    """A share of the values, those of largest magnitude; among equal ones the first.

    Positions are coded as Elias and Fano do: the low bits of each as they are, the high parts as a string with a one
    for each position and a zero for each step, so that the size is fixed and near the least possible.
    """

    percent = (Fraction(1, 1000), Fraction(100))
    every_value = False
    feedback = True

    def count(self, length: int) -> int:
        """Return how many of `length` values are kept."""
        return math.ceil(self.share * length)

    def size(self, length: int) -> int:
        """Return exactly 2 bytes per kept value and its position's bits."""
        return 2 * self.count(length) + sum(self._layout(length)[1:])

    def _layout(self, length: int) -> tuple[int, int, int]:
        """Return the low bits per position, bytes of all low bits, bytes of the high parts."""
        kept = self.count(length)
        width = max(length // kept, 1).bit_length() - 1 if kept else 0
        return width, -(-kept * width // 8), -(-(kept + (length >> width)) // 8)

    def encode(self, values: "Tensor", rng: "np.random.Generator") -> bytes:
        """Return the positions in ascending order, then their values."""
        import numpy as np

        flat = values.detach().cpu().numpy()
        kept, (width, _, high_bytes) = self.count(len(flat)), self._layout(len(flat))
        places = _largest(flat, kept)
        high = np.zeros(8 * high_bytes, np.uint8)
        high[(places >> width) + np.arange(kept)] = 1
        low = (places[:, None] >> np.arange(width) & 1).astype(np.uint8)
        with np.errstate(over="ignore"):
            halves = flat[places].astype("<f2")
        return b"".join((np.packbits(high).tobytes(), np.packbits(low).tobytes(), halves.tobytes()))

    def decode(self, payload: memoryview, length: int, rng: "np.random.Generator") -> "Tensor":
        """Return the kept values in their places, zeros elsewhere."""
        import numpy as np
        import torch

        check_size(payload, self.size(length))
        kept, (width, low_bytes, high_bytes) = self.count(length), self._layout(length)
        content = np.frombuffer(payload, np.uint8)
        ones = np.flatnonzero(np.unpackbits(content[:high_bytes]))
        bits = np.unpackbits(content[high_bytes : high_bytes + low_bytes])
        if len(ones) != kept or bits[kept * width :].any():
            raise ValueError(f"{len(ones):,} positions, {kept:,} expected")
        low = bits[: kept * width].reshape(kept, width) @ (1 << np.arange(width))
        places = (ones - np.arange(kept) << width) + low.astype(np.int64)
        if np.any(np.diff(places) <= 0) or (kept and places[-1] >= length):
            raise ValueError("positions that do not ascend or lie beyond the end")
        values = torch.zeros(length)
        values[torch.from_numpy(places)] = torch.from_numpy(
            np.frombuffer(payload[high_bytes + low_bytes :], "<f2").astype(np.float32)
        )
        return values


def _largest(flat: "np.ndarray", kept: int) -> "np.ndarray":
    """Return ascending positions of the values of largest magnitude; NaN counts as larger than all.  # [k]"""
    import numpy as np

    if kept == 0:
        return np.empty(0, np.int64)
    # As whole numbers, magnitudes sort as floats do, and NaN has a place as well.
    sizes = flat.view(np.uint32) & np.uint32(0x7FFFFFFF)
    border = np.partition(sizes, len(sizes) - kept)[len(sizes) - kept]
    above = np.flatnonzero(sizes > border)
    level = np.flatnonzero(sizes == border)[: kept - len(above)]
    return np.sort(np.concatenate((above, level)))
