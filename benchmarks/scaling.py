"""Start-up, memory and scaling of whole runs: over labels p, clients K and workers.

    python benchmarks/scaling.py

Each figure comes from a process of its own: `fedmlh.engines.run.run` on made data, eight rounds. `first_round_s`
counts from after `import torch` to the end of the first round and its evaluation, drawing the data included; `round_s`
is the training of a later one, the median.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

SMALL = {"hidden_sizes": [150, 150], "num_tables": 4, "num_buckets": 250, "feature_dim": 300, "local_epochs": 1}


def child(settings: dict[str, object], workers: int | None) -> None:
    """Run once, measure, and print the figures as JSON."""
    import time

    import torch  # noqa: F401

    began = time.perf_counter()
    import resource

    import numpy as np
    from scipy.sparse import csr_matrix

    from fedmlh.config import Config
    from fedmlh.data.dataset import Dataset, Labels, Split
    from fedmlh.engines.run import run

    points, features, labels = (int(settings.pop(key)) for key in ("points", "features", "labels"))
    rng = np.random.default_rng(0)

    def split(count: int) -> Split:
        def draw(width: int, each: int) -> csr_matrix:
            columns = np.minimum((width ** rng.random((count, each))).astype(np.int64), width - 1)
            rows = np.repeat(np.arange(count), each)
            matrix = csr_matrix((np.ones(count * each, np.float32), (rows, columns.ravel())), shape=(count, width))
            matrix.data[:] = 1
            return matrix

        return Split(draw(features, 22), draw(labels, 5))

    dataset = Dataset("made", split(points), split(500), Labels.numbered(labels))
    marks: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        run(
            Config(**settings, rounds=8),
            dataset,
            Path(folder) / "run",
            workers=workers,
            watch=lambda record: marks.append((time.perf_counter(), record["seconds_training"])),
        )
    first, later = marks[0][0], median(seconds for _, seconds in marks[1:])
    print(
        json.dumps(
            {
                "first_round_s": first - began,
                "round_s": later,
                "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                "data_mib": sum(
                    part.data.nbytes + part.indices.nbytes + part.indptr.nbytes
                    for side in (dataset.train, dataset.test)
                    for part in (side.X, side.Y)
                )
                / 2**20,
            }
        )
    )


def measure(workers: int | None = None, cache: str | None = None, **settings: object) -> dict[str, float]:
    """Return the figures of one run in its own process."""
    settings = {"points": 15000, "features": 5000, "labels": 4000, **SMALL, **settings}
    environment = {**os.environ, **({"NUMBA_CACHE_DIR": cache} if cache else {})}
    arguments = [sys.executable, __file__, "--child", json.dumps(settings), "--workers", str(workers or 0)]
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Show all figures, as a table on the screen and as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--child")
    parser.add_argument("--workers", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.child:
        child(json.loads(arguments.child), arguments.workers or None)
        return
    rows = []

    def note(what: str, **found: float) -> None:
        rows.append({"what": what, **found})
        print(what, {key: round(value, 3) for key, value in found.items()}, flush=True)

    with tempfile.TemporaryDirectory() as cache:
        note("start, kernels compiled", **measure(cache=cache))
        note("start, kernels cached", **measure(cache=cache))
    for labels in (4000, 32000, 131000, 1000000):
        note(f"p = {labels:,}", **measure(labels=labels))
    for clients in (10, 100, 1000, 10000):
        note(
            f"K = {clients:,}, 50,000 points, S = 10",
            **measure(points=50000, num_clients=clients, clients_per_round=10, partition="iid"),
        )
    note(
        "K = 10,000, S = 100, 50,000 points",
        **measure(points=50000, num_clients=10000, clients_per_round=100, partition="iid"),
    )
    for workers in range(1, (os.cpu_count() or 1) + 1):
        note(f"{workers} workers", **measure(workers=workers))
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    target = Path(__file__).parent / "results" / "scaling.json"
    target.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
