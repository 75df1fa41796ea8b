"""A server and five clients whose points follow distributions of their own; replies may go wrong on the way."""

import itertools
import json

import numpy as np
import torch
from scipy.sparse import csr_matrix

from fedmlh.config import Config
from fedmlh.data.dataset import Labels
from fedmlh.engines.local import LocalClients
from fedmlh.federated.client import Client, Memory
from fedmlh.federated.messages import Reason, Rejected
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
    """Draw clients whose features and labels follow distributions of their own."""
    rng = np.random.default_rng(seed)
    for n in sizes:
        shift, favoured = rng.normal(size=d), rng.random(p) ** 3
        X = (rng.normal(size=(n, d)) + shift) * (rng.random((n, d)) < 0.4)
        yield csr_matrix(X.astype(np.float32)), csr_matrix((rng.random((n, p)) < favoured / 2).astype(np.float32))


#: The points of five clients.
POINTS = list(draw_points(SIZES))


class Federation:
    """A server and its clients; replies may be lost, changed or repeated on the way."""

    def __init__(self, config=BASE, points=POINTS, *, labels=None, shared=b"", **settings):
        self.config = config.replace(**settings)
        (_, p), d = points[0][1].shape, points[0][0].shape[1]
        self.task = Task(self.config, d, p)
        labels = labels or Labels.numbered(p)
        self.clients = {k: Client(self.task, k, X, Y, labels, CPU) for k, (X, Y) in enumerate(points)}
        self.server = Server(self.task, {k: len(client) for k, client in self.clients.items()}, CPU, shared)
        self.local, self.state = LocalClients(self.clients, 1), self.server.begin()
        self.asked, self.sent, self.received = [], [], []

    @property
    def memories(self):
        """Return what the clients keep."""
        return self.local.memories

    def exchange(self, change=lambda attempt, client, reply: [reply]):
        """Make an exchange; `change` says what of a reply arrives: nothing, it, another, or several."""
        attempts = itertools.count()

        def exchange(sampled, broadcast):
            attempt = next(attempts)
            self.asked.append(sampled)

            def send(client):
                self.sent.append(broadcast(client))
                return self.sent[-1]

            for client, reply in list(self.local.exchange(sampled, send)):
                assert not isinstance(reply, Rejected) or reply.reason != Reason.FAILED, reply
                for arrived in change(attempt, client, reply):
                    self.received.append(arrived)
                    yield client, arrived

        return exchange

    def rounds(self, number, change=lambda attempt, client, reply: [reply]):
        """Run this many rounds, and yield the report of each."""
        for _ in range(number):
            self.state, report = self.server.run_round(self.state, self.exchange(change))
            yield report

    def run(self, number, state=None):
        """Run this many rounds from a state, or from where the last round ended; return the state after them."""
        self.state = state or self.state
        for _ in self.rounds(number):
            pass
        return self.state

    def settled(self, client):
        """Return what a client holds once it knows which of its updates was accepted."""
        memory = self.memories.get(client, Memory())
        return memory.settle(tuple(self.state.accepted.get(client, ())))


def bytes_down(folder):
    return [json.loads(line)["bytes_down"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
