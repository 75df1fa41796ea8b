"""The paper's lemmas and theorems as functions, each beside what it predicts (docs/theory.md).

"Uniform hashing" means that every label falls into each of a table's B buckets with probability 1/B, independently of
all other labels and tables. MurmurHash3 behaves like it; a 2-universal map promises this for pairs of labels only;
in a balanced map labels collide slightly less often.
"""

import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_matrix
from scipy.special import rel_entr

from fedmlh.errors import UserError
from fedmlh.hashing.labels import LabelMap


def lemma1_bound(counts: np.ndarray, num_buckets: int) -> np.ndarray:
    """Return Lemma 1's bound as printed: least expected positives per bucket, from positives per label.  # [p] -> [p]

    It is no bound if points carry more than about two labels: a bucket's positives are a union, but the lemma counts a
    point once per label, even if the point carries label j already. `expected_positives` is exact.
    """
    _check_counts(num_buckets=num_buckets)
    total = counts.sum()
    return np.asarray(counts + (total - counts) / num_buckets - total / num_buckets**2)


def expected_positives(Y: csr_matrix, num_buckets: int) -> np.ndarray:
    """Return the exact expectation, under uniform hashing, of the positives of each label's bucket.  # [n, p] -> [p]

    n_j + Σ over points i without label j of 1 − (1 − 1/B)^|y_i|.
    """
    _check_counts(num_buckets=num_buckets)
    sizes = np.diff(Y.indptr)
    reached = 1 - (1 - 1 / num_buckets) ** sizes  # [n] chance that a point has a label in a given bucket
    with_label = np.bincount(Y.indices, np.repeat(1 - reached, sizes), minlength=Y.shape[1])
    return np.asarray(reached.sum() + with_label)


def observed_positives(Y: csr_matrix, label_map: LabelMap) -> np.ndarray:
    """Count the positives that the bucket of each label has in each table.  # [n, p] -> [R, p]"""
    unions = label_map.union(Y)
    counts = [np.bincount(union.indices, minlength=label_map.num_buckets) for union in unions]
    return np.stack([count[buckets] for count, buckets in zip(counts, label_map.buckets, strict=True)])


def typical_positives(num_points: int, num_positives: int, num_labels: int, num_buckets: int) -> float:
    """Return `expected_positives` of a label of mean frequency, if all points carried equally many labels."""
    _check_counts(num_points=num_points, num_labels=num_labels, num_buckets=num_buckets)
    own = num_positives / num_labels
    reached = 1 - math.pow(1 - 1 / num_buckets, num_positives / num_points)
    return own + (num_points - own) * reached


def smallest_buckets(num_labels: int, num_tables: int, delta: float) -> int:
    """Return Lemma 2's smallest B for which, with probability 1 − δ, no two labels collide in all tables."""
    _check_counts(num_labels=num_labels, num_tables=num_tables)
    if not 0 < delta < 1:
        raise UserError(f"delta is {delta}: a probability lies between 0 and 1, e.g. 0.01")
    # The decimal number that the user wrote: the float just below 0.3 would need one bucket more.
    needed = math.ceil(math.comb(num_labels, 2) / Fraction(str(delta)))
    low, high = 1, 1 << needed.bit_length() // int(num_tables) + 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _cells(num_tables, middle) >= needed else (middle + 1, high)
    return low


def lemma2_bound(num_labels: int, num_tables: int, num_buckets: int) -> float:
    """Return the expected number of label pairs that collide in all tables; it bounds the chance of any collision.

    p(p − 1) / 2B^R, the union bound behind Lemma 2. 2-universal hashing is enough for it, and it may exceed 1.
    """
    _check_counts(num_labels=num_labels, num_tables=num_tables, num_buckets=num_buckets)
    try:
        return math.comb(num_labels, 2) / _cells(num_tables, num_buckets)
    except OverflowError:
        return math.inf


def collision_probability(num_labels: int, num_tables: int, num_buckets: int) -> float:
    """Return the exact probability, under uniform hashing, that some pair of labels collides in all tables.

    R tables are one table of B^R cells, so this is the birthday problem; it is never above `lemma2_bound`.
    """
    pairs = lemma2_bound(num_labels, num_tables, num_buckets)
    if pairs > 40:
        return 1.0  # at least 1 − e^−40, which is 1 in double precision
    p, cells = int(num_labels), _cells(num_tables, num_buckets)
    if p * 1000 < cells:
        # Σ log(1 − i/cells) over i < p by its first three terms: exact to nine digits, for any number of labels.
        second, third = Fraction(p * (p - 1) * (2 * p - 1), 12 * cells**2), Fraction((p * (p - 1)) ** 2, 12 * cells**3)
        return -math.expm1(-(pairs + float(second) + float(third)))
    if p > cells:
        return 1.0
    return -math.expm1(float(np.log1p(-np.arange(p) / cells).sum()))


