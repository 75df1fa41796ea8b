"""`recommended` on raw texts: words and word pairs as they come, beside a label tree with all texts in one place.

    python experiments/raw_texts.py ROOT experiments/results/raw-texts.json [--seeds 3]
    python experiments/raw_texts.py ROOT --features DIR
    python experiments/raw_texts.py --table experiments/results/raw-texts.json [--central RESULTS_OF_THE_TREE]

ROOT holds the folders of the data sets. Each run has the whole machine, and adds its figures to the file when it ends;
runs that the file holds are not repeated. `--features` writes what the tree is trained on, for `central/plt.py`: words
and pairs that two training texts have, weighed by tf-idf.
"""

import json
import os
import tempfile
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from scipy.sparse import save_npz
from script import Rows, make_parser, mean_of, run_missing, show_precision, table

import fedmlh
from fedmlh.runs.jobs import Job

SETS = {
    "EurLex-EuroVoc-titles-4K": "EurLex titles",
    "WordNet-hypernyms-9K": "WordNet",
    "Debtags-600": "Debtags",
}
MIB = 2**20


def list_jobs(root: Path, seeds: int) -> Iterator[Job]:
    """Yield the runs, seed after seed; each has all cores."""
    for seed, data in product(range(seeds), SETS):
        yield Job({"data": data, "seed": seed}, measure, (str(root / data), seed), alone=True)


def measure(folder: str, seed: int) -> dict[str, Any]:
    """Train with nothing set but the seed, and return what came out."""
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(cores)
    began = time.perf_counter()
    dataset = fedmlh.load(folder, data_format="text")
    config = fedmlh.Config.load("recommended").replace(seed=seed)
    with tempfile.TemporaryDirectory() as out:
        summary = fedmlh.run(config, dataset, Path(out) / "run", progress=False).summary
    names = ("precision", "psp", "slots", "ridge", "count_power", "bytes_up", "bytes_down", "peak_memory_bytes")
    figures = {name: summary[name] for name in names if name in summary}
    return {**figures, "correction": summary["correction"], "seconds": time.perf_counter() - began, "cores": cores}


def write_features(root: Path, out: Path) -> None:
    """Write the sets as a user with all texts in one place would prepare them."""
    for name in SETS:
        dataset = fedmlh.load(root / name, data_format="text", text_features="tfidf")
        (out / name).mkdir(parents=True)
        for part, split in (("trn", dataset.train), ("tst", dataset.test)):
            save_npz(out / name / f"X.{part}.npz", split.X)
            save_npz(out / name / f"Y.{part}.npz", split.Y)


def show(path: Path, central: Path | None) -> str:
    """Write the table: means over seeds, with the standard deviation of the mean of P@k."""
    trees = {} if central is None else json.loads(central.read_text())
    lines = []
    for data, name in SETS.items():
        runs = [row for row in Rows(path).rows if row["data"] == data]
        if not runs:
            continue
        means = [mean_of(run["precision"]) for run in runs]
        precision = {k: fmean(run["precision"][k] for run in runs) for k in runs[0]["precision"]}
        sent = fmean(run["bytes_up"] + run["bytes_down"] for run in runs) / MIB
        spread = f" ± {stdev(means):.1f}" if len(means) > 1 else ""
        tree = trees.get(data)
        reference = (
            ["–", "–"] if tree is None else [show_precision(tree["precision"]), f"{mean_of(tree['precision']):.1f}"]
        )
        minutes = fmean(run["seconds"] for run in runs) / 60
        figures = [f"{runs[0]['slots']:,}", f"{sent:,.0f}", f"{minutes:.1f}", f"{len(runs)}"]
        lines.append([name, show_precision(precision), f"{fmean(means):.1f}{spread}", *reference, *figures])
    heads = ["", "`recommended`, P@1/3/5", "mean", "central PLT, P@1/3/5", "mean", "slots", "sent both ways, MiB"]
    return table([*heads, "minutes", "seeds"], lines)


def main() -> None:
    """Run what is missing, and print the table."""
    parser = make_parser(__doc__)
    parser.add_argument("root", type=Path, nargs="?", help="folder of the data sets")
    parser.add_argument("out", type=Path, nargs="?", help="file of results")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--features", type=Path, metavar="DIR", help="write the features of the label tree, and end")
    parser.add_argument("--table", type=Path)
    parser.add_argument("--central", type=Path, help="results of the label tree, for the table")
    arguments = parser.parse_args()
    if arguments.table is not None:
        print(show(arguments.table, arguments.central))
    elif arguments.root is not None and arguments.features is not None:
        write_features(arguments.root, arguments.features)
    elif arguments.root is None or arguments.out is None:
        parser.error("name ROOT and a file of results, or --table FILE")
    else:
        run_missing(list_jobs(arguments.root, arguments.seeds), Rows(arguments.out), arguments)
        print(show(arguments.out, arguments.central))


if __name__ == "__main__":
    main()
