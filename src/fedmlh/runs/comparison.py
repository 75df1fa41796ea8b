"""Runs side by side: one table of figures, with mean and spread over seeds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

Summary = Mapping[str, Any]
MIB = 2**20


@dataclass(frozen=True)
class Row:
    """One figure for each group of runs."""

    name: str
    cells: tuple[str, ...]


def group(summaries: Sequence[Summary]) -> dict[str, list[Summary]]:
    """Runs by what they are: same set-up and algorithm, whatever the seed."""
    names = {summary["name"] for summary in summaries}
    groups: dict[str, list[Summary]] = {}
    for summary in summaries:
        label = str(summary["algorithm"]) if len(names) == 1 else f"{summary['name']} {summary['algorithm']}"
        if summary["selection"] == "paper":
            label += " (best round on test)"
        groups.setdefault(label, []).append(summary)
    return groups


def compare(groups: Mapping[str, Sequence[Summary]]) -> list[Row]:
    """The rows of the comparison: accuracy in percent, then what it cost."""
    ks = list(next(iter(groups.values()))[0]["precision"])
    rows = []
    for metric, label in (
        ("precision", "P@{k}, %"),
        ("precision_paper", "paper's @{k} (hits / min(|y|, k)), %"),
        ("precision_infrequent", "infrequent labels' share of P@{k}, %"),
        ("ndcg", "nDCG@{k}, %"),
        ("psp", "PSP@{k}, %"),
    ):
        rows += [_row(label.format(k=k), groups, _percent(metric, k), 1) for k in ks]
    rows += [
        _row("rounds to best", groups, lambda s: s["best_round"], 0),
        _row("model, MiB", groups, lambda s: s["model_bytes"] / MIB, 2),
        _row("bytes up to best, MiB", groups, lambda s: s["bytes_up_to_best"] / MIB, 1),
        _row("bytes down to best, MiB", groups, lambda s: s["bytes_down_to_best"] / MIB, 1),
        _row("paper's volume (up only, no headers), MiB", groups, lambda s: s["paper_volume_bytes"] / MIB, 1),
        _row("seconds a round, training", groups, lambda s: s["seconds_per_round"], 2),
    ]
    return rows


def _percent(metric: str, k: str) -> Callable[[Summary], float]:
    return lambda summary: 100 * float(summary[metric][k])


def _row(name: str, groups: Mapping[str, Sequence[Summary]], pick: Callable[[Summary], float], digits: int) -> Row:
    cells = []
    for summaries in groups.values():
        values = [float(pick(summary)) for summary in summaries]
        spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
        cells.append(f"{fmean(values):.{digits}f}{spread}")
    return Row(name, tuple(cells))
