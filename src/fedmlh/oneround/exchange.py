"""The exchange of one round: the server asks for counts, then for sums under terms that follow from the counts.

If it has no points by which to choose λ, it then asks for the sums over the points that clients hold out.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from scipy.sparse import csr_matrix

from fedmlh.data.dataset import Labels
from fedmlh.federated.client import Memory
from fedmlh.federated.messages import Reason, Rejected, RequestHeader, StatisticsHeader, pack, unpack
from fedmlh.federated.task import Seeds, Task
from fedmlh.hashing.labels import LabelMap
from fedmlh.oneround.holding import asks_for_held_out, is_held_out
from fedmlh.oneround.points import round_points
from fedmlh.oneround.sums import Sums
from fedmlh.oneround.terms import Counts, Terms, name_terms
from fedmlh.oneround.wire import encode_sums

#: The parts that a client can be asked for, and the one that it is sent in the end.
COUNTS, SUMS, HELD_OUT, RESULT = "counts", "sums", "held-out", "result"
#: The most bytes of a message.
MOST_BYTES = 2**31


@lru_cache(maxsize=1)
def _read_terms(payload: bytes, num_features: int) -> Terms:
    """Return the terms of a payload; cached, since all clients of a process are sent the same."""
    return Terms.decode(memoryview(payload), num_features)


def spread(label_map: LabelMap) -> csr_matrix:
    """Return the matrix that turns labels into the buckets of all tables, side by side.  # [p, R·B]"""
    tables, labels = label_map.buckets.shape
    columns = (label_map.buckets + np.arange(tables)[:, None] * label_map.num_buckets).T.ravel()
    starts = np.arange(labels + 1) * tables
    return csr_matrix(
        (np.ones(len(columns), np.int64), columns, starts), shape=(labels, tables * label_map.num_buckets)
    )


def asks_for_buckets(task: Task) -> bool:
    """Say whether clients hash their labels themselves, which they must if they know labels by name only."""
    return task.config.label_key == "name"


class Respondent:
    """A client of one round: answers requests with sums over its points."""

    def __init__(
        self,
        task: Task,
        client_id: int,
        X: csr_matrix,
        Y: csr_matrix,
        labels: Labels,
        keep: Callable[[str, memoryview], None] = lambda part, payload: None,
        least: int = 0,
    ) -> None:
        """Take the client's points; `keep` is called with the terms of its sums, and with the result of all sums.

        Sums over a part of its points are sent only if that part and the rest have at least `least` points each.
        """
        self.task = task
        self.client_id = client_id
        self.X, self.Y, self.labels = X, Y, labels
        self.keep = keep
        self.least = least

    def answer(self, request: bytes, memory: Memory) -> tuple[bytes, Memory]:
        """Return the statistics that a request asks for; nothing is kept between requests."""
        return self.reply(request), memory

    def reply(self, request: bytes) -> bytes:
        """Return the statistics that a request asks for."""
        header, payload = unpack(RequestHeader, request, MOST_BYTES)
        if header.client != self.client_id:
            raise Rejected(Reason.CLIENT, f"a request for client {header.client}")
        if header.config != self.task.fingerprint:
            raise Rejected(Reason.CONFIG, "the server works under other terms")
        seeds = Seeds(header.seed, tuple(header.label_seeds), tuple(header.feature_seeds))
        if not self.task.accepts(seeds):
            raise Rejected(Reason.RANGE, "seeds that name no hash functions of this task")
        examples = len(self)
        if header.part == COUNTS:
            answer = Counts.of(self.X).encode()
        elif header.part in (SUMS, HELD_OUT):
            rows = self._choose_rows(header.part)
            try:
                terms = _read_terms(bytes(payload), self.task.num_features)
            except ValueError as problem:
                raise Rejected(Reason.MALFORMED, str(problem)) from None
            sums = self.sum(terms, seeds, rows)
            answer, examples = encode_sums(sums, self.task.config.point_bits), sums.points
        elif header.part == RESULT:
            answer = b""
        else:
            raise Rejected(Reason.MALFORMED, "a request for something unknown")
        self.keep(header.part, payload)
        reply = StatisticsHeader(header.run, header.config, self.client_id, header.part, name_terms(payload), examples)
        return pack(reply, answer)

    def __len__(self) -> int:
        return int(self.X.shape[0])

    def _choose_rows(self, part: str) -> np.ndarray | None:
        """Return the points that the sums of a part are over (None: all), or raise Rejected."""
        if part == SUMS:
            return None
        if not asks_for_held_out(self.task.config):
            raise Rejected(Reason.CONFIG, "sums over held-out points were not agreed on")
        rows = is_held_out(self.X)
        count = int(np.count_nonzero(rows))
        if min(count, len(self) - count) < self.least:
            raise Rejected(
                Reason.EXAMPLES,
                f"{count:,} of {len(self):,} points are held out: fewer than min_site_points = {self.least:,} on one "
                f"side would show too much about each",
            )
        return rows

    def sum(self, terms: Terms, seeds: Seeds, rows: np.ndarray | None = None) -> Sums:
        """Add up the client's points, or some of them, under these terms."""
        X, Y = (self.X, self.Y) if rows is None else (self.X[rows], self.Y[rows])
        X = round_points(terms.slots(seeds).apply(X), self.task.config.point_bits)
        if asks_for_buckets(self.task):
            Y = Y @ spread(self.task.label_map(seeds, self.labels.keys))
        return Sums.of(X, Y)
