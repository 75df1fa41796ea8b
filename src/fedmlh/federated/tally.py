"""The replies to one attempt at a round, checked and summed as they come; workers' parts of it add up to the whole."""

from collections.abc import Callable

import torch
from torch import Tensor

from fedmlh.federated.aggregate import Average, make_rule
from fedmlh.federated.messages import BroadcastHeader, Reason, Rejected, pack
from fedmlh.federated.optimizers import Change
from fedmlh.federated.participation import Attempt, Refusal
from fedmlh.federated.validate import Expected, check_update


class Tally:
    """What the server's step needs of the updates that count, and who is left out; no update is kept."""

    def __init__(self, expected: Expected, *, uniform: bool, device: torch.device) -> None:
        self.expected = expected
        self.uniform = uniform
        self.device = device
        #: Of every client whose update counts: its loss, the update's weight, and its squared length times that.
        self.losses: dict[int, float] = {}
        self.weights: dict[int, int] = {}
        self.squares: dict[int, float] = {}
        #: Root-mean-square values of the updates that count, and of the changes of their controls.
        self.lengths: dict[int, float] = {}
        self.control_lengths: dict[int, float] = {}
        #: By which factor the updates that were too long were scaled.
        self.clipped: dict[int, float] = {}
        self.refused: list[Refusal] = []
        self.sent: list[tuple[int, int]] = []  # appended to by the engine's threads, so not a running sum
        self.bytes_up = 0
        size, sampled = expected.num_parameters, expected.max_examples
        # The bound is that of the whole attempt in every part of it, so that all parts have the same scale.
        heaviest = sum(min(examples, expected.max_weight) for examples in sampled.values())
        self._rule = make_rule(expected.aggregation, size, len(sampled) if uniform else heaviest, device)
        self._controls = Average(size, len(sampled), device) if expected.control else None

    def send(self, header: BroadcastHeader, payload: bytes | memoryview) -> bytes:
        """The message for a client, counted."""
        message = pack(header, payload)
        self.sent.append((header.client, len(message)))
        return message

    def add(self, client: int, reply: bytes | Rejected) -> None:
        """Count a reply, or name the client with the reason why it does not count."""
        try:
            if isinstance(reply, Rejected):
                raise reply
            self.bytes_up += len(reply)
            update = check_update(reply, client, self.expected, self.losses)
        except Rejected as refusal:
            self.refused.append(Refusal(client, refusal.reason, refusal.detail))
            return
        weight = 1 if self.uniform else min(update.header.examples, self.expected.max_weight)
        self._rule.add(update.values.to(self.device), weight)
        if self._controls is not None and update.control is not None:
            self._controls.add(update.control.to(self.device), 1)
            self.control_lengths[client] = update.control_length
        self.losses[client] = update.header.loss
        self.weights[client] = weight
        self.squares[client] = weight * update.square
        self.lengths[client] = update.length
        if update.factor < 1:
            self.clipped[client] = update.factor

    def merge(self, other: "Tally") -> None:
        """Add what another has counted of the same attempt, from other clients."""
        if other.expected != self.expected or self.losses.keys() & other.losses.keys():
            raise ValueError("parts of different attempts, or with a client in common, do not add up")
        self._rule.merge(other._rule)
        if self._controls is not None and other._controls is not None:
            self._controls.merge(other._controls)
        self.losses |= other.losses
        self.weights |= other.weights
        self.squares |= other.squares
        self.lengths |= other.lengths
        self.control_lengths |= other.control_lengths
        self.clipped |= other.clipped
        self.refused += other.refused
        self.sent += other.sent
        self.bytes_up += other.bytes_up

    def close(self) -> Attempt:
        """Who took part, in the order of the clients; who was asked and said nothing is late."""
        silent = self.expected.max_examples.keys() - self.losses.keys() - {entry.client for entry in self.refused}
        self.refused += [Refusal(client, Reason.LATE, "no reply came") for client in silent]
        self.refused.sort(key=lambda entry: entry.client)
        return Attempt(
            self.expected.round,
            self.expected.attempt,
            sorted(self.expected.max_examples),
            sorted(self.losses),
            self.refused,
        )

    def change(self) -> Change:
        """The update that stands for all, and how long updates are on average."""
        squares = sum(self.squares[client] for client in sorted(self.squares))  # floats: always in the same order
        return Change(self._rule.result(), squares / sum(self.weights.values()), len(self.weights))

    def control_change(self) -> Tensor | None:
        """The average change of SCAFFOLD's controls, where there are any.  # [P]"""
        return None if self._controls is None else self._controls.result()


class Outbox:
    """What each client is to be sent in one attempt at a round."""

    def __init__(self, tally: Tally, write: Callable[[int], tuple[BroadcastHeader, bytes]]) -> None:
        #: Counts this attempt; an engine that tallies elsewhere makes parts that expect the same.
        self.tally = tally
        #: Header and payload for a client; clients that are sent the same share one payload.
        self.write = write

    @property
    def place(self) -> tuple[int, int]:
        """Round and attempt."""
        return self.tally.expected.round, self.tally.expected.attempt

    def __call__(self, client: int) -> bytes:
        """The message for a client, which counts as sent."""
        return self.tally.send(*self.write(client))
