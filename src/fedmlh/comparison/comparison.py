"""Methods side by side: figures with mean and spread over seeds, differences, and the settings in which they differ."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, stdev
from typing import Any

from fedmlh.comparison.differences import Difference, Interval, find_differences
from fedmlh.comparison.methods import Method, gather
from fedmlh.comparison.settings import IDLE, list_differing
from fedmlh.comparison.terms import explain
from fedmlh.evaluation.label_recall import BINS
from fedmlh.runs.folder import RunFolder
from fedmlh.runs.summary import read_own

MIB = 2**20
#: Figures as tables show them, with their names in summary.json.
_TERMS = {
    "P@k": "precision",
    "nDCG@k": "ndcg",
    "PSP@k": "psp",
    "infrequent labels": "infrequent",
    "macro recall@k": "recall_macro",
    "labels seen n times": "recall_by_count",
    "best": "best_round",
}
_TERMS_OF_PAPER = {"paper's @k": "precision_paper", "paper's volume": "paper_volume_bytes"}


@dataclass(frozen=True)
class Row:
    """One figure for each method."""

    name: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """The content of a report about methods."""

    methods: list[Method]
    figures: list[Row]
    settings: list[Row]
    differences: list[Difference]
    notes: list[str]  # on differences that are missing

    @property
    def names(self) -> list[str]:
        """Return the names of the methods."""
        return [method.name for method in self.methods]

    @property
    def terms(self) -> list[tuple[str, str]]:
        """Return the terms in the names of the figures, and what they mean."""
        threshold = self.methods[0].config.frequent_threshold
        shown = _TERMS | (_TERMS_OF_PAPER if _follow_paper(self.methods) else {})
        return [(term, explain(name, threshold)) for term, name in shown.items()]


def compare(folders: Sequence[RunFolder]) -> Comparison:
    """Read finished runs, and put their methods side by side."""
    methods = gather(folders)
    settings = [Row(name, tuple(shown)) for name, shown in list_differing([method.config for method in methods])]
    differences, notes = find_differences(methods)
    return Comparison(methods, _list_figures(methods), settings, differences, notes)


def _list_figures(methods: Sequence[Method]) -> list[Row]:
    """Return accuracy in percent, then costs, then the paper's own figures if a run follows its way."""
    ks = list(methods[0].runs[0].summary["precision"])
    own = dict.fromkeys(name for method in methods for name in method.config.metrics)

    def percent(metric: str, label: str) -> list[Row]:
        return [_row(label.format(k=k), methods, _percent(metric, k), 1) for k in ks]

    of_paper = [
        *percent("precision_paper", "paper's @{k}, %"),
        _row("paper's volume, MiB", methods, lambda s: s["paper_volume_bytes"] / MIB, 1),
    ]

    return [
        *percent("precision", "P@{k}, %"),
        *([_row("mean of P@k, %", methods, _mean_precision, 1)] if len(ks) > 1 else []),
        *percent("ndcg", "nDCG@{k}, %"),
        *percent("psp", "PSP@{k}, %"),
        *percent("precision_infrequent", "P@{k} from infrequent labels, % points"),
        *percent("recall_macro", "macro recall@{k}, %"),
        *(
            _row(
                f"recall@{ks[-1]}, labels seen {f'> {low - 1}' if high is None else f'{low}–{high}'} times, %",
                methods,
                _percent("recall_by_count", name),
                1,
            )
            for name, low, high in BINS
        ),
        *(_row(f"{metric}@{k}", methods, partial(read_own, metric=metric, k=k), 4) for metric in own for k in ks),
        _row("rounds to best", methods, lambda s: s["best_round"], 0),
        _row("model, MiB", methods, lambda s: s["model_bytes"] / MIB, 2),
        _row("clients sent until best, MiB", methods, lambda s: s["bytes_up_to_best"] / MIB, 1),
        _row("server sent until best, MiB", methods, lambda s: s["bytes_down_to_best"] / MIB, 1),
        _row("seconds per round, training", methods, lambda s: s["seconds_per_round"], 2),
        *(of_paper if _follow_paper(methods) else []),
    ]


def _follow_paper(methods: Sequence[Method]) -> bool:
    """Say whether any method selects its round in the paper's way."""
    return any(method.config.selection == "paper" for method in methods)


def show_difference(difference: Difference) -> tuple[str, str, str, str]:
    """Return metric, difference and both intervals as tables show them."""
    name = {"precision": "P@", "psp": "PSP@"}.get(difference.metric, "mean of P@k") + difference.k
    intervals = (_show_interval(bounds) for bounds in (difference.over_seeds, difference.over_points))
    return (name, f"{100 * difference.value:+.2f}", *intervals)  # type: ignore[return-value]


def _show_interval(bounds: Interval | None) -> str:
    return IDLE if bounds is None else f"{100 * bounds[0]:+.2f} to {100 * bounds[1]:+.2f}"


def _percent(metric: str, key: str) -> Callable[[Mapping[str, Any]], float | None]:
    def pick(summary: Mapping[str, Any]) -> float | None:
        value = summary.get(metric, {}).get(key)
        return None if value is None else 100 * float(value)

    return pick


def _mean_precision(summary: Mapping[str, Any]) -> float:
    return 100 * fmean(summary["precision"].values())


def _row(
    name: str,
    methods: Sequence[Method],
    pick: Callable[[Mapping[str, Any]], float | None],
    digits: int,
) -> Row:
    cells = []
    for method in methods:
        values = [value for run in method.runs if (value := pick(run.summary)) is not None]
        spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
        cells.append(f"{fmean(values):.{digits}f}{spread}" if len(values) == len(method.runs) else IDLE)
    return Row(name, tuple(cells))
