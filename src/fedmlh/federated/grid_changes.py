"""Changes on a grid: sums of them are exact, so that all that a client missed is one change.

Every model that clients hold consists of multiples of 2^-14 of at most 1024 in magnitude. A float32 holds such numbers
exactly, and so their sums and differences, in whatever order they are added.
"""

from collections.abc import Collection, Mapping

import numpy as np
import torch
from torch import Tensor

from fedmlh.federated.aggregate import LIMIT
from fedmlh.federated.codecs.grid import LEVELS, GridCodec, read_levels, write_levels

#: The exponent of the finest step.
FINEST = -14


def snap(model: Tensor) -> Tensor:
    """Return the nearest model that clients can hold."""
    steps = np.rint(np.ldexp(model.cpu().numpy(), -FINEST))
    return torch.from_numpy(np.ldexp(steps, FINEST))


def encode_change(codec: GridCodec, model: Tensor, held: Tensor) -> tuple[bytes, Tensor]:
    """Return what clients are sent about a round, and the model that they hold after it."""
    old = snap(held).numpy()
    wanted = model.cpu().numpy() - old
    exponent = max(FINEST, codec.choose_exponent(wanted))
    # To the nearest: what is left out is in the next change.
    levels = np.rint(np.ldexp(wanted, -exponent))
    new = old + np.ldexp(levels, exponent)
    beyond = np.flatnonzero(np.abs(new) > LIMIT)
    if len(beyond):
        levels[beyond] -= np.sign(levels[beyond])
        new = old + np.ldexp(levels, exponent)
    return write_levels(levels, exponent), torch.from_numpy(new).to(held.device)


def add_changes(held: Tensor, payload: memoryview) -> Tensor:
    """Return the model after changes; ValueError where they are none, or lead out of what clients can hold."""
    model = snap(held) + read_levels(payload, len(held))
    if float(model.abs().max()) > LIMIT:
        raise ValueError(f"a model with values beyond {LIMIT:g}")
    return model


def add_up(changes: Mapping[int, bytes], finished: int, length: int, rounds: Collection[int]) -> dict[int, bytes]:
    """Return for each of the rounds all changes since then as one; rounds of which a change is missing are left out."""
    sums: dict[int, bytes] = {}
    total = np.zeros(length, np.float32)
    for number in range(finished, min(rounds, default=finished), -1):
        if number not in changes:
            break
        total += read_levels(memoryview(changes[number]), length).numpy()
        if number - 1 in rounds:
            payload = changes[number] if number == finished else write_sum(total)
            if payload is not None:
                sums[number - 1] = payload
    return sums


def write_sum(total: np.ndarray) -> bytes | None:
    """Return a sum of changes as one, in the largest step that divides it; None if that has too many steps."""
    steps = np.ldexp(total, -FINEST).astype(np.int32)
    bits = int(np.bitwise_or.reduce(steps))
    shift = (bits & -bits).bit_length() - 1 if bits else -FINEST
    levels = (steps >> shift).astype(np.float32)
    if np.abs(levels).max() >= LEVELS:
        return None
    return write_levels(levels, FINEST + shift)
