"""What whole runs send under each codec: python experiments/codec_runs.py DATA experiments/results/codec_runs.json

EurLex titles, divided by Dirichlet 0.3, 40 rounds of the preset `recommended`. Runs that are in the file already are
not repeated.
"""

from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from script import Rows, make_parser, run_missing, table, train

from fedmlh import Config
from fedmlh.runs.jobs import Job

#: The codec with which others are compared.
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
    parser = make_parser(__doc__)
    parser.add_argument("data")
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    kept = Rows(arguments.out)
    keys = [
        {"K": clients, "S": sampled, "algorithm": algorithm, "mib": mib, "seed": seed, "codec": codec}
        for clients, sampled, algorithm, mib, seeds, codecs in SETTINGS
        for seed, codec in product(seeds, codecs)
    ]
    run_missing([Job(key, measure, (arguments.data, key)) for key in keys], kept, arguments)
    print(show(kept.rows))


def show(rows: list[dict[str, Any]]) -> str:
    """Write the table."""
    lines = []
    for clients, sampled, algorithm, mib, _, codecs in SETTINGS:
        here = [row for row in rows if (row["K"], row["algorithm"], row["mib"]) == (clients, algorithm, mib)]
        levels = {row["seed"]: LEVEL * max(row["curve"]) for row in here if row["codec"] == BASE}
        for codec in codecs:
            mine = [row for row in here if row["codec"] == codec]
            reached = [row["sent"][find(row["curve"], levels[row["seed"]])] for row in mine]
            shown = [*(fmean(row[name] for row in mine) for name in ("up", "down")), fmean(reached)]
            precision = "/".join(f"{fmean(row['precision'][k] for row in mine):.1f}" for k in range(3))
            cells = [f"{value:.1f}" for value in shown]
            lines.append([f"{clients}, {sampled}", algorithm, f"{mib}", f"`{codec}`", *cells, precision])
    heads = ["K, S", "algorithm", "MiB", "codec", "MiB up", "MiB down", "MiB to level", "P@1/3/5, test"]
    return table(heads, lines)


def measure(data: str, key: dict[str, Any]) -> dict[str, Any]:
    """Run once; return MiB sent in total and after each round, P@1 on validation after each round, P@1/3/5 on test."""
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
    summary, rounds = train(config, data)
    sent, total = [], 0
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
    """Return the first round that reaches a level, else the last one."""
    return next((number for number, value in enumerate(curve) if value >= level), len(curve) - 1)


if __name__ == "__main__":
    main()
