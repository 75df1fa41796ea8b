"""The in-process engine: all clients on this machine, on its CPU cores or its one GPU."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from fedmlh.allocator import keep_large_blocks
from fedmlh.federated.broadcast import BASE, BASE_ROUND
from fedmlh.federated.client import Assignment, Client, Memory
from fedmlh.federated.mail import Participant, Reply
from fedmlh.federated.messages import name_failure
from fedmlh.federated.task import Seeds, Task
from fedmlh.model.losses import find_loss
from fedmlh.model.threads import one_thread
from fedmlh.runs.population import Population


class LocalClients:
    """Clients in this process, side by side with one thread each, so that the number of workers cannot change a bit."""

    def __init__(self, clients: Mapping[int, Participant], workers: int) -> None:
        self.clients = clients
        self.workers = workers
        self.memories: dict[int, Memory] = {}
        #: Base models by round, as long as a client keeps one.
        self._base_models: WeakValueDictionary[int, Tensor] = WeakValueDictionary()

    def exchange(self, sampled: Sequence[int], write: Callable[[int], bytes]) -> Iterator[tuple[int, Reply]]:
        """Let the sampled clients answer their messages; yield replies as they come."""
        pool = ThreadPoolExecutor(self.workers)
        with one_thread():
            try:
                for done in as_completed([pool.submit(self._answer, client_id, write) for client_id in sampled]):
                    yield done.result()
            finally:
                # All replies have come, or the caller has stopped: in both cases there is nothing to wait for.
                pool.shutdown(wait=False, cancel_futures=True)

    def _answer(self, client_id: int, write: Callable[[int], bytes]) -> tuple[int, Reply]:
        try:
            reply, memory = self.clients[client_id].answer(write(client_id), self.recall(client_id))
        except Exception as error:  # one client's failure must not end the run: it is named in the round's record
            return client_id, name_failure(error)
        self.keep(client_id, memory)
        return client_id, reply

    def recall(self, client_id: int) -> Memory:
        """Return what a client keeps."""
        return self.memories.get(client_id, Memory())

    def keep(self, client_id: int, memory: Memory) -> None:
        """Replace a client's memory."""
        if BASE in memory.staged:
            # The base model of a round has the same bits at all clients: they share one copy.
            base = self._base_models.setdefault(int(memory.staged[BASE_ROUND]), memory.staged[BASE])
            memory = replace(memory, staged={**memory.staged, BASE: base})
        self.memories[client_id] = memory


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


class ClientsTogether(LocalClients):
    """Clients in this process; all sampled clients are trained at once, on a GPU."""

    def __init__(self, clients: Mapping[int, Client], trainer: Trainer) -> None:
        super().__init__(clients, workers=1)
        self.trainees = clients
        self.trainer = trainer

    def exchange(self, sampled: Sequence[int], write: Callable[[int], bytes]) -> Iterator[tuple[int, Reply]]:
        """Let each of the sampled clients accept or refuse, train those that accepted, and let each reply."""
        accepted: dict[int, Assignment] = {}
        for client_id in sampled:
            try:
                client = self.trainees[client_id]
                accepted[client_id] = client.accept(client.read(write(client_id)), self.recall(client_id))
            except Exception as error:
                yield client_id, name_failure(error)
        if not accepted:
            return
        works = list(accepted.values())
        trained = self.trainer.train_clients(
            [work.model for work in works],
            list(accepted),
            [work.orders for work in works],
            works[0].recipe.learning_rate,  # all work on the same round
            [work.correction for work in works if work.correction is not None],
        )
        for (client_id, work), (model, loss) in zip(accepted.items(), trained, strict=True):
            reply, memory = self.trainees[client_id].reply(work, model, loss)
            self.keep(client_id, memory)
            yield client_id, reply


def make_trainer(task: Task, clients: Mapping[int, Client], seeds: Seeds, device: torch.device) -> Trainer | None:
    """Return a trainer that trains these clients all at once, on a GPU; None if there is none."""
    if not clients or device.type != "cuda" or not find_loss(task.config.loss).kernel:
        return None
    try:
        from fedmlh.model.kernels.cuda import CudaTrainer
    except ImportError:  # no triton: one client after the other, in plain torch
        return None
    shards = {client_id: client.prepare(seeds) for client_id, client in clients.items()}
    return CudaTrainer(task.stack, task.recipe, shards, device, tf32=task.config.gpu_precision == "tf32")


@contextmanager
def live_in_process(population: Population, workers: int | None = None) -> Iterator[LocalClients]:
    """Keep all clients in this process, with one thread per worker."""
    keep_large_blocks()
    # All clients are made now, not when they are first sampled: else their memory would lie between blocks that a round
    # frees, and the process would grow with every new client.
    members = {client_id: population.member(client_id) for client_id in population.shards}
    clients = {client_id: member for client_id, member in members.items() if isinstance(member, Client)}
    trainer = make_trainer(population.task, clients, population.seeds, population.device)
    if trainer is None:
        yield LocalClients(members, workers or os.cpu_count() or 1)
    else:
        yield ClientsTogether(clients, trainer)
