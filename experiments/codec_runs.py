"""What whole runs send under each codec: python experiments/codec_runs.py DATA experiments/results/codec_runs.json

EurLex titles, divided by Dirichlet 0.3, 40 rounds of the preset `recommended`. Runs that are in the file already are
not repeated.
"""

import json
import sys
import tempfile
from pathlib import Path

from fedmlh import Config, run
from fedmlh.data.source import open_dataset

#: What the others are compared with.
BASE = "int4+zlib"
#: K, S, algorithm, MiB of the model, seeds, codecs.
SETTINGS = (
    (100, 10, "fedmlh", 1.61, (0, 1), (BASE, "grid-150%", "grid-199%")),
    (10, 4, "fedmlh", 1.61, (0, 1), (BASE, "grid-100%", "grid-150%")),
    (10, 4, "fedavg", 1.61, (0,), (BASE, "grid-150%")),
)
#: Bytes are also counted until a run first reaches this part of the best P@1 that int4+zlib has on validation.
LEVEL = 0.98


def main() -> None:
    """Run what is missing, and print a table."""
    path = Path(sys.argv[2])
    rows = json.loads(path.read_text()) if path.exists() else []
    for clients, sampled, algorithm, mib, seeds, codecs in SETTINGS:
        for seed in seeds:
            for codec in codecs:
                key = {"K": clients, "S": sampled, "algorithm": algorithm, "mib": mib, "seed": seed, "codec": codec}
                if not any(key.items() <= row.items() for row in rows):
                    rows.append(key | measure(sys.argv[1], key))
                    path.write_text(json.dumps(rows, indent=1) + "\n")
    print("| K, S | algorithm | MiB | codec | MiB up | MiB down | MiB to level | P@1/3/5, test |\n" + 8 * "|---" + "|")
    for clients, sampled, algorithm, mib, _, codecs in SETTINGS:
        here = [row for row in rows if (row["K"], row["algorithm"], row["mib"]) == (clients, algorithm, mib)]
        for codec in codecs:
            mine = [row for row in here if row["codec"] == codec]
            levels = {row["seed"]: LEVEL * max(row["curve"]) for row in here if row["codec"] == BASE}
            reached = [row["sent"][find(row["curve"], levels[row["seed"]])] for row in mine]
            shown = [mean(row[name] for row in mine) for name in ("up", "down")] + [mean(reached)]
            precision = "/".join(f"{mean(row['precision'][k] for row in mine):.1f}" for k in range(3))
            print(f"| {clients}, {sampled} | {algorithm} | {mib} | `{codec}` | ", end="")
            print(f"{' | '.join(f'{value:.1f}' for value in shown)} | {precision} |")


def measure(data: str, key: dict[str, object]) -> dict[str, object]:
    """One run: MiB sent in all and after each round, P@1 on validation after each round, P@1/3/5 on test."""
    config = Config.load("recommended").replace(
        training="rounds",
        data=data,
        partition="dirichlet",
        device="cpu",
        patience=0,
        num_clients=key["K"],
        clients_per_round=key["S"],
        algorithm=key["algorithm"],
        budget_mib=key["mib"],
        seed=key["seed"],
        update_codec=key["codec"],
        broadcast_codec=key["codec"],
    )
    with tempfile.TemporaryDirectory() as folder:
        run(config, open_dataset(config), Path(folder) / "run")
        summary = json.loads((Path(folder) / "run" / "summary.json").read_text())
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
    rounds, sent, total = [json.loads(line) for line in lines], [], 0
    for line in rounds:
        total += line["bytes_up"] + line["bytes_down"]
        sent.append(round(total / 2**20, 2))
    return {
        "up": round(summary["bytes_up"] / 2**20, 2),
        "down": round(summary["bytes_down"] / 2**20, 2),
        "precision": [round(100 * summary["precision"][k], 2) for k in ("1", "3", "5")],
        "curve": [round(100 * line["validation"]["precision"]["1"], 2) for line in rounds],
        "sent": sent,
    }


def find(curve: list[float], level: float) -> int:
    """The first round that reaches a level, else the last one."""
    return next((number for number, value in enumerate(curve) if value >= level), len(curve) - 1)


def mean(values) -> float:
    """Of numbers."""
    values = list(values)
    return sum(values) / len(values)


if __name__ == "__main__":
    main()
