"""The paper's lemmas and theorems on a data set's own labels: predictions and observations, ready for JSON."""

from typing import Any

import numpy as np

from fedmlh.config import Config
from fedmlh.data.dataset import Dataset
from fedmlh.data.division import divide
from fedmlh.hashing.labels import LabelMap, make_label_map
from fedmlh.hashing.theory import (
    client_divergence,
    colliding_pairs,
    collision_probability,
    expected_positives,
    fitted_rate,
    lemma1_bound,
    lemma2_bound,
    observed_positives,
    simulate_theorem1,
    smallest_buckets,
    theorem1_bound,
)
from fedmlh.randomness import generator

#: Sizes around the preset's B.
BUCKET_FACTORS = (0.25, 0.5, 1, 2, 4)
TABLES = (1, 2, 3, 4)
DELTA = 0.01
POSITIVES = (2, 4, 8, 16, 32, 64, 128, 256)
_EMBEDDING = 4
#: Seeds of the hash functions, far from those that runs use.
_FIRST_SEED = 1000


def check_hashing(dataset: Dataset, config: Config, draws: int) -> dict[str, Any]:
    """Check Lemma 1, Lemma 2 and Theorem 2 over B and R, with `draws` hash functions of the labels."""
    sizes = sorted({max(2, round(factor * config.num_buckets)) for factor in BUCKET_FACTORS})
    sizes = [size for size in sizes if size <= dataset.num_labels]
    return {
        "lemma1": [_lemma1(dataset, size, draws) for size in sizes],
        "lemma2": [
            _lemma2(dataset.num_labels, tables, size, draws)
            for tables in sorted({*TABLES, config.num_tables})
            for size in sizes
        ],
        "paper": {"R": config.num_tables, "B": config.num_buckets, "delta": DELTA}
        | {"smallest_B": smallest_buckets(dataset.num_labels, config.num_tables, DELTA)},
        "theorem2": _theorem2(dataset, config, sizes, draws),
    }


def check_rate(trials: int) -> dict[str, Any]:
    """Check Theorem 1's 1/n₁ on simulated embeddings: observed mean square errors beside the least possible."""
    rng = generator(0, "theorem 1")
    mixing = rng.standard_normal((_EMBEDDING, _EMBEDDING))
    covariance = mixing @ mixing.T / _EMBEDDING
    observed = [simulate_theorem1(covariance, count, trials, rng) for count in POSITIVES]
    least = [theorem1_bound(covariance, count) for count in POSITIVES]
    rows: dict[str, Any] = {"positives": list(POSITIVES), "trials": trials}
    for name in ("mean", "covariance"):
        found = [float(getattr(error, name).mean()) for error in observed]
        rows[name] = {
            "observed": found,
            "bound": [float(getattr(error, name).mean()) for error in least],
            "rate": fitted_rate(np.array(POSITIVES), np.array(found)),
        }
    return rows


def _label_map(num_labels: int, tables: int, size: int, first: int = 0) -> LabelMap:
    seeds = tuple(range(_FIRST_SEED + first, _FIRST_SEED + first + tables))
    return make_label_map("murmur3", num_labels, seeds, size)


def _lemma1(dataset: Dataset, size: int, draws: int) -> dict[str, float]:
    """Return the positives of a label's bucket, averaged over labels."""
    Y = dataset.train.Y
    counts = np.bincount(Y.indices, minlength=dataset.num_labels)
    bound, exact = lemma1_bound(counts, size), expected_positives(Y, size)
    # One table at a time: all draws of all labels at once would be a large array for large sets.
    observed = [
        float(observed_positives(Y, _label_map(dataset.num_labels, 1, size, draw)).mean()) for draw in range(draws)
    ]
    return {
        "B": size,
        "label": float(counts.mean()),
        "bound": float(bound.mean()),
        "exact": float(exact.mean()),
        "observed": float(np.mean(observed)),
        "spread": float(np.std(observed, ddof=1)),
        "bound_above_exact": float((bound / exact - 1).max()),
        "labels_above": float((bound > exact).mean()),
    }


def _lemma2(num_labels: int, tables: int, size: int, draws: int) -> dict[str, float]:
    """Return the pairs of labels that no table tells apart."""
    pairs = [colliding_pairs(_label_map(num_labels, tables, size, tables * draw)) for draw in range(draws)]
    return {
        "R": tables,
        "B": size,
        "expected_pairs": lemma2_bound(num_labels, tables, size),
        "observed_pairs": float(np.mean(pairs)),
        "probability": collision_probability(num_labels, tables, size),
        "observed_share": float(np.mean([count > 0 for count in pairs])),
    }


def _theorem2(dataset: Dataset, config: Config, sizes: list[int], draws: int) -> list[dict[str, float]]:
    """Return the divergence between neighbouring clients of the paper's partition, before and after hashing."""
    shards = list(divide(dataset.train, config.replace(selection="paper")).shards.values())
    pairs = list(zip(shards, [*shards[1:], shards[0]], strict=True))
    rows = []
    for size in sizes:
        tables = _label_map(dataset.num_labels, draws, size)
        found = [client_divergence(a.Y, b.Y, tables) for a, b in pairs]
        labels = np.array([divergence.labels for divergence in found])  # [pairs]
        sums = np.array([divergence.sums for divergence in found])  # [pairs, draws]
        unions = np.array([divergence.unions for divergence in found])
        rows.append(
            {
                "B": size,
                "labels": float(labels.mean()),
                "sums": float(sums.mean()),
                "sums_spread": float(sums.mean(axis=0).std(ddof=1)),
                "unions": float(unions.mean()),
                "unions_spread": float(unions.mean(axis=0).std(ddof=1)),
                "sums_below_labels": float((sums <= labels[:, None]).mean()),
                "unions_below_labels": float((unions <= labels[:, None]).mean()),
            }
        )
    return rows
