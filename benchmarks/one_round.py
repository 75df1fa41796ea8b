"""From a data folder to a model in one round, beside a central label tree on the same cores.

python benchmarks/one_round.py ROOT [--sets NAME ...] [--clients 10000] [--million]

Each figure comes from a process of its own, one after the other. The label tree is napkinXC's PLT with its defaults.
`--clients`: train over this many clients on the first set, and check that the weights are those of 10 clients.
`--million`: 1,000,000 labels, 10,000 features, 100,000 points of 20 features and 5 labels, made at random.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RESULT = Path(__file__).parent / "results" / "one_round.json"
SETS = ("EurLex-EuroVoc-titles-4K", "CiteULike-T-46K", "WordNet-hypernyms-9K")
MILLION = {"points": 100_000, "features": 10_000, "labels": 1_000_000, "features_per_point": 20, "labels_per_point": 5}


def run_one_round(data: Path, clients: int) -> dict[str, Any]:
    """Read the folder, train over this many clients, and keep the model."""
    import fedmlh

    began = time.perf_counter()
    config = fedmlh.Config.load("one-round").replace(data=str(data), device="cpu", num_clients=clients)
    with tempfile.TemporaryDirectory() as folder:
        run = fedmlh.run(config, fedmlh.load(data), Path(folder) / "run", progress=False)
        seconds = time.perf_counter() - began
        weights = hashlib.sha256((run.folder / "model" / "weights.safetensors").read_bytes()).hexdigest()
    return {**_figures(run.summary, seconds), "weights_sha256": weights}


def run_million() -> dict[str, Any]:
    """Train on random data with a million labels."""
    import numpy as np
    from scipy.sparse import csr_matrix

    import fedmlh

    def draw(rng: np.random.Generator, points: int, width: int, count: int) -> csr_matrix:
        # The lower the number, the likelier, as with words and labels.
        columns = np.minimum((width ** rng.random((points, count))).astype(np.int32), width - 1)
        matrix = csr_matrix((np.ones(columns.size, np.float32), columns.ravel(), np.arange(points + 1) * count))
        matrix.resize(points, width)
        matrix.sum_duplicates()
        matrix.data[:] = 1
        return matrix

    def split(seed: int, points: int) -> fedmlh.Split:
        rng = np.random.default_rng(seed)
        X = draw(rng, points, MILLION["features"], MILLION["features_per_point"])
        return fedmlh.Split(X, draw(rng, points, MILLION["labels"], MILLION["labels_per_point"]))

    labels = fedmlh.Labels.numbered(MILLION["labels"])
    dataset = fedmlh.Dataset("million", split(0, MILLION["points"]), split(1, 2_000), labels)
    began = time.perf_counter()
    config = fedmlh.Config.load("one-round").replace(device="cpu")
    with tempfile.TemporaryDirectory() as folder:
        run = fedmlh.run(config, dataset, Path(folder) / "run", tell=lambda line: print(line, file=sys.stderr))
        outputs = fedmlh.Model.load(run.folder).bundle.weights.num_outputs
    return {**_figures(run.summary, time.perf_counter() - began), "outputs": outputs, "data": MILLION}


def run_tree(data: Path) -> dict[str, Any]:
    """Train a label tree on all points, and predict the test part, as one round does."""
    from napkinxc.models import PLT
    from scipy.sparse import load_npz

    began = time.perf_counter()
    X, Y, test = (load_npz(data / f"{name}.npz") for name in ("X.trn", "Y.trn", "X.tst"))
    with tempfile.TemporaryDirectory() as folder:
        model = PLT(folder, threads=os.cpu_count(), seed=0, verbose=False)
        model.fit(X, [Y.indices[Y.indptr[row] : Y.indptr[row + 1]].tolist() for row in range(Y.shape[0])])
        model.predict(test, top_k=5)
    return {"seconds": time.perf_counter() - began}


def _figures(summary: dict[str, Any], seconds: float) -> dict[str, Any]:
    names = ("precision", "bytes_up", "bytes_down", "peak_memory_bytes", "slots", "ridge", "count_power")
    return {"seconds": seconds, "seconds_to_model": summary["seconds_per_round"]} | {n: summary[n] for n in names}


def main() -> None:
    """Measure each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path, nargs="?")
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--clients", type=int)
    parser.add_argument("--million", action="store_true")
    parser.add_argument("--only", choices=["one_round", "tree", "million"], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only == "million":
        print(json.dumps(run_million()))
        return
    if arguments.only == "one_round":
        print(json.dumps(run_one_round(arguments.root, arguments.clients or 10)))
        return
    if arguments.only == "tree":
        print(json.dumps(run_tree(arguments.root)))
        return
    result = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    if arguments.million:
        result["million"] = _measure("million")
    elif arguments.clients:
        folder = arguments.root / arguments.sets[0]
        few, many = (_measure("one_round", folder, "--clients", str(count)) for count in (10, arguments.clients))
        same = few["weights_sha256"] == many["weights_sha256"]
        result[f"{arguments.clients} clients"] = {**many, "data": folder.name, "weights_of_10_clients": same}
    else:
        for name in arguments.sets:
            entry = {only: _measure(only, arguments.root / name) for only in ("one_round", "tree")}
            entry["times_the_tree"] = entry["one_round"]["seconds"] / entry["tree"]["seconds"]
            result[name] = {**entry, "cores": os.cpu_count()}
            print(name, {only: round(entry[only]["seconds"], 1) for only in ("one_round", "tree")}, flush=True)
    RESULT.write_text(json.dumps(result, indent=1) + "\n")


def _measure(only: str, *more: Path | str) -> dict[str, Any]:
    command = [sys.executable, __file__, *map(str, more), "--only", only]
    return dict(
        json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout.splitlines()[-1])
    )


if __name__ == "__main__":
    main()
