"""The number of slots for features: as many as the memory for pairs of slots and for weights allows."""

import numpy as np

from fedmlh.oneround.points import OWN_SHARE
from fedmlh.oneround.terms import Counts, Terms

#: Weights of the solution, slots times outputs: 1 GiB in single precision.
MOST_WEIGHTS = 2**28
#: Pairs of slots that occur together: some 36 MiB of summed statistics.
MOST_PAIRS = 28_000_000
#: Slots that a default takes: the time to solve for more grows with their cube, from minutes to hours.
MOST_SLOTS = 2**15
#: Slots are not counted one by one.
_STEP = 64
#: Groups of slots of about the same frequency by which pairs are estimated.
_GROUPS = 512


def most_slots(num_features: int, num_outputs: int) -> int:
    """Return a bound on what `choose_slots` returns or stands for, whatever the frequencies are."""
    return min(num_features, max(_STEP, MOST_WEIGHTS // num_outputs - 1))


def choose_slots(frequencies: np.ndarray, num_points: int, num_outputs: int) -> int:
    """Return the number of slots for features of these document frequencies; 0: one per feature that occurs."""
    falling = -np.sort(-frequencies[frequencies > 0])
    occurring = len(falling)
    if not occurring:
        return 0
    most = min(occurring, MOST_WEIGHTS // num_outputs - 1)
    if most == occurring and estimate_pairs(falling, num_points, occurring) <= MOST_PAIRS:
        return 0
    low, high = 1, max(1, most // _STEP)
    while low < high:  # the largest number of steps whose pairs have room
        middle = (low + high + 1) // 2
        fits = estimate_pairs(falling, num_points, _STEP * middle) <= MOST_PAIRS
        low, high = (middle, high) if fits else (low, middle - 1)
    return min(occurring, _STEP * low)


def agree_on_terms(counts: Counts, num_outputs: int, most: int, *, weigh: bool) -> Terms:
    """Return the terms of these counts, with at most `most` slots (0: as many as there is room and time for).

    If the words of raw text (`weigh`) outnumber the slots, those that a single point has get no slot, and the others
    share if they still outnumber them.
    """

    def limit(counts: Counts) -> int:
        return allow_slots(counts.frequencies, counts.points, num_outputs, most)

    if weigh and 0 < limit(counts) < np.count_nonzero(counts.frequencies):
        counts = counts.repeated
    return Terms(counts, limit(counts), weigh)


def allow_slots(frequencies: np.ndarray, num_points: int, num_outputs: int, most: int) -> int:
    """Return the most slots for features of these frequencies, `most` if it is set; 0: one per feature that occurs."""
    return (
        most or limit_slots(frequencies, num_points, num_outputs) or choose_slots(frequencies, num_points, num_outputs)
    )


def limit_slots(frequencies: np.ndarray, num_points: int, num_outputs: int) -> int:
    """Return `feature_slots` for features of these document frequencies: 0 as long as few enough have room."""
    slots = choose_slots(frequencies, num_points, num_outputs) or np.count_nonzero(frequencies)
    return MOST_SLOTS if slots > MOST_SLOTS else 0


def estimate_pairs(falling: np.ndarray, num_points: int, slots: int) -> float:
    """Estimate how many pairs of slots occur together if they are independent; features by falling frequency."""
    often, sizes = group(fill_slots(falling, num_points, slots))
    together = -np.expm1(-np.outer(often, often) / num_points)
    return float(sizes @ together @ sizes) / 2


def fill_slots(falling: np.ndarray, num_points: int, slots: int) -> np.ndarray:
    """Return in how many points each of `slots` slots occurs, about the sum where features share one."""
    if slots >= len(falling):
        return falling
    own = falling[: slots * OWN_SHARE[0] // OWN_SHARE[1]]
    shared = slots - len(own)
    return np.append(own, np.full(shared, min(num_points, falling[len(own) :].sum() / shared)))


def group(falling: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return groups of neighbouring features: the mean frequency of each group, and its size."""
    groups = np.array_split(falling, min(_GROUPS, len(falling)))
    return np.array([part.mean() for part in groups]), np.array([len(part) for part in groups])
