"""Tables and a picture of the results of evidence.py, beside the central trees of central/plt.py.

    python experiments/evidence_tables.py [--page docs/evidence.md] [--plot experiments/results/evidence/bytes.svg]

Means over seeds and their standard deviation. Differences are paired by seed, with Student's 95 % interval; since seeds
are few, the spread of differences is pooled over all rows of a table, in the grid over all rows of a data set. Equal
bytes are the bytes that the networks of `recommended` (in the grid: networks of a quarter of its bytes) send until
their best round, both ways added up, or a quarter of these bytes. Each side is tested with the model size and at the
round that validation selects within them.
"""

import argparse
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from scipy.stats import t as student
from script import mean_of, table

Run = dict[str, Any]
MIB = 2**20
RESULTS = Path(__file__).parent / "results"
#: In the order of all tables.
SETS = {
    "EurLex-EuroVoc-titles-4K": "EurLex titles",
    "WordNet-hypernyms-9K": "WordNet",
    "Debtags-600": "Debtags",
    "CiteULike-T-46K": "CiteULike",
    "TIBKAT-GND-en-21K": "TIBKAT-en",
    "Bibtex": "Bibtex",
    "Delicious": "Delicious",
}
METHODS = ("recommended", "one round", "networks", "FedAvg", "FedMLH, paper", "FedAvg, paper")
BINS = ("1-5", "6-20", "21-100", "101+")
#: Models of several sizes; validation selects one of them for given bytes.
ALL_SIZES = ("FedAvg", "FedAvg, larger", "FedAvg, half", "FedAvg, a quarter")
OUR_SIZES = ("networks", "networks, half", "networks, a quarter")


def read(name: str) -> list[Run]:
    """Return the runs of a stage, data sets in the order of all tables."""
    lines = (RESULTS / "evidence" / f"{name}.jsonl").read_text().splitlines()
    return sorted(map(json.loads, lines), key=lambda run: list(SETS).index(run["job"][0]))


def read_trees() -> dict[str, list[Run]]:
    """Return the central trees of each data set, one per seed."""
    files = [
        json.loads((RESULTS / f"{name}.json").read_text())
        for name in ("central-plt", "central-plt-seed2", "central-plt-seed3")
    ]
    return {data: [file[data] for file in files if data in file] for data in SETS}


def pick(runs: Iterable[Run], most: float) -> Run | None:
    """Return the round of these runs of one seed that validation selects within these bytes."""
    best: Run | None = None
    for run in runs:
        sent = 0
        for number, entry in enumerate(run["curve"], 1):
            sent += sum(entry["bytes"])
            if sent <= most and (best is None or fmean(entry["validation"]) > fmean(best["validation"])):
                best = {**entry, "sent": sent, "round": number, "method": run["job"][1]}
    return best


def total(run: Run) -> int:
    """Return the bytes of a run until its best round, both ways."""
    return int(run["bytes_up_to_best"] + run["bytes_down_to_best"])


def spread(values: Sequence[float], digits: int = 1) -> str:
    """Write mean and standard deviation."""
    more = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{more}" if values else "–"


def show_differences(gaps: Sequence[Sequence[float]], groups: Sequence[str] = ()) -> list[str]:
    """Write the mean of each row's paired differences, with an interval from the spread within all rows of its group.

    Without groups, all rows are one.
    """
    shown = []
    for place, row in enumerate(gaps):
        pool = [other for at, other in enumerate(gaps) if not groups or groups[at] == groups[place]]
        freedom = sum(len(other) - 1 for other in pool)
        squares = sum((gap - fmean(other)) ** 2 for other in pool for gap in other)
        reach = float(student.ppf(0.975, freedom)) * (squares / freedom / len(row)) ** 0.5 if freedom else None
        interval = f" [{fmean(row) - reach:+.2f}, {fmean(row) + reach:+.2f}]" if reach is not None else ""
        shown.append(f"{fmean(row):+.2f}{interval}")
    return shown


class Sets:
    """The runs of one stage, by data set, cell, method and seed."""

    def __init__(self, runs: Iterable[Run]) -> None:
        self.runs: dict[tuple[str, str, str], dict[int, Run]] = {}
        for run in runs:
            data, method, cell, seed = run["job"]
            self.runs.setdefault((data, cell, method), {})[seed] = run

    @property
    def places(self) -> list[tuple[str, str]]:
        """Return data sets and cells, in the order in which they were measured."""
        return list(dict.fromkeys((data, cell) for data, cell, _ in self.runs))

    @property
    def methods(self) -> list[str]:
        """Return methods, in the order in which they were measured."""
        return list(dict.fromkeys(method for _, _, method in self.runs))

    def get(self, data: str, method: str, cell: str = "") -> dict[int, Run]:
        """Return the runs of a method by seed."""
        return self.runs.get((data, cell, method), {})


