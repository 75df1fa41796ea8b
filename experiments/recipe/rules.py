"""What the rules of `recommended` rest on: other tables, buckets, first biases and steps, on validation alone.

    python experiments/recipe/rules.py DATA_FOLDER OUT.json [--budget-mib 1.61] [--tables 4 8] [--roots 4 6]
        [--biases random rare] [--decays 0.95 1] [--seeds 4] [--jobs 2] [--device cpu]

Every combination of so many tables, buckets of so many times √p, output biases and decays; inputs, width and step
follow by the rules from what the budget leaves to a table. OUT.json is written after every run, and what it already
holds is not run again. Only validation figures are read or written.
"""

import argparse
import itertools
import json
import math
import tempfile
from pathlib import Path
from typing import Any

from measure import Run, read, recommend, run_all, write

import fedmlh
from fedmlh.sizing import default_budget, fit_network, numbers_within, suggest_rate

Variant = dict[str, Any]


def make_config(variant: Variant, dataset: fedmlh.Dataset, budget_mib: float) -> fedmlh.Config:
    """`recommended` with a variant's sizes and start."""
    budget = int(budget_mib * 2**20) or default_budget(dataset.num_labels)
    tables = variant["tables"]
    buckets = min(dataset.num_labels, max(32, round(variant["root"] * math.sqrt(dataset.num_labels))))
    inputs, width = fit_network(numbers_within(budget, tables), dataset.num_features, buckets)
    return recommend(0.0).replace(
        sizes="given",
        num_tables=tables,
        num_buckets=buckets,
        feature_map="none" if inputs == dataset.num_features else "per-table",
        feature_dim=inputs,
        hidden_sizes=(width,),
        learning_rate=suggest_rate(width),
        learning_rate_decay=variant["decay"],
        output_bias=variant["bias"],
    )


def _measure(config: fedmlh.Config, dataset: fedmlh.Dataset) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        run = fedmlh.run(config, dataset, Path(folder) / "run", workers=1)
        first = json.loads((run.folder / "metrics.jsonl").read_text().splitlines()[0])
    found = run.summary["validation"]
    return {
        "best_round": run.summary["best_round"],
        "validation": {name: found[name] for name in ("precision", "precision_infrequent", "psp")},
        "after_round_1": first["validation"]["precision"],
    }


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--budget-mib", type=float, default=0.0)
    parser.add_argument("--tables", type=int, nargs="+", default=[8])
    parser.add_argument("--roots", type=float, nargs="+", default=[4.0])
    parser.add_argument("--biases", nargs="+", default=["random"])
    parser.add_argument("--decays", type=float, nargs="+", default=[0.95])
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    dataset = fedmlh.load(arguments.data)
    result = read(arguments)
    names = ("tables", "root", "bias", "decay")
    choices = itertools.product(arguments.tables, arguments.roots, arguments.biases, arguments.decays)
    variants = [dict(zip(names, values, strict=True)) for values in choices]
    done = [(run["variant"], run["seed"]) for run in result["runs"]]
    jobs = [
        ({"variant": variant, "seed": seed}, make_config(variant, dataset, arguments.budget_mib))
        for variant, seed in itertools.product(variants, range(arguments.seeds))
        if (variant, seed) not in done
    ]
    for run in run_all(_measure, jobs, arguments):
        result["runs"].append(run)
        result["runs"].sort(key=lambda run: (list(run["variant"].values()), run["seed"]))
        write(arguments.out, result)
        shown = "/".join(f"{100 * value:.1f}" for value in run["validation"]["precision"].values())
        print(f"{run['variant']}, seed {run['seed']}: {shown}, best round {run['best_round']}", flush=True)


if __name__ == "__main__":
    main()
