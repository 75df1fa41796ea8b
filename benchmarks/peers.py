"""Whole rounds in pfl and in Flower compared with the product's, in one run; needs `requirements-peers.txt`.

    python benchmarks/peers.py [--turns 3] [--rounds 12]

Every contestant trains the same 4 clients for 5 epochs per round (Adam, BCE summed over the R tables, batch 100), sends
and averages their models, and continues from the average, on all cores. The first round's mean loss in its last epoch
must be the same for all: they start from the same model and take the points in the order that the product draws.

- product: `Server.run_round` over `LocalClients`: wire format, checks and the exact average are part of it;
- product, in memory: the same training and average of the same models with no messages, which is what pfl does too;
- pfl: FederatedAveraging over SimulatedBackend, in-memory dense tensors (its way), torchrun with one process per core
  and one thread each;
- pfl, one process: the same as its quick start runs it, with a thread per core;
- flower: FedAvg and a ClientApp on Ray, one CPU and so one thread per client, as many clients at a time as there are
  cores, which was faster than one client at a time with a thread per core; `toarray` per batch;
- pfl, easy and flower, easy: the same with fused Adam, and in Flower with the points made dense once in each actor.

Each simulation runs in its own process. Its start (seconds with Ray) and its first rounds, the warm-up, do not count.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache, partial
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import torch
from rounds import BATCH, CLIENTS, EPOCHS, RATE, SHAPES, describe_machine, make_module, make_shard, train_clients
from torch import nn

from fedmlh.config import Config
from fedmlh.data.dataset import Labels
from fedmlh.engines.local import LocalClients
from fedmlh.federated.aggregate import Average
from fedmlh.federated.client import Client
from fedmlh.federated.server import Server
from fedmlh.federated.task import Seeds, Task
from fedmlh.model.local_training import HashedShard
from fedmlh.model.stack import Stack
from fedmlh.model.threads import one_thread
from fedmlh.randomness import generator

SHAPE, SEED, WARM_UP = "eurlex-4k", 0, 2
HERE = Path(__file__).parent
#: Nothing may use the network while it is timed.
ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


class Work(NamedTuple):
    """The model and points from which every contestant starts."""

    stack: Stack
    start: torch.Tensor  # [P]
    shards: list[HashedShard]


@cache
def load() -> Work:
    """Return the same model and points in every process."""
    dim, hidden, tables, outputs = SHAPES[SHAPE][:4]
    stack = Stack(tables, dim, hidden, outputs)
    drawn = [make_shard(np.random.default_rng(seed), SHAPES[SHAPE]) for seed in range(CLIENTS)]
    shards = [HashedShard(shard.features, tuple(part.sign() for part in shard.buckets)) for shard in drawn]
    return Work(stack, stack.initial(SEED), shards)


@cache
def load_dense(client: int) -> tuple[torch.Tensor, ...]:
    """Return a client's input and the targets of all tables as dense tensors."""
    shard = load().shards[client]
    return tuple(torch.from_numpy(part.toarray()) for part in (*shard.features, *shard.buckets))


def order(round_index: int, client: int) -> np.ndarray:
    """Return the order in which the product trains on a client's points in that round.  # [E, n]"""
    rng = generator(SEED, "local training", round_index, 0, client)
    return np.stack([rng.permutation(len(load().shards[client])) for _ in range(EPOCHS)])


