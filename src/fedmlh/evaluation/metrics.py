"""Ranking metrics of extreme classification, added up over batches and sites, in total and by label frequency.

With y the true labels of a point and hit_i = 1 where its i-th predicted label is true:

- precision@k: hits / k, the standard P@k (and the formula in the paper's text);
- precision_paper@k: hits / min(|y|, k), what the paper's code and tables report;
- recall@k: hits / |y|;
- ndcg@k: Σ_{i≤k} hit_i / log2(i+1), over the best a ranking can reach, Σ_{i≤min(k,|y|)} 1 / log2(i+1);
- psp@k: the inverse propensities of the hits, summed over all points, over the best achievable sum (not a
  mean of ratios): the Extreme Classification Repository's normalised propensity-scored precision.

A point without true labels counts in the means with value 0. `<metric>_frequent` and `<metric>_infrequent`
count the hits on frequent and infrequent labels over the same denominators: the two add up to `<metric>`.
"""

from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_matrix

from fedmlh.errors import UserError

#: Sums over points as plain numbers, one for each k: JSON carries them (the integers may exceed 64 bits).
Sums = dict[str, list[int]]

METRICS = ("precision", "precision_paper", "recall", "ndcg", "psp")
GROUPS = ("frequent", "infrequent")

# Sums are integers in units of 1/ONE, so that the order of batches and sites cannot change a bit.
ONE = 2**40


def inverse_propensities(
    label_counts: np.ndarray,  # [p]
    num_points: int,
    a: float = 0.55,
    b: float = 1.5,
) -> np.ndarray:  # [p]
    """Return weights that make up for missing labels, from training counts (Jain et al. 2016): 1 + C (N_l + b)^-a.

    The repository uses a 0.5, b 0.4 for WikiLSHTC and Wikipedia-500K, 0.6 and 2.6 for the Amazon product sets
    (AmazonCat-13K is not one), and the defaults elsewhere.
    """
    if num_points < 1:
        raise UserError("propensities are estimated on training points, and there are none")
    # Below three points, log N − 1 is negative, and propensities, which are probabilities, would exceed 1.
    c = max(np.log(num_points) - 1, 0.0) * (b + 1) ** a
    return np.asarray(1 + c * (np.asarray(label_counts, dtype=np.float64) + b) ** -a)


def frequent_labels(
    label_counts: np.ndarray,  # [p]
    num_points: int,
    threshold: float = 0.01,
) -> np.ndarray:  # [p] bool
    """Say for each label whether at least this share of the training points carries it."""
    if num_points < 1:
        raise UserError("frequent labels are counted on training points, and there are none")
    # Not counts >= threshold · N: in floating point 0.07 · 100 is above 7, while 7 / 100 is what 0.07 is.
    return np.asarray(np.asarray(label_counts) / num_points >= threshold)


def add_sums(left: Sums, right: Sums) -> Sums:
    """Return the sums over two disjoint sets of points together; refuse sums that do not fit each other."""
    if left.keys() != right.keys():
        odd = sorted(left.keys() ^ right.keys())
        raise UserError(f"metric sums do not fit: only one side has {odd}; run the same version on all sites")
    if left["k"] != right["k"]:
        raise UserError(f"metric sums do not fit: one is for k = {left['k']}, one for k = {right['k']}")
    for name in left:
        if len(left[name]) != len(right[name]):
            raise UserError(f"metric sums do not fit: {name!r} does not have one number for each k")
        for number in (*left[name], *right[name]):
            if type(number) is not int or number < 0:
                raise UserError(f"metric sums are not valid: {name!r} holds {number!r}, not an integer from 0")
    return {
        name: left[name] if name == "k" else [x + y for x, y in zip(left[name], right[name], strict=True)]
        for name in left
    }


