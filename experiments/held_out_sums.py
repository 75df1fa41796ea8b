"""λ chosen on the server's validation points, or from held-out sums if the server has no points.

python experiments/held_out_sums.py OUT.json DATA_FOLDER...
python experiments/held_out_sums.py --table OUT.json

10 clients, iid, seed 0; only the source of λ is set. Without validation points the power of counts is 0.05.
Runs that OUT.json holds are not repeated.
"""

import json
from itertools import product
from pathlib import Path
from typing import Any

from script import make_parser, run_missing, show_precision, table, train, write

import fedmlh
from fedmlh.runs.jobs import Found, Job

_KEPT = ("precision", "ridge", "ridge_from", "count_power", "bytes_up", "bytes_down", "seconds_per_round", "slots")
COMMON = {"partition": "iid", "num_clients": 10, "device": "cpu"}
#: Settings of each way.
WAYS: dict[str, dict[str, Any]] = {
    "validation": {},
    "held-out sums": {"validation_fraction": 0.0},
    "default": {"validation_fraction": 0.0, "ridge": 1.0},
}


def measure(data: str, way: str) -> dict[str, Any]:
    """Run one way on one data set."""
    config = fedmlh.Config.load("one-round").replace(data=data, **COMMON, **WAYS[way])
    summary, _ = train(config, data)
    return {name: summary[name] for name in _KEPT}


class Sets:
    """Results by data set and way, in one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sets: dict[str, dict[str, Found]] = json.loads(path.read_text()) if path.exists() else {}

    def find(self, job: Job) -> Found | None:
        """Return the result of a way, if it is known."""
        return self.sets.get(job.key["data"], {}).get(job.key["way"])

    def keep(self, job: Job, found: Found) -> None:
        """Add the result of a way."""
        self.sets.setdefault(job.key["data"], {})[job.key["way"]] = found
        write(self.path, self.sets)


def show(result: dict[str, dict[str, Found]]) -> str:
    """Write the table."""
    heads = ["", "by validation: λ, power", "P@1/3/5", "by held-out sums: λ", "P@1/3/5", "λ = 1: P@1/3/5", "up, MiB"]
    rows = []
    for name, entry in result.items():
        points, sums, default = (entry[way] for way in WAYS)
        rows.append(
            [
                name,
                f"{points['ridge']:g}, {points['count_power']:g}",
                show_precision(points["precision"]),
                f"{sums['ridge']:g}",
                show_precision(sums["precision"]),
                show_precision(default["precision"]),
                f"{points['bytes_up'] / 2**20:.1f}, {sums['bytes_up'] / 2**20:.1f}",
            ]
        )
    return table(heads, rows)


def main() -> None:
    """Measure what is asked for and keep it, or show kept results."""
    parser = make_parser(__doc__)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("data", nargs="*")
    parser.add_argument("--table", type=Path)
    arguments = parser.parse_args()
    if arguments.table:
        print(show(json.loads(arguments.table.read_text())))
        return
    jobs = [
        Job({"data": Path(data).name, "way": way}, measure, (data, way)) for data, way in product(arguments.data, WAYS)
    ]
    run_missing(jobs, Sets(arguments.out), arguments)


if __name__ == "__main__":
    main()
