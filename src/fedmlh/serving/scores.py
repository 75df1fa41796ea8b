"""The scores that a stored model gives, with numpy alone: its plain twin is what runs evaluate with."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from fedmlh.config import Config
from fedmlh.errors import UserError, how_to_install
from fedmlh.federated.task import Seeds, Task
from fedmlh.hashing.features import SIGN_SEED
from fedmlh.hashing.murmur import hash_integers
from fedmlh.hashing.rows import Rows
from fedmlh.oneround.linear import Linear
from fedmlh.oneround.points import NOWHERE, Slots
from fedmlh.runs.model_folder import Bundle
from fedmlh.tensors import look_through

#: What is averaged over tables, from logits [..., B]: log-probabilities of the buckets, by loss.
_LIKELIHOODS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "bce": lambda logits: -np.logaddexp(np.float32(0), -logits),
    "softmax": lambda logits: logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True),
}

#: Features of points and maps that are hashed at once.
_CELLS_AT_ONCE = 1 << 16
#: Scores that are held at once: points times buckets of all tables.
_SCORES_AT_ONCE = 1 << 24


class Scorer(Protocol):
    """Gives points a score for each bucket of each table."""

    def find(self, points: Rows) -> tuple[Rows, ...]:
        """Return what the model sees of points, a matrix per feature map."""

    def score(self, features: tuple[Rows, ...]) -> np.ndarray:
        """Return bucket scores.  # M × [n, d̃] -> float32 [R, n, B]"""


@dataclass(frozen=True)
class Part:
    """A model, or one of two whose scores are added: a label's score is the mean of its buckets', times the weight."""

    scorer: Scorer
    buckets: np.ndarray  # [R, p]
    num_buckets: int
    weight: float

    @cached_property
    def is_identity(self) -> bool:
        """Whether the scores of the one table are those of the labels; as many buckets as labels are not enough."""
        num_tables, num_labels = self.buckets.shape
        is_square = num_tables == 1 and self.num_buckets == num_labels
        return is_square and bool((self.buckets[0] == np.arange(num_labels)).all())

    @cached_property
    def narrow(self) -> np.ndarray:
        """The label map in as few bytes as its bucket numbers need."""
        return np.ascontiguousarray(self.buckets.astype(np.uint16 if self.num_buckets <= 1 << 16 else np.uint32))


def open_parts(bundle: Bundle) -> list[Part]:
    """Return the parts of a stored model."""
    scorer: Scorer
    if isinstance(bundle.weights, Linear):
        assert bundle.terms is not None
        scorer = LinearScorer(bundle.terms.slots(bundle.seeds), bundle.weights, bundle.task.num_tables)
    else:
        scorer = NetworkScorer(bundle.task, bundle.seeds, bundle.weights)
    parts = [_make_part(scorer, bundle.task, bundle.seeds, bundle.labels.keys, 1.0)]
    if bundle.networks is not None:
        beside = bundle.networks
        networks = NetworkScorer(beside.task, beside.seeds, _widen(beside.weights))
        parts.append(_make_part(networks, beside.task, beside.seeds, bundle.labels.keys, beside.weight))
    return parts


def _widen(weights: np.ndarray) -> np.ndarray:
    """Return weights in single precision; of the file that they are mapped from, memory holds a part at a time."""
    wide, end = np.empty(len(weights), np.float32), 0
    for part in look_through(weights):
        begin, end = end, end + len(part)
        wide[begin:end] = part
    return wide


