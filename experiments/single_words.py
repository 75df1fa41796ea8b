"""Whether words that a single text has should share slots: the linear model of raw texts, on a held-out tenth.

    python experiments/single_words.py ROOT experiments/results/single-words.json
    python experiments/single_words.py --table experiments/results/single-words.json

ROOT holds the folders of the data sets. Only training parts are read: a tenth of their points is held out, and the
others are trained on. The model is that of one round, solved by the products of points instead of slots, which is
affordable for any number of slots: W = Xᵀ (X Xᵀ + λI)⁻¹ Y. λ and the power of counts are the best of a few.
"""

import os
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from script import Rows, make_parser, run_missing, show_precision, table

import fedmlh
from fedmlh.oneround.points import Slots, add_one, round_points
from fedmlh.oneround.terms import Counts
from fedmlh.runs.jobs import Job

SETS = {"EurLex-EuroVoc-titles-4K": "EurLex titles", "Debtags-600": "Debtags"}
#: Slots (0: one per word), and whether words of a single text have one.
VARIANTS = ((0, True), (32_768, True), (32_768, False), (20_000, True), (20_000, False))
#: Training points; more would need more memory than a small machine has.
MOST = 16_500
RIDGES, POWERS = (0.3, 1.0, 3.0), (0.0, 0.05, 0.1, 0.15)
BITS, DEPTHS = 5, (1, 3, 5)


def list_jobs(root: Path) -> Iterator[Job]:
    """Yield a job per set and variant; each has the whole machine."""
    for data, (slots, single) in product(SETS, VARIANTS):
        key = {"data": data, "slots": slots, "single": single}
        yield Job(key, measure, (str(root / data), slots, single), alone=True)


def measure(folder: str, limit: int, single: bool) -> dict[str, Any]:
    """Return P@k on the held-out points for the best λ and power."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))
    train = fedmlh.load(folder, data_format="text", training_only=True).train
    order = np.random.default_rng(0).permutation(len(train))
    held_out, kept = train.take(order[: len(train) // 10]), train.take(order[len(train) // 10 :][:MOST])
    counts = Counts.of(train.take(order[: len(train) // 10 + MOST]).X)
    counts = counts if single else counts.repeated
    slots = Slots.fit(counts.frequencies, counts.points, limit, 1, weigh=True)
    X = round_points(slots.apply(kept.X), BITS).astype(np.float32) / np.float32(2**BITS)
    asked = csr_matrix(add_one(slots.apply(held_out.X), 1.0), dtype=np.float32)
    products, across = (torch.from_numpy((points @ X.T).toarray()) for points in (X, asked))
    often = torch.from_numpy(np.maximum(np.bincount(kept.Y.indices, minlength=kept.Y.shape[1]), 1)).float()
    given, tried = held_out.Y.toarray() > 0, []
    for ridge in RIDGES:
        factor = torch.linalg.cholesky(products + ridge * torch.eye(len(products)))
        solved = torch.cholesky_solve(across.T.contiguous(), factor)
        scores = torch.from_numpy(csr_matrix(kept.Y.T) @ solved.numpy()).T
        for power in POWERS:
            best = (scores * often**-power).topk(max(DEPTHS), dim=1).indices.numpy()
            hits = np.take_along_axis(given, best, axis=1)
            precision = {str(k): float(hits[:, :k].mean()) for k in DEPTHS}
            tried.append({"precision": precision, "ridge": ridge, "power": power})
    return {**max(tried, key=lambda found: fmean(found["precision"].values())), "words": slots.count}


def show(path: Path) -> str:
    """Write the table."""
    lines = []
    for row in Rows(path).rows:
        words = "all words" if row["single"] else "words of two texts or more"
        precision = row["precision"]
        mean = f"{100 * fmean(precision.values()):.1f}"
        lines.append([SETS[row["data"]], words, f"{row['words']:,}", show_precision(precision), mean])
    return table(["", "slots for", "slots", "P@1/3/5, held out", "mean"], lines)


def main() -> None:
    """Run what is missing, and print the table."""
    parser = make_parser(__doc__)
    parser.add_argument("root", type=Path, nargs="?", help="folder of the data sets")
    parser.add_argument("out", type=Path, nargs="?", help="file of results")
    parser.add_argument("--table", type=Path)
    arguments = parser.parse_args()
    if arguments.table is not None:
        print(show(arguments.table))
    elif arguments.root is None or arguments.out is None:
        parser.error("name ROOT and a file of results, or --table FILE")
    else:
        run_missing(list_jobs(arguments.root), Rows(arguments.out), arguments)
        print(show(arguments.out))


if __name__ == "__main__":
    main()
