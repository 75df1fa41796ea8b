"""Candidates for the networks of `recommended` on several data sets, judged on validation alone.

    python experiments/networks/fit.py OUT.jsonl DATA_FOLDER... --stage NAME [--seeds 1] [--jobs 12] [--device cuda]

A candidate says how labels and features are mapped, how many tables there are, the budget and how clients train; the
width of the hidden layer is what the budget leaves. All points are dealt out (Dirichlet 0.3, K 10, S 4). A line per run
is added to OUT.jsonl as it ends, and what the file already holds is not run again. Figures of the test part are dropped
unread.
"""

import argparse
import json
import math
import multiprocessing
import platform
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import torch

import fedmlh
from fedmlh.sizing import fit_width, numbers_within, suggest_rate


@dataclass(frozen=True)
class Candidate:
    """One way to choose networks, whatever the data."""

    labels: str = "hashed"  # or identity
    tables: int = 8
    root: float = 12.0  # buckets, in √p
    features: int = 0  # per table; 0: all, as they are
    budget: float = 16.0  # MiB
    tau: float = 0.5
    average: float = 0.5
    rate: float = 1.0  # of what the width suggests
    decay: float = 1.0
    bias: str = "rare"
    weighting: str = "uniform"
    epochs: int = 5
    batch: int = 100
    decoding: str = "logits"
    clients: int = 10
    sampled: int = 4

    def configure(self, num_features: int, num_labels: int) -> fedmlh.Config | None:
        """Return the settings for such data; None where the budget leaves no network worth training."""
        outputs = num_labels
        if self.labels == "hashed":
            outputs = min(num_labels, max(32, round(self.root * math.sqrt(num_labels))))
            if outputs == num_labels:
                return None
        hashed = 0 < self.features < num_features
        if self.features and not hashed:
            return None
        inputs = self.features if hashed else num_features
        width = min(4096, fit_width(numbers_within(int(self.budget * 2**20), self.tables), inputs, outputs))
        if width < 8:
            return None
        base = fedmlh.Config.load("recommended")
        return base.replace(
            sizes="given",
            label_map="identity" if self.labels == "identity" else base.label_map,
            num_tables=self.tables,
            num_buckets=outputs,
            feature_map="per-table" if hashed else "none",
            feature_dim=inputs,
            hidden_sizes=(width,),
            loss_tau=self.tau,
            model_average=self.average,
            learning_rate=round(self.rate * suggest_rate(width), 5),
            learning_rate_decay=self.decay,
            output_bias=self.bias,
            weighting=self.weighting,
            local_epochs=self.epochs,
            batch_size=self.batch,
            decoding=self.decoding,
            partition="dirichlet",
            dirichlet_alpha=0.3,
            num_clients=self.clients,
            clients_per_round=self.sampled,
        )


BASE = Candidate()
FEDAVG = Candidate(labels="identity", tables=1)
#: Ways to map labels and features.
SHAPES = [
    FEDAVG,
    replace(FEDAVG, tables=4),
    replace(FEDAVG, tables=8, features=2000),
    BASE,
    replace(BASE, tables=4),
    replace(BASE, features=4000),
]
STAGES: dict[str, list[Candidate]] = {
    "shapes": [replace(shape, tau=tau) for tau, shape in product((0.5, 0.0, 1.0), SHAPES)],
}


@cache
def _load(folder: str) -> fedmlh.Dataset:
    return fedmlh.load(folder)


def _measure(folder: str, candidate: Candidate, seed: int, device: str) -> dict[str, Any] | None:
    torch.set_num_threads(1)
    dataset = _load(folder)
    config = candidate.configure(dataset.num_features, dataset.num_labels)
    if config is None:
        return None
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as out:
        run = fedmlh.run(config.replace(seed=seed, device=device), dataset, Path(out) / "run", workers=1)
        records = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    return {
        "best_round": run.summary["best_round"],
        "model_bytes": run.summary["model_bytes"],
        "width": config.hidden_sizes[0],
        "validation": {name: run.summary["validation"][name] for name in ("precision", "precision_infrequent", "psp")},
        "curve": [
            [record["bytes_up"], record["bytes_down"], *record["validation"]["precision"].values()]
            for record in records
        ],
        "seconds": time.perf_counter() - began,
        "machine": f"{platform.machine()}, torch {torch.__version__}, {device}",
    }


def read(path: Path) -> Iterator[dict[str, Any]]:
    """Yield what was run already."""
    if path.is_file():
        yield from map(json.loads, path.read_text().splitlines())


def main() -> None:
    """Run what is missing, as long as there is time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("data", nargs="+")
    parser.add_argument("--stage", choices=list(STAGES), required=True)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=12)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin no run after so many")
    arguments = parser.parse_args()
    stop = time.monotonic() + 60 * arguments.minutes
    done = [(run["data"], run["candidate"], run["seed"]) for run in read(arguments.out)]
    wanted = [
        (folder, candidate, seed)
        for seed, candidate, folder in product(range(arguments.seeds), STAGES[arguments.stage], arguments.data)
        if (Path(folder).name, asdict(candidate), seed) not in done
    ]
    waiting, jobs = iter(wanted), {}
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn")) as pool:

        def submit() -> None:
            job = next(waiting, None)
            if job is not None and time.monotonic() < stop:
                jobs[pool.submit(_measure, *job, arguments.device)] = job

        for _ in range(arguments.jobs):
            submit()
        while jobs:
            ended = next(as_completed(jobs))
            folder, candidate, seed = jobs.pop(ended)
            submit()
            found = ended.result()
            if found is None:
                continue
            run = {"data": Path(folder).name, "candidate": asdict(candidate), "seed": seed, **found}
            with arguments.out.open("a") as file:
                file.write(json.dumps(run) + "\n")
            mean = 100 * sum(found["validation"]["precision"].values()) / 3
            print(
                f"{run['data'][:8]} {mean:.2f} round {found['best_round']} {found['seconds']:.0f} s {candidate}",
                flush=True,
            )


if __name__ == "__main__":
    main()
