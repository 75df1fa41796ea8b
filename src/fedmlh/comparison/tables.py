"""A comparison as CSV, one value per line, in full precision: comparison.csv, differences.csv and curves.csv."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmlh.comparison.comparison import Comparison
from fedmlh.evaluation.label_recall import BINS
from fedmlh.evaluation.metrics import GROUPS, METRICS
from fedmlh.runs.summary import is_number, judged, read_own
from fedmlh.storage import write_atomically

_BY_K = (*(name for metric in METRICS for name in (metric, *(f"{metric}_{group}" for group in GROUPS))), "recall_macro")
_NUMBERS = (
    "best_round rounds num_parameters model_bytes bytes_up bytes_down bytes_up_to_best bytes_down_to_best "
    "paper_volume_bytes seconds_per_round seconds_evaluation_per_round peak_memory_bytes"
).split()


def write_tables(comparison: Comparison, folder: Path, prefix: str) -> list[Path]:
    """Write the three tables as PREFIX….csv, and return their paths."""
    tables = {
        "comparison.csv": _list_figures(comparison),
        "differences.csv": _list_differences(comparison),
        "curves.csv": _list_curves(comparison),
    }
    paths = []
    for name, lines in tables.items():
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(lines)
        paths.append(folder / f"{prefix}{name}")
        write_atomically(paths[-1], text.getvalue().encode())
    return paths


def _list_figures(comparison: Comparison) -> Iterator[Iterable[Any]]:
    yield "method", "seed", "metric", "k", "value"
    for method in comparison.methods:
        for run in method.runs:
            for metric, k, value in _list_values(run.summary, run.config.metrics):
                yield method.name, run.config.seed, metric, k, value


def _list_values(summary: Mapping[str, Any], own: Sequence[str]) -> Iterator[tuple[str, str, float]]:
    """Yield metric, k and value of all figures in a summary, in an order that does not depend on the summary."""
    ks = list(summary["precision"])
    picked = [(metric, k, summary.get(metric, {}).get(k)) for metric in _BY_K for k in ks]
    picked += [(metric, k, read_own(summary, metric, k)) for metric in own for k in ks]
    picked += [(f"recall_{name}", ks[-1], summary.get("recall_by_count", {}).get(name)) for name, *_ in BINS]
    picked += [(name, "", summary.get(name)) for name in _NUMBERS]
    return (entry for entry in picked if is_number(entry[2]))


def _list_differences(comparison: Comparison) -> Iterator[Iterable[Any]]:
    bounds = ("seeds_low", "seeds_high", "points_low", "points_high")
    yield "method", "reference", "metric", "k", "seeds", "difference", *bounds
    for one in comparison.differences:
        intervals = (*(one.over_seeds or ("", "")), *(one.over_points or ("", "")))
        yield one.method, one.reference, one.metric, one.k, one.seeds, one.value, *intervals


def _list_curves(comparison: Comparison) -> Iterator[Iterable[Any]]:
    ks = list(comparison.methods[0].runs[0].summary["precision"])
    yield "method", "seed", "round", "bytes_up", "bytes_down", "part", *(f"precision@{k}" for k in ks)
    for method in comparison.methods:
        for run in method.runs:
            for record in run.history:
                values, part = judged(record)["precision"], "validation" if "validation" in record else "test"
                head = (record["round"], record["bytes_up"], record["bytes_down"], part)
                yield method.name, run.config.seed, *head, *(values.get(k, "") for k in ks)
