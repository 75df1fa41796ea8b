"""Partitions: which client owns which points.

A rule is fitted on the training points once (which labels belong to which client) and then applied to other points as
well, so that a client's held-out points are distributed like its own.
"""

from collections.abc import Callable, Iterator
from copy import deepcopy

import numpy as np
from scipy.sparse import csr_matrix

from fedmlh.config import Config
from fedmlh.data.dataset import Split
from fedmlh.errors import UserError
from fedmlh.parts import blame, find, find_foreign, register

#: From points to one array of row numbers per client.
Assign = Callable[[Split, np.random.Generator], list[np.ndarray]]

#: Random numbers drawn at once.
BLOCK_NUMBERS = 1 << 20


def fit_partition(config: Config, train: Split, rng: np.random.Generator) -> Assign:
    """Return the config's rule, fitted on the training points."""
    name = config.partition
    with blame("partition", name):
        fitted: Assign = find("partition", name)(train, config, rng)
    if not callable(fitted):
        raise UserError(f"the partition '{name}' must return a function (split, rng) (docs/parts.md)")
    return fitted if find_foreign("partition", name) is None else _guard(name, fitted)


def _guard(name: str, fitted: Assign) -> Assign:
    """Return a fitted rule of a user; what it returns is checked."""

    def assign(split: Split, rng: np.random.Generator) -> list[np.ndarray]:
        with blame("partition", name):
            rows_of = [np.asarray(rows) for rows in fitted(split, rng)]
        for client, rows in enumerate(rows_of):
            sound = rows.ndim == 1 and (not len(rows) or (rows.dtype.kind in "iu" and rows.min() >= 0))
            if not sound or rows.max(initial=-1) >= len(split):
                raise UserError(
                    f"the partition '{name}' must return an array of row numbers for each client, from 0 to "
                    f"{len(split) - 1:,}: that of client {client} is another (docs/parts.md)"
                )
        return rows_of

    return assign


@register("partition", "paper-code")
def _fit_top_labels(train: Split, config: Config, rng: np.random.Generator) -> Assign:
    """Follow the research code: one of the most frequent labels per client, filled up or cut to ⌊n/K⌋ points."""
    num_clients, counts = config.num_clients, _label_counts(train.Y)
    if len(counts) < num_clients:
        raise UserError(
            f"partition 'paper-code' gives each client a label, but {num_clients} clients (num_clients) are more "
            f"than the {len(counts)} labels: use fewer clients or another partition"
        )
    labels = np.argsort(-counts, kind="stable")[:num_clients]

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


@register("partition", "paper-text")
def _fit_frequent_labels(train: Split, config: Config, rng: np.random.Generator) -> Assign:
    """Follow the paper's text: all points of a frequent label go to its client, so a point may go to several.

    The text says nothing about the other points; they are spread at random.
    """
    num_clients = config.num_clients
    # Divided, not multiplied: the share of a label is what the metrics compare with the threshold, too.
    labels = np.flatnonzero(_label_counts(train.Y) / max(len(train), 1) >= config.frequent_threshold)
    owners = rng.integers(0, num_clients, len(labels))

    def assign(split: Split, rng: np.random.Generator) -> list[np.ndarray]:
        by_label = split.Y.tocsc()
        parts: list[list[np.ndarray]] = [[] for _ in range(num_clients)]
        belongs = np.zeros(len(split), bool)
        for label, owner in zip(labels, owners, strict=True):
            own = by_label.indices[by_label.indptr[label] : by_label.indptr[label + 1]]
            parts[owner].append(own)
            belongs[own] = True
        rest_of = _share_out(rng.permutation(np.flatnonzero(~belongs)), num_clients)
        return [np.unique(np.concatenate([*own, rest])) for own, rest in zip(parts, rest_of, strict=True)]

    return assign


@register("partition", "iid")
def _fit_iid(train: Split, config: Config, rng: np.random.Generator) -> Assign:
    """Spread points over clients at random."""
    return lambda split, rng: _share_out(rng.permutation(len(split)), config.num_clients)


@register("partition", "folder")
def _fit_folder(train: Split, config: Config, rng: np.random.Generator) -> Assign:
    """Give each client the points of its site folder."""
    return lambda split, rng: _group(np.asarray(split.sites), config.num_clients)


@register("partition", "dirichlet")
def _fit_dirichlet(train: Split, config: Config, rng: np.random.Generator) -> Assign:
    """Spread each label over clients by its own Dirichlet draw; a point follows its most frequent label.

    The shares of p labels over K clients are p · K numbers. They are not kept, but drawn again when they are needed,
    from the same state of the generator.
    """
    counts, alpha, num_clients = _label_counts(train.Y), config.dirichlet_alpha, config.num_clients
    start = deepcopy(rng)
    for _ in _draw_shares(rng, len(counts), alpha, num_clients):
        pass

    def assign(split: Split, rng: np.random.Generator) -> list[np.ndarray]:
        leading = np.full(len(split), -1)
        for row in range(len(split)):
            own = split.Y.indices[split.Y.indptr[row] : split.Y.indptr[row + 1]]
            if len(own):
                leading[row] = own[np.argmax(counts[own])]
        draws = rng.random(len(split))
        owners = rng.integers(0, num_clients, len(split))
        led = _group(leading[leading >= 0], len(counts))
        labelled = np.flatnonzero(leading >= 0)
        for label, shares in enumerate(_draw_shares(deepcopy(start), len(counts), alpha, num_clients)):
            rows = labelled[led[label]]
            if len(rows):
                owners[rows] = np.minimum(np.searchsorted(shares.cumsum(), draws[rows]), num_clients - 1)
        return _group(owners, num_clients)

    return assign


def _draw_shares(rng: np.random.Generator, num_labels: int, alpha: float, num_clients: int) -> Iterator[np.ndarray]:
    """Yield, label after label, the share of each client."""
    weights, size = np.full(num_clients, alpha), max(1, BLOCK_NUMBERS // num_clients)
    for begin in range(0, num_labels, size):
        yield from rng.dirichlet(weights, min(size, num_labels - begin))


def _share_out(rows: np.ndarray, num_clients: int) -> list[np.ndarray]:
    return [np.sort(part) for part in np.array_split(rows, num_clients)]


def _group(owners: np.ndarray, count: int) -> list[np.ndarray]:
    """Return the rows of each owner, in their order."""
    order = np.argsort(owners, kind="stable")
    return np.split(order, np.searchsorted(owners[order], np.arange(1, count)))


def _label_counts(Y: csr_matrix) -> np.ndarray:
    return np.bincount(Y.indices, minlength=Y.shape[1])
