"""Transforms: steps on the way of a client's delta from local training to the aggregate."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from fedmlh.federated.aggregate import square_length


class ClientTransform(Protocol):
    """Changes a delta at its client, between local training and codec."""

    def apply(self, delta: Tensor, kept: Mapping[str, Tensor]) -> Tensor:
        """Return what is to be sent in place of the delta, given what the client keeps.  # [P]"""

    def keep(self, applied: Tensor, sent: Tensor) -> dict[str, Tensor]:
        """Return what the client keeps, given what `apply` returned and what the server will decode."""


@dataclass(frozen=True)
class Delta:
    """A vector that came from a client, as the server decoded it."""

    values: Tensor  # [P]
    square: float  # the squared length of the values
    #: The factor by which it was scaled; 1: not scaled.
    factor: float = 1.0

    @classmethod
    def of(cls, values: Tensor) -> "Delta":
        """Measure a vector."""
        return cls(values, square_length(values))

    @property
    def length(self) -> float:
        """Return the root-mean-square value."""
        return math.sqrt(self.square / len(self.values))

    def scale(self, factor: float) -> "Delta":
        """Return the vector times a factor."""
        values = self.values * factor
        return Delta(values, square_length(values), self.factor * factor)


class ServerTransform(Protocol):
    """Changes a delta at the server, between codec and sum."""

    def apply(self, delta: Delta) -> Delta:
        """Return what is to be added in place of the delta, or raise Rejected."""
