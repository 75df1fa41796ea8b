"""The in-process engine: all clients on this machine, on its CPU cores or its one GPU."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from fedmlh.engines.allocator import keep_large_blocks
from fedmlh.federated.broadcast import HELD, HELD_ROUND
from fedmlh.federated.client import Assignment, Client, Memory
from fedmlh.federated.messages import Rejected, name_failure
from fedmlh.federated.task import Seeds, Task
from fedmlh.model.losses import find_loss
from fedmlh.model.threads import one_thread
from fedmlh.runs.population import Population


class Trainer(Protocol):
    """Trains several clients as one computation."""

    def train_clients(
        self,
        models: Sequence[Tensor],
        clients: Sequence[int],
        orders: Sequence[np.ndarray],
        learning_rate: float,
        corrections: Sequence[Tensor],  # one per client, or none at all
    ) -> list[tuple[Tensor, float]]:
        """Return new parameters and mean loss of each client."""


class LocalClients:
    """Clients in this process: side by side with one thread each, so that workers cannot change a bit, or all at once.

    All at once is for a GPU: `trainer` then trains everyone who was sampled together.
    """

    def __init__(self, clients: Mapping[int, Any], workers: int, trainer: Trainer | None = None) -> None:
        """Take clients by number: those of federated.client, or for one round those of oneround.exchange."""
        self.clients = clients
        self.workers = workers
        self.trainer = trainer
        self.memories: dict[int, Memory] = {}
        #: The models that clients hold, by round, for as long as one of them does.
        self._held: WeakValueDictionary[int, Tensor] = WeakValueDictionary()

    def exchange(
        self, sampled: Sequence[int], broadcast: Callable[[int], bytes]
    ) -> Iterator[tuple[int, bytes | Rejected]]:
        """Train the sampled clients; replies come as they finish."""
        if self.trainer is not None:
            yield from self._exchange_at_once(self.trainer, sampled, broadcast)
            return
        pool = ThreadPoolExecutor(self.workers)
        with one_thread():
            try:
                for done in as_completed([pool.submit(self._answer, client, broadcast) for client in sampled]):
                    yield done.result()
            finally:
                # All replies have come, or nobody wants them any more: either way there is nothing to wait for.
                pool.shutdown(wait=False, cancel_futures=True)

    def _answer(self, number: int, broadcast: Callable[[int], bytes]) -> tuple[int, bytes | Rejected]:
        try:
            reply, memory = self.clients[number].answer(broadcast(number), self.memories.get(number, Memory()))
        except Exception as error:  # one client's failure must not end the run: it is named in the round's record
            return number, name_failure(error)
        self._keep(number, memory)
        return number, reply

    def _keep(self, number: int, memory: Memory) -> None:
        if HELD in memory.staged:
            # All who train from the same round's model hold the same bits: one copy, however many clients there are.
            held = self._held.setdefault(int(memory.staged[HELD_ROUND]), memory.staged[HELD])
            memory = replace(memory, staged={**memory.staged, HELD: held})
        self.memories[number] = memory

    def _exchange_at_once(
        self, trainer: Trainer, sampled: Sequence[int], broadcast: Callable[[int], bytes]
    ) -> Iterator[tuple[int, bytes | Rejected]]:
        accepted: dict[int, Assignment] = {}
        for number in sampled:
            try:
                memory = self.memories.get(number, Memory())
                accepted[number] = self.clients[number].accept(broadcast(number), memory)
            except Exception as error:
                yield number, name_failure(error)
        if not accepted:
            return
        works = list(accepted.values())
        corrections = [work.correction for work in works if work.correction is not None]
        trained = trainer.train_clients(
            [work.model for work in works],
            list(accepted),
            [work.orders for work in works],
            works[0].recipe.learning_rate,  # all work on the same round
            corrections,
        )
        for (number, work), (model, loss) in zip(accepted.items(), trained, strict=True):
            reply, memory = self.clients[number].reply(work, model, loss)
            self._keep(number, memory)
            yield number, reply


def make_trainer(task: Task, clients: Mapping[int, Client], seeds: Seeds, device: torch.device) -> Trainer | None:
    """What trains them all at once, on a GPU; else None."""
    if device.type != "cuda" or not find_loss(task.config.loss).kernel:
        return None
    try:
        from fedmlh.model.kernels.cuda import CudaTrainer
    except ImportError:  # no triton: one client after the other, in plain torch
        return None
    shards = {number: client.prepare(seeds) for number, client in clients.items()}
    return CudaTrainer(task.stack, task.recipe, shards, device, tf32=task.config.gpu_precision == "tf32")


@contextmanager
def live_in_process(population: Population, workers: int | None = None) -> Iterator[LocalClients]:
    """All clients here, one thread a worker."""
    keep_large_blocks()
    count = workers or os.cpu_count() or 1
    if population.answers_once:
        yield LocalClients({number: population.respondent(number) for number in population.shards}, count)
        return
    clients = {number: population.client(number) for number in population.shards}
    # All now, not each when it is first sampled: what stays would lie between what a round needs, and memory would grow
    # with every new client.
    for client in clients.values():
        client.prepare(population.seeds)
    trainer = make_trainer(population.task, clients, population.seeds, population.device)
    yield LocalClients(clients, count, trainer)
