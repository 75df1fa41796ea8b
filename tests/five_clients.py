"""A server and five clients whose points follow laws of their own; replies may go wrong on the way."""

import json

import numpy as np
import torch
from scipy.sparse import csr_matrix

from fedmlh.config import Config
from fedmlh.data.dataset import Labels
from fedmlh.engines.local import LocalClients
from fedmlh.federated.client import Client, Memory
from fedmlh.federated.server import Server
from fedmlh.federated.task import Task

CPU = torch.device("cpu")
D, P = 12, 15
SIZES = (11, 26, 15, 9, 18)
BASE = Config(
    seed=3, num_clients=5, clients_per_round=3, quorum=2, local_epochs=2, batch_size=6, num_tables=2, num_buckets=6,
    feature_map="none", hidden_sizes=(5,), optimizer="sgd", learning_rate=0.3, loss="softmax",
)  # fmt: skip
EVERYONE = {"clients_per_round": 5, "quorum": 5}
ALGORITHMS = ("fedmlh", "fedavg")
SMALL = Config(
    synthetic_points=200, synthetic_features=60, synthetic_labels=40, num_buckets=10, num_tables=2, feature_dim=16,
    hidden_sizes=(8,), num_clients=4, clients_per_round=2, local_epochs=1, batch_size=40, rounds=4, learning_rate=0.02,
)  # fmt: skip


def draw_points(sizes, seed=0, *, d=D, p=P):
    """Clients whose features and labels follow laws of their own."""
    rng = np.random.default_rng(seed)
    for n in sizes:
        shift, favoured = rng.normal(size=d), rng.random(p) ** 3
        X = (rng.normal(size=(n, d)) + shift) * (rng.random((n, d)) < 0.4)
        yield csr_matrix(X.astype(np.float32)), csr_matrix((rng.random((n, p)) < favoured / 2).astype(np.float32))


#: The points of five clients.
POINTS = list(draw_points(SIZES))


class Federation:
    """A server and its clients, whose replies may go wrong on the way."""

    def __init__(self, config, points, *, shared=b"", **settings):
        self.config = config.replace(**settings)
        (_, p), d = points[0][1].shape, points[0][0].shape[1]
        task = Task(self.config, d, p)
        self.clients = {k: Client(task, k, X, Y, Labels.numbered(p), CPU) for k, (X, Y) in enumerate(points)}
        self.server = Server(task, {k: len(client) for k, client in self.clients.items()}, CPU, shared)
        self.local, self.state = LocalClients(self.clients, 1), self.server.begin()
        self.down, self.up, self.asked = [], [], []
        self.attempt = 0

    def run(self, rounds, spoil=lambda round, attempt, client: False):
        """So many rounds; yields after each. A reply that `spoil` names loses its last byte."""
        for _ in range(rounds):
            self.attempt = -1

            def exchange(sampled, broadcast):
                self.attempt += 1
                self.asked.append(sampled)

                def noted(client):
                    self.down.append(broadcast(client))
                    return self.down[-1]

                for client, reply in self.local.exchange(sampled, noted):
                    assert isinstance(reply, bytes), reply
                    self.up.append(reply[:-1] if spoil(self.state.round + 1, self.attempt, client) else reply)
                    yield client, self.up[-1]

            self.state, report = self.server.run_round(self.state, exchange)
            yield report

    def finish(self, rounds):
        for _ in self.run(rounds):
            pass
        return self.state.model

    def settled(self, client):
        """What a client holds once it knows which of its updates was accepted."""
        memory = self.local.memories.get(client, Memory())
        return memory.settle(tuple(self.state.accepted.get(client, ())))


def bytes_down(folder):
    return [json.loads(line)["bytes_down"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
