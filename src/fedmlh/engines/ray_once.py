"""Clients of one round on Ray: workers answer requests with sums over the raw points of one client at a time.

The points of all clients lie once on every machine of the cluster, in Ray's object store. Replies are whole numbers, so
that neither the number of workers nor the order of replies can change a bit.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from scipy.sparse import csr_matrix, vstack

from fedmlh.data.dataset import Labels
from fedmlh.engines.ray_stock import Arrays, cut
from fedmlh.engines.ray_workers import MAX_LOSSES, Crew, Employee
from fedmlh.federated.client import Memory
from fedmlh.federated.messages import Reason, Rejected, name_failure
from fedmlh.federated.participation import Refusal
from fedmlh.federated.task import Task
from fedmlh.model.threads import one_thread
from fedmlh.oneround.exchange import Respondent
from fedmlh.runs.population import Population


@dataclass(frozen=True)
class RawStock:
    """The `Split`s of all clients in arrays that workers share, one after the other."""

    X: Arrays  # [n, d]
    Y: Arrays  # [n, p]
    widths: tuple[int, int]  # d, p
    bounds: Mapping[int, tuple[int, int]]  # the rows of each client

    @classmethod
    def gather(cls, population: Population) -> "RawStock":
        """All points of a population."""
        points = {number: population.points(number) for number in population.shards}
        bounds, end = {}, 0
        for number, (X, _) in points.items():
            bounds[number] = (end, end + X.shape[0])
            end += X.shape[0]
        X, Y = (vstack(part, "csr") for part in zip(*points.values(), strict=True))
        one, two = ((matrix.data, matrix.indices, matrix.indptr) for matrix in (X, Y))
        return cls(one, two, (X.shape[1], Y.shape[1]), bounds)

    def points(self, number: int) -> tuple[csr_matrix, csr_matrix]:
        """A copy of a client's points."""
        begin, end = self.bounds[number]
        X, Y = (cut(part, begin, end, width) for part, width in zip((self.X, self.Y), self.widths, strict=True))
        return X, Y


class Answerer(Employee):
    """A process of the cluster that answers requests to clients, one after the other in one thread."""

    def __init__(self, sources: Sequence[tuple[str, bytes]], task: Task, labels: Labels, stock: RawStock) -> None:
        Employee.__init__(self, sources)  # `super()` would not survive that a class is sent by value
        self.task = task
        self.labels = labels
        self.stock = stock

    def answer(self, number: int, request: bytes) -> bytes | Refusal:
        """Return the client's statistics, or why there are none."""
        try:
            with one_thread():
                return Respondent(self.task, number, *self.stock.points(number), self.labels).reply(request)
        except Exception as error:  # one client's failure must not end the run: it is named in the log
            refusal = name_failure(error)  # which itself does not survive the way to the driver
            return Refusal(number, refusal.reason, refusal.detail)


class RayRespondents(Crew):
    """Clients that answer requests, wherever the cluster has workers for them."""

    def __init__(self, population: Population, count: int) -> None:
        #: Empty for ever: clients keep nothing between requests.
        self.memories: dict[int, Memory] = {}
        stock = RawStock.gather(population)
        self._sizes = {number: end - begin for number, (begin, end) in stock.bounds.items()}
        super().__init__(Answerer, (population.task, ray.put(population.labels), ray.put(stock)), count)

    def exchange(self, sampled: Sequence[int], post: Callable[[int], bytes]) -> Iterator[tuple[int, bytes | Rejected]]:
        """Ask every client, the largest first; what a lost worker had to do is done again."""
        waiting = deque(sorted(sampled, key=lambda client: (-self._sizes[client], client)))
        requests: dict[int, bytes] = {}
        losses: Counter[int] = Counter()

        def begin(worker: Any, client: int) -> Any:
            # A request counts as sent once, however many workers were lost over it.
            request = requests[client] = requests.get(client) or post(client)
            return worker.answer.remote(client, request)

        for client, reply in self.perform(waiting, begin):
            if reply is None:
                losses[client] += 1
                if losses[client] < MAX_LOSSES:
                    waiting.append(client)
                    continue
                reply = Refusal(client, Reason.FAILED, f"{MAX_LOSSES} workers were lost over it")
            del requests[client]
            yield client, Rejected(reply.reason, reply.detail) if isinstance(reply, Refusal) else reply
