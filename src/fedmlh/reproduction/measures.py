"""The measurements of jobs: a data set's labels, a training run, the cost of a round, theory on labels."""

import hashlib
import json
import shutil
import time
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix

from fedmlh.config import Config
from fedmlh.data.dataset import Dataset
from fedmlh.data.division import divide
from fedmlh.data.partition import fit_partition
from fedmlh.data.statistics import describe
from fedmlh.engines.local import live_in_process
from fedmlh.engines.run import run
from fedmlh.evaluation.costs import peak_memory_bytes, reset_peak_memory
from fedmlh.federated.messages import Rejected
from fedmlh.federated.server import Server
from fedmlh.federated.task import Task
from fedmlh.lock import hold
from fedmlh.model.device import pick_device
from fedmlh.randomness import generator
from fedmlh.reproduction.plan import Measurement
from fedmlh.reproduction.sources import Source
from fedmlh.reproduction.theory import check_hashing, check_rate
from fedmlh.runs.population import Population

#: Metrics of every round that was judged, which figures show.
CURVES = ("precision", "precision_paper", "precision_frequent", "precision_infrequent")
#: Figures of the selected round.
_KEPT = (
    *CURVES,
    *"best_round rounds num_parameters model_bytes bytes_up_to_best bytes_down_to_best paper_volume_bytes".split(),
    *("seconds_per_round", "peak_memory_bytes"),
)
#: How often rounds and local rounds are timed; none is begun after _ENOUGH seconds, and the first one warms up.
_ROUNDS, _REPEATS, _ENOUGH = 2, 3, 20.0
_CURVE_POINTS = 60
#: Seconds that a worker whose parent is gone may take to end.
_PATIENCE = 60.0


def measure(job: Measurement, scratch: Path) -> dict[str, Any]:
    """Return the result of a job; a training run keeps its checkpoints in `scratch` until it has finished."""
    measures: dict[str, Callable[[], dict[str, Any]]] = {
        "describe": lambda: describe_set(_open(job.source), job.config),
        "train": lambda: measure_training(job, scratch),
        "sweep": lambda: measure_training(job, scratch),
        "time": lambda: time_rounds(_open(job.source), job.config),
        "hash": lambda: check_hashing(_open(job.source), job.config, job.options["draws"]),
        "embed": lambda: check_rate(job.options["draws"]),
    }
    return measures[job.kind]()


@lru_cache(maxsize=1)
def _open(source: Source) -> Dataset:
    return source.open()


def measure_training(job: Measurement, scratch: Path) -> dict[str, Any]:
    """Run one training; return figures of its selected round, and a curve for each metric."""
    folder = find_scratch(job, scratch)
    with hold(folder, _PATIENCE):
        pass  # a worker of a call that was killed may be about to end
    # One worker: jobs run side by side, and the number of workers does not change a bit.
    summary = run(job.config, _open(job.source), folder, resume=True, progress=False, workers=1).summary
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    judged = "test" if job.config.selection == "paper" else "validation"
    curves = {
        metric: {k: [round(record[judged][metric][k], 5) for record in records] for k in summary[metric]}
        for metric in CURVES
    }
    costs = {name: [record[name] for record in records] for name in ("bytes_up", "bytes_down")}
    shutil.rmtree(folder)
    return {"summary": {name: summary[name] for name in _KEPT}, "judged_on": judged, "curves": curves, **costs}


def find_scratch(job: Measurement, scratch: Path) -> Path:
    """Return the folder of an unfinished run of exactly this job, with the same settings and data."""
    digest = hashlib.sha256(json.dumps(job.spec, sort_keys=True).encode()).hexdigest()[:12]
    return scratch / f"{job.key}-{digest}"


def describe_set(dataset: Dataset, config: Config) -> dict[str, Any]:
    """Return sizes, label frequencies, and how the two non-iid partitions distribute the most frequent labels."""
    counts = _count_labels(dataset.train.Y)
    share = np.sort(counts) / len(dataset.train)
    grid = np.geomspace(1 / len(dataset.train), max(share[-1], 2 / len(dataset.train)), _CURVE_POINTS)
    at_most = np.searchsorted(share, grid * (1 + 1e-9), side="right")  # labels with at most this frequency
    positives = np.concatenate([[0.0], np.cumsum(share)])
    top = np.argsort(-counts, kind="stable")[: config.num_clients]
    partitions = {}
    for partition in ("paper-code", "paper-text"):
        rng = generator(config.seed, "partition")
        clients = fit_partition(config.replace(partition=partition), dataset.train, rng)(dataset.train, rng)
        partitions[partition] = {
            "points": [len(rows) for rows in clients],
            "top_labels": [_count_labels(dataset.train.Y[rows])[top].tolist() for rows in clients],
            "reached": len(np.unique(np.concatenate(clients))) / len(dataset.train),
        }
    return {
        "statistics": describe(dataset),
        "frequency": grid.tolist(),
        "labels_at_most": (at_most / dataset.num_labels).tolist(),
        "positives_at_most": (positives[at_most] / positives[-1]).tolist(),
        "partitions": partitions,
    }


def _count_labels(Y: csr_matrix) -> np.ndarray:
    return np.bincount(Y.indices, minlength=Y.shape[1])


def time_rounds(dataset: Dataset, config: Config) -> dict[str, Any]:
    """Return what rounds of a config cost in bytes, memory and time; what they learn is not measured."""
    device = pick_device(config.device)
    reset_peak_memory()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    task = Task(config, dataset.num_features, dataset.num_labels)
    shards = divide(dataset.train, config).shards
    server = Server(task, {client_id: len(shard) for client_id, shard in shards.items()}, device)
    state, seconds, alone = server.begin(), list[float](), list[float]()
    with live_in_process(Population(task, server.seeds, shards, b"", dataset.labels, device)) as clients:
        while len(seconds) < _ROUNDS and sum(seconds) < _ENOUGH:
            began = time.perf_counter()
            state, report = server.run_round(state, clients.exchange)
            seconds.append(time.perf_counter() - began)
        message = server.broadcast(state, 0, 0)
        while len(alone) < _REPEATS and sum(alone) < _ENOUGH:
            began = time.perf_counter()
            replies = [reply for _, reply in clients.exchange([0], lambda client: message)]
            alone.append(time.perf_counter() - began)
            if isinstance(replies[0], Rejected):
                raise replies[0]
    return {
        "num_parameters": task.stack.num_parameters,
        "model_bytes": 4 * task.stack.num_parameters,
        "points_per_client": len(shards[0]),
        "bytes_up_round": report.bytes_up,
        # In the next round: the first sends no model, since the model follows from the seed.
        "bytes_down_round": config.clients_per_round * len(message),
        "seconds_round": seconds[-1],
        "seconds_local": median(alone),
        "peak_memory_bytes": peak_memory_bytes(),
        "gpu_memory_bytes": torch.cuda.max_memory_allocated() if device.type == "cuda" else None,
    }
