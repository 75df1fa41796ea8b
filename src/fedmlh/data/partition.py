"""Partitions: which client owns which points.

A rule is fitted on the training points once (which labels belong to whom) and can then be applied to other points
as well, so that a client's held-out points follow the same law as its own.
"""

from collections.abc import Callable

import numpy as np
from scipy.sparse import csr_matrix

from fedmlh.data.dataset import Split
from fedmlh.errors import UserError

#: Points to one array of row numbers a client.
Assign = Callable[[Split, np.random.Generator], list[np.ndarray]]


def fit_partition(
    name: str,
    train: Split,
    num_clients: int,
    rng: np.random.Generator,
    *,
    frequent_threshold: float = 0.01,
    dirichlet_alpha: float = 0.3,
) -> Assign:
    """The rule of that name, fitted on the training points."""
    counts = _label_counts(train.Y)
    if name == "paper-code":
        if len(counts) < num_clients:
            raise UserError(
                f"partition 'paper-code' gives each client a label, but {num_clients} clients (num_clients) are more "
                f"than the {len(counts)} labels: use fewer clients or another partition"
            )
        return _top_labels(np.argsort(-counts, kind="stable")[:num_clients], num_clients)
    if name == "paper-text":
        # Divided, not multiplied: the share of a label is what the metrics compare with the threshold, too.
        frequent = np.flatnonzero(counts / max(len(train), 1) >= frequent_threshold)
        return _frequent_labels(frequent, rng.integers(0, num_clients, len(frequent)), num_clients)
    if name == "iid":
        return lambda split, rng: _deal(rng.permutation(len(split)), num_clients)
    if name == "dirichlet":
        return _dirichlet(counts, dirichlet_alpha, num_clients, rng)
    return lambda split, rng: [np.flatnonzero(split.sites == client) for client in range(num_clients)]


def _top_labels(labels: np.ndarray, num_clients: int) -> Assign:
    """The research code's rule: one of the most frequent labels a client, filled up or cut to ⌊n/K⌋ points."""

    def assign(split: Split, rng: np.random.Generator) -> list[np.ndarray]:
        size, by_label = len(split) // num_clients, split.Y.tocsc()
        clients = []
        for label in labels:
            own = by_label.indices[by_label.indptr[label] : by_label.indptr[label + 1]]
            if len(own) > size:
                own = rng.choice(own, size, replace=False)
            else:
                rest = np.setdiff1d(np.arange(len(split)), own)
                own = np.concatenate([own, rng.choice(rest, size - len(own), replace=False)])
            clients.append(np.sort(own))
        return clients

    return assign


def _frequent_labels(labels: np.ndarray, owners: np.ndarray, num_clients: int) -> Assign:
    """The paper text's rule: all points of a frequent label go to its client, so a point may go to several; the
    rest, of which the text says nothing, is dealt out at random."""

    def assign(split: Split, rng: np.random.Generator) -> list[np.ndarray]:
        by_label = split.Y.tocsc()
        belongs = np.zeros((num_clients, len(split)), bool)
        for label, owner in zip(labels, owners, strict=True):
            belongs[owner, by_label.indices[by_label.indptr[label] : by_label.indptr[label + 1]]] = True
        rest = np.flatnonzero(~belongs.any(axis=0))
        for client, rows in enumerate(_deal(rng.permutation(rest), num_clients)):
            belongs[client, rows] = True
        return [np.flatnonzero(rows) for rows in belongs]

    return assign


def _dirichlet(counts: np.ndarray, alpha: float, num_clients: int, rng: np.random.Generator) -> Assign:
    """Each label spreads over clients by its own Dirichlet draw; a point follows its most frequent label."""
    cumulative = rng.dirichlet(np.full(num_clients, alpha), len(counts)).cumsum(axis=1)  # [p, K]

    def assign(split: Split, rng: np.random.Generator) -> list[np.ndarray]:
        leading = np.full(len(split), -1)
        for row in range(len(split)):
            own = split.Y.indices[split.Y.indptr[row] : split.Y.indptr[row + 1]]
            if len(own):
                leading[row] = own[np.argmax(counts[own])]
        draws = rng.random(len(split))
        owners = rng.integers(0, num_clients, len(split))
        labelled = leading >= 0
        reached = (draws[labelled, None] > cumulative[leading[labelled]]).sum(axis=1)
        owners[labelled] = np.minimum(reached, num_clients - 1)
        return [np.flatnonzero(owners == client) for client in range(num_clients)]

    return assign


def _deal(rows: np.ndarray, num_clients: int) -> list[np.ndarray]:
    return [np.sort(part) for part in np.array_split(rows, num_clients)]


def _label_counts(Y: csr_matrix) -> np.ndarray:
    return np.bincount(Y.indices, minlength=Y.shape[1])
