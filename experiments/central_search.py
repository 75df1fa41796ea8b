"""Central training (one client) on a published split: search on validation, then test the winner once per seed.

    python experiments/central_search.py DATA_FOLDER OUT.json

Every candidate is trained on the same training points and judged on the same validation points; the test part is
read only for the winner. Results of an earlier call are kept beside OUT.json until all is done.
"""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from script import Rows, make_parser, mean_of, run_missing, train, write

import fedmlh
from fedmlh.runs.jobs import Job, describe_machine

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


def measure(folder: str, settings: dict[str, Any], seed: int, part: str) -> dict[str, Any]:
    """Return the precision of a run on validation, or on test."""
    config = fedmlh.Config(name=Path(folder).name).replace(seed=seed, **CENTRAL, **settings)
    summary, _ = train(config, folder)
    return {"precision": summary["precision"] if part == "test" else summary["validation"]["precision"]}


def main() -> None:
    """Search, then measure."""
    parser = make_parser(__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    kept = Rows(arguments.out.with_suffix(".jsonl"))

    def measure_all(candidates: list[dict[str, Any]], seeds: Sequence[int], part: str) -> list[dict[str, float]]:
        jobs = [
            Job(
                {"settings": settings, "seed": seed, "part": part}, measure, (str(arguments.data), settings, seed, part)
            )
            for settings, seed in product(candidates, seeds)
        ]
        return [found["precision"] for found in run_missing(jobs, kept, arguments)]

    candidates = [dict(zip(SEARCH, values, strict=True)) for values in product(*SEARCH.values())]
    tried = [
        {"settings": settings, "validation_precision": precision}
        for settings, precision in zip(candidates, measure_all(candidates, [0], "validation"), strict=True)
    ]
    winner = max(tried, key=lambda entry: mean_of(entry["validation_precision"]))["settings"]
    tested = measure_all([winner], SEEDS, "test")
    test = {k: {"mean": fmean(run[k] for run in tested), "sd": stdev(run[k] for run in tested)} for k in tested[0]}
    result = {
        "data": arguments.data.name,
        "fixed": CENTRAL,
        "tried": tried,
        "winner": winner,
        "seeds": SEEDS,
        "test_precision": test,
        "machine": describe_machine("auto"),
    }
    write(arguments.out, result)
    kept.path.unlink()
    shown = {k: f"{100 * value['mean']:.1f} ± {100 * value['sd']:.1f}" for k, value in test.items()}
    print("winner", winner, "test", shown)


if __name__ == "__main__":
    main()