class Tables(nn.Module):
    """R modules as one model; its loss is summed over tables, so that each is trained as if it were alone."""

    def __init__(self, stack: Stack, start: torch.Tensor) -> None:
        super().__init__()
        self.tables = nn.ModuleList(make_module(stack, start, table) for table in range(stack.num_tables))
        self._losses: list[float] = []

    def loss(self, inputs: torch.Tensor, *targets: torch.Tensor) -> torch.Tensor:
        """Return the loss of a batch, to be minimized."""
        criterion = nn.functional.binary_cross_entropy_with_logits
        value = sum(criterion(table(inputs), part) for table, part in zip(self.tables, targets, strict=True))
        self._losses.append(float(value.detach()) / len(self.tables))
        return value

    def take_loss(self) -> float:
        """Return the mean loss of a table in the last epoch since the last call; all batches are full."""
        last = self._losses[-len(self._losses) // EPOCHS :]
        self._losses = []
        return float(np.mean(last))


class Timed(NamedTuple):
    """The moments at which the first round began and each ended, and the first round's mean loss."""

    moments: list[float]
    loss: float

    def seconds(self) -> list[float]:
        """Return how long each round after the warm-up took."""
        return [end - begin for begin, end in pairwise(self.moments)][WARM_UP:]


class Site(Client):
    """A client whose points are hashed already."""

    def __init__(self, task: Task, number: int, shard: HashedShard) -> None:
        nameless = Labels.numbered(task.num_labels)
        super().__init__(task, number, shard.features[0], shard.buckets[0], nameless, torch.device("cpu"))
        self._shard = shard

    def prepare(self, seeds: Seeds) -> HashedShard:
        """Return the points as they are."""
        return self._shard


def run_product(rounds: int) -> Timed:
    """Run the product's server and clients in this process."""
    stack, _, shards = load()
    config = Config(
        seed=SEED,
        num_clients=CLIENTS,
        clients_per_round=CLIENTS,
        local_epochs=EPOCHS,
        batch_size=BATCH,
        learning_rate=RATE,
        num_tables=stack.num_tables,
        num_buckets=stack.num_outputs,
        feature_dim=stack.num_inputs,
        hidden_sizes=stack.hidden,
    )
    task = Task(config, stack.num_inputs, stack.num_outputs)
    clients = {number: Site(task, number, shard) for number, shard in enumerate(shards)}
    server = Server(task, {number: len(client) for number, client in clients.items()}, torch.device("cpu"))
    local = LocalClients(clients, os.cpu_count() or 1)
    state, moments, losses = server.begin(), [time.perf_counter()], []
    for _ in range(rounds):
        state, report = server.run_round(state, local.exchange)
        assert len(report.accepted) == CLIENTS, report.refused
        moments.append(time.perf_counter())
        losses.append(report.loss)
    return Timed(moments, losses[0])


def run_in_memory(rounds: int) -> Timed:
    """Run only the product's training and average."""
    stack, model, shards = load()
    moments, losses = [time.perf_counter()], []
    for number in range(1, rounds + 1):
        trained = train_clients(stack, model, shards, [order(number, client) for client in range(CLIENTS)])
        average = Average(len(model), CLIENTS, model.device)
        with one_thread():  # as the product's server averages: among the clients' threads
            for values, _ in trained:
                average.add(values - model, 1)
            model = model + average.result()
        moments.append(time.perf_counter())
        losses.append(float(np.mean([loss for _, loss in trained])))
    return Timed(moments, losses[0])


def run_peer(command: list[str], form: str, rounds: int, threads: int | None = 1) -> Timed:
    """Run a peer's script in its own process; it writes when each round ended, and the first round's loss."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "timed.json"
        done = subprocess.run(
            [sys.executable, *command, form, str(rounds), str(target)],
            env=os.environ | ENVIRONMENT | {"OMP_NUM_THREADS": str(threads or os.cpu_count())},
            capture_output=True,
            text=True,
        )
        if not target.exists():
            raise SystemExit(f"{' '.join(command)} wrote nothing:\n{done.stdout}{done.stderr}")
        return Timed(**json.loads(target.read_text()))


def make_peers() -> dict[str, Callable[[int], Timed]]:
    """Return the peers by name, each in both forms."""
    # The module, not the `torchrun` on the PATH, which may belong to another environment.
    torchrun = f"-m torch.distributed.run --standalone --nproc-per-node={min(CLIENTS, os.cpu_count() or 1)}".split()
    commands = {"pfl": [*torchrun, str(HERE / "peer_pfl.py")], "flower": [str(HERE / "peer_flower.py")]}
    peers = {
        name if form == "plain" else f"{name}, {form}": partial(run_peer, command, form)
        for name, command in commands.items()
        for form in ("plain", "easy")
    }
    alone = "-m torch.distributed.run --standalone --nproc-per-node=1".split()
    return {**peers, "pfl, one process": partial(run_peer, [*alone, str(HERE / "peer_pfl.py")], "plain", threads=None)}


def measure(turns: int, rounds: int) -> dict[str, dict[str, object]]:
    """Return the seconds per round of each contestant; the product runs before and after every peer."""
    product = {"product": run_product, "product, in memory": run_in_memory}
    peers = make_peers()
    contestants = product | peers
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    losses: dict[str, float] = {}
    turn = [name for peer in peers for name in (*product, peer)]
    for name in [*turn * turns, *product]:
        timed = contestants[name](rounds)
        seconds[name] += timed.seconds()
        losses[name] = timed.loss
    assert max(losses.values()) - min(losses.values()) < 1e-4 * min(losses.values()), losses
    return {
        name: {
            "seconds": {"min": min(values), "median": median(values), "max": max(values)},
            "rounds": len(values),
            "ratio": median(values) / median(seconds["product"]),
            "loss": losses[name],
        }
        for name, values in seconds.items()
    }


def main() -> None:
    """Measure, print a table, write the results."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=12, help="a simulation, warm-up among them")
    arguments = parser.parse_args()
    rows = measure(arguments.turns, arguments.rounds)
    print(f"{'seconds per round':20}{'min':>8}{'median':>8}{'max':>8}{'ratio':>8}{'loss':>12}")
    for name, row in rows.items():
        shown = "".join(f"{value:8.3f}" for value in row["seconds"].values())
        print(f"{name:20}{shown}{row['ratio']:8.2f}{row['loss']:12.6f}")
    versions = {name: version(name) for name in ("pfl", "flwr", "ray", "numba", "numpy")}
    results = {"machine": describe_machine(), "versions": versions, "shape": SHAPE, "rows": rows}
    (HERE / "results" / "peers.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
