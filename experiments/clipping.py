"""How many updates of honest clients are scaled down, over partitions, codecs, optimizers and sizes of clients.

python experiments/clipping.py ROOT RESULT.json [--jobs 2]     ROOT holds the data sets' folders
python experiments/clipping.py --table RESULT.json
"""

import argparse
import json
import multiprocessing
import platform
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

import fedmlh

Settings = dict[str, Any]

SETS = ("EurLex-EuroVoc-titles-4K", "Bibtex", "Debtags-600", "Delicious")
SKEWED: Settings = {"partition": "dirichlet", "dirichlet_alpha": 0.05}
SGD: Settings = {"optimizer": "sgd", "learning_rate": 1.0}
PARTITIONS: dict[str, Settings] = {
    "paper-code": {},
    "Dirichlet 0.3": {"partition": "dirichlet"},
    "Dirichlet 0.05": SKEWED,
    "Dirichlet 0.3, K 50": {"partition": "dirichlet", "num_clients": 50, "clients_per_round": 5},
}
#: On EurLex titles, beside `recommended`.
OTHERS: dict[str, tuple[str, Settings]] = {
    **{
        f"{codec}, Dirichlet 0.3": ("recommended", {"update_codec": codec, "partition": "dirichlet"})
        for codec in ("fp16", "int2", "topk-5%", "topk-1%", "sketch-5%")
    },
    "server momentum, Dirichlet 0.3": ("recommended", {"server_optimizer": "momentum", "partition": "dirichlet"}),
    "server fedexp, Dirichlet 0.3": ("recommended", {"server_optimizer": "fedexp", "partition": "dirichlet"}),
    "the paper's FedMLH": ("eurlex-4k", {}),
    "the paper's FedAvg": ("eurlex-4k", {"algorithm": "fedavg"}),
    "sgd, Dirichlet 0.05": ("eurlex-4k", {**SGD, **SKEWED}),
    "sgd, softmax": ("eurlex-4k", {**SGD, "loss": "softmax"}),
    "scaffold with sgd, Dirichlet 0.05": ("eurlex-4k", {**SGD, **SKEWED, "correction": "scaffold"}),
    "scaffold with adam, Dirichlet 0.05": ("eurlex-4k", {**SKEWED, "correction": "scaffold"}),
    "vrl-sgd, Dirichlet 0.05": (
        "eurlex-4k",
        {**SGD, **SKEWED, "correction": "vrl-sgd", "clients_per_round": 10, "quorum": 10},
    ),
}


def measure(name: str, data: str, preset: str, settings: Settings) -> dict[str, Any]:
    """Run 12 rounds and count what was scaled down or refused."""
    torch.set_num_threads(1)
    config = fedmlh.Config.load(preset).replace(training="rounds", data=data, rounds=12, device="cpu", **settings)
    with tempfile.TemporaryDirectory() as folder:
        run = fedmlh.run(config, fedmlh.load(data), Path(folder) / "run", workers=1)
        records = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    factors = [entry["factor"] for record in records for entry in record["clipped"]]
    return {
        "name": name,
        "updates": sum(len(record["clients"]) for record in records),
        "factors": sorted(factors),
        "refused": sum(len(record["refused"]) for record in records),
        "clamped": sum(record["clamped"] for record in records),
        "machine": f"{platform.machine()}, torch {torch.__version__}",
    }


def show(result: list[dict[str, Any]]) -> str:
    """Write the table."""
    lines = [
        "| honest clients | updates | scaled down | smallest factor | refused |",
        "| --- | --- | --- | --- | --- |",
    ]
    for run in result:
        smallest = f"{min(run['factors']):.2f}" if run["factors"] else ""
        cells = [run["name"], str(run["updates"]), str(len(run["factors"])), smallest, str(run["refused"])]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measure all and keep it, or show what was kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, nargs="?")
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--table", type=Path)
    arguments = parser.parse_args()
    if arguments.table:
        print(show(json.loads(arguments.table.read_text())))
        return
    wanted = [(f"{data}, {name}", data, "recommended", way) for data in SETS for name, way in PARTITIONS.items()]
    wanted += [(f"EurLex titles, {name}", SETS[0], *way) for name, way in OTHERS.items()]
    found = {}
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn")) as pool:
        jobs = {
            pool.submit(measure, name, str(arguments.root / data), preset, settings): name
            for name, data, preset, settings in wanted
        }
        for job in as_completed(jobs):
            found[jobs[job]] = job.result()
            print(found[jobs[job]], flush=True)
    result = [found[name] for name, *_ in wanted]
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print(show(result))


if __name__ == "__main__":
    main()