def summarize_sums(sums: Sums) -> dict[str, dict[str, float]]:
    """Return metric values by name and k: `{"precision": {"1": 0.6, …}, "precision_frequent": …, …}`."""
    (points,) = sums["points"]
    if points == 0:
        raise UserError("there are no points to evaluate: give a test part with at least one point")
    values = {}
    for metric in METRICS:
        parts = [sums[f"{metric}_{group}"] for group in GROUPS]
        whole = [sum(numbers) for numbers in zip(*parts, strict=True)]
        # If no point has a label, the best sum is 0, and so is every hit: 0 / 1.
        over = [max(best, 1) for best in sums["psp_best"]] if metric == "psp" else [points * ONE] * len(whole)
        for name, numbers in zip((metric, *(f"{metric}_{group}" for group in GROUPS)), (whole, *parts), strict=True):
            values[name] = {str(k): x / y for k, x, y in zip(sums["k"], numbers, over, strict=True)}
    return values


class Metrics:
    """Adds up every metric over batches of predictions; memory does not depend on the number of points."""

    def __init__(
        self,
        ks: Sequence[int],
        frequent: np.ndarray,  # [p] bool
        inverse_propensity: np.ndarray,  # [p]
    ) -> None:
        if not ks or min(ks) < 1 or len(set(ks)) < len(ks):
            raise UserError(f"metrics need one or more different k of at least 1, not {list(ks)}")
        if frequent.shape != inverse_propensity.shape or frequent.ndim != 1 or frequent.dtype != np.bool_:
            raise ValueError("frequent [p] bool and inverse_propensity [p] must cover the same labels")
        # The upper end keeps a point's k weights, in units of 1/ONE, inside 64 bits.
        if not np.all((inverse_propensity >= 0) & (inverse_propensity * max(ks) < 2**22)):
            raise ValueError("inverse propensities must be finite numbers, from 0 to 4 million / k")
        self._ks = np.array(ks, dtype=np.int64)  # [m]
        self._frequent = frequent
        self._weights = np.rint(inverse_propensity * ONE).astype(np.int64)
        self._discounts = 1 / np.log2(np.arange(2, max(ks) + 2))
        # Starts with 1, not 0: without true labels the numerator is 0 and any other denominator gives 0.
        self._ideal_dcg = np.concatenate(([1.0], np.cumsum(self._discounts)))
        names = [f"{metric}_{group}" for metric in METRICS for group in GROUPS]
        self._sums: Sums = {"k": [int(k) for k in ks], "points": [0], "psp_best": [0] * len(ks)}
        self._sums |= {name: [0] * len(ks) for name in names}

    def add(
        self,
        top: np.ndarray,  # [n, >= max k] different label ids, best first; -1 where there is none
        Y: csr_matrix,  # [n, p]
    ) -> None:
        """Count a batch of points with their predictions and true labels."""
        top = self._checked(top, Y)
        Y = canonical(Y)
        sizes = np.diff(Y.indptr).astype(np.int64)  # [n]
        hit = find_hits(top, Y)
        frequent = self._frequent[top]
        batch = {"k": self._sums["k"], "points": [len(top)], "psp_best": self._sum_best(Y, sizes)}
        for group, members in zip(GROUPS, (hit & frequent, hit & ~frequent), strict=True):
            for metric, shares in self._shares(members, top, sizes[:, None]).items():
                batch[f"{metric}_{group}"] = _sum_exactly(shares)
        self._sums = add_sums(self._sums, batch)

    def merge(self, other: "Metrics") -> None:
        """Count the points of another accumulator as well, as if they had been added here."""
        same_groups = np.array_equal(self._frequent, other._frequent)
        if not same_groups or not np.array_equal(self._weights, other._weights):
            raise ValueError("the two accumulators differ in frequent labels or propensities: their sums do not add up")
        self._sums = add_sums(self._sums, other._sums)

    def sums(self) -> Sums:
        """Return the plain numbers behind the values, for `add_sums` and `summarize_sums` on another machine."""
        return {name: list(numbers) for name, numbers in self._sums.items()}

    def values(self) -> dict[str, dict[str, float]]:
        """Return every metric over all points added so far."""
        return summarize_sums(self._sums)

    def _checked(self, top: np.ndarray, Y: csr_matrix) -> np.ndarray:  # -> [n, max k] int64
        width, p = int(self._ks.max()), len(self._frequent)
        if Y.shape[1] != p:
            raise ValueError(f"the true labels have {Y.shape[1]:,} columns, the metrics were made for {p:,} labels")
        if top.ndim != 2 or top.shape[0] != Y.shape[0] or top.shape[1] < width or top.dtype.kind not in "iu":
            raise ValueError(
                f"predictions {top.shape} of {top.dtype} should be label ids, {width} or more "
                f"for each of {Y.shape[0]:,} points (-1 where there is none)"
            )
        top = top[:, :width].astype(np.int64)
        ordered = np.sort(top, axis=1)
        if top.size and (ordered[:, 0].min() < -1 or ordered[:, -1].max() >= p):
            raise ValueError(f"predicted label ids run from {top.min()} to {top.max()}, the data has {p:,} labels")
        # A label named twice would be counted as two hits.
        if np.any((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)):
            raise ValueError("a point's predictions name the same label twice")
        return top

    def _shares(
        self,
        hit: np.ndarray,  # [n, max k] bool
        top: np.ndarray,  # [n, max k]
        sizes: np.ndarray,  # [n, 1]
    ) -> dict[str, np.ndarray]:  # [n, m] each, in units of 1/ONE
        def upto_k(gains: np.ndarray) -> np.ndarray:  # [n, max k] -> [n, m]
            return np.asarray(gains.cumsum(axis=1)[:, self._ks - 1])

        hits = upto_k(hit)
        reachable = np.minimum(sizes, self._ks)  # [n, m]
        shares = {
            "precision": hits / self._ks,
            "precision_paper": hits / np.maximum(reachable, 1),
            "recall": hits / np.maximum(sizes, 1),
            "ndcg": upto_k(hit * self._discounts) / self._ideal_dcg[reachable],
        }
        fixed = {metric: np.rint(share * ONE).astype(np.int64) for metric, share in shares.items()}
        return fixed | {"psp": upto_k(np.where(hit, self._weights[top], 0))}

    def _sum_best(self, Y: csr_matrix, sizes: np.ndarray) -> list[int]:  # [m]
        """Return the weights of the k heaviest true labels of each point, summed over points."""
        weights = self._weights[Y.indices]
        rows = np.repeat(np.arange(len(sizes)), sizes)
        ranked = weights[np.lexsort((-weights, rows))]
        rank = np.arange(len(ranked)) - np.repeat(Y.indptr[:-1], sizes)
        return _sum_exactly(np.where(rank[:, None] < self._ks, ranked[:, None], 0))