def show_headline(sets: Sets, alone: list[Run], central: dict[str, list[Run]]) -> str:
    """Write what a user gets, in one table."""
    rows = []
    for data, name in SETS.items():
        clients = [client for run in alone if run["job"][0] == data for client in run["clients"].values()]
        columns = [
            clients,
            *(list(sets.get(data, method).values()) for method in ("FedAvg", "networks", "recommended")),
            central[data],
        ]
        rows.append([name, *(f"{fmean(mean_of(run['precision']) for run in runs):.1f}" for runs in columns)])
    heads = ["a client alone", "FedAvg", "FedMLH, in rounds", "`recommended`", "all points in one place (label tree)"]
    return table(["mean of P@1, P@3, P@5", *heads], rows)


def show_accuracy(sets: Sets, central: dict[str, list[Run]]) -> str:
    """Write every method at its best round, beside the central tree."""
    rows = []
    for data, _ in sets.places:
        trees = [mean_of(run["precision"]) for run in central[data]]
        rows.append(
            [
                SETS[data],
                *(spread([mean_of(run["precision"]) for run in sets.get(data, method).values()]) for method in METHODS),
                spread(trees),
            ]
        )
    return table(["mean of P@1/3/5, %", *METHODS, "central PLT"], rows)


def show_details(sets: Sets, central: dict[str, list[Run]]) -> str:
    """Write P@k, PSP@k, macro recall and recall by frequency."""
    rows = []
    for data, _ in sets.places:
        for method in dict.fromkeys([*METHODS, *sets.methods]):
            runs = list(sets.get(data, method).values())
            if not runs:
                continue
            cells = [
                "/".join(f"{100 * fmean(run[name][k] for run in runs):.1f}" for k in ("1", "3", "5"))
                for name in ("precision", "psp", "recall_macro")
            ]
            bins = "/".join(
                f"{100 * fmean(run['recall_by_count'][b] for run in runs):.1f}"
                if b in runs[0]["recall_by_count"]
                else "–"
                for b in BINS
            )
            sent = f"{fmean(total(run) for run in runs) / MIB:,.0f}"
            rows.append([SETS[data], method, *cells, bins, sent])
        trees = central[data]
        rows.append(
            [
                SETS[data],
                "central PLT",
                "/".join(f"{100 * fmean(run['precision'][k] for run in trees):.1f}" for k in ("1", "3", "5")),
                "",
                "",
                "",
                "",
            ]
        )
    return table(
        [
            "",
            "method",
            "P@1/3/5",
            "PSP@1/3/5",
            "macro recall@1/3/5",
            "recall@5 of labels seen 1–5/6–20/21–100/more",
            "MiB to best",
        ],
        rows,
    )


def show_equal_bytes(sets: Sets, share: float) -> str:
    """Write networks against FedAvg, each of any size, at a share of the bytes of the networks until their best."""
    rows, gaps = [], []
    for data, cell in sets.places:
        found = []
        default = next((size for size in OUR_SIZES if sets.get(data, size, cell)), "")
        for seed, run in sets.get(data, default, cell).items():
            sides = [
                pick([sets.get(data, size, cell)[seed] for size in sizes if seed in sets.get(data, size, cell)], limit)
                for sizes in (OUR_SIZES, ALL_SIZES)
                for limit in [share * total(run)]
            ]
            if None not in sides:
                found.append((share * total(run) / MIB, *sides))
        if not found:
            continue
        scores = [[mean_of(side["test"]) for _, *sides in found for side in [sides[at]]] for at in (0, 1)]
        chosen = ["; ".join(sorted({sides[at]["method"] for _, *sides in found})) for at in (0, 1)]
        gaps.append([one - other for one, other in zip(*scores, strict=True)])
        sent = f"{fmean(sent for sent, *_ in found):,.0f}"
        rows.append([SETS[data], cell, sent, *(spread(side) for side in scores), *chosen])
    # In the grid every data set has several rows, and a spread of its own.
    groups = [row[0] for row in rows] if any(row[1] for row in rows) else []
    rows = [[*row[:5], gap, *row[5:]] for row, gap in zip(rows, show_differences(gaps, groups), strict=True)]
    mean = fmean(fmean(row) for row in gaps)
    rows.append(["mean", "", "", "", "", f"{mean:+.2f}", "", ""])
    return table(["", "", "MiB", "networks", "FedAvg", "difference", "ours", "theirs"], rows)


