"""The Ray engine: simulated clients on the workers of a cluster.

The points of all clients lie once on every machine of the cluster, in Ray's object store, and so does what an exchange
sends; a worker copies a client's points while that client answers. Updates are checked and added up in
fixed point by the worker that made them, so that sums travel and not models. Statistics travel as they are. Neither the
number of workers nor which of them a client was with can change a bit.

What clients keep between rounds stays with the driver and travels with the work: a checkpoint of every round needs it
there anyway, and a worker has nothing to lose, so that a lost one is replaced and its clients answer again.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import ray

from fedmlh.engines.ray_cluster import join_cluster, start_cluster
from fedmlh.engines.ray_points import ClusterPoints
from fedmlh.engines.ray_workers import MAX_LOSSES, Crew, Employee
from fedmlh.errors import UserError
from fedmlh.federated.client import Memory
from fedmlh.federated.mail import Outbox, Part, PartT, Reply
from fedmlh.federated.messages import BroadcastHeader, Reason, Rejected, RequestHeader, name_failure, pack
from fedmlh.federated.participation import Refusal
from fedmlh.model.threads import one_thread
from fedmlh.parts import find_sources
from fedmlh.runs.population import Population


class Pile:
    """Replies that are passed on as they are."""

    def __init__(self) -> None:
        self._replies: list[tuple[int, bytes | Refusal]] = []

    def add(self, client_id: int, reply: Reply) -> None:
        """Add a reply; a Rejected is kept as a Refusal, which can be pickled."""
        if isinstance(reply, Rejected):
            self._replies.append((client_id, Refusal(client_id, reply.reason, reply.detail)))
        else:
            self._replies.append((client_id, reply))

    def __iter__(self) -> Iterator[tuple[int, Reply]]:
        for client_id, reply in self._replies:
            yield client_id, Rejected(reply.reason, reply.detail) if isinstance(reply, Refusal) else reply


@dataclass(frozen=True)
class Work:
    """The work of a worker: to let clients answer their messages, and to count their replies."""

    headers: tuple[BroadcastHeader | RequestHeader, ...]
    #: References to the payloads in the object store, and which of them goes with each header.
    payloads: tuple[Any, ...]
    places: tuple[int, ...]
    memories: Mapping[int, Memory]
    #: Makes the object that counts the replies.
    part: Callable[[], Part]
    #: How many workers were lost while they did it.
    losses: int = 0

    @property
    def clients(self) -> list[int]:
        """Return the clients that are to answer."""
        return [header.client for header in self.headers]

    def after_loss(self) -> list["Work"]:
        """Return the work to repeat after its worker was lost: each client by itself, or nothing after MAX_LOSSES.

        By itself, so that a client that kills its worker costs no other client its reply.
        """
        if len(self.headers) == 1:
            return [replace(self, losses=self.losses + 1)] if self.losses + 1 < MAX_LOSSES else []
        return [
            replace(
                self,
                headers=(header,),
                places=(place,),
                memories={client_id: kept for client_id, kept in self.memories.items() if client_id == header.client},
            )
            for header, place in zip(self.headers, self.places, strict=True)
        ]


class Worker(Employee):
    """A process of the cluster in which clients answer, one after the other in one thread."""

    def __init__(self, sources: Sequence[tuple[str, bytes]], points: ClusterPoints) -> None:
        Employee.__init__(self, sources)  # `super()` would fail in a class that is pickled by value
        self.points = points

    def answer(self, work: Work) -> tuple[Part, dict[int, Memory]]:
        """Return the counted replies, and the memories of the clients."""
        part, memories = work.part(), {}
        payloads = ray.get(list(work.payloads))
        for header, place in zip(work.headers, work.places, strict=True):
            client_id = header.client
            reply: Reply
            try:
                client = self.points.member(client_id)
                message = pack(header, memoryview(payloads[place]))
                with one_thread():
                    reply, memories[client_id] = client.answer(message, work.memories.get(client_id, Memory()))
            except Exception as error:  # one client's failure must not end the run: it is named in the round's record
                reply = name_failure(error)
            part.add(client_id, reply)
        return part, memories


class RayClients(Crew):
    """Simulated clients on the workers of a cluster."""

    def __init__(self, population: Population, count: int) -> None:
        self.memories: dict[int, Memory] = {}
        points = ClusterPoints.gather(population)
        self._sizes = {client_id: points.count(client_id) for client_id in population.shards}
        super().__init__(Worker, (ray.put(points),), count)

    def exchange(self, sampled: Sequence[int], outbox: Outbox[PartT]) -> Iterator[tuple[int, Reply] | PartT]:
        """Spread the clients over the workers and yield what they return; the work of a lost worker is done again."""
        waiting = deque(self._assign(sampled, outbox))
        for work, result in self.perform(waiting, lambda worker, work: worker.answer.remote(work)):
            if result is None:
                again = work.after_loss()
                if not again:
                    yield work.clients[0], Rejected(Reason.FAILED, f"{MAX_LOSSES} workers were lost while it answered")
                waiting.extend(again)
                continue
            part, memories = result
            self.memories |= memories
            if isinstance(part, Pile):
                yield from part
            else:
                yield part

    def _assign(self, sampled: Sequence[int], outbox: Outbox[PartT]) -> Iterator[Work]:
        """Yield work with about equally many points per worker, or with one client each if replies travel as they are.

        The largest client that is left goes to the worker with the fewest points so far.
        """
        count = len(sampled) if outbox.part is None else len(self.workers)
        loads, hands = [0] * count, [[] for _ in range(count)]  # type: tuple[list[int], list[list[int]]]
        for client_id in sorted(sampled, key=lambda client_id: (-self._sizes[client_id], client_id)):
            least = loads.index(min(loads))
            loads[least] += self._sizes[client_id]
            hands[least].append(client_id)
        letters = {client_id: outbox.write(client_id) for client_id in sampled}
        # Clients that are sent the same share one payload, and the store holds it once.
        shared = {id(payload): payload for _, payload in letters.values()}
        stored = tuple(ray.put(np.frombuffer(payload, np.uint8)) for payload in shared.values())
        order = list(shared)
        for hand in filter(None, hands):
            yield Work(
                tuple(letters[client_id][0] for client_id in hand),
                stored,
                tuple(order.index(id(letters[client_id][1])) for client_id in hand),
                {client_id: self.memories[client_id] for client_id in hand if client_id in self.memories},
                outbox.part or Pile,
            )


@contextmanager
def live_on_ray(
    population: Population, workers: int | None = None, *, address: str | None = None
) -> Iterator[RayClients]:
    """Keep clients on the cluster at an address; without one, on the cluster that was joined, or on a local one."""
    if population.device.type != "cpu" and population.trains:
        raise UserError("workers of the Ray engine train on CPU cores: set device to cpu (--device cpu)")
    find_sources(population.task.config.foreign)  # workers know only parts of users that come from a file
    with _reach_cluster(address, workers):
        free = int(ray.cluster_resources().get("CPU", 1))
        clients = RayClients(population, max(1, min(workers or free, population.most_asked)))
        try:
            yield clients
        finally:
            clients.dismiss()


def _reach_cluster(address: str | None, workers: int | None) -> AbstractContextManager[None]:
    if ray.is_initialized():
        return nullcontext()
    return start_cluster(workers) if address is None else join_cluster(address)