def canonical(Y: csr_matrix) -> csr_matrix:
    """Return Y with sorted, distinct, non-zero entries; a matrix that has them (as in every Split) is not copied."""
    if Y.has_canonical_format and np.all(Y.data):
        return Y
    Y = Y.copy()
    Y.sum_duplicates()
    Y.eliminate_zeros()
    return Y


def find_hits(top: np.ndarray, Y: csr_matrix) -> np.ndarray:  # [n, k], canonical [n, p] -> [n, k] bool
    """Say which predictions are true labels, by binary search among the sorted keys row · p + label."""
    n, p = Y.shape
    if Y.nnz == 0:
        return np.zeros(top.shape, dtype=bool)
    true = np.repeat(np.arange(n, dtype=np.int64) * p, np.diff(Y.indptr)) + Y.indices
    asked = np.arange(n, dtype=np.int64)[:, None] * p + top
    found = true[np.minimum(np.searchsorted(true, asked), len(true) - 1)]
    # -1 would be read as the last label of the row above.
    return np.asarray((found == asked) & (top >= 0))


def _sum_exactly(shares: np.ndarray) -> list[int]:  # [n, m] int64 -> [m]
    """Sum columns in two halves, so that a batch of any size cannot overflow 64 bits."""
    high, low = (shares >> 31).sum(axis=0), (shares & (2**31 - 1)).sum(axis=0)
    return [(int(above) << 31) + int(below) for above, below in zip(high, low, strict=True)]
