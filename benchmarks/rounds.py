"""A round's local training compared with what people write by hand, side by side in one run.

    python benchmarks/rounds.py [SHAPE …] [--repeats 5]

Every contestant trains the same S = 4 clients for E = 5 epochs on the same points from the same model, with Adam and
BCE over all R tables, on all cores of this machine, and must reach the same loss:

- product: `LocalClients.exchange`'s way: clients side by side, one thread each, the compiled loop;
- plain: (a) one nn.Module per table, torch.optim.Adam, `toarray` per batch, clients one after the other;
- best easy: (b) the same with the input made dense once and fused Adam.
"""

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import nn

from fedmlh.model.local_training import HashedShard, train_shard
from fedmlh.model.recipe import Recipe
from fedmlh.model.stack import Stack
from fedmlh.model.threads import one_thread

CLIENTS, BATCH, RATE, EPOCHS = 4, 100, 1e-3, 5
#: feature_dim, hidden sizes, R, B, nonzeros per point (hashed), positive buckets per point and table, points per client
SHAPES: dict[str, tuple[int, tuple[int, ...], int, int, int, int, int]] = {
    "eurlex-4k": (300, (150, 150), 4, 250, 22, 6, 1500),
    "wiki10-31k": (5000, (500, 500), 4, 1000, 90, 18, 500),
    "amazontitles-131k": (5000, (1000, 1000), 4, 4000, 8, 2, 300),
    "eurlex-4k, 160 nonzeros": (300, (150, 150), 4, 250, 160, 5, 1500),
    "wiki10-31k, 600 nonzeros": (5000, (500, 500), 4, 1000, 600, 18, 500),
    "lean 1000-84-250 × 4": (1000, (84,), 4, 250, 22, 6, 1500),
    "lean 5000-147-500 × 16": (5000, (147,), 16, 500, 90, 10, 500),
}


def make_shard(rng: np.random.Generator, shape: tuple[int, tuple[int, ...], int, int, int, int, int]) -> HashedShard:
    """Make points with exactly the given numbers of nonzeros and positives, and word frequencies like 1 / rank."""
    dim, _, tables, outputs, nonzeros, positives, points = shape
    return HashedShard(
        (draw(rng, points, dim, nonzeros),), tuple(draw(rng, points, outputs, positives) for _ in range(tables))
    )


def draw(rng: np.random.Generator, points: int, width: int, count: int) -> csr_matrix:
    """Draw rows of `count` different columns each; column c has the weight 1 / (c + 1)."""
    # Gumbel top-k: `count` different columns per row, drawn with weights 1 / rank.
    keys = -np.log(np.arange(1, width + 1)) + rng.gumbel(size=(points, width))
    columns = np.sort(np.argpartition(-keys, count, axis=1)[:, :count], axis=1)
    data = np.full(columns.size, 1 / np.sqrt(count), np.float32)
    return csr_matrix((data, columns.ravel(), np.arange(points + 1) * count), shape=(points, width))


def run_product(stack: Stack, start: torch.Tensor, shards: list[HashedShard]) -> float:
    """Train all clients side by side; return the mean loss."""
    orders = [draw_orders(number, len(shard)) for number, shard in enumerate(shards)]
    return float(np.mean([loss for _, loss in train_clients(stack, start, shards, orders)]))


def train_clients(
    stack: Stack, start: torch.Tensor, shards: list[HashedShard], orders: list[np.ndarray]
) -> list[tuple[torch.Tensor, float]]:
    """Return each client's model and loss after the epochs of the given orders [E, n]."""

    def work(number: int) -> tuple[torch.Tensor, float]:
        recipe = Recipe("bce", "adam", RATE, len(orders[number]), BATCH)
        return train_shard(stack, start, shards[number], recipe, orders[number])

    with one_thread(), ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(work, range(len(shards))))


def draw_orders(client: int, points: int) -> np.ndarray:
    """Draw the order of a client's points in each epoch.  # [E, n]"""
    rng = np.random.default_rng(client)
    return np.stack([rng.permutation(points) for _ in range(EPOCHS)])


