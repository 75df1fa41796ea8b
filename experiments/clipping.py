"""How many updates of honest clients are scaled down, over partitions, codecs, optimizers and sizes of clients.

python experiments/clipping.py ROOT RESULT.json [--jobs 2]     ROOT holds the data sets' folders
python experiments/clipping.py --table RESULT.json

Runs that RESULT.json holds are not repeated.
"""

import json
from pathlib import Path
from typing import Any

from script import Rows, make_parser, run_missing, table, train

import fedmlh
from fedmlh.runs.jobs import Job, describe_machine

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
#: All of them: data set, preset and settings.
RUNS: dict[str, tuple[str, str, Settings]] = {
    **{f"{data}, {name}": (data, "recommended", way) for data in SETS for name, way in PARTITIONS.items()},
    **{f"EurLex titles, {name}": (SETS[0], *way) for name, way in OTHERS.items()},
}


def measure(data: str, preset: str, settings: Settings) -> dict[str, Any]:
    """Run 12 rounds, and count the updates that were scaled down or refused."""
    config = fedmlh.Config.load(preset).replace(training="rounds", data=data, rounds=12, device="cpu", **settings)
    _, records = train(config, data)
    factors = [entry["factor"] for record in records for entry in record["clipped"]]
    return {
        "updates": sum(len(record["clients"]) for record in records),
        "factors": sorted(factors),
        "refused": sum(len(record["refused"]) for record in records),
        "clamped": sum(record["clamped"] for record in records),
        "machine": describe_machine("cpu"),
    }


def show(result: list[dict[str, Any]]) -> str:
    """Write the table."""
    rows = []
    for run in sorted(result, key=lambda run: list(RUNS).index(run["name"])):
        smallest = f"{min(run['factors']):.2f}" if run["factors"] else ""
        rows.append([run["name"], str(run["updates"]), str(len(run["factors"])), smallest, str(run["refused"])])
    return table(["honest clients", "updates", "scaled down", "smallest factor", "refused"], rows)


def main() -> None:
    """Measure all and keep the results, or show kept results."""
    parser = make_parser(__doc__)
    parser.add_argument("root", type=Path, nargs="?")
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--table", type=Path)
    arguments = parser.parse_args()
    if arguments.table:
        print(show(json.loads(arguments.table.read_text())))
        return
    kept = Rows(arguments.out)
    jobs = [Job({"name": name}, measure, (str(arguments.root / data), *way)) for name, (data, *way) in RUNS.items()]
    run_missing(jobs, kept, arguments)
    print(show(kept.rows))


if __name__ == "__main__":
    main()
