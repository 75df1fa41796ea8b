"""What each codec does to one real update: python experiments/codecs.py DATA experiments/results/codecs.json

The update is that of the first client in round 3, with the preset eurlex-4k, softmax and a feature map per table.
"""

import sys
import time
from pathlib import Path

import torch
from script import table, write
from torch import Tensor

from fedmlh import Config
from fedmlh.data.division import divide
from fedmlh.data.source import open_dataset
from fedmlh.engines.local import live_in_process
from fedmlh.federated.codecs import make_codec, update_draws
from fedmlh.federated.messages import UpdateHeader, unpack
from fedmlh.federated.server import Server
from fedmlh.federated.task import Task
from fedmlh.randomness import generator
from fedmlh.runs.jobs import describe_machine
from fedmlh.runs.population import Population

CODECS = "fp32 fp16 int8 int4 int2 topk-10% topk-1% sketch-25% sketch-10%".split()
#: These compress by themselves.
GRIDS = "grid-50% grid-100% grid-150% grid-199%".split()
ROUND = 3
DRAWS = 20


def main() -> None:
    """Measure bytes, relative error of one encoding and of the mean of many, and seconds."""
    change = find_update(sys.argv[1])
    names = [name + suffix for name in CODECS for suffix in ("", "+zlib")] + GRIDS
    rows = [measure(name, change) for name in names]
    result = {"machine": describe_machine("cpu"), "num_parameters": len(change), "draws": DRAWS, "codecs": rows}
    write(Path(sys.argv[2]), result)
    heads = ["codec", "bytes", "bits per value", "error of one", "error of the mean of 20", "encode, ms", "decode, ms"]
    digits = {"bytes": 0, "bits": 2, "error": 4, "error_mean": 4, "encode_ms": 0, "decode_ms": 0}
    lines = [[f"`{row['codec']}`", *(f"{row[name]:,.{places}f}" for name, places in digits.items())] for row in rows]
    print(table(heads, lines))


def find_update(data: str) -> Tensor:
    """Return the change of the model that a client sends, before encoding."""
    config = Config.load("eurlex-4k").replace(
        data=data, rounds=ROUND, loss="softmax", feature_map="per-table", learning_rate=0.003, device="cpu"
    )
    dataset, device = open_dataset(config), torch.device("cpu")
    task, shards = Task(config, dataset.num_features, dataset.num_labels), divide(dataset.train, config).shards
    server = Server(task, {number: len(shard) for number, shard in shards.items()}, device)
    state, client = server.begin(), min(server.sample(ROUND, 0))
    with live_in_process(Population(task, server.seeds, shards, b"", dataset.labels, device)) as clients:
        for _ in range(1, ROUND):
            state, _ = server.run_round(state, clients.exchange)
        broadcast = server.broadcast(state, 0, client)
        ((_, reply),) = clients.exchange([client], lambda client: broadcast)
    header, payload = unpack(UpdateHeader, reply, len(reply))
    draws = update_draws(server.seeds.run, header)
    return make_codec(config.update_codec).decode(payload, task.stack.num_parameters, draws)


def measure(name: str, change: Tensor) -> dict[str, object]:
    """Measure one codec on one vector."""
    codec, total, sizes, spent = make_codec(name), torch.zeros(len(change)), [], [0.0, 0.0]
    for draw in range(DRAWS):
        started = time.perf_counter()
        payload = codec.encode(change, generator(0, "experiment", draw))
        encoded = time.perf_counter()
        decoded = codec.decode(memoryview(payload), len(change), generator(0, "experiment", draw))
        spent[0] += encoded - started
        spent[1] += time.perf_counter() - encoded
        sizes.append(len(payload))
        error = float((decoded - change).norm() / change.norm())
        total += decoded
    size = sum(sizes) / DRAWS
    return {
        "codec": name,
        "bytes": round(size),
        "bits": round(8 * size / len(change), 3),
        "error": round(error, 5),
        "error_mean": round(float((total / DRAWS - change).norm() / change.norm()), 5),
        "encode_ms": round(1000 * spent[0] / DRAWS, 1),
        "decode_ms": round(1000 * spent[1] / DRAWS, 1),
    }


if __name__ == "__main__":
    main()
