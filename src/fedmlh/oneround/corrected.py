"""A linear model and networks beside it: their scores are added, and decoded as those of one model."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from fedmlh.entropy import coding
from fedmlh.hashing.features import FeatureMap
from fedmlh.model.kernels.plain import label_scores
from fedmlh.model.ranking import Decoder, Ranker, best_labels
from fedmlh.oneround.linear import Linear
from fedmlh.oneround.model import LinearRanker, SlotFeatures

_BATCH_NUMBERS = 1 << 24
_LARGEST_BATCH = 1024
#: The largest number that clients are sent, and how many bits fewer than half precision their numbers have.
_MOST, _DROPPED = 63488.0, 6


@dataclass(frozen=True)
class Corrected:
    """A linear model, and networks whose scores are added to its own with a weight."""

    linear: Linear
    networks: Tensor  # float32 [P], each of them a number that half precision can hold
    weight: float

    def __len__(self) -> int:
        return len(self.linear) + len(self.networks)

    @property
    def nbytes(self) -> int:
        """The bytes of both, networks in half precision."""
        return self.linear.nbytes + 2 * len(self.networks)


@dataclass(frozen=True)
class CorrectedFeatures:
    """Maps raw features to the inputs of both models: slots for the linear model, then features for networks."""

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

    @property
    def is_plain(self) -> bool:
        """Whether the linear model has an output per label, to which the networks' scores of labels can be added."""
        return self.linear.decoder.is_identity

    @cached_property
    def decoder(self) -> Decoder:
        """The decoder of sums of scores to labels.

        Unless outputs are labels, it has the tables of both models. Tables with fewer buckets get empty ones.
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
        """Return the networks' scores: of labels [1, n, p] if outputs are labels, else of buckets [R, n, B]."""
        scores = self.networks.score(networks, features)
        return (label_scores(scores, self.networks.buckets)[None] if self.is_plain else scores).cpu()

    def add(self, linear: Tensor, networks: Tensor, weight: float) -> Tensor:
        """Return scores whose mean over all tables is the sum of both means; the networks' come from `score`.

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
        """Yield rows, labels [n, k] and scores [n, k] per batch; label -1 where a point has fewer than k."""
        X, *others = features
        for begin in range(0, X.shape[0], self.batch_size):
            rows = slice(begin, min(begin + self.batch_size, X.shape[0]))
            linear = self.linear.score(model.linear, X[rows])
            networks = self.score(model.networks, tuple(part[rows] for part in others))
            scores = self.add(linear, networks, model.weight)
            yield rows, *best_labels(self.decoder, scores, k, None if excluded is None else excluded[rows])


def shorten(model: Tensor) -> Tensor:
    """Return the nearest parameters that can be sent: half precision, less six bits.  # float32 [P]"""
    halves = model.cpu().clamp(-_MOST, _MOST).half().numpy()
    # Ties go away from zero; a carry goes into the exponent, where it belongs.
    bits = halves.view(np.uint16) + np.uint16(1 << _DROPPED - 1) & ~np.uint16((1 << _DROPPED) - 1)
    return torch.from_numpy(bits.view(np.float16).astype(np.float32))


def encode_networks(model: Tensor) -> bytes:
    """Encode the result of `shorten`: exponents, then sign and significand under the context of the exponent."""
    bits = model.half().numpy().view(np.uint16)
    exponents = bits >> 10 & 31
    tails = bits >> 15 << 4 | bits >> _DROPPED & 15
    head = coding.encode(exponents, np.zeros(len(bits), np.uint8))
    return head + coding.encode(tails, exponents.astype(np.uint8))


def decode_networks(payload: memoryview, num_parameters: int) -> Tensor:
    """Return the parameters that encode_networks wrote; raise ValueError if they are no model of that size."""
    exponents, rest = coding.decode(payload, np.zeros(num_parameters, np.uint8))
    if exponents.max(initial=0) >= 31:  # infinite, or no number
        raise ValueError("networks with numbers that are not finite")
    tails, rest = coding.decode(rest, exponents.astype(np.uint8))
    if rest or tails.max(initial=0) >= 32:
        raise ValueError("networks with invalid parameters")
    bits = tails >> 4 << 15 | exponents << 10 | (tails & 15) << _DROPPED
    return torch.from_numpy(bits.astype(np.uint16).view(np.float16).astype(np.float32))
