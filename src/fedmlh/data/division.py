"""The training part of a simulated run, divided: a validation part, and a shard per client."""

from dataclasses import dataclass

import numpy as np

from fedmlh.config import Config
from fedmlh.data.dataset import Split
from fedmlh.data.partition import fit_partition
from fedmlh.errors import UserError
from fedmlh.randomness import generator

#: Up to this many clients may be more than there are points; clients without points do not exist.
_FEW_CLIENTS = 1000


@dataclass(frozen=True)
class Division:
    """A `Split` per client to train on, and the points held out before the partition, whole and by client."""

    validation: Split
    #: Points that every client trains on beside its own shard; they are in no shard.
    shared: Split
    shards: dict[int, Split]
    held_out: dict[int, np.ndarray]  # rows of `validation`
    #: How many points reach at least one client, each counted once, and how many points there are.
    reached: int
    total: int


def divide(train: Split, config: Config) -> Division:
    """Hold out the validation part first, then partition; the same seed gives every algorithm the same division."""
    fraction = 0.0 if config.selection == "paper" else config.validation_fraction
    order = generator(config.seed, "validation").permutation(len(train))
    cut = round(fraction * len(train))
    if fraction > 0 and not 0 < cut < len(train):
        raise UserError(
            f"validation_fraction {config.validation_fraction} of {len(train):,} training points leaves none on one "
            f"side: give more points, or a {'smaller' if cut else 'larger'} validation_fraction such as 0.5"
        )
    if config.partition == "folder":
        _check_sites(train.sites, config.num_clients)
    elif config.num_clients > max(len(train) - cut, _FEW_CLIENTS):
        raise UserError(
            f"num_clients is {config.num_clients:,}, but there are only {len(train) - cut:,} points to train on: use "
            f"fewer clients"
        )
    validation, fit = train.take(np.sort(order[:cut])), train.take(np.sort(order[cut:]))
    rng = generator(config.seed, "partition")
    assign = fit_partition(config, fit, rng)
    public = _draw_shared(len(fit), config)
    own = (np.setdiff1d(rows, public) if len(public) else rows for rows in assign(fit, rng))
    rows_of = {client: rows for client, rows in enumerate(own) if len(rows)}
    if config.pooled:
        rows_of = {0: np.unique(np.concatenate(list(rows_of.values())))}
    shards = {client: fit.take(rows) for client, rows in rows_of.items()}
    if len(shards) < config.clients_per_round:
        raise UserError(
            f"only {len(shards)} of {config.num_clients} clients have any training point, a round needs "
            f"{config.clients_per_round} (clients_per_round): use fewer clients or another partition"
        )
    held_out = {client: rows for client, rows in enumerate(assign(validation, rng)) if len(rows)}
    reached = len(np.unique(np.concatenate([public, *rows_of.values()])))
    return Division(validation, fit.take(public), shards, held_out, reached, len(fit))


def count_sites(sites: np.ndarray | None) -> int:
    """Return how many sites own points, given the site of each point; 0 if the data does not come by site."""
    return 0 if sites is None else int(sites.max(initial=-1)) + 1


def _draw_shared(count: int, config: Config) -> np.ndarray:
    """Draw the rows that every client gets; they do not change how the partition assigns rows."""
    size = round(config.shared_fraction * count)
    if config.shared_fraction > 0 and size == 0:
        raise UserError(
            f"shared_fraction {config.shared_fraction} of {count:,} training points is none: make it larger, or 0"
        )
    return np.sort(generator(config.seed, "shared points").permutation(count)[:size])


def _check_sites(sites: np.ndarray | None, num_clients: int) -> None:
    if sites is None:
        raise UserError("partition 'folder' needs data that comes in site folders, one per client")
    count = count_sites(sites)
    if count != num_clients:
        raise UserError(
            f"partition 'folder' gives each client a site folder, but num_clients is {num_clients} and the data has "
            f"{count} sites: set num_clients=0 and clients_per_round=0, which follow the folders"
        )