def count_at_once(parts: Sequence[Part]) -> int:
    """Return how many points may be scored at once, so that memory does not grow with their number."""
    return max(1, _SCORES_AT_ONCE // sum(len(part.buckets) * part.num_buckets for part in parts))


def _make_part(scorer: Scorer, task: Task, seeds: Seeds, keys: tuple[str, ...], weight: float) -> Part:
    return Part(scorer, task.label_map(seeds, keys).buckets, task.num_outputs, weight)


@dataclass(frozen=True)
class LinearScorer:
    """A linear model of one round: a row of weights per slot; most weights are left out."""

    slots: Slots
    weights: Linear
    num_tables: int

    def find(self, points: Rows) -> tuple[Rows, ...]:
        """Return the slots of points of length 1."""
        slots, owners = self.slots, points.owners
        known = slots.places[points.columns] != NOWHERE
        columns = points.columns[known]
        values = points.values[known].astype(np.float64) * slots.signs[columns] * slots.weights[columns]
        shape = (len(points), slots.count)
        return (Rows.gather(owners[known], slots.places[columns], values, shape).scaled_to_one(),)

    def score(self, features: tuple[Rows, ...]) -> np.ndarray:
        """Return what each point has of each bucket."""
        (points,) = features
        found = np.tile(self._always, (len(points), 1))
        for row, (begin, end) in enumerate(zip(points.starts[:-1], points.starts[1:], strict=True)):
            if begin < end:
                found[row] += self._add_rows(points.columns[begin:end] + 1, points.values[begin:end])
        return np.ascontiguousarray(found.reshape(len(points), self.num_tables, -1).transpose(1, 0, 2))

    @cached_property
    def _always(self) -> np.ndarray:
        """The weights that every point has: those of the 1 in front.  # float32 [m]"""
        return self._add_rows(np.zeros(1, np.int64), np.ones(1))

    def _add_rows(self, rows: np.ndarray, values: np.ndarray) -> np.ndarray:
        starts, weights = self.weights.starts, self.weights
        counts = starts[rows + 1] - starts[rows]
        first = np.cumsum(counts) - counts
        cells = np.arange(counts.sum()) + np.repeat(starts[rows] - first, counts)
        parts = weights.levels[cells] * np.repeat(values * weights.scales[rows], counts)
        return np.bincount(weights.columns[cells], weights=parts, minlength=weights.num_outputs).astype(np.float32)


class NetworkScorer:
    """Networks: perceptrons over hashed features, one per table."""

    def __init__(self, task: Task, seeds: Seeds, flat: np.ndarray) -> None:
        """Take the weights as one vector.  # float32 [P]"""
        self.config, self.seeds = task.config, seeds.features
        ends = np.cumsum([int(np.prod(shape)) for shape in task.stack.shapes])
        parts = np.split(flat, ends[:-1])
        self.layers = [part.reshape(shape) for part, shape in zip(parts, task.stack.shapes, strict=True)]

    def find(self, points: Rows) -> tuple[Rows, ...]:
        """Return the hashed features of points, a matrix per map, or the features as they are."""
        if not self.seeds:
            return (points.scaled_to_one() if self.config.normalize else points,)
        # Of few points all maps at once: a call of numpy costs more than the few numbers in it.
        at_once = max(1, _CELLS_AT_ONCE // max(1, len(points.columns)))
        some = (self.seeds[begin : begin + at_once] for begin in range(0, len(self.seeds), at_once))
        return tuple(part for seeds in some for part in self._hash(points, seeds))

    def _hash(self, points: Rows, seeds: Sequence[int]) -> list[Rows]:
        """Return the points by some maps."""
        maps, count = len(seeds), len(points)
        features, values = np.tile(points.columns, maps), np.tile(points.values, maps)
        each = np.repeat(np.array(seeds, np.uint32), len(points.columns))
        if self.config.feature_signed:
            values = values * (1 - 2 * (hash_integers(features, each ^ np.uint32(SIGN_SEED)) % 2).astype(np.float32))
        owners = (points.owners + count * np.arange(maps)[:, None]).ravel()
        shape = (maps * count, self.config.feature_dim)
        columns = hash_integers(features, each).astype(np.int64) % shape[1]
        rows = Rows.gather(owners, columns, values, shape)
        rows = rows.scaled_to_one() if self.config.normalize else rows
        return [rows.take(begin, begin + count) for begin in range(0, maps * count, count)] if count else [rows] * maps

    def score(self, features: tuple[Rows, ...]) -> np.ndarray:
        """Return what the config's decoding averages over tables, for each bucket."""
        weights, biases = self.layers[::2], self.layers[1::2]
        sums = np.empty((len(weights[0]), len(features[0]), weights[0].shape[2]), np.float32)
        for table, inwards in enumerate(weights[0]):
            points = features[table % len(features)]
            starts, columns, values = points.starts.tolist(), points.columns, points.values
            for row, (begin, end) in enumerate(pairwise(starts)):
                sums[table, row] = np.einsum("i,ij->j", values[begin:end], inwards[columns[begin:end]])
        sums += biases[0][:, None]
        for weight, bias in zip(weights[1:], biases[1:], strict=True):
            sums = _multiply(np.maximum(sums, 0), weight) + bias[:, None]
        return self._decode(sums)

    def _decode(self, logits: np.ndarray) -> np.ndarray:
        if self.config.decoding == "logits":
            return logits
        likelihood = find_likelihood(self.config)(logits)
        return np.asarray(np.exp(likelihood) if self.config.decoding == "probs" else likelihood, np.float32)


def _multiply(rows: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return rows times weights, per table; a single row without BLAS.  # [R, n, i], [R, i, o] -> [R, n, o]

    BLAS would start threads for it, which cost more than the product: up to ten times on a machine that is busy.
    """
    if rows.shape[1] == 1:
        return np.asarray(np.einsum("ri,rij->rj", rows[:, 0], weights)[:, None])
    return np.asarray(rows @ weights)


def find_likelihood(config: Config) -> Callable[[np.ndarray], np.ndarray]:
    """Return what makes logits log-probabilities; that of a user's own loss is torch code."""
    own = _LIKELIHOODS.get(config.loss.removeprefix("balanced-"))
    if own is not None:
        return own
    try:
        torch: Any = importlib.import_module("torch")
        losses: Any = importlib.import_module("fedmlh.model.losses")
    except ModuleNotFoundError:
        raise UserError(f"this model decodes by a loss that is torch code: {how_to_install('train')}") from None
    loss = losses.find_loss(config.loss)
    return lambda logits: np.asarray(loss.log_likelihood(torch.from_numpy(logits)).numpy())
