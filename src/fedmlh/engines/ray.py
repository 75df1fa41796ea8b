"""The Ray engine: simulated clients on the workers of a cluster, which send back sums and not models.

The hashed points of all clients lie once on every machine of the cluster, in Ray's object store, and so does what a
round sends; a worker copies out a client's points for as long as that client trains. It validates and adds up the
updates of its clients in fixed point, so that neither the number of workers nor who trained where can change a bit.

What clients keep between rounds stays with the driver and travels with the work: a checkpoint of every round needs it
there anyway, and a worker has nothing to lose, so that a lost one is replaced and its clients are trained again.
"""

import hashlib
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import ray
import torch
from scipy.sparse import csr_matrix, vstack

from fedmlh.engines.ray_cluster import join_cluster, start_cluster
from fedmlh.engines.ray_once import RayRespondents
from fedmlh.engines.ray_stock import Arrays, cut
from fedmlh.engines.ray_workers import MAX_LOSSES, Crew, Employee
from fedmlh.errors import UserError
from fedmlh.federated.client import Client, Memory
from fedmlh.federated.messages import BroadcastHeader, Reason, Rejected, name_failure
from fedmlh.federated.sharing import add_points
from fedmlh.federated.tally import Outbox, Tally
from fedmlh.federated.task import Seeds, Task
from fedmlh.federated.validate import Expected
from fedmlh.model.local_training import Shard
from fedmlh.model.threads import one_thread
from fedmlh.parts import list_sources
from fedmlh.runs.population import Population


@dataclass(frozen=True)
class Stock:
    """The `Shard`s of all clients in arrays that workers share, one after the other, and last what every client has."""

    features: tuple[Arrays, ...]  # 1 or R × [n, d̃]
    buckets: tuple[Arrays, ...]  # R × [n, B]
    widths: tuple[int, int]  # d̃, B
    bounds: Mapping[int, tuple[int, int]]  # the rows of each client
    shared: tuple[int, int]

    @classmethod
    def gather(cls, population: Population) -> "Stock":
        """All points of a population."""
        shards, bounds, end = population.shards, {}, 0
        for number, shard in shards.items():
            bounds[number] = (end, end + len(shard))
            end += len(shard)
        X, Y = (vstack([getattr(shard, part) for shard in shards.values()], "csr") for part in "XY")
        X, Y = add_points(X, Y, population.shared)
        client = Client(population.task, 0, X, Y, population.labels, population.device)
        whole = client.prepare(population.seeds)
        features, buckets = (
            tuple((matrix.data, matrix.indices, matrix.indptr) for matrix in part)
            for part in (whole.features, whole.buckets)
        )
        widths = (whole.features[0].shape[1], whole.buckets[0].shape[1])
        return cls(features, buckets, widths, bounds, (end, X.shape[0]))

    def shard(self, number: int) -> Shard:
        """A copy of what a client trains on: loops compiled for read-only memory might round differently."""
        features, buckets = (
            tuple(self._rows(arrays, number, width) for arrays in part)
            for part, width in zip((self.features, self.buckets), self.widths, strict=True)
        )
        return Shard(features, buckets)

    def _rows(self, arrays: Arrays, number: int, width: int) -> csr_matrix:
        parts = [cut(arrays, *bounds, width) for bounds in (self.bounds[number], self.shared) if bounds[0] < bounds[1]]
        return vstack(parts, "csr") if len(parts) > 1 else parts[0]


@dataclass(frozen=True)
class Work:
    """What a worker is to do in one attempt at a round: which clients to train, and what an update must be to count."""

    expected: Expected
    uniform: bool
    headers: tuple[BroadcastHeader, ...]
    #: References to the payloads in the object store, and which of them goes with each header.
    payloads: tuple[Any, ...]
    places: tuple[int, ...]
    memories: Mapping[int, Memory]
    #: How many workers were lost over it.
    losses: int = 0

    @property
    def clients(self) -> list[int]:
        """Whom it concerns."""
        return [header.client for header in self.headers]

    def after_loss(self) -> list["Work"]:
        """What to do when the worker was lost over it: each client by itself, then again, and at last nothing.

        By itself, so that a client that takes its worker down takes no other client with it.
        """
        if len(self.headers) == 1:
            return [replace(self, losses=self.losses + 1)] if self.losses + 1 < MAX_LOSSES else []
        return [
            replace(
                self,
                headers=(header,),
                places=(place,),
                memories={client: memory for client, memory in self.memories.items() if client == header.client},
            )
            for header, place in zip(self.headers, self.places, strict=True)
        ]


