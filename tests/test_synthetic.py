"""The built-in data set is held against real extreme data, statistic by statistic."""

from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix, load_npz, triu
from sklearn.preprocessing import normalize

from fedmlh.data.dataset import Dataset, Split
from fedmlh.data.synthetic import synthesize
from fedmlh.errors import UserError

REAL_DATA = Path(__file__).parents[2] / "shared" / "data"

#: Shape of the training part of each real set: what a user would ask `synthesize` for.
SHAPES: dict[str, dict[str, float]] = {}

#: Facts: `measure` on the training part of each real set; `test_real_statistics_hold` computes them again.
REAL: dict[str, dict[str, float]] = {}


def measure(X: csr_matrix, Y: csr_matrix) -> dict[str, float]:
    """What makes data extreme, as numbers that can be compared between two sets of one shape."""
    n, d = X.shape
    Y = Y.astype(np.float32)
    points = np.sort(np.bincount(Y.indices, minlength=Y.shape[1]))[::-1]
    documents = np.sort(np.bincount(X.indices, minlength=d))[::-1]
    labels_of, words_of = np.diff(Y.indptr), np.diff(X.indptr)
    again, lift = measure_pairs(Y)
    rng = np.random.default_rng(0)
    friends = draw_friends(Y, 2, n, rng)
    return {
        # Labels: shares of points that have the label of a rank, and of positives that rarer labels carry.
        "top label": points[0] / n,
        "label at 1 %": points[len(points) // 100] / n,
        "label at 10 %": points[len(points) // 10] / n,
        "labels of 1 point": (points <= 1).mean(),
        "labels of <= 5 points": (points <= 5).mean(),
        "positives below 1 %": points[points < 0.01 * n].sum() / points.sum(),
        "positives below 0.1 %": points[points < 0.001 * n].sum() / points.sum(),
        # Lengths: mean, standard deviation over mean, 90 % quantile.
        "labels a point": labels_of.mean(),
        "labels spread": labels_of.std() / labels_of.mean(),
        "labels 90 %": np.quantile(labels_of, 0.9),
        "words a point": words_of.mean(),
        "words spread": words_of.std() / words_of.mean(),
        "words 90 %": np.quantile(words_of, 0.9),
        # Words: shares of points that have the word of a rank.
        "top word": documents[0] / n,
        "word at 1 %": documents[d // 100] / n,
        "word at 10 %": documents[d // 10] / n,
        "words of <= 5 points": (documents <= 5).mean(),
        # Labels go together: see measure_pairs; labels that two points with a common label have in common.
        "pairs seen again": again,
        "lift": lift,
        "labels in common": Y[friends[0]].multiply(Y[friends[1]]).sum() / len(friends[0]),
        # Words tell of labels: cosine of two points, any two or two with a common (rare) label.
        "cosine": mean_cosine(X, rng.integers(n, size=(2, 10_000))),
        "cosine, common label": mean_cosine(X, friends),
        "cosine, rare label": mean_cosine(X, draw_friends(Y, 2, 5, rng)),
    }


def measure_pairs(Y: csr_matrix) -> tuple[float, float]:
    """Of all pairs of labels of a point: the share that another point has too; the median lift of frequent labels."""
    together = triu(Y.T @ Y, k=1)
    points = np.bincount(Y.indices, minlength=Y.shape[1])
    first, second = points[together.row], points[together.col]
    # Lift: how many times more often than chance; among labels with >= 20 points, where chance can be told.
    frequent = np.minimum(first, second) >= 20
    lift = (together.data * Y.shape[0] / (first.astype(float) * second))[frequent]
    order = np.argsort(lift)
    mass = np.cumsum(together.data[frequent][order], dtype=float)
    median = lift[order][np.searchsorted(mass, mass[-1] / 2)]
    return together.data[together.data > 1].sum() / together.data.sum(), float(median)


def draw_friends(Y: csr_matrix, fewest: int, most: int, rng: np.random.Generator) -> np.ndarray:
    """Pairs of different points with a common label; labels are drawn by their points, from so few to so many."""
    by_label = Y.tocsc()
    points = np.diff(by_label.indptr)
    weights = np.where((points >= fewest) & (points <= most), points, 0)
    label = rng.choice(len(points), size=10_000, p=weights / weights.sum())
    one = rng.integers(points[label])
    other = (one + rng.integers(1, points[label])) % points[label]
    return by_label.indices[by_label.indptr[label] + np.stack([one, other])]


def mean_cosine(X: csr_matrix, pairs: np.ndarray) -> float:
    unit = normalize(X)
    return float(unit[pairs[0]].multiply(unit[pairs[1]]).sum() / len(pairs[0]))
