"""Clients whose sums no points have, though each of their numbers by itself is possible."""

from collections.abc import Callable, Collection, Iterable

import numpy as np
import torch

from fedmlh.federated.messages import Rejected
from fedmlh.oneround.sums import Sums

#: What the rounding of a factorisation may take from the square of a slot: far more than it does.
_ROUNDING = 1e-9


def find_impossible(
    messages: Iterable[tuple[int, bytes]], clients: Collection[int], read: Callable[[int, bytes], Sums]
) -> dict[int, Sums]:
    """Return those of these clients' sums that no points have; of a client, the first that can be read count."""
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
    """Say whether no direction has a negative square, as is so for the products of any points."""
    present = np.flatnonzero(sums.gram.diagonal())
    upper = torch.from_numpy(sums.gram[present][:, present].toarray().astype(np.float64))
    matrix = upper + upper.triu(1).T
    matrix.diagonal().mul_(1 + _ROUNDING)
    return int(torch.linalg.cholesky_ex(matrix).info) == 0