class Worker(Employee):
    """A process of the cluster that trains clients, one after the other in one thread."""

    def __init__(self, sources: Sequence[tuple[str, bytes]], task: Task, seeds: Seeds, stock: Stock) -> None:
        Employee.__init__(self, sources)  # `super()` would not survive that a class is sent by value
        self.task = task
        self.seeds = seeds
        self.stock = stock

    def train(self, work: Work) -> tuple[Tally, dict[int, Memory]]:
        """The tally of the clients' updates, and what the clients keep."""
        cpu = torch.device("cpu")
        tally = Tally(work.expected, uniform=work.uniform, device=cpu)
        payloads = ray.get(list(work.payloads))
        memories = {}
        for header, place in zip(work.headers, work.places, strict=True):
            number = header.client
            reply: bytes | Rejected
            try:
                client = Client.from_shard(self.task, number, self.seeds, self.stock.shard(number), cpu)
                message = tally.send(header, memoryview(payloads[place]))
                with one_thread():
                    reply, memories[number] = client.answer(message, work.memories.get(number, Memory()))
            except Exception as error:  # one client's failure must not end the run: it is named in the round's record
                reply = name_failure(error)
            tally.add(number, reply)
        return tally, memories


class RayClients(Crew):
    """Simulated clients, wherever the cluster has workers for them."""

    def __init__(self, population: Population, count: int) -> None:
        self.memories: dict[int, Memory] = {}
        stock = ray.put(Stock.gather(population))
        super().__init__(Worker, (population.task, population.seeds, stock), count)

    def exchange(self, sampled: Sequence[int], outbox: Outbox) -> Iterator[tuple[int, Rejected] | Tally]:
        """Deal the clients out to the workers and pass on their tallies; the work of a lost worker is done again."""
        waiting = deque(self._deal(sampled, outbox))
        for work, result in self.perform(waiting, lambda worker, work: worker.train.remote(work)):
            if result is None:
                again = work.after_loss()
                if not again:
                    yield work.clients[0], Rejected(Reason.FAILED, f"{MAX_LOSSES} workers were lost over it")
                waiting.extend(again)
                continue
            tally, memories = result
            self.memories |= memories
            yield tally

    def _deal(self, sampled: Sequence[int], outbox: Outbox) -> Iterator[Work]:
        """About as many points for every worker: the largest client next goes to whoever has the fewest so far."""
        tally = outbox.tally
        examples = tally.expected.max_examples
        loads, hands = [0] * len(self.workers), [[] for _ in self.workers]  # type: tuple[list[int], list[list[int]]]
        for client in sorted(sampled, key=lambda client: (-examples[client], client)):
            least = loads.index(min(loads))
            loads[least] += examples[client]
            hands[least].append(client)
        letters = {client: outbox.write(client) for client in sampled}
        # Clients that are sent the same share one payload, and the store holds it once.
        shared = {id(payload): payload for _, payload in letters.values()}
        stored = tuple(ray.put(np.frombuffer(payload, np.uint8)) for payload in shared.values())
        order = list(shared)
        for hand in filter(None, hands):
            yield Work(
                tally.expected,
                tally.uniform,
                tuple(letters[client][0] for client in hand),
                stored,
                tuple(order.index(id(letters[client][1])) for client in hand),
                {client: self.memories[client] for client in hand if client in self.memories},
            )


@contextmanager
def live_on_ray(
    population: Population, workers: int | None = None, *, address: str | None = None
) -> Iterator[RayClients | RayRespondents]:
    """Clients on the cluster at an address; without one on the cluster that this process has joined, or a local one."""
    if population.device.type != "cpu" and not population.answers_once:
        raise UserError("workers of the Ray engine train on CPU cores: set device to cpu (--device cpu)")
    sent = {hashlib.sha256(source).hexdigest() for _, source in list_sources()}
    for part in population.task.config.foreign:
        if part["sha256"] not in sent:
            raise UserError(
                f"the part '{part['name']}' was registered in {part['origin']}, which workers of the Ray engine do not "
                f"execute: put it into a file of parts (load_parts, --parts)"
            )
    with _reach_cluster(address, workers):
        free = int(ray.cluster_resources().get("CPU", 1))
        most = len(population.shards)
        if not population.answers_once:
            most = min(population.task.config.clients_per_round, most)
        kind = RayRespondents if population.answers_once else RayClients
        clients = kind(population, max(1, min(workers or free, most)))
        try:
            yield clients
        finally:
            clients.dismiss()


def _reach_cluster(address: str | None, workers: int | None) -> AbstractContextManager[None]:
    if ray.is_initialized():
        return nullcontext()
    return start_cluster(workers) if address is None else join_cluster(address)
