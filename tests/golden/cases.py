"""The golden runs: which settings, on which engines, and what of a run is compared.

Bits depend on the instructions that a processor has. PINNED names one set of them that every x86-64 machine of the
last ten years has, so that the same hashes hold on all of these machines.
"""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedmlh.config import Config
from fedmlh.reproduction.former import recommend
from tiny import TINY

#: numba, OpenBLAS (in scipy), MKL and oneDNN (in torch), torch's own loops.
PINNED = {
    "NUMBA_CPU_NAME": "haswell",
    "NUMBA_CPU_FEATURES": "",
    "OPENBLAS_CORETYPE": "Haswell",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",
}

#: Few clients, so that each can be a site as well.
_SMALL: dict[str, Any] = {
    "device": "cpu",
    "rounds": 3,
    "num_clients": 4,
    "clients_per_round": 3,
    "quorum": 3,
    "partition": "dirichlet",
    "deadline": 300,
}
#: The preset as it was when its bits were written down.
_CODED = {"update_codec": "int4+zlib", "broadcast_codec": "int4+zlib"}
_SIZES = {"synthetic_points": 3000, "synthetic_features": 2000, "synthetic_labels": 1500}
_RECOMMENDED = recommend(1 << 20, 2000, 1500, patience=10, **_CODED, **_SIZES)
_SGD = {"optimizer": "sgd", "learning_rate": 0.1}

CASES: dict[str, Config] = {
    "demo": Config.load("demo").replace(**_SMALL),
    "demo-fedavg": Config.load("demo").replace(**_SMALL, algorithm="fedavg"),
    "eurlex-4k": Config.load("eurlex-4k").replace(**_SMALL, synthetic_points=3000, local_epochs=2),
    "recommended": _RECOMMENDED.replace(**_SMALL),
    "scaffold": TINY.replace(**_SMALL, **_SGD, correction="scaffold", update_codec="fp16"),
    "vrl-sgd": TINY.replace(**_SMALL | {"clients_per_round": 4, "quorum": 4}, **_SGD, correction="vrl-sgd"),
    "int4": TINY.replace(**_SMALL, update_codec="int4+zlib", broadcast_codec="int4+zlib"),
}

#: The run whose folders are kept in folders/, of before it had finished and after.
KEPT = CASES["int4"]

#: What a round's record is compared by; what later versions add to it says nothing about these.
_RECORDED = ("round", "attempts", "clients", "refused", "train_loss", "validation", "bytes_up", "bytes_down")


def describe(folder: Path) -> dict[str, Any]:
    """Name what a finished run gave: its model, what its rounds measured and what they sent."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    rounds = [{name: record[name] for name in _RECORDED} for record in records]
    return {
        "model": _hash((folder / "model" / "weights.safetensors").read_bytes()),
        "metrics": _hash(json.dumps(rounds, sort_keys=True).encode()),
        "bytes_up": sum(record["bytes_up"] for record in records),
        "bytes_down": sum(record["bytes_down"] for record in records),
    }


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def run_in_process(config: Config, out: Path) -> dict[str, Any]:
    """Run on this process's threads."""
    from fedmlh.data.source import open_dataset
    from fedmlh.engines.run import run

    return describe(run(config, open_dataset(config), out, progress=False).folder)


def run_on_ray(config: Config, out: Path) -> dict[str, Any]:
    """Run on two workers of Ray."""
    from fedmlh.data.source import open_dataset
    from fedmlh.engines.ray import live_on_ray
    from fedmlh.engines.run import run

    return describe(run(config, open_dataset(config), out, engine=live_on_ray, progress=False, workers=2).folder)


def run_replayed(config: Config, out: Path) -> dict[str, Any]:
    """Run in process, then once more from the log of who took part."""
    from fedmlh.data.source import open_dataset
    from fedmlh.engines.replay import read_log, replay
    from fedmlh.engines.run import run
    from fedmlh.runs.folder import RunFolder

    dataset = open_dataset(config)
    first = run(config, dataset, out / "first", progress=False)
    return describe(replay(*read_log(RunFolder(first.folder)), dataset, out / "again").folder)


def run_rehearsed(config: Config, out: Path) -> dict[str, Any]:
    """Run as a server and its sites, processes of this machine, over Flower."""
    from fedmlh.data.source import open_dataset
    from fedmlh.sites.flower.loopback import create_loopback, train_loopback

    federation = create_loopback(config, open_dataset(config), out)
    train_loopback(federation, lambda line: None)
    return describe(federation.run.path)


ENGINES: dict[str, Callable[[Config, Path], dict[str, Any]]] = {
    "process": run_in_process,
    "ray": run_on_ray,
    "replay": run_replayed,
    "flower": run_rehearsed,
}
