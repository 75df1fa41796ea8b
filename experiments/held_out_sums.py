"""λ chosen on the server's validation points, and from held-out sums where the server has none.

python experiments/held_out_sums.py OUT.json DATA_FOLDER...
python experiments/held_out_sums.py --table OUT.json

10 clients, iid, seed 0; nothing is set but where λ comes from. Without validation points the power of counts is 0.05.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import fedmlh

_KEPT = ("precision", "ridge", "ridge_from", "count_power", "bytes_up", "bytes_down", "seconds_per_round", "slots")
#: Settings of each way.
WAYS: dict[str, dict[str, Any]] = {
    "validation": {},
    "held-out sums": {"validation_fraction": 0.0},
    "default": {"validation_fraction": 0.0, "ridge": 1.0},
}


def measure(data: str, way: str) -> dict[str, Any]:
    """Run one way on one data set."""
    config = fedmlh.Config.load("one-round").replace(data=data, device="cpu", **WAYS[way])
    with tempfile.TemporaryDirectory() as folder:
        summary = fedmlh.run(config, fedmlh.load(data), Path(folder) / "run").summary
    return {name: summary[name] for name in _KEPT}


def show(result: dict[str, Any]) -> str:
    """Write the table."""
    heads = ["", "by validation: λ, power", "P@1/3/5", "by held-out sums: λ", "P@1/3/5", "λ = 1: P@1/3/5", "up, MiB"]
    rows = [heads, ["---"] * len(heads)]
    for name, entry in result.items():
        points, sums, default = (entry[way] for way in WAYS)
        rows.append(
            [
                name,
                f"{points['ridge']:g}, {points['count_power']:g}",
                _triple(points["precision"]),
                f"{sums['ridge']:g}",
                _triple(sums["precision"]),
                _triple(default["precision"]),
                f"{points['bytes_up'] / 2**20:.1f}, {sums['bytes_up'] / 2**20:.1f}",
            ]
        )
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _triple(precision: dict[str, float]) -> str:
    return "/".join(f"{100 * value:.1f}" for value in precision.values())


def main() -> None:
    """Measure what was asked for and keep it, or show what was kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("data", nargs="*")
    parser.add_argument("--table", type=Path)
    arguments = parser.parse_args()
    if arguments.table:
        print(show(json.loads(arguments.table.read_text())))
        return
    result = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    for data in arguments.data:
        entry = result.setdefault(Path(data).name, {})
        for way in WAYS:
            entry[way] = measure(data, way)
            arguments.out.write_text(json.dumps(result, indent=1) + "\n")
            print(data, way, entry[way], flush=True)


if __name__ == "__main__":
    main()
