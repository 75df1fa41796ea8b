"""Clients whose sums no points can have, though each number by itself is possible."""

from collections.abc import Callable, Collection, Iterable

import numpy as np
import torch

from fedmlh.federated.messages import Rejected
from fedmlh.oneround.sums import Sums

#: A generous bound on how much of a slot's square the rounding of a factorisation can lose.
_ROUNDING = 1e-9


def find_impossible(
    messages: Iterable[tuple[int, bytes]], clients: Collection[int], read: Callable[[int, bytes], Sums]
) -> dict[int, Sums]:
    """Return the sums of these clients that no points can have; a client's first readable sums count."""
    waiting, found = set(clients), {}
    for client, message in messages:
        if client not in waiting:
            continue
        try:
            sums = read(client, message)
        except Rejected:
            continue
        waiting.remove(client)
        if not is_possible(sums):
            found[client] = sums
    return found


def is_possible(sums: Sums) -> bool:
    """Say whether no direction has a negative square, which holds for the sums of any points."""
    present = np.flatnonzero(sums.gram.diagonal())
    upper = torch.from_numpy(sums.gram[present][:, present].toarray().astype(np.float64))
    matrix = upper + upper.triu(1).T
    matrix.diagonal().mul_(1 + _ROUNDING)
    return int(torch.linalg.cholesky_ex(matrix).info) == 0
