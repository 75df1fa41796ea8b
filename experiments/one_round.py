"""One round on several data sets: accuracy, bytes, and that neither partition nor number of clients change the model.

python experiments/one_round.py OUT.json DATA_FOLDER... [--device cuda] [--jobs 4]
python experiments/one_round.py --table OUT.json --central experiments/results/central-plt.json

λ and the power of counts are chosen on validation; nothing else is set. One variant rounds points to 12 bits. Runs
that OUT.json holds are not repeated.
"""

import hashlib
import io
import json
import tempfile
import zipfile
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from script import load, make_parser, mean_of, run_missing, show_precision, table, write

import fedmlh
from fedmlh.runs.jobs import Found, Job, describe_machine

#: Variants; the figures of the first one are shown.
VARIANTS: dict[str, dict[str, Any]] = {
    "K 10, iid": {"num_clients": 10, "partition": "iid"},
    "K 10, Dirichlet 0.05": {"num_clients": 10, "partition": "dirichlet", "dirichlet_alpha": 0.05},
    "K 100, iid": {"num_clients": 100, "partition": "iid"},
    "K 100, Dirichlet 0.05": {"num_clients": 100, "partition": "dirichlet", "dirichlet_alpha": 0.05},
    "K 10, iid, 12 bits": {"num_clients": 10, "partition": "iid", "point_bits": 12},
}
#: Variants whose weights are the same.
ALIKE = [variant for variant in VARIANTS if "bits" not in variant]
_KEPT = (
    *("precision", "precision_infrequent", "psp", "validation", "bytes_up", "bytes_down", "seconds_per_round"),
    *("peak_memory_bytes", "ridge", "count_power", "slots", "delivered", "kept", "model_bytes"),
)


def measure(data: str, variant: str, device: str, seed: int) -> dict[str, Any]:
    """Run one variant on one data set."""
    config = fedmlh.Config.load("one-round").replace(data=data, device=device, seed=seed, **VARIANTS[variant])
    with tempfile.TemporaryDirectory() as folder:
        run = fedmlh.run(config, load(data), Path(folder) / "run", workers=1, progress=False)
        weights = (run.folder / "model" / "weights.safetensors").read_bytes()
    kept = {name: run.summary[name] for name in _KEPT if name in run.summary}
    kept["validation"] = kept["validation"]["precision"]
    return {
        **kept,
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
        "machine": describe_machine(device),
    }


def zip_data(data: str) -> dict[str, Any]:
    """Return the bytes of the training points as a zip file: what sharing the data itself would take."""
    train, packed = load(data).train, io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, matrix in (("X", train.X), ("Y", train.Y)):
            # Columns as gaps, which deflate better than places.
            gaps = np.diff(matrix.indices, prepend=0).astype(np.int32)
            for part, array in (("data", matrix.data), ("gaps", gaps), ("sizes", np.diff(matrix.indptr))):
                archive.writestr(f"{name}.{part}", array.tobytes())
    return {"zip_bytes": len(packed.getvalue())}


class Sets:
    """Runs by data set, beside the size of its points as a zip file, in one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sets: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}

    def find(self, job: Job) -> Found | None:
        """Return the result of a run or of a data set, if it is known."""
        entry = self.sets.get(job.key["data"], {"runs": []})
        if "variant" not in job.key:
            return entry if "zip_bytes" in entry else None
        return next((run for run in entry["runs"] if job.key.items() <= run.items()), None)

    def keep(self, job: Job, found: Found) -> None:
        """Add a run or the size."""
        entry = self.sets.setdefault(job.key["data"], {"runs": []})
        if "variant" in job.key:
            entry["runs"].append({**job.key, **found})
        else:
            entry |= found
        write(self.path, self.sets)


def show(result: dict[str, Any], central: dict[str, Any]) -> str:
    """Write the table."""
    heads = ["", "one round, P@1/3/5", "mean", "central PLT, P@1/3/5", "mean", "12 bits, mean", "λ, power", "slots"]
    heads += ["up, both ways, MiB", "up at K 100", "zipped data", "same model"]
    rows = []
    for name, entry in result.items():
        runs = {run["variant"]: run for run in entry["runs"]}
        first, exact = runs["K 10, iid"], "K 10, iid, 12 bits"
        models = [runs[variant]["weights_sha256"] for variant in ALIKE if variant in runs]
        reference = central[name]["precision"]
        both = first["bytes_up"] + first["bytes_down"]
        rows.append(
            [
                name,
                show_precision(first["precision"]),
                f"{mean_of(first['precision']):.2f}",
                show_precision(reference),
                f"{mean_of(reference):.2f}",
                f"{mean_of(runs[exact]['precision']):.2f}" if exact in runs else "–",
                f"{first['ridge']:g}, {first['count_power']:g}",
                f"{first['slots']:,}",
                f"{first['bytes_up'] / 2**20:.1f}, {both / 2**20:.1f}",
                f"{runs['K 100, iid']['bytes_up'] / 2**20:.1f}",
                f"{entry['zip_bytes'] / 2**20:.1f}",
                f"{'yes' if len(set(models)) == 1 else 'NO'}, {len(models)} ways",
            ]
        )
    return table(heads, rows)


def main() -> None:
    """Measure what is asked for and keep it, or show kept results."""
    parser = make_parser(__doc__)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("data", nargs="*")
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--central", type=Path)
    arguments = parser.parse_args()
    if arguments.table:
        print(show(json.loads(arguments.table.read_text()), json.loads(arguments.central.read_text())))
        return
    jobs = [Job({"data": Path(data).name}, zip_data, (data,), f"{Path(data).name}, zipped") for data in arguments.data]
    for data, variant in product(arguments.data, arguments.variants):
        key = {"data": Path(data).name, "variant": variant, "seed": arguments.seed}
        jobs.append(Job(key, measure, (data, variant, arguments.device, arguments.seed)))
    run_missing(jobs, Sets(arguments.out), arguments)


if __name__ == "__main__":
    main()
