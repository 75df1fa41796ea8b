"""Runs side by side: one table of figures, with mean and spread over seeds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import fmean, stdev
from typing import Any

from fedmlh.config import Config
from fedmlh.errors import UserError
from fedmlh.runs.folder import FREE_ON_RESUME, FinishedRun

MIB = 2**20
Groups = Mapping[str, Sequence[FinishedRun]]


@dataclass(frozen=True)
class Row:
    """One figure for each group of runs."""

    name: str
    cells: tuple[str, ...]


def group(runs: Sequence[FinishedRun]) -> dict[str, list[FinishedRun]]:
    """Runs that differ in nothing but the seed, under a name that says in what the groups differ."""
    if len({tuple(run.summary["precision"]) for run in runs}) > 1:
        raise UserError("these runs were measured at different k (top_k): report them apart")
    names = [entry.name for entry in fields(Config) if entry.name not in {*FREE_ON_RESUME, "seed"}]
    members: dict[tuple[Any, ...], list[FinishedRun]] = {}
    for run in runs:
        members.setdefault(tuple(getattr(run.config, name) for name in names), []).append(run)
    named = len({values[names.index("name")] for values in members}) == len(members)
    differing = [name for name, values in zip(names, zip(*members, strict=True), strict=True) if len(set(values)) > 1]
    groups = {}
    for same in members.values():
        seeds = [run.config.seed for run in same]
        if len(set(seeds)) < len(seeds):
            raise UserError(
                f"the same run was given twice, or two runs with one set-up and seed {max(seeds, key=seeds.count)}"
            )
        config = same[0].config
        others = [f"{name}={getattr(config, name)}" for name in differing if name not in ("algorithm", "selection")]
        chosen = ["best round on test"] if config.selection == "paper" else []
        # Set-ups of different names are known by them; else what they differ in has to tell them apart.
        title = [config.name] if named and len(members) > 1 else [config.method, *others]
        groups[" ".join([*title, *(f"({note})" for note in chosen)])] = same
    return groups


def compare(groups: Groups) -> list[Row]:
    """The rows of the comparison: accuracy in percent, then what it cost."""
    ks = list(next(iter(groups.values()))[0].summary["precision"])
    rows = []
    for metric, label in (
        ("precision", "P@{k}, %"),
        ("precision_paper", "paper's @{k} (hits / min(|y|, k)), %"),
        ("precision_infrequent", "P@{k} from infrequent labels, points"),
        ("ndcg", "nDCG@{k}, %"),
        ("psp", "PSP@{k}, %"),
    ):
        rows += [_row(label.format(k=k), groups, _percent(metric, k), 1) for k in ks]
    rows += [
        _row("rounds to best", groups, lambda s: s["best_round"], 0),
        _row("model, MiB", groups, lambda s: s["model_bytes"] / MIB, 2),
        _row("clients sent until best, MiB", groups, lambda s: s["bytes_up_to_best"] / MIB, 1),
        _row("server sent until best, MiB", groups, lambda s: s["bytes_down_to_best"] / MIB, 1),
        _row("paper's volume (clients, no headers), MiB", groups, lambda s: s["paper_volume_bytes"] / MIB, 1),
        _row("seconds a round, training", groups, lambda s: s["seconds_per_round"], 2),
    ]
    return rows


def _percent(metric: str, k: str) -> Callable[[Mapping[str, Any]], float]:
    return lambda summary: 100 * float(summary[metric][k])


def _row(name: str, groups: Groups, pick: Callable[[Mapping[str, Any]], float], digits: int) -> Row:
    cells = []
    for runs in groups.values():
        values = [float(pick(run.summary)) for run in runs]
        spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
        cells.append(f"{fmean(values):.{digits}f}{spread}")
    return Row(name, tuple(cells))
