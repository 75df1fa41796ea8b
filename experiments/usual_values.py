"""What unusual values of settings do: python experiments/usual_values.py EURLEX OUT.json [--table]

The figures behind src/fedmlh/runs/guides.py: P@1 on the test part, one seed. `demo` is trained for eight rounds on a
Dirichlet partition. On EurLex titles, networks of `recommended` of 2 MiB are trained for four rounds. Runs that OUT
already has are not repeated; --table only shows OUT.
"""

from pathlib import Path
from typing import Any

from script import Rows, make_parser, run_missing, table, train

import fedmlh
from fedmlh.data.source import open_dataset
from fedmlh.runs.jobs import Job, describe_machine

DEMO = fedmlh.Config.load("demo").replace(partition="dirichlet", rounds=8, device="cpu")
EURLEX = fedmlh.Config.load("recommended").replace(training="rounds", budget_mib=2.0, rounds=4, device="cpu")
#: Data, a setting, its values (the last one is usual), and the other settings.
STUDIES: list[tuple[str, str, list[float], dict[str, Any]]] = [
    ("demo", "prox_mu", [0.01, 0], {}),
    ("demo", "prox_mu", [1e-4, 0], {"loss": "bce", "output_bias": "rare"}),
    ("demo", "learning_rate", [1, 0.01], {}),
    ("demo", "learning_rate", [0.01, 100, 10], {"optimizer": "sgd"}),
    ("EurLex", "learning_rate", [1, 3000, 300], {"optimizer": "sgd"}),
    ("demo", "server_learning_rate", [1, 0.01, 0.1], {"server_optimizer": "adam"}),
    ("EurLex", "server_learning_rate", [1], {"server_optimizer": "adam"}),
    ("demo", "server_learning_rate", [0.1, 3, 1], {"server_optimizer": "adagrad"}),
    ("demo", "loss_tau", [3, 1], {"loss": "balanced-bce"}),
    ("demo", "loss_tau", [3, 1], {"loss": "balanced-softmax"}),
]


def measure(data: str, setting: str, value: float, others: dict[str, Any]) -> dict[str, Any]:
    """Return P@k on test at the round that validation selects."""
    config = (DEMO if data == "demo" else EURLEX).replace(**others, **{setting: value})
    summary, _ = train(config, open_dataset(config) if data == "demo" else data)
    return {"precision": summary["precision"], "machine": describe_machine("cpu")}


def show(result: list[dict[str, Any]]) -> str:
    """Write a row per study: what each value gives."""
    found = {(row["data"], row["setting"], row["value"], str(row["others"])): row for row in result}
    rows = []
    for data, setting, values, others in STUDIES:
        runs = [found.get((data, setting, value, str(others))) for value in values]
        cells = [
            f"{value:g}: {100 * run['precision']['1']:.1f}" for value, run in zip(values, runs, strict=True) if run
        ]
        rows.append(
            [data, f"`{setting}`", ", ".join(f"{name} {value}" for name, value in others.items()), "; ".join(cells)]
        )
    return table(["data", "setting", "with", "P@1, %"], rows)


def main() -> None:
    """Measure what OUT does not have, and show OUT."""
    parser = make_parser(__doc__)
    parser.add_argument("eurlex", help="folder of EurLex titles")
    parser.add_argument("out", type=Path)
    parser.add_argument("--table", action="store_true", help="measure nothing")
    arguments = parser.parse_args()
    kept = Rows(arguments.out)
    if not arguments.table:
        jobs = []
        for data, setting, values, others in STUDIES:
            folder = data if data == "demo" else arguments.eurlex
            for value in values:
                key = {"data": data, "setting": setting, "value": value, "others": others}
                jobs.append(Job(key, measure, (folder, setting, value, others)))
        run_missing(jobs, kept, arguments)
    print(show(kept.rows))


if __name__ == "__main__":
    main()
