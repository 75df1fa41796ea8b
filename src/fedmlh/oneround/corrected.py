"""A linear model and networks beside it: the scores of both are added, and decoded as those of one model."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from fedmlh.hashing.features import FeatureMap
from fedmlh.model.decode import label_scores
from fedmlh.model.decoder import Decoder
from fedmlh.model.ranking import Ranker, best_labels
from fedmlh.oneround.linear import Linear
from fedmlh.oneround.model import LinearRanker, SlotFeatures

_BATCH_NUMBERS = 1 << 24
_LARGEST_BATCH = 1024
#: The largest number of half precision.
_MOST_HALF = 65504.0


@dataclass(frozen=True)
class Corrected:
    """A linear model, and networks whose scores are added to its own with a weight."""

    linear: Linear
    networks: Tensor  # float32 [P], each of them a number of half precision
    weight: float

    def __len__(self) -> int:
        return len(self.linear) + len(self.networks)

    @property
    def nbytes(self) -> int:
        """The bytes of both, networks in half precision."""
        return self.linear.nbytes + 2 * len(self.networks)


@dataclass(frozen=True)
class CorrectedFeatures:
    """Raw features to what both see: the slots of the linear model first."""

    slots: SlotFeatures
    networks: FeatureMap

    def apply(self, X: csr_matrix) -> tuple[csr_matrix, ...]:
        """Return the matrix of the linear model, and those of the networks.  # [n, d]"""
        return (*self.slots.apply(X), *self.networks.apply(X))


@dataclass(frozen=True)
class CorrectedRanker:
    """Ranks labels for points by the sum of both scores."""

    linear: LinearRanker
    networks: Ranker

    @cached_property
    def is_plain(self) -> bool:
        """Whether the linear model has an output per label, to which the networks' scores of labels can be added."""
        tables, labels = self.linear.decoder.buckets.shape
        return tables == 1 and labels == self.linear.decoder.num_buckets

    @cached_property
    def decoder(self) -> Decoder:
        """From sums of scores to labels.

        Unless outputs are labels, it has all tables of both. A table with fewer buckets has empty ones, in which no
        label is.
        """
        if self.is_plain:
            return self.linear.decoder
        tables = [self.linear.decoder.buckets, self.networks.buckets.cpu()]
        return Decoder(torch.cat(tables), max(self.linear.decoder.num_buckets, self.networks.stack.num_outputs))

    @property
    def batch_size(self) -> int:
        """Points that are ranked at once."""
        numbers = len(self.decoder.buckets) * self.decoder.num_buckets
        return max(1, min(_LARGEST_BATCH, _BATCH_NUMBERS // numbers))

    def score(self, networks: Tensor, features: tuple[csr_matrix, ...]) -> Tensor:
        """Return what networks add to: scores of labels [1, n, p] if outputs are labels, else of buckets [R, n, B]."""
        scores = self.networks.score(networks, features)
        return (label_scores(scores, self.networks.buckets)[None] if self.is_plain else scores).cpu()

    def add(self, linear: Tensor, networks: Tensor, weight: float) -> Tensor:
        """Return scores whose mean over all tables is the sum of both means, given the networks' as `score` gives them.

        # [R, n, B], [R', n, B'] -> [R + R', n, max(B, B')], or [1, n, p] twice -> [1, n, p]
        """
        if self.is_plain:
            return torch.add(linear, networks, alpha=weight)
        tables = len(linear) + len(networks)
        joined = torch.zeros(tables, linear.shape[1], self.decoder.num_buckets)
        joined[: len(linear), :, : linear.shape[2]] = linear * (tables / len(linear))
        joined[len(linear) :, :, : networks.shape[2]] = networks * (weight * tables / len(networks))
        return joined

    def rank(
        self, model: Corrected, features: tuple[csr_matrix, ...], k: int, excluded: csr_matrix | None = None
    ) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
        """Rows, labels [n, k] and scores [n, k] of one batch after another; label -1 where there are fewer than k."""
        X, *others = features
        for begin in range(0, X.shape[0], self.batch_size):
            rows = slice(begin, min(begin + self.batch_size, X.shape[0]))
            linear = self.linear.score(model.linear, X[rows])
            networks = self.score(model.networks, tuple(part[rows] for part in others))
            scores = self.add(linear, networks, model.weight)
            yield rows, *best_labels(self.decoder, scores, k, None if excluded is None else excluded[rows])


def halve(model: Tensor) -> Tensor:
    """Return the parameters as half precision holds them, in single precision.  # [P]"""
    return model.cpu().clamp(-_MOST_HALF, _MOST_HALF).half().float()


def encode_networks(model: Tensor) -> bytes:
    """Return parameters that half precision holds as bytes."""
    return model.half().numpy().astype("<f2").tobytes()


def decode_networks(payload: memoryview, num_parameters: int) -> Tensor:
    """Return the parameters of what encode_networks wrote; ValueError for what cannot be a model of that size."""
    if len(payload) != 2 * num_parameters:
        raise ValueError("networks of another size")
    values = np.frombuffer(payload, "<f2").astype(np.float32)
    if not np.isfinite(values).all():
        raise ValueError("networks with numbers that are not finite")
    return torch.from_numpy(values)
