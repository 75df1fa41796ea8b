"""Tables and the picture of what measure.py measured, from its result files alone.

    python experiments/recipe/report.py [RESULTS_FOLDER]

Writes tables.md and bytes.svg beside the results. Test figures are those of the round that validation selected.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import matplotlib

import fedmlh

matplotlib.use("svg")
import matplotlib.pyplot as plt

RESULTS = Path(__file__).parents[1] / "results" / "recipe"
SETS = {"eurlex": "EurLex titles", "citeulike": "CiteULike", "tibkat": "TIBKAT-en"}
OURS, RIVAL = "recommended", "FedAvg, searched"
#: Colour and how dashed: a hue a method, broken where a codec is at work.
LOOKS = {
    "FedAvg, paper": "#9aa0a6",
    "FedMLH, paper": "#8ab4d8",
    "FedAvg, searched": "#e08a1e",
    "recommended": "#14699c",
}
Run = dict[str, Any]


def by_method(path: Path) -> dict[str, list[Run]]:
    """The runs of a file, a list a method, in the order of seeds; of several settings those best on validation."""
    found: dict[str, dict[str, list[Run]]] = {}
    for run in json.loads(path.read_text())["runs"] if path.is_file() else []:
        found.setdefault(run["method"], {}).setdefault(json.dumps(run["settings"]), []).append(run)
    chosen = {}
    for name, tried in found.items():
        seeds = set.intersection(*({run["seed"] for run in runs} for runs in tried.values()))
        runs = max(
            tried.values(), key=lambda runs: fmean(validation(run) for run in runs if not seeds or run["seed"] in seeds)
        )
        chosen[name + strength(runs, list(tried.values()))] = sorted(runs, key=lambda run: run["seed"])
    return chosen


def strength(chosen: list[Run], tried: list[list[Run]]) -> str:
    """What of several settings the chosen one has for its own, and out of how many it was chosen."""
    if len(tried) == 1:
        return ""
    default = fedmlh.Config()

    def take(runs: list[Run], name: str) -> Any:
        return runs[0]["settings"].get(name, getattr(default, name))

    names = sorted({name for runs in tried for name in runs[0]["settings"]})
    own = [name for name in names if any(take(runs, name) != take(chosen, name) for runs in tried)]
    said = (f"{name} {take(chosen, name):g}" for name in own)
    return f" ({', '.join(said)}: best of {len(tried)})"


def validation(run: Run) -> float:
    """What settings are compared by, as in the search: the mean of P@1, P@3 and P@5 on validation."""
    return fmean(run["curve"][run["best_round"] - 1]["validation"].values())


def spread(values: list[float], scale: float = 100) -> str:
    """Mean ± standard deviation."""
    around = f" ± {scale * stdev(values):.1f}" if len(values) > 1 else ""
    return f"{round(scale * fmean(values), 1) + 0.0:.1f}{around}"  # + 0.0: no zero is negative


def table(head: list[str], rows: list[list[str]]) -> str:
    """Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


MEASURES: dict[str, Callable[[Run], float]] = {
    "P@1": lambda run: run["precision"]["1"],
    "P@3": lambda run: run["precision"]["3"],
    "P@5": lambda run: run["precision"]["5"],
    "P@5 infrequent": lambda run: run["precision_infrequent"]["5"],
    "PSP@5": lambda run: run["psp"]["5"],
    "validation P@1 after round 1": lambda run: run["curve"][0]["validation"]["1"],
}


def accuracy(methods: dict[str, list[Run]]) -> str:
    """Every method: test figures over seeds."""
    rows = []
    for name, runs in methods.items():
        size = f"{runs[0]['model_bytes'] / 2**20:.2f}"
        cells = [spread([take(run) for run in runs]) for take in MEASURES.values()]
        rows.append([name, *cells, size, f"{median(run['best_round'] for run in runs):.0f}", str(len(runs))])
    return table(["method", *MEASURES, "model, MiB", "round", "seeds"], rows)


def differences(methods: dict[str, list[Run]], pairs: list[tuple[str, str]]) -> str:
    """What one method is ahead of another, seed by seed."""
    rows = []
    for ours, theirs in pairs:
        other = {run["seed"]: run for run in methods.get(theirs, [])}
        both = [(run, other[run["seed"]]) for run in methods.get(ours, []) if run["seed"] in other]
        if both:
            cells = [spread([take(a) - take(b) for a, b in both]) for take in MEASURES.values()]
            rows.append([f"{ours} − {theirs}", *cells, str(len(both))])
    return table(["difference, points", *MEASURES, "seeds"], rows)


def losses(results: Path, name: str) -> str:
    """The best full-length candidate of each side's search by kind of loss and of first biases, on validation."""
    rows = []
    for side in ("fedmlh", "fedavg", "central"):
        tried = json.loads((results / f"{name}-{side}.json").read_text())["tried"]
        longest = max(entry["rounds"] for entry in tried)
        found: dict[tuple[str, str], list[list[float]]] = {}
        for entry in (entry for entry in tried if entry["rounds"] == longest):
            kind = "balanced" if "balanced" in entry["settings"]["loss"] else "other"
            scores = list(entry["validation_precision"].values())
            found.setdefault((kind, entry["settings"].get("output_bias", "random")), []).append(scores)
        for kinds, scored in sorted(found.items(), reverse=True):
            best_one = max(scored, key=fmean)
            figures = [f"{100 * value:.1f}" for value in (*best_one, fmean(best_one))]
            rows.append([side, *kinds, *figures, str(len(scored))])
    return table(["side", "loss", "biases", "P@1", "P@3", "P@5", "mean", "candidates"], rows)


