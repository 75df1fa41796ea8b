"""Choices that a config leaves open: clients, method and sizes follow from the data."""

import numpy as np

from fedmlh.config import Config
from fedmlh.data.dataset import Dataset
from fedmlh.data.division import count_sites
from fedmlh.display import count
from fedmlh.oneround.budget import choose_slots, limit_slots
from fedmlh.oneround.points import OWN_SHARE
from fedmlh.oneround.terms import Counts
from fedmlh.sizing import MOST_OUTPUTS, Shape, choose_sizes

#: Clients if the data has no sites, how many of them a round asks, and how many sites it asks at most.
CLIENTS, SAMPLED, MOST_SAMPLED = 10, 4, 10
#: In one round, the share of all feature occurrences that features with a slot of their own must cover.
_LEAST_COVERAGE = 0.5


def settle(config: Config, dataset: Dataset) -> tuple[Config, list[str]]:
    """Return the config with all choices made, and for each choice a line that says why."""
    config, reasons = settle_clients(config, dataset)
    counts = Counts.of(dataset.train.X)
    # Of raw text, words that a single point has are the first to be left out.
    frequencies = (counts.repeated if dataset.has_raw_words else counts).frequencies
    config, why = settle_method(config, frequencies, len(dataset.train), dataset.num_labels)
    config, more = settle_slots(config, frequencies, len(dataset.train), dataset.num_labels)
    config, sizes = choose_sizes(config, Shape.of(dataset.train))
    return config, [*reasons, *why, *more, *sizes]


def settle_clients(config: Config, dataset: Dataset) -> tuple[Config, list[str]]:
    """Return who the clients are: the sites of the data, or a simulated partition."""
    sites = count_sites(dataset.train.sites)
    partition = config.partition
    if partition == "auto":
        partition = "folder" if sites else "dirichlet"
    clients, sampled = config.num_clients, config.clients_per_round
    by_site = partition == "folder" and sites
    if clients == 0:
        clients = sites if by_site else max(CLIENTS, sampled)
    if sampled == 0:
        sampled = 1 if config.pooled else min(clients, MOST_SAMPLED if by_site else SAMPLED)
    reasons = []
    if config.partition == "auto":
        how = "the data's sites" if by_site else f"Dirichlet {config.dirichlet_alpha:g}: each point goes to one client"
        reasons.append(f"{count(clients, 'client')} ({how}), {sampled:,} in a round")
    return config.replace(partition=partition, num_clients=clients, clients_per_round=sampled), reasons


def settle_method(
    config: Config, frequencies: np.ndarray, num_points: int, num_labels: int
) -> tuple[Config, list[str]]:
    """Return the config with its training settled: one round wherever sums over points tell enough about the points.

    `frequencies` holds the number of points in which each feature occurs.  # [d]
    """
    if config.training != "auto":
        return config, []
    problem = _find_obstacle(config, frequencies, num_points, num_labels)
    if problem:
        return config.replace(training="rounds"), [f"networks in rounds: {problem}"]
    corrected = config.correct if config.validation_fraction > 0 else 0
    return config.replace(training="one-round", correct=corrected), [
        "one round: a linear model in closed form from sums, the same for any partition"
        + ("; then networks beside it, kept if they help on validation" if corrected else "")
    ]


def settle_slots(config: Config, frequencies: np.ndarray, num_points: int, num_labels: int) -> tuple[Config, list[str]]:
    """Return the config with slots for features that a server can solve for in minutes."""
    if config.training != "one-round" or config.feature_slots:
        return config, []
    slots = limit_slots(frequencies, num_points, min(num_labels, MOST_OUTPUTS))
    if not slots:
        return config, []
    return config.replace(feature_slots=slots), [
        f"at most {slots:,} slots for {np.count_nonzero(frequencies):,} features: with more of them, solving would "
        f"take hours (feature_slots)"
    ]


def _find_obstacle(config: Config, frequencies: np.ndarray, num_points: int, num_labels: int) -> str:
    """Return why one round does not suit the config or the data; empty if it does."""
    if config.is_fedavg:
        return "FedAvg is trained in rounds"
    if config.selection == "paper":
        return "selection 'paper' chooses among rounds"
    if config.shared_fraction > 0:
        return "one round shares no points (shared_fraction)"
    if config.pooled:
        return "pooled trains one client, to compare with rounds"
    slots = config.feature_slots or choose_slots(frequencies, num_points, min(num_labels, MOST_OUTPUTS))
    if not slots or not frequencies.any():
        return ""
    own = -np.sort(-frequencies)[: slots * OWN_SHARE[0] // OWN_SHARE[1]]
    coverage = own.sum() / frequencies.sum()
    if coverage >= _LEAST_COVERAGE:
        return ""
    return (
        f"documents are so long that their sums have room for only {slots:,} features, which cover "
        f"{100 * coverage:.0f} % of the words"
    )
