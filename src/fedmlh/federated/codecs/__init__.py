"""Codecs: a vector of parameters to real bytes and back; the bytes are what is counted and what is sent."""

from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING

from fedmlh.config import parse_codec
from fedmlh.federated.codecs.codec import Codec
from fedmlh.federated.codecs.deflated import Deflated

if TYPE_CHECKING:
    import numpy as np

    from fedmlh.federated.messages import BroadcastHeader, UpdateHeader


def make_codec(name: str) -> Codec:
    """Return the codec of that name."""
    said = parse_codec(name)
    return _make(said.family, said.share, said.deflated)


@cache
def _make(family: type[Codec], share: Fraction, deflated: bool) -> Codec:
    return Deflated(family(share)) if deflated else family(share)


def update_draws(seed: int, header: "BroadcastHeader | UpdateHeader") -> "np.random.Generator":
    """Return the generator that a client's update is encoded and decoded with; both sides derive it alike."""
    return _draws(seed, "update codec", header)


def control_draws(seed: int, header: "BroadcastHeader | UpdateHeader") -> "np.random.Generator":
    """Return the generator for the change of a client's control, which travels with its update."""
    return _draws(seed, "control codec", header)


def _draws(seed: int, purpose: str, header: "BroadcastHeader | UpdateHeader") -> "np.random.Generator":
    from fedmlh.randomness import generator

    return generator(seed, purpose, header.round, header.attempt, header.client)
