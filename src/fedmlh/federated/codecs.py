"""Codecs: a vector of parameters to real bytes and back; the bytes are what is counted and what is sent."""

from typing import Protocol

import numpy as np
import torch
from torch import Tensor


class Codec(Protocol):
    """Encodes vectors of a length both sides know, so that no shape ever travels."""

    lossless: bool

    def size(self, length: int) -> int:
        """The most bytes a vector of that length can take."""

    def encode(self, values: Tensor) -> bytes:
        """Bytes of a float32 vector."""

    def decode(self, payload: memoryview, length: int) -> Tensor:
        """The vector that the bytes stand for; ValueError where they cannot stand for one of that length."""


class FloatCodec:
    """Plain little-endian floats of 4 or 2 bytes."""

    def __init__(self, dtype: str) -> None:
        self.dtype = np.dtype(dtype)
        self.lossless = self.dtype.itemsize == 4

    def size(self, length: int) -> int:
        """Exactly itemsize bytes a value."""
        return length * self.dtype.itemsize

    def encode(self, values: Tensor) -> bytes:
        """Bytes of the vector; a value outside the format's range becomes infinite, and so is refused later."""
        with np.errstate(over="ignore"):
            return values.detach().cpu().numpy().astype(self.dtype, copy=False).tobytes()

    def decode(self, payload: memoryview, length: int) -> Tensor:
        """The vector, which must fill the payload exactly."""
        if len(payload) != self.size(length):
            raise ValueError(f"{len(payload):,} bytes of payload, {self.size(length):,} expected")
        return torch.from_numpy(np.frombuffer(payload, self.dtype).astype(np.float32))


CODECS: dict[str, Codec] = {"fp32": FloatCodec("<f4"), "fp16": FloatCodec("<f2")}
