"""A family of codecs: one class in a file of its own, with all that others need to know about the family.

Configs are checked against these classes, so their files import numpy and torch only inside functions.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, Protocol

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


class Codec(ABC):
    """Encodes vectors of a length both sides know, so that no shape ever travels."""

    #: The least and the largest N of a name `family-N%`; None if names of the family have no N.
    percent: ClassVar[tuple[Fraction, Fraction] | None] = None
    #: Whether `+zlib` may follow the name.
    deflates: ClassVar[bool] = True
    #: Whether broadcasts encode the model itself. Other families are too coarse for that: they encode changes.
    whole: ClassVar[bool] = False
    #: Whether it can leave out more than it sends. Error feedback would then grow from round to round.
    leaves_more: ClassVar[bool] = False
    #: Whether something is sent for every single value, however coarse.
    every_value: ClassVar[bool] = True

    #: Whether what was left out is kept and added to the next vector; sound only if less is left out than was given.
    feedback: bool = False
    #: How many times longer than the encoded vector the decoded one may be, in root mean square.
    inflation: float = 1.0
    #: How changes are added up, if their sums are exact: all changes that a client missed are then sent as one.
    sums: "Sums | None" = None

    def __init__(self, share: Fraction) -> None:
        self.share = share

    @abstractmethod
    def size(self, length: int) -> int:
        """Return the most bytes that a vector of that length can take."""

    @abstractmethod
    def encode(self, values: "Tensor", rng: "np.random.Generator") -> bytes:
        """Return the bytes of a float32 vector; every random choice comes from the generator."""

    @abstractmethod
    def decode(self, payload: memoryview, length: int, rng: "np.random.Generator") -> "Tensor":
        """Return the vector that the bytes stand for, given a generator keyed as the sender's was.

        Raise ValueError if they cannot stand for a vector of that length; nothing larger than one is ever allocated.
        """


class Sums(Protocol):
    """Changes of a model whose sums are exact, whatever their order."""

    def encode_change(self, model: "Tensor", base: "Tensor") -> "tuple[bytes, Tensor]":
        """Return the encoded change of a round, and the base model after it."""

    def add(self, base: "Tensor", payload: memoryview) -> "Tensor":
        """Return the base model after a change or a sum of changes, or raise ValueError."""

    def add_up(
        self, changes: Mapping[int, bytes], finished: int, length: int, rounds: Collection[int]
    ) -> dict[int, bytes]:
        """Return for each of these rounds the sum of all changes since then, unless one of them is missing."""

    def encode_difference(self, model: "Tensor", initial: "Tensor") -> bytes | None:
        """Return the change from the initial model; None if it is too large for one change."""


def check_size(payload: memoryview, size: int) -> None:
    """Raise ValueError unless the payload has exactly that many bytes."""
    if len(payload) != size:
        raise ValueError(f"{len(payload):,} bytes of payload, {size:,} expected")
