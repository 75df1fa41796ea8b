"""Whether error feedback would help the integer codecs: python experiments/feedback.py DATA OUT.json [--seeds 3]

`recommended` at the size of the paper's model, each codec on the updates, as it is and with what rounding left out kept
by the client and added to its next update. Figures are of the validation part, at its best round.
"""

import argparse
import json
import platform
import tempfile
from pathlib import Path
from statistics import fmean, stdev
from unittest import mock

import torch

from fedmlh import Config, Dataset, load, run
from fedmlh.federated.codecs.integers import IntCodec

CODECS = ("int8", "int4", "int2")
SETTINGS = {
    "num_clients": 10,
    "clients_per_round": 4,
    "partition": "paper-code",
    "budget_mib": 1.61,
    "broadcast_codec": "fp32",
    "device": "cpu",
}


def measure(dataset: Dataset, codec: str, seed: int, *, feedback: bool) -> float:
    """The best P@1 on validation."""
    config = Config.load("recommended").replace(training="rounds", **SETTINGS, update_codec=codec, seed=seed)
    with mock.patch.object(IntCodec, "feedback", feedback), tempfile.TemporaryDirectory() as folder:
        return float(run(config, dataset, Path(folder) / "run").summary["validation"]["precision"]["1"])


def main() -> None:
    """Measure all and print the differences, seed by seed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    dataset = load(arguments.data)
    rows = []
    for codec in CODECS:
        figures = {
            name: [measure(dataset, codec, seed, feedback=feedback) for seed in range(arguments.seeds)]
            for name, feedback in (("as it is", False), ("with feedback", True))
        }
        gains = [100 * (b - a) for a, b in zip(*figures.values(), strict=True)]
        rows.append({"codec": codec, **figures})
        print(f"{codec}: {100 * fmean(figures['as it is']):.1f}, feedback {fmean(gains):+.1f} ± {stdev(gains):.1f}")
    machine = f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}"
    result = {"machine": machine, "data": arguments.data.name, "measure": "validation P@1", "codecs": rows}
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
