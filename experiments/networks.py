"""Candidates for the networks of `recommended`, and the rules that choose them, judged on validation only.

    python experiments/networks.py OUT.jsonl DATA_FOLDER... --stage NAME [--seeds 1] [--jobs 12] [--device cuda]
    python experiments/networks.py --table OUT.jsonl

A candidate sets how labels and features are mapped, the number of tables, the budget and how clients train; the width
of the hidden layer follows from the budget. Candidates showed which rules are worth a try. The stages `rules`, `alone`,
`knee` and `tables` try rules themselves (sizing.Rule), with one number of the rules changed at a time.
leave_one_out.py shows what the rules would cost a set on which they were not fitted.

Every point goes to one client (Dirichlet 0.3, K 10, S 4). Each run adds a line to OUT.jsonl when it ends; runs that the
file holds are not repeated. Figures of the test part are dropped unread.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from script import Rows, make_parser, mean_of, run_missing, table, train

import fedmlh
from fedmlh.runs.jobs import Job, describe_machine
from fedmlh.sizing import Rule, Shape, choose_sizes, fit_width, parameters_within


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
    rate: float = 1.0  # times the learning rate that the width suggests
    decay: float = 1.0
    bias: str = "rare"
    weighting: str = "uniform"
    epochs: int = 5
    batch: int = 100
    decoding: str = "logits"
    clients: int = 10
    sampled: int = 4

    def configure(self, shape: Shape) -> fedmlh.Config | None:
        """Return the settings for this data; None if the budget leaves no network worth training."""
        outputs = shape.labels
        if self.labels == "hashed":
            outputs = min(shape.labels, max(32, round(self.root * math.sqrt(shape.labels))))
            if outputs == shape.labels:
                return None
        hashed = 0 < self.features < shape.features
        inputs = self.features if hashed else shape.features
        width = min(4096, fit_width(parameters_within(int(self.budget * 2**20), self.tables), inputs, outputs))
        if width < 8:
            return None
        base = fedmlh.Config.load("recommended").replace(**FEDERATION)
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
            learning_rate=round(self.rate * 0.07 / math.sqrt(width), 5),
            learning_rate_decay=self.decay,
            output_bias=self.bias,
            weighting=self.weighting,
            local_epochs=self.epochs,
            batch_size=self.batch,
            decoding=self.decoding,
            num_clients=self.clients,
            clients_per_round=self.sampled,
        )


@dataclass(frozen=True)
class Change:
    """The rules of the product with one number changed, or one setting."""

    rule: tuple[tuple[str, float], ...] = ()
    settings: tuple[tuple[str, Any], ...] = ()

    def configure(self, shape: Shape) -> fedmlh.Config:
        """Return what these rules choose for data of this shape."""
        preset = fedmlh.Config.load("recommended").replace(**FEDERATION, **dict(self.settings))
        return choose_sizes(preset, shape, Rule(**dict(self.rule)))[0]  # type: ignore[arg-type]


FEDERATION: dict[str, Any] = {
    "training": "rounds",
    "partition": "dirichlet",
    "dirichlet_alpha": 0.3,
    "num_clients": 10,
    "clients_per_round": 4,
}


def _vary(numbers: dict[str, tuple[float, ...]], settings: dict[str, tuple[Any, ...]], **fixed: Any) -> list[Change]:
    """Return the rules as they are, then each with one number or setting changed."""
    always = tuple(fixed.items())
    rules = [Change(((name, value),), always) for name, values in numbers.items() for value in values]
    others = [Change((), (*always, (name, value))) for name, values in settings.items() for value in values]
    return [Change((), always), *rules, *others]


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
#: One choice changed at a time.
CHANGES: list[dict[str, Any]] = [
    {"tau": 0.25},
    {"rate": 0.5},
    {"average": 0.8},
    {"tau": 0.75},
    {"features": 8000},
    {"features": 2000},
    {"epochs": 2},
    {"weighting": "examples"},
    {"tau": 0.0},
    {"tau": 1.0},
    {"tables": 16},
    {"tables": 4},
    {"root": 24.0},
    {"root": 6.0},
    {"budget": 4.0},
    {"budget": 48.0, "features": 8000},
    {"rate": 0.25},
    {"average": 0.0},
    {"bias": "random"},
    {"epochs": 1},
]
HASHED = replace(BASE, features=4000)
STAGES: dict[str, list[Candidate] | list[Change]] = {
    "rules": _vary(
        {
            "roots": (5.0, 12.0),
            "inputs": (4.0, 8.0),
            "rate": (0.07, 0.2),
            "half_life": (350.0, 1400.0),
            "slope": (0.4, 0.9),
            "dense": (0.04, 0.16),
            "least_tables": (4, 12),
        },
        {"model_average": (0.0, 0.8), "weighting": ("examples",)},
    ),
    "alone": _vary(
        {"most_tau_alone": (0.0, 0.5), "rate": (0.07, 0.2), "half_life": (350.0, 1400.0)},
        {"model_average": (0.0, 0.8)},
        algorithm="fedavg",
    ),
    "knee": _vary({"least_budget": (2 << 20, 8 << 20, 16 << 20)}, {}),
    "tables": _vary({"width_share": (10.0, 0.5, 0.12)}, {}),
    "shapes": [replace(shape, tau=tau) for tau, shape in product((0.5, 0.0, 1.0), SHAPES)],
    "changes": [replace(HASHED, **change) for change in CHANGES],
    "budgets": [
        replace(shape, budget=budget, rate=0.7, root=8.0, features=round(times * math.sqrt(numbers)))
        for budget, shape, times in (
            (48.0, BASE, 5.5),
            (4.0, BASE, 5.5),
            (1.6, BASE, 5.5),
            (4.0, BASE, 3.5),
            (1.6, BASE, 3.5),
            (4.0, replace(BASE, tables=4), 5.5),
            (1.6, replace(BASE, tables=4), 5.5),
            (48.0, replace(BASE, tables=16), 5.5),
        )
        for numbers in [parameters_within(int(budget * 2**20), shape.tables)]
    ],
    # What costs least if a grid makes rows free that a client does not touch.
    "rows": [
        replace(shape, budget=budget, rate=0.7, root=8.0)
        for budget in (4.0, 1.6)
        for shape in (
            replace(FEDAVG, tau=0.25),
            replace(BASE, tables=4),
            BASE,
            replace(BASE, tables=2),
            replace(BASE, tables=4, features=2816 if budget == 4 else 1780),
            replace(BASE, features=1991 if budget == 4 else 1259),
            replace(BASE, tables=4, features=4500),
        )
    ],
    "fedavg": [
        replace(FEDAVG, **change)
        for change in (
            {"tau": 0.25, "rate": 0.5},
            {"tau": 0.0, "rate": 0.5},
            {"tau": 0.25, "rate": 0.5, "budget": 48.0},
            {"tau": 0.25, "rate": 0.5, "budget": 4.0},
            {"tau": 0.5, "rate": 0.5},
        )
    ],
}


def list_jobs(stage: str, folders: list[str], seeds: int, device: str) -> Iterator[Job]:
    """Yield all runs of a stage, seed after seed."""
    shapes = {folder: Shape.of(fedmlh.load(folder).train) for folder in folders}
    for seed, candidate, folder in product(range(seeds), STAGES[stage], folders):
        config = candidate.configure(shapes[folder])
        if config is not None:
            key = {"data": Path(folder).name, "candidate": asdict(candidate), "seed": seed}
            name = f"{key['data'][:8]}, seed {seed}, {candidate}"
            yield Job(key, measure, (folder, config.replace(seed=seed, device=device)), name)


def measure(folder: str, config: fedmlh.Config) -> dict[str, Any]:
    """Train a candidate; figures of the test part are dropped unread."""
    began = time.perf_counter()
    summary, records = train(config, folder)
    return {
        "best_round": summary["best_round"],
        "model_bytes": summary["model_bytes"],
        "width": config.hidden_sizes[0],
        "validation": {name: summary["validation"][name] for name in ("precision", "precision_infrequent", "psp")},
        "curve": [
            [record["bytes_up"], record["bytes_down"], *record["validation"]["precision"].values()]
            for record in records
        ],
        "seconds": time.perf_counter() - began,
        "machine": describe_machine(config.device),
    }


def show(runs: list[dict[str, Any]]) -> str:
    """Write the best round of every candidate on every set: mean of P@k on validation, MiB sent until then."""
    usual = asdict(BASE)
    cells: dict[str, dict[str, str]] = {}
    for run in runs:
        candidate = run["candidate"]
        changed = [
            f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in candidate.items()
            if value != usual[name] and name != "labels"
        ]
        sent = sum(up + down for up, down, *_ in run["curve"][: run["best_round"]]) / 2**20
        cell = f"{mean_of(run['validation']['precision']):.1f} ({sent:,.0f})"
        cells.setdefault(", ".join([candidate["labels"], *changed]), {})[run["data"]] = cell
    sets = sorted({run["data"] for run in runs})
    return table(["", *sets], ([name, *(found.get(data, "") for data in sets)] for name, found in cells.items()))


def main() -> None:
    """Run what is missing, as long as there is time."""
    parser = make_parser(__doc__)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("data", nargs="*")
    parser.add_argument("--stage", choices=list(STAGES))
    parser.add_argument("--table", type=Path)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no run after this many minutes")
    arguments = parser.parse_args()
    if arguments.table:
        print(show(Rows(arguments.table).rows))
        return
    jobs = list_jobs(arguments.stage, arguments.data, arguments.seeds, arguments.device)
    run_missing(jobs, Rows(arguments.out), arguments)


if __name__ == "__main__":
    main()
