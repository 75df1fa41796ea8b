"""Plain floats: 4 bytes per value without loss, or 2 bytes per value, rounded to the nearest."""

from typing import TYPE_CHECKING, ClassVar

from fedmlh.federated.codecs.codec import Codec, check_size
from fedmlh.parts import register

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


class FloatCodec(Codec):
    """Plain little-endian floats."""

    whole = True
    #: Bytes per value.
    width: ClassVar[int]

    def size(self, length: int) -> int:
        """Return exactly the bytes of all values."""
        return length * self.width

    def encode(self, values: "Tensor", rng: "np.random.Generator") -> bytes:
        """Return the values; one outside the format's range becomes infinite, and so is refused later."""
        import numpy as np

        with np.errstate(over="ignore"):
            return values.detach().cpu().numpy().astype(f"<f{self.width}", copy=False).tobytes()

    def decode(self, payload: memoryview, length: int, rng: "np.random.Generator") -> "Tensor":
        """Return the vector, which must fill the payload exactly."""
        import numpy as np
        import torch

        check_size(payload, self.size(length))
        return torch.from_numpy(np.frombuffer(payload, f"<f{self.width}").astype(np.float32))


@register("codec", "fp32")
class Float32(FloatCodec):
    """The vector as it is."""

    width = 4


@register("codec", "fp16")
class Float16(FloatCodec):
    """Values rounded to the nearest half-precision float."""

    width = 2
    feedback = True
