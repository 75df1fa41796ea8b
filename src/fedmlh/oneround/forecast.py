"""The costs of one round before a run: slots, bytes, memory, and the method of the solution."""

import dataclasses
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix

from fedmlh.config import Config
from fedmlh.data.dataset import Dataset
from fedmlh.errors import UserError
from fedmlh.federated.messages import StatisticsHeader, pack
from fedmlh.federated.task import Task
from fedmlh.oneround.budget import allow_slots, fill_slots, group
from fedmlh.oneround.desk import Desk
from fedmlh.oneround.exchange import COUNTS, RESULT, SUMS
from fedmlh.oneround.linear import index_type
from fedmlh.oneround.solve import check_memory, describe_solution
from fedmlh.oneround.sums import check_room
from fedmlh.oneround.terms import Counts

#: Bits of a cell that is not 0, without those for its place: a + b log2(1 + how often the rarer of its row and
#: its column occurs) + c log2(4^bits / features per point). Fitted to the messages of seven data sets, as are the
#: numbers below (experiments/forecast.py).
PAIR_BITS, CROSS_BITS = (-1.3, 0.8, 0.64), (-0.7, 0.63, 0.26)
#: Bits of a feature in counts, and of a slot or a label in sums; bytes of the coder's own tables.
_COUNT_BITS, _NUMBER_BITS, _CODER_BYTES = 6, 13, 1000
#: If frequencies are not known, the frequency of the r-th most frequent feature or label falls as r^-0.9.
_FALL = 0.9
#: More features or labels than this are counted in data only, not assumed.
_MOST_ASSUMED = 10**7


@dataclass(frozen=True)
class Occurrences:
    """How often features and labels occur in points, alone and together."""

    points: int
    features: np.ndarray  # [d] points that have each feature
    labels: np.ndarray  # [p] points that have each label
    pairs: float  # of two features of one point, over all points
    crossed: float  # of a feature and a label of one point, over all points
    #: The same if words that a single point has get no slot, as where words of raw text outnumber the slots.
    repeated: "Occurrences | None" = None

    @classmethod
    def of(cls, dataset: Dataset) -> "Occurrences":
        """Count them in training points."""
        X, Y = dataset.train.X, dataset.train.Y
        counts = Counts.of(X)
        if not dataset.has_raw_words:
            return cls.count(X, Y, counts)
        return replace(cls.count(X, Y, counts), repeated=cls.count(X, Y, counts.repeated))

    @classmethod
    def count(cls, X: csr_matrix, Y: csr_matrix, counts: Counts) -> "Occurrences":
        """Count features that `counts` has, and labels, in points.  # [n, d], [n, p]"""
        known = np.append(0, np.cumsum(counts.frequencies[X.indices] > 0))[X.indptr]
        lengths, positives = np.diff(known).astype(np.float64), np.diff(Y.indptr)
        labels = np.bincount(Y.indices, minlength=Y.shape[1])
        pairs = float(lengths @ (lengths - 1) / 2)
        return cls(counts.points, counts.frequencies, labels, pairs, float(lengths @ positives))

    @classmethod
    def assume(
        cls, points: int, num_features: int, nonzeros: float, num_labels: int, num_positives: int
    ) -> "Occurrences":
        """Assume them from totals: points with equally many features each, frequencies that fall as in most data."""
        if not 0 < nonzeros <= num_features:
            raise UserError(f"nonzeros is {nonzeros:g}: it must be above 0, and at most the {num_features:,} features")
        if max(num_features, num_labels) > _MOST_ASSUMED:
            raise UserError(
                f"one round is planned from totals for at most {_MOST_ASSUMED:,} features and labels: say --data "
                f"instead, or leave out --nonzeros"
            )
        features, labels = (
            _fall(count, points, total)
            for count, total in ((num_features, points * nonzeros), (num_labels, num_positives))
        )
        pairs = points * nonzeros * max(nonzeros - 1, 0) / 2
        return cls(points, features, labels, pairs, nonzeros * num_positives)

    @property
    def length(self) -> float:
        """Features per point, at least 1."""
        return max(1.0, float(self.features.sum()) / self.points)


