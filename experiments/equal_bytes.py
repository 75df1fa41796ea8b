"""One round beside rounds of FedMLH and FedAvg at equal encoded bytes, on one partition.

python experiments/equal_bytes.py DATA_FOLDER OUT.json [--seeds 0 1 2] [--jobs 2]
python experiments/equal_bytes.py --table OUT.json [--plot OUT.svg --central experiments/results/central-plt.json]

Rounds are those of `recommended` with 1.6 MiB, with FedMLH's tables or FedAvg's one output per label. Of the rounds
whose messages, both ways and added up, are no more than those of one round, the best on validation is tested. The same
without a limit.
"""

import argparse
import json
import multiprocessing
import platform
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

import fedmlh

COMMON = {"partition": "iid", "num_clients": 10, "device": "cpu"}
#: Small models: with so few bytes, larger ones would not get through their first rounds.
ROUNDS = {"training": "rounds", "budget_mib": 1.6, "test_every_round": True}
METHODS = {
    "one round": ("one-round", {}),
    "rounds of FedMLH": ("recommended", ROUNDS),
    "rounds of FedAvg": ("recommended", {**ROUNDS, "algorithm": "fedavg"}),
}


def measure(data: str, job: tuple[str, int]) -> dict[str, Any]:
    """Run one method with one seed; return bytes so far, validation and test after each round."""
    torch.set_num_threads(1)
    method, seed = job
    preset, more = METHODS[method]
    config = fedmlh.Config.load(preset).replace(data=data, seed=seed, **COMMON, **more)
    with tempfile.TemporaryDirectory() as folder:
        run = fedmlh.run(config, fedmlh.load(data), Path(folder) / "run", workers=1)
        records = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    spent, rounds = 0, []
    for record in records:
        spent += record["bytes_up"] + record["bytes_down"]
        test = record.get("test", run.summary)["precision"]
        rounds.append({"bytes": spent, "validation": record["validation"]["precision"], "test": test})
    machine = f"{platform.machine()}, torch {torch.__version__}"
    return {"method": method, "seed": seed, "rounds": rounds, "machine": machine}


def pick(run: dict[str, Any], most: float) -> dict[str, Any] | None:
    """Return the best round on validation within so many bytes."""
    within = [entry for entry in run["rounds"] if entry["bytes"] <= most]
    return max(within, key=lambda entry: fmean(entry["validation"].values())) if within else None


def show(result: list[dict[str, Any]]) -> str:
    """Write the table: mean and spread over seeds."""
    limits = {run["seed"]: run["rounds"][-1]["bytes"] for run in result if run["method"] == "one round"}
    rows = [["", "P@1", "P@3", "P@5", "MiB, both ways"], ["---"] * 5]
    for method in METHODS:
        runs = [run for run in result if run["method"] == method]
        kinds = [""] if method == "one round" else [", equal bytes", ", to the best round"]
        for kind in kinds:
            picked = [pick(run, limits[run["seed"]] if kind != kinds[-1] or not kind else float("inf")) for run in runs]
            found = [entry for entry in picked if entry is not None]
            cells = [_spread([100 * entry["test"][k] for entry in found]) for k in ("1", "3", "5")]
            rows.append([method + kind, *cells, _spread([entry["bytes"] / 2**20 for entry in found])])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def plot(result: list[dict[str, Any]], central: dict[str, Any], path: Path) -> None:
    """Draw P@1 on test against all bytes so far, one line per seed."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "fedmlh"
    from matplotlib import pyplot

    colours = {"one round": "#c0392b", "rounds of FedMLH": "#2c6fbb", "rounds of FedAvg": "#7f8c8d"}
    figure, axes = pyplot.subplots(figsize=(7.2, 3.6), layout="constrained")
    for method, colour in colours.items():
        for run in (run for run in result if run["method"] == method):
            sent = [entry["bytes"] / 2**20 for entry in run["rounds"]]
            found = [100 * entry["test"]["1"] for entry in run["rounds"]]
            axes.plot(sent, found, "o" if len(sent) == 1 else "-", color=colour, linewidth=1.2)
    right = axes.get_xlim()[1]
    for name, colour in colours.items():
        last = max((run["rounds"][-1] for run in result if run["method"] == name), key=lambda entry: entry["bytes"])
        place = (last["bytes"] / 2**20, 100 * last["test"]["1"])
        axes.annotate(name, place, xytext=(6, -3), textcoords="offset points", color=colour, fontsize=9)
    alone = central["alone"]["precision"]["1"]["mean"]
    for name, level in (("central label tree", central["precision"]["1"]), ("a site alone", alone)):
        axes.axhline(100 * level, color="#b0b0b0", linewidth=0.8, linestyle=":")
        axes.annotate(name, (right, 100 * level), xytext=(0, 3), textcoords="offset points", ha="right",
                      color="#707070", fontsize=9)  # fmt: skip
    axes.set_xlim(0, right * 1.12)
    axes.set_ylim(55, 91)
    axes.set_xlabel("MiB sent, both ways, all 10 sites")
    axes.set_ylabel("P@1 on test, %")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})


def _spread(values: list[float]) -> str:
    return f"{fmean(values):.1f} ± {stdev(values):.1f}" if len(values) > 1 else f"{fmean(values):.1f}"


def main() -> None:
    """Measure and keep, or show what was kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?")
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--central", type=Path)
    arguments = parser.parse_args()
    if arguments.table:
        kept = json.loads(arguments.table.read_text())
        print(show(kept))
        if arguments.plot:
            central = json.loads(arguments.central.read_text())["EurLex-EuroVoc-titles-4K"]
            plot(kept, central, arguments.plot)
        return
    jobs = [(method, seed) for method in reversed(METHODS) for seed in arguments.seeds]
    with ProcessPoolExecutor(arguments.jobs, multiprocessing.get_context("spawn")) as pool:
        result = list(pool.map(partial(measure, arguments.data), jobs))
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print(show(result))


if __name__ == "__main__":
    main()
