"""Central training (one client) on a published split: search on validation, then test the winner once a seed.

    python experiments/central/search.py DATA_FOLDER OUT.json

Every candidate is trained on the same training points and judged on the same validation points; the test part is
read only for the winner.
"""

import json
import platform
import sys
import tempfile
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

import fedmlh

SEARCH = {
    "hidden_sizes": [[], [256], [1024]],
    "loss": ["bce", "softmax"],
    "learning_rate": [3e-4, 1e-3, 3e-3],
    "normalize": [False, True],
}
CENTRAL = {
    "algorithm": "fedavg",
    "partition": "iid",
    "num_clients": 1,
    "clients_per_round": 1,
    "local_epochs": 1,
    "rounds": 60,
    "patience": 6,
    "feature_map": "none",
}
SEEDS = (0, 1, 2)


def main() -> None:
    """Search, then measure."""
    folder, target = Path(sys.argv[1]), Path(sys.argv[2])
    dataset = fedmlh.load(folder)
    base = fedmlh.Config(name=folder.name).replace(**CENTRAL)
    tried = []
    for values in product(*SEARCH.values()):
        settings = dict(zip(SEARCH, values, strict=True))
        validation = measure(base.replace(**settings), dataset)["validation"]["precision"]
        tried.append({"settings": settings, "validation_precision": validation})
        print(f"{settings}: {'/'.join(f'{100 * value:.1f}' for value in validation.values())}", flush=True)
    winner = max(tried, key=lambda entry: fmean(entry["validation_precision"].values()))
    tested = [measure(base.replace(seed=seed, **winner["settings"]), dataset) for seed in SEEDS]
    test = {
        k: {"mean": fmean(run["precision"][k] for run in tested), "sd": stdev(run["precision"][k] for run in tested)}
        for k in tested[0]["precision"]
    }
    result = {
        "data": folder.name,
        "fixed": CENTRAL,
        "tried": tried,
        "winner": winner["settings"],
        "seeds": SEEDS,
        "test_precision": test,
        "machine": f"{platform.processor() or platform.machine()}, torch {torch.__version__}",
    }
    target.write_text(json.dumps(result, indent=1) + "\n")
    print(
        "winner",
        winner["settings"],
        "test",
        {k: f"{100 * v['mean']:.1f} ± {100 * v['sd']:.1f}" for k, v in test.items()},
    )


def measure(config: fedmlh.Config, dataset: fedmlh.Dataset) -> dict[str, Any]:
    """The summary of one run; the run folder itself is not kept."""
    with tempfile.TemporaryDirectory() as scratch:
        return fedmlh.run(config, dataset, Path(scratch) / "run").summary


if __name__ == "__main__":
    main()
