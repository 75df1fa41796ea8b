"""Plain floats: nothing lost with 4 bytes a value, rounded to the nearest with 2."""

import numpy as np
import torch
from torch import Tensor


class FloatCodec:
    """Plain little-endian floats of 4 or 2 bytes."""

    inflation = 1.0

    def __init__(self, dtype: str) -> None:
        self.dtype = np.dtype(dtype)
        self.feedback = self.dtype.itemsize < 4

    def size(self, length: int) -> int:
        """Exactly itemsize bytes a value."""
        return length * self.dtype.itemsize

    def encode(self, values: Tensor, rng: np.random.Generator) -> bytes:
        """Bytes of the vector; a value outside the format's range becomes infinite, and so is refused later."""
        with np.errstate(over="ignore"):
            return values.detach().cpu().numpy().astype(self.dtype, copy=False).tobytes()

    def decode(self, payload: memoryview, length: int, rng: np.random.Generator) -> Tensor:
        """The vector, which must fill the payload exactly."""
        check_size(payload, self.size(length))
        return torch.from_numpy(np.frombuffer(payload, self.dtype).astype(np.float32))


def check_size(payload: memoryview, size: int) -> None:
    """ValueError unless the payload has just that many bytes."""
    if len(payload) != size:
        raise ValueError(f"{len(payload):,} bytes of payload, {size:,} expected")
