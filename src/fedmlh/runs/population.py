"""Simulated clients before an engine gives them a place to live."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from scipy.sparse import csr_matrix

from fedmlh.data.dataset import Labels, Split
from fedmlh.federated.client import Client
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

    def points(self, number: int) -> tuple[csr_matrix, csr_matrix]:
        """What a client trains on: its own points, and after them the shared ones."""
        return add_points(self.shards[number].X, self.shards[number].Y, self.shared)

    @property
    def answers_once(self) -> bool:
        """Whether clients send sums over their points instead of training rounds."""
        return self.task.config.training == "one-round"

    def respondent(self, number: int) -> Respondent:
        """One of them that sends sums."""
        return Respondent(self.task, number, *self.points(number), self.labels)

    def client(self, number: int) -> Client:
        """One of them that trains."""
        return Client(self.task, number, *self.points(number), self.labels, self.device)


#: Lets a population live as long as the context lasts, on so many workers (None: as many as there is room for).
Engine = Callable[[Population, int | None], AbstractContextManager[Clients]]
