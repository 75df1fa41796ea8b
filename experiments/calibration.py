"""How far probabilities are off: on the held-out half that judges, and on the test part, which chose nothing.

    python experiments/calibration.py ROOT experiments/results/calibration.json [--seeds 3] [--training NAME]
    python experiments/calibration.py --table experiments/results/calibration.json

ROOT holds the folders of the data sets. Errors are the mean gap between probability and share of true labels over each
point's five best labels, in 15 bins of as many labels each, for all labels and by training points per label. Each run
adds its figures to the file when it ends; runs that the file holds are not repeated.
"""

import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from script import Rows, load, make_parser, run_missing, table

import fedmlh
from fedmlh.evaluation.calibration import JUDGED, find_error
from fedmlh.evaluation.evaluate import Evaluator, LabelCounts
from fedmlh.evaluation.label_recall import BINS, list_bands
from fedmlh.evaluation.metrics import find_hits
from fedmlh.runs.jobs import Job
from fedmlh.runs.model_folder import load_bundle
from fedmlh.runs.model_tools import make_tools

SETS = {
    "EurLex-EuroVoc-titles-4K": "EurLex titles",
    "WordNet-hypernyms-9K": "WordNet",
    "Debtags-600": "Debtags",
}
#: Settings on top of `recommended`.
TRAININGS: dict[str, dict[str, Any]] = {
    "one round": {"training": "one-round", "correct": 0},
    "networks, 10 rounds": {"training": "rounds", "rounds": 10},
}


def list_jobs(root: Path, names: list[str], seeds: int) -> Iterator[Job]:
    """Yield the runs, seed after seed."""
    for seed, training, data in product(range(seeds), names, SETS):
        key = {"data": data, "training": training, "seed": seed}
        yield Job(key, measure, (str(root / data), TRAININGS[training], seed))


def measure(folder: str, settings: dict[str, Any], seed: int) -> dict[str, Any]:
    """Train, and return both errors."""
    config = fedmlh.Config.load("recommended").replace(**settings, seed=seed)
    dataset = load(folder)
    with tempfile.TemporaryDirectory() as out:
        done = fedmlh.run(config, dataset, Path(out) / "run", workers=1, progress=False)
        bundle = load_bundle(done.folder / "model")
        assert bundle.curve is not None
        counts = LabelCounts.of(dataset.train)
        features, ranker, model = make_tools(bundle, torch.device("cpu"))
        test = Evaluator(config, counts, features, ranker).prepare(dataset.test)
        ranked = list(ranker.rank(model, test.features, JUDGED, test.excluded))
    best = np.concatenate([labels for _, labels, _ in ranked])
    chances = bundle.curve.apply(np.concatenate([scores for *_, scores in ranked]))
    hits, there = find_hits(best, test.Y), best >= 0
    by_count = {
        name: find_error(chances[some], hits[some])
        for name, members in list_bands(counts.counts).items()
        if (some := there & members[np.maximum(best, 0)]).any()
    }
    on_test = {"points": len(best), "error": find_error(chances[there], hits[there]), "error_by_count": by_count}
    return {"precision": done.summary["precision"], "calibration": done.summary["calibration"], "test": on_test}


def show(path: Path) -> str:
    """Write the table of both errors: means over seeds, in percentage points."""
    rows = Rows(path).rows
    lines = []
    for data, training in product(SETS, TRAININGS):
        runs = [row for row in rows if (row["data"], row["training"]) == (data, training)]
        for part, name in (("calibration", "held out"), ("test", "test")):
            if runs:
                figures = [run[part] for run in runs]
                cells = [_show([figure["error"] for figure in figures], most=True)]
                for band, *_ in BINS:
                    known = [figure["error_by_count"].get(band) for figure in figures]
                    cells.append(_show([error for error in known if error is not None]))
                points = f"{figures[0]['points']:,}"
                lines.append([SETS[data], training, str(len(runs)), name, points, *cells])
    return table(["set", "training", "seeds", "part", "points", "all labels", *(band for band, *_ in BINS)], lines)


def _show(errors: list[float], *, most: bool = False) -> str:
    """Write the mean of errors; with `most` also the largest of them, if there are several."""
    if not errors:
        return "–"
    largest = f" (at most {100 * max(errors):.1f})" if most and len(errors) > 1 else ""
    return f"{100 * fmean(errors):.1f}{largest}"


def main() -> None:
    """Run what is missing, and print the table."""
    parser = make_parser(__doc__)
    parser.add_argument("root", type=Path, nargs="?", help="folder of the data sets")
    parser.add_argument("out", type=Path, nargs="?", help="file of results")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--training", choices=TRAININGS, action="append", help="default: all")
    parser.add_argument("--table", type=Path)
    arguments = parser.parse_args()
    if arguments.table is not None:
        print(show(arguments.table))
    elif arguments.root is None or arguments.out is None:
        parser.error("name ROOT and a file of results, or --table FILE")
    else:
        names = arguments.training or list(TRAININGS)
        run_missing(list_jobs(arguments.root, names, arguments.seeds), Rows(arguments.out), arguments)
        print(show(arguments.out))


if __name__ == "__main__":
    main()
