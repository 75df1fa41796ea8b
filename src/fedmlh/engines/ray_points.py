"""The points of all clients in Ray's object store: one copy on every machine of a cluster."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_matrix, vstack

from fedmlh.data.dataset import Labels
from fedmlh.federated.client import Client
from fedmlh.federated.mail import Participant
from fedmlh.federated.sharing import add_points
from fedmlh.federated.task import Seeds, Task
from fedmlh.model.local_training import HashedShard
from fedmlh.oneround.exchange import Respondent
from fedmlh.runs.population import Population

#: Data, indices, indptr and number of columns of a sparse matrix.
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, int]


@dataclass(frozen=True)
class ClusterPoints:
    """The points of all clients, one client after the other, followed by the shared points.

    They are hashed if clients train networks, and raw if clients answer in one round.
    """

    task: Task
    seeds: Seeds
    labels: Labels
    matrices: tuple[Arrays, ...]
    bounds: Mapping[int, tuple[int, int]]  # the rows of each client
    shared: tuple[int, int]

    @classmethod
    def gather(cls, population: Population) -> "ClusterPoints":
        """Take all points of a population."""
        task, bounds, end = population.task, {}, 0
        for client_id, shard in population.shards.items():
            bounds[client_id] = (end, end + len(shard))
            end += len(shard)
        X, Y = (vstack([getattr(shard, part) for shard in population.shards.values()], "csr") for part in "XY")
        X, Y = add_points(X, Y, population.shared)
        matrices = (X, Y)
        if population.trains:
            whole = Client(task, 0, X, Y, population.labels, population.device).prepare(population.seeds)
            matrices = (*whole.features, *whole.buckets)
        arrays = tuple((matrix.data, matrix.indices, matrix.indptr, matrix.shape[1]) for matrix in matrices)
        return cls(task, population.seeds, population.labels, arrays, bounds, (end, X.shape[0]))

    def member(self, client_id: int) -> Participant:
        """Return a client, with a copy of its points."""
        if self.task.config.training == "one-round":
            X, Y = self._cut(client_id)
            return Respondent(self.task, client_id, X, Y, self.labels)
        return Client.from_shard(self.task, client_id, self.seeds, self.shard(client_id), torch.device("cpu"))

    def shard(self, client_id: int) -> HashedShard:
        """Return a copy of a client's hashed shard: loops compiled for read-only memory might round differently."""
        parts = self._cut(client_id)
        return HashedShard(tuple(parts[: -self.task.num_tables]), tuple(parts[-self.task.num_tables :]))

    def count(self, client_id: int) -> int:
        """Return how many points a client has."""
        begin, end = self.bounds[client_id]
        return end - begin + self.shared[1] - self.shared[0]

    def _cut(self, client_id: int) -> list[csr_matrix]:
        ranges = [rows for rows in (self.bounds[client_id], self.shared) if rows[0] < rows[1]]
        parts = [[_cut(arrays, *rows) for rows in ranges] for arrays in self.matrices]
        return [vstack(part, "csr") if len(part) > 1 else part[0] for part in parts]


def _cut(arrays: Arrays, begin: int, end: int) -> csr_matrix:
    """Return rows of a matrix, copied."""
    data, indices, indptr, width = arrays
    first, last = indptr[begin], indptr[end]
    part = (data[first:last], indices[first:last], indptr[begin : end + 1] - first)
    return csr_matrix(part, shape=(end - begin, width), copy=True)
