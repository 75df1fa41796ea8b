"""Changes on a grid: their sums are exact, so that all changes that a client missed are sent as one.

Every base model consists of multiples of 2^-14 of at most 1024 in magnitude. A float32 holds such numbers
exactly, and so their sums and differences, in whatever order they are added.
"""

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from fedmlh.federated.aggregate import LIMIT
from fedmlh.federated.codecs.grid_levels import LEVELS, read_levels, read_vector, write_levels

#: The exponent of the finest step, and how many of them the largest value has.
FINEST = -14
_MOST = int(LIMIT) << -FINEST


def snap(model: Tensor) -> Tensor:
    """Return the base model on the grid that is nearest to a model."""
    return _to_model(_to_steps(model.cpu().numpy()))


class GridChanges:
    """Changes on one grid. `choose_exponent` returns the exponent of the step that suits a vector."""

    def __init__(self, choose_exponent: Callable[[np.ndarray], int]) -> None:
        self._choose_exponent = choose_exponent

    def encode_change(self, model: Tensor, base: Tensor) -> tuple[bytes, Tensor]:
        """Return the encoded change of a round, and the base model after it."""
        old = _to_steps(base.cpu().numpy())
        wanted = model.cpu().numpy() - _to_model(old).numpy()
        exponent = max(FINEST, self._choose_exponent(wanted))
        # Rounded to the nearest: the next change makes up for what is left out.
        levels = np.rint(np.ldexp(wanted, -exponent)).astype(np.int32)
        new = old + (levels << exponent - FINEST)
        beyond = np.flatnonzero(np.abs(new) > _MOST)
        if len(beyond):
            levels[beyond] -= np.sign(levels[beyond])
            new = old + (levels << exponent - FINEST)
        return write_levels(levels, exponent), _to_model(new).to(base.device)

    def add(self, base: Tensor, payload: memoryview) -> Tensor:
        """Return the base model after changes; raise ValueError if they are not valid, or lead out of the grid."""
        model = snap(base) + read_vector(payload, len(base))
        if float(model.abs().max()) > LIMIT:
            raise ValueError(f"a model with values beyond {LIMIT:g}")
        return model

    def add_up(
        self, changes: Mapping[int, bytes], finished: int, length: int, rounds: Collection[int]
    ) -> dict[int, bytes]:
        """Return for each of these rounds the sum of all changes since then, unless one of them is missing."""
        sums: dict[int, bytes] = {}
        total = np.zeros(length, np.int32)
        for round_index in range(finished, min(rounds, default=finished), -1):
            if round_index not in changes:
                break
            levels, exponent = _read_own(changes[round_index], length)
            total += levels.astype(np.int32) << exponent - FINEST
            if round_index - 1 in rounds:
                payload = changes[round_index] if round_index == finished else _write_sum(total)
                if payload is not None:
                    sums[round_index - 1] = payload
        return sums

    def encode_difference(self, model: Tensor, initial: Tensor) -> bytes | None:
        """Return the change from the initial model; None if that has too many steps."""
        return _write_sum(_to_steps(model.cpu().numpy()) - _to_steps(initial.numpy()))


@lru_cache(maxsize=16)
def _read_own(change: bytes, length: int) -> tuple[np.ndarray, int]:
    """Return levels, a byte each if they fit, and exponent of a change; cached, since several rounds need them."""
    levels, exponent = read_levels(memoryview(change), length)
    small = levels.astype(np.int8)
    return (small if np.array_equal(small, levels) else levels.astype(np.int32)), exponent


def _write_sum(steps: np.ndarray) -> bytes | None:
    """Return a sum of changes as one, in the largest step that divides it; None if that has too many steps."""
    bits = int(np.bitwise_or.reduce(steps))
    shift = (bits & -bits).bit_length() - 1 if bits else -FINEST
    levels = steps >> shift
    return write_levels(levels, FINEST + shift) if np.abs(levels).max() < LEVELS else None


def _to_steps(values: np.ndarray) -> np.ndarray:
    steps: np.ndarray = np.rint(np.ldexp(values, -FINEST)).astype(np.int32)
    return steps


def _to_model(steps: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ldexp(steps.astype(np.float32), FINEST))
