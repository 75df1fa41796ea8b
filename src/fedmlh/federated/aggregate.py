"""Aggregation rules, and the mean in fixed point, so that the order of updates cannot change a bit."""

import math
from typing import Protocol, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedmlh.parts import blame, find, register

#: What a rule aggregates: vectors, or sums over points.
Content = TypeVar("Content")

#: No single parameter may change by more than this in a round; it bounds the fixed-point sum.
LIMIT = 1024.0
_CHUNK = 1 << 20
#: Values per row; each row is summed by itself.
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
    """Aggregates what clients send. The result must not depend on the order of updates."""

    #: True if its memory does not grow with the number of clients; False if it keeps all that they send.
    streams: bool

    def add(self, content: Content, weight: int, /) -> None:
        """Add what a client sent, with an integer weight; the values of a vector lie within ±LIMIT."""

    def merge(self, other: Self, /) -> None:
        """Add all that another rule of the same round has added."""

    def result(self) -> Content:
        """Return the aggregate of all that was added."""


def make_rule(name: str, num_parameters: int, max_weight: int, device: torch.device) -> Rule[Tensor]:
    """Return the rule of that name, for vectors of one length and weights that add up to at most `max_weight`."""
    with blame("aggregation", name):
        rule: Rule[Tensor] = find("aggregation", name)(num_parameters, max_weight, device)
    return rule


@register("aggregation", "mean")
class Average:
    """The weighted mean: one accumulator of 64-bit integers, however many updates there are."""

    streams = True

    def __init__(self, num_parameters: int, max_weight: int, device: torch.device) -> None:
        # |value| ≤ 2^10 and Σ weights ≤ max_weight < 2^L, so 52 − L fractional bits keep the sum below 2^62.
        self._scale = 2.0 ** (52 - max_weight.bit_length())
        # numpy's zeros take no memory until something is added, and nothing is added while models are sent.
        self._total = torch.from_numpy(np.zeros(num_parameters, np.int64)).to(device)
        self._weight = 0

    def add(self, values: Tensor, weight: int) -> None:
        """Add an update (its values within ±LIMIT) with an integer weight.  # [P]"""
        # The product of a float32 and an integer below 2^29 is exact in float64; only the rounding loses anything.
        for total, part in zip(torch.split(self._total, _CHUNK), torch.split(values, _CHUNK), strict=True):
            total += (part.double() * (weight * self._scale)).round_().long()
        self._weight += weight

    def merge(self, other: "Average") -> None:
        """Add all that another average of the same size and bound has added."""
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
