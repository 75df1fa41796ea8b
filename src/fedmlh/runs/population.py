"""Simulated clients, before an engine makes them."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from scipy.sparse import csr_matrix

from fedmlh.data.dataset import Labels, Split
from fedmlh.federated.client import Client
from fedmlh.federated.mail import Participant
from fedmlh.federated.sharing import add_points
from fedmlh.federated.task import Seeds, Task
from fedmlh.oneround.exchange import Respondent
from fedmlh.runs.rounds import Clients


@dataclass(frozen=True)
class Population:
    """The points of every client, and what all clients agree on."""

    task: Task
    seeds: Seeds
    shards: Mapping[int, Split]
    shared: bytes  # points that everyone has, encoded; empty: none
    labels: Labels
    device: torch.device

    def points(self, client_id: int) -> tuple[csr_matrix, csr_matrix]:
        """Return the points that a client trains on: its own, followed by the shared ones."""
        return add_points(self.shards[client_id].X, self.shards[client_id].Y, self.shared)

    @property
    def trains(self) -> bool:
        """Say whether clients train networks; else they send sums over their points."""
        return self.task.config.training != "one-round"

    @property
    def most_asked(self) -> int:
        """Return how many clients are asked at a time."""
        return min(self.task.config.clients_per_round, len(self.shards)) if self.trains else len(self.shards)

    def member(self, client_id: int) -> Participant:
        """Return a client, ready to answer."""
        if not self.trains:
            return Respondent(self.task, client_id, *self.points(client_id), self.labels)
        client = Client(self.task, client_id, *self.points(client_id), self.labels, self.device)
        client.prepare(self.seeds)
        return client


#: Makes the clients of a population for as long as the context lasts, on this many workers (None: as many as fit).
Engine = Callable[[Population, int | None], AbstractContextManager[Clients]]
