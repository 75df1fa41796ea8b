"""An entropy coder on top of another codec: the same vector in fewer bytes, never in more than one byte more."""

import zlib
from typing import TYPE_CHECKING

from fedmlh.federated.codecs.codec import Codec

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

_PLAIN, _DEFLATED = b"\0", b"\1"
#: Raw deflate: a message carries a digest of its own.
_WINDOW = -15


class Deflated(Codec):
    """What the inner codec writes, deflated where that makes it smaller."""

    def __init__(self, inner: Codec) -> None:
        super().__init__(inner.share)
        self.inner = inner
        self.feedback = inner.feedback
        self.inflation = inner.inflation

    def size(self, length: int) -> int:
        """Return one byte more than the inner codec needs."""
        return self.inner.size(length) + 1

    def encode(self, values: "Tensor", rng: "np.random.Generator") -> bytes:
        """Return a byte (plain or deflated), then the inner payload."""
        plain = self.inner.encode(values, rng)
        # Apart from runs of zeros, codes repeat only by chance: a thorough search takes several times as long.
        deflater = zlib.compressobj(1, zlib.DEFLATED, _WINDOW, zlib.DEF_MEM_LEVEL, zlib.Z_RLE)
        deflated = deflater.compress(plain) + deflater.flush()
        return _DEFLATED + deflated if len(deflated) < len(plain) else _PLAIN + plain

    def decode(self, payload: memoryview, length: int, rng: "np.random.Generator") -> "Tensor":
        """Return the vector; inflating stops where the inner payload would be too long."""
        how, content = bytes(payload[:1]), payload[1:]
        if how == _DEFLATED:
            content = memoryview(_inflate(content, self.inner.size(length)))
        elif how != _PLAIN:
            raise ValueError("neither plain nor deflated")
        return self.inner.decode(content, length, rng)


def _inflate(content: memoryview, limit: int) -> bytes:
    inflater = zlib.decompressobj(_WINDOW)
    try:
        # One byte over the limit shows that it is too long; 0 would mean no limit.
        plain = inflater.decompress(content, limit + 1)
    except zlib.error as error:
        raise ValueError(f"cannot be inflated: {error}") from None
    if len(plain) > limit or not inflater.eof or inflater.unused_data:
        raise ValueError(f"cannot be inflated to at most {limit:,} bytes")
    return plain