def show_bytes_to(sets: Sets, central: dict[str, list[Run]]) -> str:
    """Write the bytes until the server has a model with 95 % of the central tree's P@1 on test."""

    def bytes_to(run: Run, level: float) -> tuple[float, float] | None:
        up = down = 0.0
        for entry in run["curve"]:
            up, down = up + entry["bytes"][0], down + entry["bytes"][1]
            if "test" in entry and entry["test"][0] >= level:
                return up / MIB, (up + down) / MIB
        return None

    rows = []
    for data, _ in sets.places:
        level = 0.95 * fmean(run["precision"]["1"] for run in central[data])
        cells = []
        for method in ("one round", *OUR_SIZES, *ALL_SIZES):
            runs = list(sets.get(data, method).values())
            if method == "one round":  # which is tested once, at its end
                reached: list[Any] = [
                    (run["bytes_up"] / MIB, (sum(run["curve"][0]["bytes"]) - run["curve"][0]["delivered"]) / MIB)
                    if run["precision"]["1"] >= level
                    else None
                    for run in runs
                ]
            else:
                reached = [bytes_to(run, level) for run in runs]
            there = [entry for entry in reached if entry is not None]
            cells.append(
                f"{fmean(e[0] for e in there):,.1f} / {fmean(e[1] for e in there):,.1f}"
                + ("" if len(there) == len(runs) else f" ({len(there)} of {len(runs)})")
                if there
                else "never"
            )
        rows.append([SETS[data], f"{100 * level:.1f}", *cells])
    return table(["up / both ways, MiB", "P@1", "one round", *OUR_SIZES, *ALL_SIZES], rows)


def show_alone(alone: list[Run], sets: Sets) -> str:
    """Write what a client reaches alone, the average of all clients, and the gain of joining, by frequency."""
    rows = []
    for data in dict.fromkeys(run["job"][0] for run in alone):
        runs = [run for run in alone if run["job"][0] == data]
        joined = list(sets.get(data, "recommended").values())
        each = [client for run in runs for client in run["clients"].values()]
        for name, found in (("a client alone", each), ("all averaged", runs), ("recommended", joined)):
            bins = "/".join(
                f"{100 * fmean(run['recall_by_count'][b] for run in found):.1f}"
                if found and b in found[0]["recall_by_count"]
                else "–"
                for b in BINS
            )
            scores = sorted(mean_of(run["precision"]) for run in found)
            worst = f"{scores[0]:.1f} to {scores[-1]:.1f}" if found else "–"
            rows.append([SETS[data], name, spread([mean_of(run["precision"]) for run in found]), worst, bins])
    return table(["", "", "mean of P@k", "from, to", "recall@5 of labels seen 1–5/6–20/21–100/more"], rows)


def show_cells(sets: Sets) -> str:
    """Write the mean of P@k of every method in every cell."""
    rows = [
        [
            SETS[data],
            cell,
            *(
                spread([mean_of(run["precision"]) for run in sets.get(data, method, cell).values()])
                for method in sets.methods
            ),
        ]
        for data, cell in sets.places
    ]
    return table(["", "", *sets.methods], rows)


def show_tuned(tuned: Sets, sets: Sets) -> str:
    """Write networks and FedAvg as the rules size them and as a search did, and the tuned ones at equal bytes."""
    rows, gaps = [], []
    for data, _ in tuned.places:
        found = {name: tuned.get(data, f"{name}, tuned") for name in ("networks", "FedAvg")}
        most = {seed: max(total(runs[seed]) for runs in found.values()) for seed in found["networks"]}
        gaps.append(
            [
                mean_of(ours["test"]) - mean_of(theirs["test"])
                for seed, sent in most.items()
                for ours, theirs in [[pick([runs[seed]], sent) for runs in found.values()]]
                if ours and theirs
            ]
        )
        cells = [
            spread([mean_of(run["precision"]) for run in runs.values()])
            for name in ("networks", "FedAvg")
            for runs in (sets.get(data, name), found[name])
        ]
        sent = [f"{fmean(total(run) for run in runs.values()) / MIB:,.0f}" for runs in found.values()]
        rows.append([SETS[data], *cells, *sent])
    rows = [[*row, gap] for row, gap in zip(rows, show_differences(gaps), strict=True)]
    heads = ["networks", "tuned", "FedAvg", "tuned", "networks, tuned, MiB", "FedAvg, tuned, MiB", "tuned, difference"]
    return table(["mean of P@1/3/5, %", *heads], rows)


def show_changes(changes: Sets) -> str:
    """Write what one changed setting does to P@k and to the bytes until the best round."""
    ((data, _),) = changes.places
    base = changes.get(data, "as they are")
    rows, gaps = [], []
    for method in changes.methods:
        runs = changes.get(data, method)
        sent = f"{fmean(total(run) for run in runs.values()) / MIB:,.0f}"
        precision = "/".join(
            f"{100 * fmean(run['precision'][k] for run in runs.values()):.1f}" for k in ("1", "3", "5")
        )
        rows.append([method, precision, sent])
        gaps.append([mean_of(runs[seed]["precision"]) - mean_of(base[seed]["precision"]) for seed in runs])
    # The base has no difference to itself, and says nothing about the spread of others.
    differences = show_differences(gaps, ["base" if row[0] == "as they are" else "changed" for row in rows])
    rows = [[*row, "" if row[0] == "as they are" else gap] for row, gap in zip(rows, differences, strict=True)]
    return table([SETS[data], "P@1/3/5", "MiB to best", "mean of P@k, difference"], rows)