@dataclass(frozen=True)
class Forecast:
    """The sizes of a run of one round, and what it costs; bytes are estimates."""

    config: Config  # as it is run: sizes are still open
    slots: int
    #: Features that occur, and those of them that have no slot.
    num_features: int
    left_out: int
    num_tables: int
    num_outputs: int
    #: What one client sends, all clients send, and all clients are sent.
    bytes_up_client: int
    bytes_up: int
    bytes_down: int
    #: What clients are sent in the end, sums or model: the smaller.
    delivered: str
    sums_bytes: int
    #: At most.
    model_bytes: int
    solution: str
    solution_bytes: int
    #: Why this machine cannot solve it, if so.
    problem: str | None

    @property
    def figures(self) -> dict[str, Any]:
        """All of it but the config, ready for JSON."""
        costs = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self) if entry.name != "config"}
        return {"num_clients": self.config.num_clients, **costs}

    @property
    def reasons(self) -> list[str]:
        """The sentences of the forecast."""
        slots = f"{self.slots:,} slots, one per feature that occurs"
        if self.left_out:
            slots += f" in two points or more; {self.left_out:,} occur in one"
        if self.slots + self.left_out < self.num_features:
            kept = self.num_features - self.left_out
            where = " in two points or more" if self.left_out else ""
            slots = f"{self.slots:,} slots for the {kept:,} features that occur{where}: rare ones share"
        outputs = f"{self.num_outputs:,} outputs, one per label"
        if self.num_tables > 1:
            outputs = f"{self.num_tables} tables of {self.num_outputs:,} buckets for the labels"
        what = f"the {self.delivered}, which are smaller" if self.delivered == "sums" else "the model, which is smaller"
        return [
            f"{slots}; {outputs}",
            f"in the end clients are sent {what}",
            self.problem or f"solved by {self.solution}",
        ]


