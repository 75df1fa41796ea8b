"""What all clients are sent in the end: λ, the power, and the sums, from which they can solve, or the model."""

import struct
from dataclasses import dataclass

from fedmlh.oneround.linear import Linear
from fedmlh.oneround.sums import Sums
from fedmlh.oneround.wire import decode_sums, encode_sums, read_points

_HEAD = struct.Struct("<Bdd")


@dataclass(frozen=True)
class Result:
    """Both, encoded; the smaller is what is sent."""

    ridge: float
    power: float
    sums: bytes
    model: bytes

    @classmethod
    def of(cls, sums: Sums, model: Linear, ridge: float, power: float, bits: int) -> "Result":
        """Encode both."""
        return cls(ridge, power, encode_sums(sums, bits), model.encode())

    def encode(self) -> bytes:
        """Return the payload of a message."""
        is_model = len(self.model) < len(self.sums)
        return _HEAD.pack(is_model, self.ridge, self.power) + (self.model if is_model else self.sums)

    @property
    def figures(self) -> dict[str, object]:
        """Return what a summary says of it."""
        sizes = {"sums_bytes": len(self.sums), "model_bytes": len(self.model)}
        return {"what": "model" if len(self.model) < len(self.sums) else "sums", **sizes}


def open_result(
    payload: memoryview, num_slots: int, num_columns: int, num_outputs: int, bits: int, most: int
) -> tuple[float, float, Sums | Linear]:
    """Return λ, the power, and sums over so many columns or a model of so many outputs; ValueError for neither."""
    if len(payload) < _HEAD.size:
        raise ValueError("it has no head")
    is_model, ridge, power = _HEAD.unpack_from(payload)
    rest = payload[_HEAD.size :]
    if is_model > 1 or not 0 < ridge <= 1e9 or not 0 <= power <= 1:
        raise ValueError("a head that makes no sense")
    if is_model:
        return ridge, power, Linear.decode(rest, num_slots, num_outputs)
    return ridge, power, decode_sums(rest, read_points(rest), num_slots, num_columns, bits, most)