def run_modules(stack: Stack, start: torch.Tensor, shards: list[HashedShard], *, easy: bool) -> float:
    """Train with the loop that people write; `easy`: dense input made beforehand, fused optimizer."""
    losses = []
    for number, shard in enumerate(shards):
        orders = draw_orders(number, len(shard))
        x = shard.features[0]
        dense = DENSE[id(x)] if easy else None
        for table in range(stack.num_tables):
            model = make_module(stack, start, table)
            step = torch.optim.Adam(model.parameters(), lr=RATE, fused=easy)
            criterion = nn.BCEWithLogitsLoss()
            for order in orders:
                total = 0.0
                for begin in range(0, len(order), BATCH):
                    rows = order[begin : begin + BATCH]
                    inputs = dense[rows] if dense is not None else torch.from_numpy(x[rows].toarray())
                    loss = criterion(model(inputs), torch.from_numpy(shard.buckets[table][rows].toarray()).sign())
                    step.zero_grad()
                    loss.backward()
                    step.step()
                    total += float(loss.detach()) * len(rows) / len(order)
            losses.append(total)
    return float(np.mean(losses))


DENSE: dict[int, torch.Tensor] = {}


def make_module(stack: Stack, start: torch.Tensor, table: int) -> nn.Sequential:
    """Return one table of the stack as its own module."""
    views = stack.views(start)
    layers: list[nn.Module] = []
    for weight, bias in zip(views[::2], views[1::2], strict=True):
        linear = nn.Linear(weight.shape[1], weight.shape[2])
        with torch.no_grad():
            linear.weight.copy_(weight[table].T)
            linear.bias.copy_(bias[table])
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def measure(name: str, repeats: int) -> dict[str, object]:
    """Return the median seconds per round of each contestant, measured in turns."""
    shape = SHAPES[name]
    dim, hidden, tables, outputs = shape[:4]
    stack = Stack(tables, dim, hidden, outputs)
    start = stack.initial(0)
    shards = [make_shard(np.random.default_rng(seed), shape) for seed in range(CLIENTS)]
    for shard in shards:
        DENSE[id(shard.features[0])] = torch.from_numpy(shard.features[0].toarray())
    contestants: dict[str, Callable[[], float]] = {
        "product": lambda: run_product(stack, start, shards),
        "plain": lambda: run_modules(stack, start, shards, easy=False),
        "best easy": lambda: run_modules(stack, start, shards, easy=True),
    }
    times: dict[str, list[float]] = {key: [] for key in contestants}
    losses = {key: contestant() for key, contestant in contestants.items()}  # warm-up, and the check
    assert max(losses.values()) - min(losses.values()) < 1e-4 * min(losses.values()), losses
    for _ in range(repeats):
        for key, contestant in contestants.items():
            began = time.perf_counter()
            contestant()
            times[key].append(time.perf_counter() - began)
    DENSE.clear()
    steps = CLIENTS * EPOCHS * -(-shape[6] // BATCH)
    middle = {key: median(values) for key, values in times.items()}
    return {
        "shape": name,
        "ms_per_step": {key: 1e3 * value / steps for key, value in middle.items()},
        "spread": {key: [1e3 * min(values) / steps, 1e3 * max(values) / steps] for key, values in times.items()},
        "ratio": {key: middle[key] / middle["product"] for key in middle},
        "loss": losses,
    }


def describe_machine() -> str:
    """Return the machine on which the figures were measured."""
    return (
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}"
    )


def main() -> None:
    """Measure the shapes that were named, or all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("shapes", nargs="*", metavar="SHAPE")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    rows = []
    for name in arguments.shapes or SHAPES:
        rows.append(measure(name, arguments.repeats))
        ms, ratio = rows[-1]["ms_per_step"], rows[-1]["ratio"]
        shown = "  ".join(f"{key} {ms[key]:.2f} ms ({ratio[key]:.1f}×)" for key in ms)
        print(f"{name}: {shown}", flush=True)
    target = Path(__file__).parent / "results" / "rounds.json"
    if not arguments.shapes:
        target.write_text(json.dumps({"machine": describe_machine(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
