"""The terms of sums, frozen before clients add up their points: the frequency and the slot of each feature."""

import hashlib
import struct
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from fedmlh.entropy.vectors import decode_sparse, encode_sparse
from fedmlh.oneround.points import Slots

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

    from fedmlh.federated.task import Seeds

_COUNTED = struct.Struct("<Q")
_TERMS = struct.Struct("<QIB")


@dataclass(frozen=True)
class Counts:
    """How many points there are, and how many of them have each feature."""

    points: int
    frequencies: np.ndarray  # int64 [d]

    @classmethod
    def of(cls, X: "csr_matrix") -> "Counts":
        """Count points.  # [n, d]"""
        return cls(int(X.shape[0]), np.bincount(X.indices, minlength=X.shape[1]))

    def __add__(self, other: "Counts") -> "Counts":
        """Return the counts of the points of both."""
        return Counts(self.points + other.points, self.frequencies + other.frequencies)

    @property
    def repeated(self) -> "Counts":
        """The same without features that a single point has: they say nothing about other points."""
        return Counts(self.points, np.where(self.frequencies > 1, self.frequencies, 0))

    def encode(self) -> bytes:
        """Return the payload of a message."""
        return _COUNTED.pack(self.points) + encode_sparse(self.frequencies)

    @classmethod
    def decode(cls, payload: memoryview, num_features: int) -> "Counts":
        """Return the counts of a payload; raise ValueError if no points can have them."""
        if len(payload) < _COUNTED.size:
            raise ValueError("it has no head")
        (points,) = _COUNTED.unpack_from(payload)
        frequencies, rest = decode_sparse(payload[_COUNTED.size :], num_features)
        if len(rest) or points >= 2**40 or frequencies.max(initial=0) > points:
            raise ValueError("a feature has more points than there are, or bytes follow")
        return cls(points, frequencies)


@dataclass(frozen=True)
class Terms:
    """The terms that are frozen once counts are known: the counts, the number of slots, whether rarity weighs."""

    counts: Counts
    limit: int  # 0: a slot per feature
    weigh: bool

    def slots(self, seeds: "Seeds") -> Slots:
        """Return the slot of each feature."""
        frequencies, points = self.counts.frequencies, self.counts.points
        return Slots.fit(frequencies, points, self.limit, seeds.features[0], weigh=self.weigh)

    @cached_property
    def name(self) -> str:
        """Return the name of these terms in messages."""
        return name_terms(self.encode())

    def encode(self) -> bytes:
        """Return the payload of a message."""
        return _TERMS.pack(self.counts.points, self.limit, self.weigh) + self.counts.encode()[_COUNTED.size :]

    @classmethod
    def decode(cls, payload: memoryview, num_features: int) -> "Terms":
        """Return the terms of a payload; raise ValueError if it holds none."""
        if len(payload) < _TERMS.size:
            raise ValueError("it has no head")
        points, limit, weigh = _TERMS.unpack_from(payload)
        if weigh > 1:
            raise ValueError("rarity either weighs or does not")
        return cls(
            Counts.decode(memoryview(_COUNTED.pack(points) + payload[_TERMS.size :]), num_features), limit, weigh == 1
        )


def name_terms(payload: bytes | memoryview) -> str:
    """Return a name for the terms that a request carries; empty if it carries none."""
    return hashlib.sha256(payload).hexdigest()[:32] if len(payload) else ""