def best(run: Run) -> float:
    """The best P@1 on validation."""
    return max(point["validation"]["1"] for point in run["curve"])


def bytes_to(run: Run, level: float) -> float | None:
    """Bytes both ways until validation P@1 is at the level; None: never."""
    return next((point["bytes"] for point in run["curve"] if point["validation"]["1"] >= level), None)


def volumes(methods: dict[str, list[Run]]) -> str:
    """Bytes to fixed levels: median over seeds, and how many times fewer than paper-FedAvg needs for its own best."""
    levels = {}
    for name, share in (("FedAvg, paper", 1.0), ("FedMLH, paper", 1.0), (OURS, 0.95)):
        if name in methods:
            label = f"{name}'s best" if share == 1 else f"{share:.0%} of {name}'s best"
            # What every seed of the method reached, so that it is a level that the method does reach.
            levels[label] = share * min(best(run) for run in methods[name])
    rows = []
    reference = median(
        next(point["bytes"] for point in run["curve"] if point["validation"]["1"] == best(run))
        for run in methods["FedAvg, paper"]
    )
    for name, runs in methods.items():
        if name.startswith("central"):
            continue
        cells = []
        for level in levels.values():
            needed = [bytes_to(run, level) for run in runs]
            reached = [need for need in needed if need is not None]
            if 2 * len(reached) <= len(needed):
                cells.append("not reached")
                continue
            cost = median(need if need is not None else float("inf") for need in needed)
            cells.append(f"{cost / 2**20:,.1f}" + (f" ({reference / cost:,.0f}×)" if len(cells) == 0 else ""))
        rows.append([name, *cells])
    heads = [f"{label} ({100 * level:.1f})" for label, level in levels.items()]
    note = (
        f"In brackets: how many times fewer than the {reference / 2**20:,.0f} MiB after which FedAvg, paper is best.\n"
    )
    return table(["MiB both ways until validation P@1 is", *heads], rows) + "\n" + note


def draw(results: Path) -> None:
    """Validation P@1 against all bytes sent so far, the mean over seeds."""
    measured = {name: by_method(results / f"{name}-methods.json") for name in SETS}
    found = {name: methods for name, methods in measured.items() if OURS in methods}
    figure, axes = plt.subplots(
        1, len(found), figsize=(max(6, 4.2 * len(found)), 3.8), layout="constrained", squeeze=False
    )
    for ax, (name, methods) in zip(axes[0], found.items(), strict=True):
        for method, colour in LOOKS.items():
            for suffix, style in (("", "-"), (" + codecs", "--")):
                runs = methods.get(method + suffix, [])
                if not runs:
                    continue
                rounds = min(len(run["curve"]) for run in runs)
                x = [fmean(run["curve"][t]["bytes"] for run in runs) / 2**20 for t in range(rounds)]
                y = [100 * fmean(run["curve"][t]["validation"]["1"] for run in runs) for t in range(rounds)]
                ax.plot(x, y, style, color=colour, lw=1.8, label=method + suffix)
        ax.set_xscale("log")
        ax.set_title(SETS[name])
        ax.set_xlabel("MiB sent, both ways")
        ax.grid(alpha=0.25)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("validation P@1, %")
    named = {label: handle for ax in axes[0] for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    figure.legend(
        named.values(),
        named.keys(),
        loc="outside lower center",
        ncols=min(4, 2 * len(found)),
        frameon=False,
        fontsize=9,
    )
    plt.rcParams["svg.hashsalt"] = "fedmlh"
    figure.savefig(results / "bytes.svg", metadata={"Date": None})


def main() -> None:
    """Write what can be made of the results that are there."""
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path, nargs="?", default=RESULTS)
    results = parser.parse_args().results
    parts = [
        "# Methods, codecs, ablations\n",
        "Written by `experiments/recipe/report.py`; mean ± deviation over seeds.\n",
    ]
    for name, title in SETS.items():
        methods = by_method(results / f"{name}-methods.json")
        if not methods:
            continue
        coded = " + codecs"
        pairs = [(OURS, RIVAL), (OURS + coded, RIVAL + coded), ("FedMLH, searched", RIVAL)]
        pairs += [("FedMLH, paper", "FedAvg, paper"), (OURS + coded, OURS), ("central, searched", OURS)]
        pairs += [("central, recommended", OURS)]
        parts += [f"## {title}\n", accuracy(methods), differences(methods, pairs), volumes(methods)]
        parts += [f"### {title}: best of the searches, on validation\n", losses(results, name)]
        ablation = by_method(results / f"{name}-ablation.json")
        if ablation:
            if OURS not in ablation:
                raise SystemExit(f"{name}-ablation.json has no run of '{OURS}' to compare with: run measure.py for it")
            changes = [(change, OURS) for change in ablation if change != OURS]
            parts += [f"### {title}: one part of recommended changed\n", differences(ablation, changes)]
    (results / "tables.md").write_text("\n".join(parts))
    draw(results)


if __name__ == "__main__":
    main()