def forecast(occurrences: Occurrences, config: Config, task: Task, device: torch.device) -> Forecast:
    """Forecast a run of `config`; `task` has the same config with its sizes chosen."""
    points, clients = occurrences.points, config.num_clients
    check_room(points, config.point_bits)
    trained = max(1, points - round(config.validation_fraction * points))
    if clients > trained:
        raise UserError(f"num_clients is {clients:,}, but there are only {trained:,} points to train on: use fewer")
    outputs = task.num_tables * task.num_outputs
    occurring = int(np.count_nonzero(occurrences.features))
    share = trained / points / clients
    counted = float(-np.expm1(-share * occurrences.features).sum())
    slots, left_out = _foresee_slots(occurrences, config.feature_slots, outputs), 0
    if slots < occurring and occurrences.repeated is not None:
        occurrences = occurrences.repeated
        slots = _foresee_slots(occurrences, config.feature_slots, outputs)
        left_out = occurring - int(np.count_nonzero(occurrences.features))
    every, pairs = estimate_sums(occurrences, slots, 1.0, config.point_bits)
    one, _ = estimate_sums(occurrences, slots, share, config.point_bits)

    width = np.dtype(index_type(outputs)).itemsize + 1
    weights = min((slots + 1) * outputs, max(1, int(config.model_mib * 2**20) // width))
    model = 8 * (slots + 2) + 4 * (slots + 1) + width * weights
    head_up, head_down = _heads(task, trained // clients)
    up = head_up + _COUNT_BITS * counted / 8 + one
    down = head_down + _COUNT_BITS * (occurring - left_out) / 8 + min(every, model)
    solution, needed = describe_solution(slots + 1, int(2 * pairs) + 3 * slots, outputs, device)
    problem = None
    try:
        check_memory(slots + 1, outputs)
    except UserError as refusal:
        problem = str(refusal)
    return Forecast(
        config,
        slots,
        occurring,
        left_out,
        task.num_tables,
        task.num_outputs,
        round(up),
        round(clients * up),
        round(clients * down),
        "model" if model < every else "sums",
        round(every),
        model,
        solution,
        needed,
        problem,
    )


def _foresee_slots(occurrences: Occurrences, most: int, outputs: int) -> int:
    most = allow_slots(occurrences.features, occurrences.points, outputs, most)
    occurring = int(np.count_nonzero(occurrences.features))
    return min(most or occurring, occurring)


def estimate_sums(occurrences: Occurrences, slots: int, share: float, bits: int) -> tuple[float, float]:
    """Estimate the bytes of the sums over a share of the points, and how many pairs of slots these have."""
    points = occurrences.points
    falling, labels = (-np.sort(-often[often > 0]) for often in (occurrences.features, occurrences.labels))
    if not len(falling):
        return 0.0, 0.0
    filled = fill_slots(falling, points, slots)
    used = sum(float(-np.expm1(-share * often).sum()) for often in (filled, labels))
    size = math.log2(4**bits / occurrences.length)
    # As in independent points, but as many in all as there are.
    together = (filled.sum() ** 2 - filled @ filled) / 2 / points
    scale = occurrences.pairs / together if together > 0 else 0.0
    by_slot = group(filled)
    pairs, content = _estimate_cells(by_slot, by_slot, share, scale / points, size, PAIR_BITS)
    total = 8 * _CODER_BYTES + _NUMBER_BITS * used + content / 2
    if len(labels):
        scale = occurrences.crossed / (filled.sum() * labels.sum() / points)
        total += _estimate_cells(by_slot, group(labels), share, scale / points, size, CROSS_BITS)[1]
    return total / 8, pairs / 2


def _estimate_cells(
    rows: tuple[np.ndarray, np.ndarray],
    columns: tuple[np.ndarray, np.ndarray],
    share: float,
    scale: float,
    size: float,
    weights: tuple[float, float, float],
) -> tuple[float, float]:
    """Return how many cells of a table are not 0, and the bits that encode their places and values."""
    (often, heights), (common, widths) = rows, columns
    filled = -np.expm1(-share * scale * np.outer(often, common))
    where = _entropy(filled)
    rarer = np.log2(1 + share * np.minimum.outer(often, common))
    what = np.maximum(weights[0] + weights[1] * rarer + weights[2] * size, 0)
    return float(heights @ filled @ widths), float(heights @ (where + filled * what) @ widths)


def _entropy(chance: np.ndarray) -> np.ndarray:
    chance = np.clip(chance, 1e-300, 1 - 1e-16)
    return np.asarray(-(chance * np.log2(chance) + (1 - chance) * np.log1p(-chance) / math.log(2)))


def _heads(task: Task, examples: int) -> tuple[int, int]:
    """Return the overhead of what one client sends and is sent: real headers of three messages each way."""
    desk = Desk(task, {0: examples})
    replies = [
        pack(StatisticsHeader(desk.run, task.fingerprint, 0, part, "0" * 32, examples), b"")
        for part in (COUNTS, SUMS, RESULT)
    ]
    requests = [desk.request(part, 0, b"") for part in (COUNTS, SUMS, RESULT)]
    return sum(map(len, replies)), sum(map(len, requests))


def _fall(count: int, points: int, total: float) -> np.ndarray:
    """Return falling frequencies that add up to the total; each is 0, or from 1 to the number of points."""
    rank = np.arange(1, max(1, min(count, int(total))) + 1, dtype=np.float64) ** -_FALL
    low, high = 0.0, 2.0 * points * len(rank)
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if np.clip(middle * rank, 1, points).sum() < total else (low, middle)
    return np.clip(high * rank, 1, points) if total >= 1 else np.zeros(1)