def plot(path: Path) -> None:
    """Draw P@1 on test against all bytes sent, for three data sets."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "fedmlh"
    import matplotlib.pyplot as plt

    sets, trees, alone = Sets(read("sets")), read_trees(), read("alone")
    shown = ("EurLex-EuroVoc-titles-4K", "WordNet-hypernyms-9K", "CiteULike-T-46K")
    figure, panels = plt.subplots(1, len(shown), figsize=(11, 3.6), layout="constrained")
    for axes, data in zip(panels, shown, strict=True):
        for method, colour in (("networks", "#1f5fa8"), ("FedAvg", "#c2571a")):
            for seed, run in sets.get(data, method).items():
                sent, xs, ys = 0, [], []
                for entry in run["curve"][: run["best_round"]]:
                    sent += sum(entry["bytes"])
                    xs.append(sent / MIB)
                    ys.append(100 * entry["test"][0])
                name = {"networks": "FedMLH, in rounds", "FedAvg": "FedAvg"}[method]
                axes.plot(xs, ys, color=colour, linewidth=1, alpha=0.8, label=None if seed else name)
        for method, colour, marker in (("one round", "#2a8c4a", "o"), ("recommended", "#111111", "*")):
            runs = sets.get(data, method).values()
            place = (fmean(total(run) for run in runs) / MIB, 100 * fmean(run["precision"]["1"] for run in runs))
            axes.plot(*place, marker, color=colour, markersize=7 if marker == "o" else 11, label=method)
        each = [client for run in alone if run["job"][0] == data for client in run["clients"].values()]
        for name, level in (
            ("central label tree", fmean(tree["precision"]["1"] for tree in trees[data])),
            ("a client alone", fmean(client["precision"]["1"] for client in each)),
        ):
            axes.axhline(100 * level, color="#b0b0b0", linewidth=0.8, linestyle=":")
            axes.annotate(name, (0, 100 * level), xycoords=("axes fraction", "data"), xytext=(3, 3),
                          textcoords="offset points", color="#707070", fontsize=7)  # fmt: skip
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.set_title(SETS[data], fontsize=10, loc="left")
        axes.set_xlabel("MiB sent, both ways, all clients", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("P@1 on test, %", fontsize=8)
    named = panels[0].get_legend_handles_labels()
    figure.legend(*named, frameon=False, fontsize=8, loc="outside lower center", ncols=4)
    figure.savefig(path, metadata={"Date": None})


def make_tables() -> dict[str, str]:
    """Return all tables by their titles."""
    trees, sets, alone, tuned = read_trees(), Sets(read("sets")), read("alone"), Sets(read("tuned"))
    grid, many = Sets(read("grid")), Sets(read("many"))
    return {
        "In short": show_headline(sets, alone, trees),
        "Methods": show_accuracy(sets, trees),
        "Alone and together": show_alone(alone, sets),
        "At the networks' bytes": show_equal_bytes(sets, 1.0),
        "At a quarter of them": show_equal_bytes(sets, 0.25),
        "Bytes to 95 % of the central tree's P@1": show_bytes_to(sets, trees),
        "After a search": show_tuned(tuned, sets),
        "Partitions and clients": show_cells(grid),
        "1,000 clients": show_cells(many),
        "The grid at equal bytes": show_equal_bytes(grid, 1.0),
        "The grid at a quarter of them": show_equal_bytes(grid, 0.25),
        "Part by part": show_cells(Sets(read("parts"))),
        "One setting changed": show_changes(Sets(read("changes"))),
        "All figures": show_details(sets, trees),
    }


def replace_tables(page: str, tables: dict[str, str]) -> str:
    """Return a page with each table in the place of the one under its title."""
    for title, shown in tables.items():
        before, heading, after = page.partition(f"\n## {title}\n")
        old = re.search(r"(^\|.*\n)+", after, re.MULTILINE)
        if not heading or not old:
            raise SystemExit(f"the page has no table under '{title}'")
        page = f"{before}{heading}{after[: old.start()]}{shown}\n{after[old.end() :]}"
    return page


def main() -> None:
    """Print all tables, write them into a page, or draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    if arguments.plot:
        plot(arguments.plot)
    if arguments.page:
        arguments.page.write_text(replace_tables(arguments.page.read_text(), make_tables()))
    if not arguments.plot and not arguments.page:
        print("\n".join(f"## {title}\n\n{shown}\n" for title, shown in make_tables().items()))


if __name__ == "__main__":
    main()
