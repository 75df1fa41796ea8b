"""Codecs: a vector of parameters to real bytes and back; the bytes are what is counted and what is sent."""

from functools import cache
from typing import Protocol

import numpy as np
from torch import Tensor

from fedmlh.config import parse_codec
from fedmlh.federated.codecs.deflated import Deflated
from fedmlh.federated.codecs.floats import FloatCodec
from fedmlh.federated.codecs.grid import GridCodec
from fedmlh.federated.codecs.integers import IntCodec
from fedmlh.federated.codecs.sketch import SketchCodec
from fedmlh.federated.codecs.topk import TopCodec
from fedmlh.federated.messages import BroadcastHeader, UpdateHeader
from fedmlh.randomness import generator


class Codec(Protocol):
    """Encodes vectors of a length both sides know, so that no shape ever travels."""

    @property
    def feedback(self) -> bool:
        """Whether what was left out is kept and added to the next vector; sound only if less is left than was given."""

    @property
    def inflation(self) -> float:
        """How many times longer than the encoded vector the decoded one may be, in root mean square."""

    def size(self, length: int) -> int:
        """The most bytes a vector of that length can take."""

    def encode(self, values: Tensor, rng: np.random.Generator) -> bytes:
        """Bytes of a float32 vector; all that is random comes from the generator."""

    def decode(self, payload: memoryview, length: int, rng: np.random.Generator) -> Tensor:
        """The vector that the bytes stand for, given a generator keyed as the sender's was.

        ValueError where they cannot stand for a vector of that length; nothing larger than one is ever allocated.
        """


@cache
def make_codec(name: str) -> Codec:
    """The codec of that name, as config.py reads it."""
    kind, share, deflated = parse_codec(name)
    codec: Codec
    if kind == "topk":
        codec = TopCodec(share)
    elif kind == "sketch":
        codec = SketchCodec(share)
    elif kind == "grid":
        codec = GridCodec(share)
    elif kind.startswith("int"):
        codec = IntCodec(int(kind[3:]))
    else:
        codec = FloatCodec("<f4" if kind == "fp32" else "<f2")
    return Deflated(codec) if deflated else codec


def update_draws(seed: int, header: BroadcastHeader | UpdateHeader) -> np.random.Generator:
    """The generator that a client's update is encoded and decoded with; both sides derive it alike."""
    return generator(seed, "update codec", header.round, header.attempt, header.client)


def control_draws(seed: int, header: BroadcastHeader | UpdateHeader) -> np.random.Generator:
    """The same for the change of a client's control, which travels with its update."""
    return generator(seed, "control codec", header.round, header.attempt, header.client)
