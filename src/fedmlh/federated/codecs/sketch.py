"""A Count Sketch of the vector (the paper's Algorithm 1): fewer cells than values, with new hashes per message."""

import math
from fractions import Fraction
from typing import TYPE_CHECKING

from fedmlh.federated.codecs.codec import Codec, check_size
from fedmlh.parts import register

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

#: Rows of the sketch.
ROWS = 5


@register("codec", "sketch")
class SketchCodec(Codec):
    """Rows of fp16 cells, which together take a given share of the fp32 vector's bytes.

    Both sides draw the hash functions from a generator that the message keys, so none is sent. Values that collide in
    one message do not in the next: the estimate is unbiased over the draws, up to the cells' rounding.
    What a sketch leaves out is more than what it was given, so it is not kept for later.
    """

    percent = (Fraction(1, 1000), Fraction(100))
    leaves_more = True
    every_value = False

    def __init__(self, share: Fraction) -> None:
        super().__init__(share)
        # A cell holds all values that fall into it: the mean over rows adds P / (ROWS · width) of the squared length.
        self.inflation = math.sqrt(1 + 1 / (2 * share))

    def width(self, length: int) -> int:
        """Return the cells per row."""
        return max(1, math.floor(self.share * length * 2 / ROWS)) if length else 0

    def size(self, length: int) -> int:
        """Return exactly 2 bytes per cell."""
        return 2 * ROWS * self.width(length)

    def encode(self, values: "Tensor", rng: "np.random.Generator") -> bytes:
        """Return all rows, one after the other."""
        import numpy as np

        from fedmlh.hashing.count_sketch import CountSketch

        sketch = CountSketch(ROWS, self.width(len(values)), rng)
        # A cell out of range becomes infinite, and so is refused later.
        with np.errstate(invalid="ignore", over="ignore"):
            sketch.insert(values.detach().cpu().numpy())
            return sketch.cells.astype("<f2").tobytes()

    def decode(self, payload: memoryview, length: int, rng: "np.random.Generator") -> "Tensor":
        """Return the mean over the rows of what each holds for a value."""
        import numpy as np
        import torch

        from fedmlh.hashing.count_sketch import CountSketch

        check_size(payload, self.size(length))
        sketch = CountSketch(ROWS, self.width(length), rng)
        sketch.cells = np.frombuffer(payload, "<f2").astype(np.float32).reshape(sketch.cells.shape)
        with np.errstate(invalid="ignore"):
            return torch.from_numpy(sketch.retrieve(length))
