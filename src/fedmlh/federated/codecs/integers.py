"""Integers of 8, 4 or 2 bits with a scale per block, rounded up or down at random so that the mean is exact."""

import math
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar

from fedmlh.federated.codecs.codec import Codec, check_size
from fedmlh.parts import register

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

#: Values that share a scale: 16 bits of scale cost an eighth of a bit per value.
BLOCK = 128
#: Values worked on at a time, so that what a step leaves is still in the cache for the next one.
_CHUNK = 512 * BLOCK


class IntCodec(Codec):
    """Unbiased quantisation to −top … top times a block's largest magnitude.

    A scale is the upper half of a float32, rounded up so that no value lies beyond it: all of float32's range in two
    bytes. A block that holds NaN or infinity decodes to values that are not finite, and so is refused later.
    What rounding leaves out averages out by itself. Error feedback gains nothing with 8 or 4 bits, and with 2 bits it
    does harm: more may be left out than was given, so that it would grow.
    """

    bits: ClassVar[int]

    def __init__(self, share: Fraction) -> None:
        import numpy as np

        super().__init__(share)
        bits = self.bits
        self.top = 2 ** (bits - 1) - 1
        # A value a < 1 / top of a block, rounded to 0 or 1 / top, gives a / top when squared, not a². Worst is a block
        # with one value 1 and all others as large as makes (1 + 127 a / top) / (1 + 127 a²) largest.
        self.inflation = math.sqrt((1 + math.sqrt(1 + (BLOCK - 1) / self.top**2)) / 2)
        self._shifts = np.arange(0, 8, bits, dtype=np.uint8)
        #: What each byte stands for: levels from −1 to 1, and whether all its codes are valid.
        codes = np.arange(256)[:, None] >> self._shifts & 2**bits - 1
        levels = (codes - self.top).astype(np.float32) / np.float32(self.top)  # [256, 8 / bits]
        # The levels of a byte side by side as one item, so that they are looked up at once.
        self._levels = levels.view({8: "f4", 4: "f8", 2: "c16"}[bits])[:, 0]
        self._valid = codes.max(axis=1) <= 2 * self.top

    def size(self, length: int) -> int:
        """Return two bytes per block and `bits` bits per value, rounded up to whole bytes."""
        return 2 * -(-length // BLOCK) + -(-length * self.bits // 8)

    def encode(self, values: "Tensor", rng: "np.random.Generator") -> bytes:
        """Return all scales, then all codes; E[decode(encode(x))] = x over the generator's draws."""
        flat = values.detach().cpu().numpy()
        parts = [self._quantize(flat[start : start + _CHUNK], rng) for start in range(0, len(flat), _CHUNK)]
        return b"".join([scales for scales, _ in parts] + [codes for _, codes in parts])

    def decode(self, payload: memoryview, length: int, rng: "np.random.Generator") -> "Tensor":
        """Return the vector; codes and scales that encode never writes are refused."""
        import numpy as np
        import torch

        check_size(payload, self.size(length))
        blocks = -(-length // BLOCK)
        halves = np.frombuffer(payload[: 2 * blocks], "<u2")
        if np.any(halves >= 0x8000):
            raise ValueError("a block with a negative scale")
        scales = (halves.astype(np.uint32) << 16).view(np.float32)
        packed = np.frombuffer(payload[2 * blocks :], np.uint8)
        values = np.zeros((blocks, BLOCK), np.float32)
        flat = values.reshape(-1)
        flat[: packed.size * 8 // self.bits] = self._levels[packed].view(np.float32)
        if not self._valid[packed].all() or flat[length:].any():
            raise ValueError("a code that stands for no value")
        with np.errstate(invalid="ignore", over="ignore"):
            values *= scales[:, None]
        return torch.from_numpy(flat[:length])

    def _quantize(self, part: "np.ndarray", rng: "np.random.Generator") -> tuple[bytes, bytes]:
        import numpy as np

        blocks = np.zeros((-(-len(part) // BLOCK), BLOCK), np.float32)
        blocks.reshape(-1)[: len(part)] = part
        peaks = np.abs(blocks).max(axis=1)
        halves = np.where(np.isfinite(peaks), peaks, np.float32(np.inf)).view(np.uint32) + np.uint32(0xFFFF) >> 16
        scales = (halves << 16).view(np.float32)
        blocks[~np.isfinite(scales)] = 0
        blocks /= np.where(scales > 0, scales, np.float32(1))[:, None]
        blocks *= np.float32(self.top)
        low = np.floor(blocks)
        blocks -= low
        low += rng.random(blocks.shape, np.float32) < blocks
        codes = (low + np.float32(self.top)).astype(np.uint8).reshape(-1, 8 // self.bits)
        packed = codes[:, 0].copy()
        for place in range(1, codes.shape[1]):
            packed |= codes[:, place] << self._shifts[place]
        return halves.astype("<u2").tobytes(), packed[: -(-len(part) * self.bits // 8)].tobytes()


@register("codec", "int8")
class Int8(IntCodec):
    """254 steps from end to end."""

    bits = 8


@register("codec", "int4")
class Int4(IntCodec):
    """14 steps from end to end."""

    bits = 4


@register("codec", "int2")
class Int2(IntCodec):
    """The largest magnitude of the block with either sign, or 0."""

    bits = 2
    leaves_more = True
