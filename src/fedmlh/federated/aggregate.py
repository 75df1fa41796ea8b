"""How what clients send becomes one: rules, and the mean, in fixed point so that no order can change a bit."""

import math
from typing import Protocol, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedmlh.parts import find, register

#: What a rule makes one of: vectors, or sums over points.
Content = TypeVar("Content")

#: No single parameter may change by more than this in a round; it bounds the fixed-point sum.
LIMIT = 1024.0
_CHUNK = 1 << 20
#: Values in a row that is summed up by itself.
_ROW = 1 << 12


def square_length(values: Tensor) -> float:
    """Return the sum of squares, in double precision.  # [P]"""
    # Row by row: torch never splits a row over threads, which would make it round differently, and a row is short
    # enough to be summed in one thread where there is only one.
    sums = [_square_rows(part[: len(part) // _ROW * _ROW].view(-1, _ROW)) for part in torch.split(values, _CHUNK)]
    sums.append(_square_rows(values[len(values) // _ROW * _ROW :].view(1, -1)))
    return math.fsum(torch.cat(sums).tolist())


def _square_rows(rows: Tensor) -> Tensor:
    return rows.double().square_().sum(dim=1)


class Rule(Protocol[Content]):
    """Makes one of all that clients send. The result must not depend on the order in which it was added."""

    #: Whether its memory does not grow with the number of clients; else it keeps all that they send.
    streams: bool

    def add(self, content: Content, weight: int, /) -> None:
        """Count what a client sent with an integer weight; a vector has its values within ±LIMIT."""

    def merge(self, other: Self, /) -> None:
        """Count all that another rule of the same round has counted."""

    def result(self) -> Content:
        """Return what stands for all."""


def make_rule(name: str, num_parameters: int, max_weight: int, device: torch.device) -> Rule[Tensor]:
    """Return the rule of that name for vectors of a length and weights that add up to at most `max_weight`."""
    rule: Rule[Tensor] = find("aggregation", name)(num_parameters, max_weight, device)
    return rule


@register("aggregation", "mean")
class Average:
    """The weighted mean: one accumulator of 64-bit integers, however many updates there are."""

    streams = True

    def __init__(self, num_parameters: int, max_weight: int, device: torch.device) -> None:
        # |value| ≤ 2^10 and Σ weights ≤ max_weight < 2^L, so 52 − L fractional bits keep the sum below 2^62.
        self._scale = 2.0 ** (52 - max_weight.bit_length())
        # numpy's zeros take no memory before something is added: while models are sent, nothing is.
        self._total = torch.from_numpy(np.zeros(num_parameters, np.int64)).to(device)
        self._weight = 0

    def add(self, values: Tensor, weight: int) -> None:
        """Count an update (its values within ±LIMIT) with an integer weight.  # [P]"""
        # The product of a float32 and an integer below 2^29 is exact in float64; only the rounding loses anything.
        for total, part in zip(torch.split(self._total, _CHUNK), torch.split(values, _CHUNK), strict=True):
            total += (part.double() * (weight * self._scale)).round_().long()
        self._weight += weight

    def merge(self, other: "Average") -> None:
        """Count all that another of the same size and bound has counted."""
        if other._scale != self._scale:
            raise ValueError("sums of different scale do not add up")
        self._total += other._total.to(self._total.device)
        self._weight += other._weight

    def result(self) -> Tensor:
        """Return the average of what was added.  # [P]"""
        mean = torch.empty(len(self._total), device=self._total.device)
        for total, part in zip(torch.split(self._total, _CHUNK), torch.split(mean, _CHUNK), strict=True):
            part.copy_(total.double() / (self._scale * self._weight))
        return mean
