"""One round on several data sets: accuracy, bytes, and that neither the partition nor the clients change the model.

python experiments/one_round.py OUT.json DATA_FOLDER... [--device cuda] [--jobs 4]
python experiments/one_round.py --table OUT.json --central experiments/results/central-plt.json

λ and the power of counts are chosen on validation; nothing else is set. The same with points rounded to 12 bits.
"""

import argparse
import hashlib
import io
import json
import multiprocessing
import platform
import tempfile
import zipfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

import fedmlh

#: The first of them is the one whose figures are shown.
VARIANTS: dict[str, dict[str, Any]] = {
    "K 10, iid": {"num_clients": 10, "partition": "iid"},
    "K 10, Dirichlet 0.05": {"num_clients": 10, "partition": "dirichlet", "dirichlet_alpha": 0.05},
    "K 100, iid": {"num_clients": 100, "partition": "iid"},
    "K 100, Dirichlet 0.05": {"num_clients": 100, "partition": "dirichlet", "dirichlet_alpha": 0.05},
    "K 10, iid, 12 bits": {"num_clients": 10, "partition": "iid", "point_bits": 12},
}
#: Of these the weights are the same.
ALIKE = [variant for variant in VARIANTS if "bits" not in variant]
_KEPT = (
    *("precision", "precision_infrequent", "psp", "validation", "bytes_up", "bytes_down", "seconds_per_round"),
    *("peak_memory_bytes", "ridge", "count_power", "slots", "delivered", "kept", "model_bytes"),
)


def measure(data: str, variant: str, device: str, seed: int) -> dict[str, Any]:
    """Run one variant on one data set."""
    config = fedmlh.Config.load("one-round").replace(data=data, device=device, seed=seed, **VARIANTS[variant])
    with tempfile.TemporaryDirectory() as folder:
        run = fedmlh.run(config, fedmlh.load(data), Path(folder) / "run")
        weights = (run.folder / "model" / "weights.safetensors").read_bytes()
    kept = {name: run.summary[name] for name in _KEPT if name in run.summary}
    kept["validation"] = kept["validation"]["precision"]
    return {
        "data": Path(data).name,
        "variant": variant,
        "seed": seed,
        **kept,
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
        "machine": f"{platform.machine()}, {device}, torch {torch.__version__}",
    }


def zip_size(data: str) -> int:
    """Return the bytes of the training points as a zip file: what sharing the data itself would take."""
    train, packed = fedmlh.load(data).train, io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, matrix in (("X", train.X), ("Y", train.Y)):
            # As small as rows, columns and values are as they stand: gaps deflate better than places.
            gaps = np.diff(matrix.indices, prepend=0).astype(np.int32)
            for part, array in (("data", matrix.data), ("gaps", gaps), ("sizes", np.diff(matrix.indptr))):
                archive.writestr(f"{name}.{part}", array.tobytes())
    return len(packed.getvalue())


def show(result: dict[str, Any], central: dict[str, Any]) -> str:
    """Write the table."""
    heads = ["", "one round, P@1/3/5", "mean", "central PLT, P@1/3/5", "mean", "12 bits, mean", "λ, power", "slots"]
    rows = [[*heads, "up, both ways, MiB", "up at K 100", "zipped data", "same model"], ["---"] * (len(heads) + 4)]
    for name, entry in result.items():
        runs = {run["variant"]: run for run in entry["runs"]}
        first, exact = runs["K 10, iid"], "K 10, iid, 12 bits"
        models = [runs[variant]["weights_sha256"] for variant in ALIKE if variant in runs]
        reference = central[name]["precision"]
        both = first["bytes_up"] + first["bytes_down"]
        rows.append(
            [
                name,
                _triple(first["precision"]),
                f"{_mean(first['precision']):.2f}",
                _triple(reference),
                f"{_mean(reference):.2f}",
                f"{_mean(runs[exact]['precision']):.2f}" if exact in runs else "–",
                f"{first['ridge']:g}, {first['count_power']:g}",
                f"{first['slots']:,}",
                f"{first['bytes_up'] / 2**20:.1f}, {both / 2**20:.1f}",
                f"{runs['K 100, iid']['bytes_up'] / 2**20:.1f}",
                f"{entry['zip_bytes'] / 2**20:.1f}",
                f"{'yes' if len(set(models)) == 1 else 'NO'}, {len(models)} ways",
            ]
        )
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _triple(precision: dict[str, float]) -> str:
    return "/".join(f"{100 * value:.1f}" for value in precision.values())


def _mean(precision: dict[str, float]) -> float:
    return 100 * fmean(precision.values())


def main() -> None:
    """Measure what was asked for and keep it, or show what was kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("data", nargs="*")
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--central", type=Path)
    arguments = parser.parse_args()
    if arguments.table:
        print(show(json.loads(arguments.table.read_text()), json.loads(arguments.central.read_text())))
        return
    result = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn")) as pool:
        jobs = {
            pool.submit(measure, data, variant, arguments.device, arguments.seed): data
            for data in arguments.data
            for variant in arguments.variants
        }
        for job in as_completed(jobs):
            run = job.result()
            entry = result.setdefault(run["data"], {"runs": []})
            entry.setdefault("zip_bytes", zip_size(jobs[job]))
            entry["runs"] = [old for old in entry["runs"] if old["variant"] != run["variant"]] + [run]
            arguments.out.write_text(json.dumps(result, indent=1) + "\n")
            print(
                run["data"], run["variant"], _triple(run["precision"]), f"{run['seconds_per_round']:.0f} s", flush=True
            )


if __name__ == "__main__":
    main()
