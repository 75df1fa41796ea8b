"""The result that all clients are sent: λ, the power, and either the model or the sums, from which it follows.

Where networks correct the model, they follow, with their weight.
"""

import struct
from dataclasses import dataclass

from fedmlh.oneround.linear import Linear
from fedmlh.oneround.sums import Sums
from fedmlh.oneround.wire import decode_sums, encode_sums, read_points

_HEAD = struct.Struct("<Bdd")
_IS_MODEL, _HAS_NETWORKS = 1, 2
#: Behind the head if there are networks: their weight, and the bytes of their parameters, which come last.
_NETWORKS = struct.Struct("<dQ")


@dataclass(frozen=True)
class Result:
    """Sums and model, encoded; the smaller of the two is sent."""

    ridge: float
    power: float
    sums: bytes
    model: bytes
    weight: float = 0.0  # of networks; 0: there are none
    networks: bytes = b""

    @classmethod
    def of(
        cls,
        sums: Sums,
        model: Linear,
        ridge: float,
        power: float,
        bits: int,
        weight: float = 0.0,
        networks: bytes = b"",
    ) -> "Result":
        """Encode sums and model."""
        return cls(ridge, power, encode_sums(sums, bits), model.encode(), weight, networks)

    def encode(self) -> bytes:
        """Return the payload of a message."""
        is_model = len(self.model) < len(self.sums)
        kind = is_model * _IS_MODEL + bool(self.networks) * _HAS_NETWORKS
        between = _NETWORKS.pack(self.weight, len(self.networks)) if self.networks else b""
        content = self.model if is_model else self.sums
        return _HEAD.pack(kind, self.ridge, self.power) + between + content + self.networks

    @property
    def figures(self) -> dict[str, object]:
        """Return the figures for a summary."""
        sizes = {"sums_bytes": len(self.sums), "model_bytes": len(self.model), "networks_bytes": len(self.networks)}
        return {"what": "model" if len(self.model) < len(self.sums) else "sums", **sizes}


@dataclass(frozen=True)
class Opened:
    """The content of a result."""

    ridge: float
    power: float
    found: Sums | Linear
    weight: float
    networks: memoryview  # encoded; empty: there are none


def open_result(
    payload: memoryview, num_slots: int, num_columns: int, num_outputs: int, bits: int, most: int
) -> Opened:
    """Return sums with `num_columns` columns, or a model with `num_outputs` outputs; raise ValueError for neither."""
    if len(payload) < _HEAD.size:
        raise ValueError("it has no head")
    kind, ridge, power = _HEAD.unpack_from(payload)
    rest = payload[_HEAD.size :]
    if kind > _IS_MODEL + _HAS_NETWORKS or not 0 < ridge <= 1e9 or not 0 <= power <= 1:
        raise ValueError("an invalid head")
    weight, networks = 0.0, payload[:0]
    if kind & _HAS_NETWORKS:
        if len(rest) < _NETWORKS.size:
            raise ValueError("it has no networks")
        weight, size = _NETWORKS.unpack_from(rest)
        rest = rest[_NETWORKS.size :]
        if not 0 < weight <= 1e9 or not 0 < size <= len(rest):
            raise ValueError("an invalid head of networks")
        rest, networks = rest[: len(rest) - size], rest[len(rest) - size :]
    found: Sums | Linear
    if kind & _IS_MODEL:
        found = Linear.decode(rest, num_slots, num_outputs)
    else:
        found = decode_sums(rest, read_points(rest), num_slots, num_columns, bits, most)
    return Opened(ridge, power, found, weight, networks)
