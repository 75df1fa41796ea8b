"""Measure napkinXC's PLT, a probabilistic label tree, as the central reference: all training points in one place.

    python experiments/central/plt.py OUT.json DATA_FOLDER...
    python experiments/central/plt.py OUT.json DATA_FOLDER... --alone 10

Every setting is napkinXC's default, except the seed and the number of threads. Nothing is searched, so the test part
selects nothing. With `--alone K` the training points are split at random among K sites, and each trains on its own.
"""

import argparse
import json
import os
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, load_npz

PARTS = ("X.trn", "Y.trn", "X.tst", "Y.tst")
DEPTHS = (1, 3, 5)


def main() -> None:
    """Measure one set after the other, and keep all results so far."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT.json", help="results are merged into this file")
    parser.add_argument("folders", type=Path, nargs="+", metavar="DATA_FOLDER", help="holds X.trn.npz to Y.tst.npz")
    parser.add_argument("--alone", type=int, metavar="K", help="train each of K sites alone instead of all together")
    parser.add_argument("--seed", type=int, default=0, help="of the trees, and of the split among sites (default 0)")
    parser.add_argument("--threads", type=int, default=1, help="only one thread repeats to the bit (default 1)")
    options = parser.parse_args()
    try:
        version("napkinxc")
    except PackageNotFoundError:
        parser.error("napkinxc is not installed: pip install -r experiments/central/requirements.txt")
    for folder in options.folders:
        missing = [f"{part}.npz" for part in PARTS if not (folder / f"{part}.npz").is_file()]
        if missing:
            parser.error(f"{folder} has no {', '.join(missing)}: give folders of data in the npz layout")
    if options.alone is not None and options.alone < 2:
        parser.error(f"--alone {options.alone}: give 2 sites or more")
    if options.threads < 1:
        parser.error(f"--threads {options.threads}: give 1 thread or more")
    if not options.out.parent.is_dir():
        parser.error(f"{options.out.parent} is not a folder: create it first")
    try:
        results = json.loads(options.out.read_text()) if options.out.exists() else {}
    except (OSError, ValueError):
        results = None
    if not isinstance(results, dict):
        parser.error(f"{options.out} holds no earlier results: remove it or give another name")
    for folder in options.folders:
        name = folder.resolve().name
        if options.alone is None:
            found = measure(folder, options.seed, options.threads)
            shown = found["precision"]
        else:
            alone = measure_alone(folder, options.alone, options.seed, options.threads)
            found, shown = {"alone": alone}, {k: value["mean"] for k, value in alone["precision"].items()}
        results[name] = results.get(name, {}) | found
        write(options.out, results)
        print(f"{name}: {'/'.join(f'{100 * value:.1f}' for value in shown.values())}", flush=True)


def measure(folder: Path, seed: int, threads: int, rows: np.ndarray | None = None) -> dict[str, Any]:
    """Return the precision, seconds and bytes of one PLT, trained in a process of its own.

    The solver draws from C's `rand`, which no seed of napkinXC reaches: only a new process starts it at the same place.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(train_and_test, folder, seed, threads, rows).result()


def train_and_test(folder: Path, seed: int, threads: int, rows: np.ndarray | None) -> dict[str, Any]:
    """Train on these rows, or on all of them, and test on the whole test part."""
    from napkinxc.models import PLT

    X, Y, X_test, Y_test = (csr_matrix(load_npz(folder / f"{part}.npz")) for part in PARTS)
    if rows is not None:
        X, Y = X[rows], Y[rows]
    with tempfile.TemporaryDirectory() as scratch:
        model = PLT(scratch, seed=seed, threads=threads)
        started = time.perf_counter()
        model.fit(X, Y)
        trained = time.perf_counter()
        # Reading the model back is part of neither.
        model.load()
        loaded = time.perf_counter()
        ranking = model.predict(X_test, top_k=max(DEPTHS))
        predicted = time.perf_counter()
        size = sum(path.stat().st_size for path in Path(scratch).rglob("*") if path.is_file())
    return {
        "precision": precision(Y_test, ranking),
        "seconds_training": round(trained - started, 2),
        "seconds_prediction": round(predicted - loaded, 2),
        "model_bytes": size,
        "threads": threads,
        "seed": seed,
        "version": f"napkinxc {version('napkinxc')}",
    }


def measure_alone(folder: Path, num_sites: int, seed: int, threads: int) -> dict[str, Any]:
    """Return what a site reaches alone: mean and standard deviation over sites with random shares of the points."""
    num_points = load_npz(folder / "Y.trn.npz").shape[0]
    shares = np.array_split(np.random.default_rng(seed).permutation(num_points), num_sites)
    sites = [measure(folder, seed, threads, np.sort(share))["precision"] for share in shares]
    return {
        "num_sites": num_sites,
        "partition": "iid",
        "seed": seed,
        "precision": {
            k: {"mean": fmean(site[k] for site in sites), "sd": stdev(site[k] for site in sites)} for k in sites[0]
        },
        "sites": sites,
    }


def precision(Y: csr_matrix, ranking: list[list[int]]) -> dict[str, float]:
    """Return P@k over all points: the share of k·n predictions that are labels of their point."""
    hits = np.zeros((Y.shape[0], max(DEPTHS)))
    for row, labels in enumerate(ranking):
        hits[row, : len(labels)] = np.isin(labels, Y[row].indices)
    return {str(k): float(hits[:, :k].mean()) for k in DEPTHS}


def write(target: Path, results: dict[str, Any]) -> None:
    """Replace the file at once, so that a broken run leaves the old one."""
    draft = target.with_name(f"{target.name}.part")
    draft.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    os.replace(draft, target)


if __name__ == "__main__":
    main()