def colliding_pairs(label_map: LabelMap) -> int:
    """Count the pairs of labels that share their bucket in every table of a map, and so can never be told apart."""
    sizes = np.unique(label_map.buckets, axis=1, return_counts=True)[1]
    return int((sizes * (sizes - 1) // 2).sum())


def kl_divergence(a: np.ndarray, b: np.ndarray) -> float:
    """Return the Kullback-Leibler divergence of two distributions as counts; infinite if b is 0 where a is not."""
    if not a.sum() > 0 or not b.sum() > 0:
        raise UserError("a client without positives has no label distribution: leave it out, or smooth the counts")
    # Rounding may put equal distributions just below 0.
    return max(0.0, float(rel_entr(a / a.sum(), b / b.sum()).sum()))


class Divergence(NamedTuple):
    """How far two clients' positives lie apart, in nats."""

    labels: float  # over labels, smoothed
    sums: np.ndarray  # [R] over buckets, adding their labels' smoothed counts: what Theorem 2 speaks of
    unions: np.ndarray  # [R] over buckets, counting a point once per bucket: what is trained on


def client_divergence(Y_a: csr_matrix, Y_b: csr_matrix, label_map: LabelMap, smoothing: float = 1.0) -> Divergence:
    """Return the KL divergence between two clients before and after hashing (Theorem 2).

    The theorem assumes one label per point and no label missing on a client, so `smoothing` is added to each label's
    count before hashing. Then `sums` is never above `labels`. It equals `labels` (the theorem says: is below) if, in
    each bucket, all labels have one ratio of counts. The theorem does not cover `unions`, which may be above.
    """
    p, B = len(label_map.buckets[0]), label_map.num_buckets
    counts = [np.bincount(Y.indices, minlength=p) + smoothing for Y in (Y_a, Y_b)]
    sums, unions = [], []
    for buckets, *merged in zip(label_map.buckets, label_map.union(Y_a), label_map.union(Y_b), strict=True):
        sums.append(kl_divergence(*(np.bincount(buckets, count, minlength=B) for count in counts)))
        added = smoothing * np.bincount(buckets, minlength=B)
        unions.append(kl_divergence(*(np.bincount(Z.indices, minlength=B) + added for Z in merged)))
    return Divergence(kl_divergence(*counts), np.array(sums), np.array(unions))


class EmbeddingError(NamedTuple):
    """Mean square errors of the estimated centre and spread of a class in the embedding space."""

    mean: np.ndarray  # [d]
    covariance: np.ndarray  # [d, d]


def theorem1_bound(covariance: np.ndarray, num_positives: int) -> EmbeddingError:
    """Return Theorem 1's bound for normal embeddings: no unbiased estimate from n₁ positives has a smaller error.

    The paper writes ≥ O(1/n₁) where it means Ω(1/n₁); the bound says nothing of biased estimates, which can be better.
    """
    _check_counts(num_positives=num_positives)
    variances = np.diag(covariance)
    # The Cramér-Rao bound: the inverse of the Fisher information of n₁ draws.
    return EmbeddingError(variances / num_positives, (np.outer(variances, variances) + covariance**2) / num_positives)


def simulate_theorem1(
    covariance: np.ndarray, num_positives: int, trials: int, rng: np.random.Generator
) -> EmbeddingError:
    """Measure the errors of sample mean and covariance of `num_positives` normal embeddings, over several trials."""
    _check_counts(trials=trials)
    if num_positives < 2:
        raise UserError(f"num_positives is {num_positives}: the spread of a class needs at least 2")
    drawn = rng.multivariate_normal(np.zeros(len(covariance)), covariance, (trials, num_positives))  # [trials, n₁, d]
    means = drawn.mean(axis=1)
    centred = drawn - means[:, None]
    spreads = centred.transpose(0, 2, 1) @ centred / (num_positives - 1)
    return EmbeddingError((means**2).mean(axis=0), ((spreads - covariance) ** 2).mean(axis=0))


def fitted_rate(num_positives: np.ndarray, errors: np.ndarray) -> float:
    """Fit the exponent with which errors fall as positives grow; −1 is Theorem 1's rate.  # [m], [m]"""
    return float(np.polyfit(np.log(num_positives), np.log(errors), 1)[0])


def _cells(num_tables: int, num_buckets: int) -> int:
    cells: int = int(num_buckets) ** int(num_tables)  # Python's integers: numpy's would overflow
    return cells


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise UserError(f"{name} is {count}: it must be at least 1")
