"""The updates of one attempt at a round, checked and aggregated as they come; the tallies of workers add up."""

import torch
from torch import Tensor

from fedmlh.errors import UserError
from fedmlh.federated.aggregate import make_rule
from fedmlh.federated.mail import Inbox, Reply
from fedmlh.federated.optimizers import MeanDelta
from fedmlh.federated.validate import Expected, Update
from fedmlh.parts import blame


class Tally(Inbox[Update]):
    """What the server's step needs of the updates that count, and the clients that are left out."""

    def __init__(self, expected: Expected, *, uniform: bool, device: torch.device) -> None:
        super().__init__((expected.round, expected.attempt), expected.max_examples, expected)
        self.expected = expected
        self.uniform = uniform
        self.device = device
        #: Of every client whose update counts: its loss, the update's weight, and its squared length times the weight.
        self.losses: dict[int, float] = {}
        self.weights: dict[int, int] = {}
        self.squares: dict[int, float] = {}
        #: Root-mean-square values of the updates that count, and of the extra vectors that came with them.
        self.lengths: dict[int, float] = {}
        self.extra_lengths: dict[int, float] = {}
        #: The factor by which each update that was too long was scaled.
        self.clipped: dict[int, float] = {}
        size, sampled = expected.num_parameters, expected.max_examples
        # Every worker's tally takes the bound of the whole attempt, so that all have the same scale.
        heaviest = sum(min(examples, expected.max_weight) for examples in sampled.values())
        self._rule = make_rule(expected.aggregation, size, len(sampled) if uniform else heaviest, device)
        self._extra_rule = make_rule(expected.extra, size, len(sampled), device) if expected.extra else None

    def add(self, client_id: int, reply: Reply) -> None:
        """Add a reply, or record the reason why it does not count."""
        update = self.take(client_id, reply)
        if update is None:
            return
        delta, weight = update.delta, 1 if self.uniform else min(update.header.examples, self.expected.max_weight)
        values = delta.values.to(self.device)
        with blame("aggregation", self.expected.aggregation):
            self._rule.add(values, weight)
        if self._extra_rule is not None and update.extra is not None:
            self._extra_rule.add(update.extra.values.to(self.device), 1)
            self.extra_lengths[client_id] = update.extra.length
        self.losses[client_id] = update.header.loss
        self.weights[client_id] = weight
        self.squares[client_id] = weight * delta.square
        self.lengths[client_id] = delta.length
        if delta.factor < 1:
            self.clipped[client_id] = delta.factor

    def merge(self, other: "Tally") -> None:
        """Add another tally of the same attempt, over other clients."""
        if other.expected != self.expected or self.accepted & other.accepted:
            raise ValueError("parts of different attempts, or with a client in common, do not add up")
        with blame("aggregation", self.expected.aggregation):
            self._rule.merge(other._rule)
        if self._extra_rule is not None and other._extra_rule is not None:
            self._extra_rule.merge(other._extra_rule)
        self.accepted |= other.accepted
        self.losses |= other.losses
        self.weights |= other.weights
        self.squares |= other.squares
        self.lengths |= other.lengths
        self.extra_lengths |= other.extra_lengths
        self.clipped |= other.clipped
        self.refused += other.refused
        self.bytes_up += other.bytes_up

    def mean_delta(self) -> MeanDelta:
        """Return the aggregated delta, and the mean squared length of a delta."""
        squares = sum(self.squares[client_id] for client_id in sorted(self.squares))  # floats: always in the same order
        name, size = self.expected.aggregation, self.expected.num_parameters
        with blame("aggregation", name):
            mean = self._rule.result()
        if getattr(mean, "shape", None) != (size,):
            raise UserError(f"result() of the aggregation '{name}' must return a tensor [{size}] (docs/parts.md)")
        return MeanDelta(mean, squares / sum(self.weights.values()), len(self.weights))

    def extra(self) -> Tensor | None:
        """Return the aggregated extra vector, if clients send one.  # [P]"""
        return None if self._extra_rule is None else self._extra_rule.result()
