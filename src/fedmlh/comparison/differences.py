"""Differences between methods, paired by seed and by test point, with intervals for both kinds of chance.

Over seeds: Student's interval for the mean of the seeds' differences. It shows what another seed (another partition,
initial model and sampling) might give on these test points. Over points: the percentile bootstrap of test points, drawn
with replacement, after the differences of a point were averaged over the seeds. It shows what other test points might
give for these models.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean, stdev

import numpy as np

from fedmlh.comparison.methods import Method
from fedmlh.evaluation.point_hits import PointHits
from fedmlh.runs.folder import FinishedRun

#: Bounds of an interval.
Interval = tuple[float, float]
RESAMPLES, CONFIDENCE = 2000, 0.95
#: The most numbers in a block of resamples.
_BLOCK = 1 << 22
#: Settings that must agree, or two runs are not measured in the same way.
_MEASURED = (
    *("data", "synthetic_points", "synthetic_features", "synthetic_labels"),
    *("propensity_a", "propensity_b"),
)


@dataclass(frozen=True)
class Difference:
    """How much better a method is than the reference in one metric, as a fraction of 1."""

    method: str
    reference: str
    metric: str
    k: str  # empty for the mean over all k
    seeds: int
    value: float
    over_seeds: Interval | None
    over_points: Interval | None


def find_differences(methods: Sequence[Method]) -> tuple[list[Difference], list[str]]:
    """Return the differences of all methods to the first one, and notes on missing differences."""
    first, notes = methods[0], list[str]()
    pairs: list[tuple[Method, list[tuple[FinishedRun, FinishedRun]]]] = []
    for method in methods[1:]:
        if any(getattr(method.config, name) != getattr(first.config, name) for name in _MEASURED):
            notes.append(f"{method.name} was measured on other data or with other propensities than {first.name}.")
            continue
        own = dict(zip(first.seeds, first.runs, strict=True))
        shared = [(own[run.config.seed], run) for run in method.runs if run.config.seed in own]
        if shared:
            pairs.append((method, shared))
        else:
            notes.append(f"{method.name} has no seed in common with {first.name}.")
    if any(len(shared) < 2 for _, shared in pairs):
        notes.append("An interval over seeds needs at least two seeds.")
    ks = list(first.runs[0].summary["precision"])
    points = first.runs[0].folder.read_points()
    common = points if points is not None and len(points) and points.k.tolist() == list(map(int, ks)) else None
    found = _resample([shared for _, shared in pairs], common)
    if any(intervals is None for intervals in found):
        notes.append(
            "An interval over test points needs test_points.safetensors in every run folder, about the same points; "
            "runs of earlier versions do not have it: run again, or pass --resume to fedmlh compare."
        )
    differences = []
    for (method, shared), intervals in zip(pairs, found, strict=True):
        values = np.array([_subtract(ours, theirs, ks) for theirs, ours in shared])
        for column, (metric, k) in enumerate(_columns(ks)):
            drawn = values[:, column].tolist()
            differences.append(
                Difference(
                    method.name,
                    first.name,
                    metric,
                    k,
                    len(shared),
                    fmean(drawn),
                    over_seeds(drawn),
                    None if intervals is None else intervals[column],
                )
            )
    return differences, notes


def over_seeds(values: Sequence[float]) -> Interval | None:
    """Return Student's interval for the mean of the values of seeds; None if there are fewer than two."""
    if len(values) < 2:
        return None
    from scipy.stats import t

    reach = float(t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * stdev(values) / len(values) ** 0.5
    return fmean(values) - reach, fmean(values) + reach


def over_points(gains: np.ndarray, bests: np.ndarray, seed: int = 0) -> list[Interval]:
    """Return for each column the interval of sum of gains over sum of bests, points being drawn with replacement.

    Columns of all methods and metrics see the same draws.  # [n, c], [n, c]
    """
    rng, n = np.random.default_rng(seed), len(gains)
    both = np.concatenate([gains, bests], axis=1)
    block, ratios = max(1, _BLOCK // n), []
    for begin in range(0, RESAMPLES, block):
        draws = range(begin, min(begin + block, RESAMPLES))
        counts = np.stack([np.bincount(rng.integers(0, n, n), minlength=n) for _ in draws])
        sums = counts.astype(np.float64) @ both
        # If no point that was drawn has a label, there is nothing to gain: 0 / 1.
        below = sums[:, gains.shape[1] :]
        ratios.append(sums[:, : gains.shape[1]] / np.where(below > 0, below, 1.0))
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(np.concatenate(ratios), [tail, 1 - tail], axis=0)
    return list(zip(low.tolist(), high.tolist(), strict=True))


def _columns(ks: Sequence[str]) -> list[tuple[str, str]]:
    """Return the metrics that are compared, with their k."""
    return [*(("precision", k) for k in ks), ("precision_mean", ""), *(("psp", k) for k in ks)]


def _subtract(ours: FinishedRun, theirs: FinishedRun, ks: Sequence[str]) -> list[float]:
    precision, psp = (
        [float(ours.summary[metric][k]) - float(theirs.summary[metric][k]) for k in ks]
        for metric in ("precision", "psp")
    )
    return [*precision, fmean(precision), *psp]


def _resample(
    pairs: Sequence[Sequence[tuple[FinishedRun, FinishedRun]]], common: PointHits | None
) -> list[list[Interval] | None]:
    """Return for each method the intervals of all columns over the common points; None if a file is missing."""
    parts = [None if common is None else _average(shared, common) for shared in pairs]
    there = [part for part in parts if part is not None]
    if common is None or not there:
        return [None] * len(pairs)
    ones = np.ones((len(common), len(common.k) + 1))
    bests = np.concatenate([ones, common.psp_best], axis=1, dtype=np.float64)
    drawn = iter(over_points(np.concatenate(there, axis=1), np.tile(bests, len(there))))
    return [None if part is None else list(islice(drawn, part.shape[1])) for part in parts]


def _average(shared: Sequence[tuple[FinishedRun, FinishedRun]], common: PointHits) -> np.ndarray | None:
    """Return the differences of all columns per point, averaged over seeds; None if a file is missing.  # [n, c]"""
    total = np.zeros((len(common), 2 * len(common.k) + 1))
    for theirs, ours in shared:
        before, after = theirs.folder.read_points(), ours.folder.read_points()
        if before is None or after is None:
            return None
        if not before.is_paired_with(common) or not after.is_paired_with(common):
            return None
        precision = (after.hits.astype(np.float64) - before.hits) / common.k
        psp = after.psp_gain.astype(np.float64) - before.psp_gain
        total += np.concatenate([precision, precision.mean(axis=1, keepdims=True), psp], axis=1) / len(shared)
    return total
