"""The average of accepted updates, summed in fixed point so that the order of arrival cannot change a bit."""

import numpy as np
import torch
from torch import Tensor

#: No single parameter may change by more than this in a round; it bounds the fixed-point sum.
LIMIT = 1024.0
_CHUNK = 1 << 20
#: Values that torch sums up in one thread, however many it has: split over threads, a sum rounds differently.
_ONE_THREAD = 1 << 15


def square_length(values: Tensor) -> float:
    """The sum of squares, in double precision.  # [P]"""
    parts = torch.split(values, _ONE_THREAD)
    return float(sum(part.double().square().sum() for part in parts))


class Average:
    """One accumulator of 64-bit integers, however many updates there are."""

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

    def mean(self) -> Tensor:
        """The average of what was added.  # [P]"""
        mean = torch.empty(len(self._total), device=self._total.device)
        for total, part in zip(torch.split(self._total, _CHUNK), torch.split(mean, _CHUNK), strict=True):
            part.copy_(total.double() / (self._scale * self._weight))
        return mean
