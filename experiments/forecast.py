"""How far `fedmlh plan` is off for one round: bytes that it foresees, divided by bytes that runs have counted.

python experiments/forecast.py experiments/results/one-round.json DATA_FOLDER...
"""

import argparse
import json
from pathlib import Path
from typing import Any

from script import table

from fedmlh.data.readers.formats import load
from fedmlh.oneround.forecast import Occurrences
from fedmlh.planning.plan import plan_one_round

VARIANTS = {"K 10, iid": 10, "K 100, iid": 100}


def compare(folder: Path, runs: list[dict[str, Any]]) -> list[list[str]]:
    """Return a row per number of clients: slots and bytes, from the data and from totals."""
    dataset = load(folder, training_only=True)
    train = dataset.train
    (points, num_features), num_labels = train.X.shape, train.Y.shape[1]
    known = Occurrences.of(dataset)
    assumed = Occurrences.assume(points, num_features, train.X.nnz / points, num_labels, train.Y.nnz)
    rows = []
    for run in runs:
        if run["variant"] in VARIANTS:
            clients = VARIANTS[run["variant"]]
            row = [folder.name, f"{clients}", f"{run['slots']:,}"]
            for occurrences in (known, assumed):
                plan = plan_one_round(occurrences, num_features, num_labels, num_clients=clients)
                ratios = (getattr(plan, name) / run[name] for name in ("bytes_up", "bytes_down"))
                row += [f"{plan.slots:,}", *(f"{ratio:.2f}" for ratio in ratios)]
            rows.append(row)
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("data", type=Path, nargs="+")
    arguments = parser.parse_args()
    runs = json.loads(arguments.runs.read_text())
    heads = ["", "K", "slots", "with --data: slots", "up", "down", "from totals: slots", "up", "down"]
    rows = [row for folder in arguments.data for row in compare(folder, runs[folder.name]["runs"])]
    print(table(heads, rows))


if __name__ == "__main__":
    main()
