"""The server's side of one round: it writes requests, and refuses statistics that no points can have."""

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from fedmlh.federated.messages import Reason, Rejected, RequestHeader, StatisticsHeader, pack, unpack
from fedmlh.federated.task import Task
from fedmlh.oneround.budget import MOST_PAIRS, most_slots
from fedmlh.oneround.exchange import COUNTS, HELD_OUT, MOST_BYTES, RESULT, SUMS, asks_for_buckets
from fedmlh.oneround.holding import Extent
from fedmlh.oneround.points import most_square
from fedmlh.oneround.sums import Sums
from fedmlh.oneround.terms import Counts, Terms, name_terms
from fedmlh.oneround.wire import decode_sums

#: The type that statistics are read as.
Content = TypeVar("Content")
#: The most bytes of a cell that is not 0, and of any other number, overhead included.
_BYTES_PER_CELL, _BYTES_PER_NUMBER = 8, 16


@dataclass(frozen=True)
class Question(Generic[Content]):
    """One thing that clients are asked for; the door for their statistics."""

    part: str
    payload: bytes
    #: Returns the content of a client's statistics, or raises Rejected.
    read: Callable[[int, bytes], Content]

    def check(self, client_id: int, reply: bytes, taken: Collection[int]) -> Content:
        """Return the content of a reply if it may count, or raise Rejected."""
        if client_id in taken:
            raise Rejected(Reason.DUPLICATE, "it has answered already")
        return self.read(client_id, reply)


class Desk:
    """Writes requests, and reads statistics if points can have them."""

    def __init__(self, task: Task, max_examples: Mapping[int, int], data: str = "") -> None:
        """Take the most points of each client; `data` names the source of the points, if the server knows it."""
        self.task = task
        self.max_examples = max_examples
        self.seeds = task.draw_seeds()
        self.run = hashlib.sha256(f"{task.fingerprint} {self.seeds} {data}".encode()).hexdigest()[:16]

    @property
    def num_outputs(self) -> int:
        """Return how many columns the sums of clients have."""
        return self.task.num_tables * self.task.num_outputs if asks_for_buckets(self.task) else self.task.num_labels

    def request(self, part: str, client: int, payload: bytes) -> bytes:
        """Return the message that asks a client for one part."""
        return pack(self.write(part, client, payload), payload)

    def write(self, part: str, client: int, payload: bytes) -> RequestHeader:
        """Return the header of the message that asks a client for one part."""
        seeds = self.seeds
        names = (self.run, self.task.fingerprint, client, part, name_terms(payload))
        return RequestHeader(*names, seeds.run, list(seeds.labels), list(seeds.features))

    def ask_counts(self) -> Question[Counts]:
        """Return the question for counts."""
        return Question(COUNTS, b"", self.read_counts)

    def ask_sums(self, terms: Terms, num_slots: int) -> Question[Sums]:
        """Return the question for the sums over all points."""
        return Question(SUMS, terms.encode(), partial(self.read_sums, terms=terms, num_slots=num_slots))

    def tell_result(self, payload: bytes) -> Question[bool]:
        """Return the message that sends clients the result, which they acknowledge."""
        return Question(RESULT, payload, self.read_thanks)

    def read_counts(self, client: int, message: bytes) -> Counts:
        """Return the counts of a client, or raise Rejected."""
        payload, examples = self._open(COUNTS, client, message, self._most_counted)
        try:
            counts = Counts.decode(payload, self.task.num_features)
        except ValueError as problem:
            raise Rejected(Reason.MALFORMED, str(problem)) from None
        if counts.points != examples:
            raise Rejected(Reason.EXAMPLES, f"{counts.points:,} points counted, {examples:,} claimed")
        return counts

    def read_held_out(self, client: int, message: bytes, terms: Terms, num_slots: int, whole: Extent) -> Sums:
        """Return the sums over a client's held-out points, which its sums over all points bound, or raise Rejected."""
        sums = self.read_sums(client, message, terms, num_slots, HELD_OUT)
        if not whole.covers(sums):
            raise Rejected(Reason.RANGE, "more is held out than there is in all")
        return sums

    def read_sums(self, client: int, message: bytes, terms: Terms, num_slots: int, part: str = SUMS) -> Sums:
        """Return the sums of a client under these terms, or raise Rejected."""
        bits, most = self.task.config.point_bits, 1
        if asks_for_buckets(self.task):
            most = max(1, self.task.num_labels)
        payload, examples = self._open(part, client, message, self.most_bytes(client, num_slots), terms.name)
        cells = self.most_cells(client, num_slots)
        try:
            return decode_sums(payload, examples, num_slots, self.num_outputs, bits, most, cells)
        except ValueError as problem:
            raise Rejected(Reason.MALFORMED, str(problem)) from None

    def read_thanks(self, client: int, message: bytes) -> bool:
        """Return True if a client has acknowledged the result, or raise Rejected."""
        payload, _ = self._open(RESULT, client, message, 0, None)
        if len(payload):
            raise Rejected(Reason.MALFORMED, "an acknowledgement with more content")
        return True

    def most_cells(self, client: int, num_slots: int) -> int:
        """Return the most pairs, of slots and of slots with labels, that the points of a client can have.

        If the number of slots is chosen by the number of pairs, no client has many more than the limit for all.
        """
        points = self.max_examples.get(client, 0)
        used = min(num_slots, most_square(self.task.config.point_bits))  # slots of one point
        pairs = min(num_slots**2 // 2, points * used**2 // 2)
        crossed = min(num_slots * self.num_outputs, points * used * self.num_outputs)
        if self.task.config.feature_slots == 0:
            pairs, crossed = min(pairs, 2 * MOST_PAIRS), min(crossed, 2 * MOST_PAIRS)
        return pairs + crossed

    def most_bytes(self, client: int, num_slots: int) -> int:
        """Return the bytes of the largest sums that the points of a client can have."""
        cells = self.most_cells(client, num_slots)
        return min(MOST_BYTES, _BYTES_PER_CELL * cells + _BYTES_PER_NUMBER * (20 * num_slots + self.num_outputs + 1))

    def most_reply(self) -> int:
        """Return the bytes of the largest payload that any client can answer with, whatever the terms will be."""
        task, outputs = self.task, self.task.num_tables * self.task.num_outputs
        slots = min(task.num_features, task.config.feature_slots) or most_slots(task.num_features, outputs)
        return max([self._most_counted, *(self.most_bytes(client, slots) for client in self.max_examples)])

    @property
    def _most_counted(self) -> int:
        return _BYTES_PER_NUMBER * (self.task.num_features + 1)

    def _open(
        self, part: str, client: int, message: bytes, most: int, terms: str | None = ""
    ) -> tuple[memoryview, int]:
        header, payload = unpack(StatisticsHeader, message, most)
        if header.run != self.run:
            raise Rejected(Reason.RUN, "statistics of another run")
        if header.config != self.task.fingerprint or terms not in (None, header.terms):
            raise Rejected(Reason.CONFIG, "statistics under other terms")
        if header.client != client or client not in self.max_examples:
            raise Rejected(Reason.CLIENT, f"statistics of client {header.client}")
        if header.part != part:
            raise Rejected(Reason.ROUND, f"'{header.part:.16}' where '{part}' was asked for")
        least = 0 if part == HELD_OUT else 1
        if not least <= header.examples <= self.max_examples[client]:
            raise Rejected(Reason.EXAMPLES, f"{header.examples:,} of at most {self.max_examples[client]:,} points")
        return payload, header.examples
