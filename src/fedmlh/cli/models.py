"""`fedmlh eval`: how good a trained model is, over all labels, label by label and point by point."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from fedmlh.cli.options import PartsOption, check_target
from fedmlh.cli.terminal import console, open_data, print_json, print_terms, tell
from fedmlh.display import count
from fedmlh.errors import UserError

if TYPE_CHECKING:
    from fedmlh.config import Config
    from fedmlh.data.dataset import Dataset
    from fedmlh.evaluation.evaluate import Examined

#: Figures as `eval` shows them, with the names under which they are explained.
_TERMS = {
    "precision, P@k": "precision",
    "infrequent labels": "infrequent",
    "recall": "recall",
    "ndcg": "ndcg",
    "psp": "psp",
    "recall_macro": "recall_macro",
    "labels seen n times": "recall_by_count",
    "F1": "f1",
}


def evaluate(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="run or model folder")],
    data: Annotated[Path | None, typer.Option(help="data folder; without it the data of the run")] = None,
    per_label: Annotated[
        Path | None, typer.Option(metavar="FILE.csv", help="write the figures of each label to this file")
    ] = None,
    misses: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="write the points that got other labels than theirs to this file (.csv or .jsonl)"
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="labels that are at least this probable are proposed; without it 0.5"),
    ] = None,
    top: Annotated[int | None, typer.Option(min=1, max=100, help="largest number of labels proposed per point")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print all metrics as JSON")] = False,
    parts: PartsOption = None,
) -> None:
    """Measure a trained model on the test part of a data set."""
    from fedmlh.serving.predictor import Model

    model = Model.load(folder)
    config = model.bundle.task.config
    source = config.replace(data=str(data)) if data else config
    _check_targets({"--per-label": per_label, "--misses": misses}, source.data)
    dataset = open_data(source)
    if data is None and dataset.fingerprint != model.bundle.data:
        raise UserError(
            "the run's data has changed since, or came from Python: name the folder of the data with --data"
        )
    examined = model.examine(dataset, threshold=threshold, top=top)
    if as_json:
        print_json({**examined.values, **examined.by_label, "proposals": examined.proposals.summarize()}, indent=2)
    else:
        _show(examined, config)
    _write(examined, dataset, per_label, misses)


def _check_targets(targets: dict[str, Path | None], data: str) -> None:
    """Refuse files that cannot be written or hold something else, before any work is done for them."""
    for option, path in targets.items():
        if path is None:
            continue
        endings = (".csv",) if option == "--per-label" else (".csv", ".jsonl")
        if path.suffix not in endings:
            raise UserError(f"{option} {path} should end in {' or '.join(endings)}")
        check_target(path)
        if data and Path(data).resolve() in path.resolve().parents:
            raise UserError(f"{option} {path} lies in the data folder, where it may replace data: name another file")
    named = [path.resolve() for path in targets.values() if path is not None]
    if len(set(named)) < len(named):
        raise UserError("--per-label and --misses name the same file: name two")


def _show(examined: "Examined", config: "Config") -> None:
    from fedmlh.comparison.terms import explain
    from fedmlh.evaluation.proposals import AVERAGES

    table = Table("test part", *(f"@{k}" for k in config.top_k))
    by_label = dict(examined.by_label)
    by_count = by_label.pop("recall_by_count")
    values = {**examined.values, **by_label}
    if config.selection != "paper":
        values = {metric: by_k for metric, by_k in values.items() if not metric.startswith("precision_paper")}
    for metric, by_k in values.items():
        own = metric in config.metrics  # may be any number
        table.add_row(metric, *(f"{value:.4f}" if own else f"{100 * value:.2f} %" for value in by_k.values()))
    for name, value in by_count.items():
        table.add_row(f"recall, labels seen {name} times", *[""] * (len(config.top_k) - 1), f"{100 * value:.2f} %")
    console.print(table)
    proposals = examined.proposals.summarize()
    table = Table("proposed", *AVERAGES)
    table.add_row(proposals["rule"], *(f"{100 * proposals[name]:.2f} %" for name in AVERAGES.values()))
    console.print(table)
    terms = _TERMS | ({"precision_paper": "precision_paper"} if config.selection == "paper" else {})
    print_terms((term, explain(name, config.frequent_threshold)) for term, name in terms.items())


def _write(examined: "Examined", dataset: "Dataset", per_label: Path | None, misses: Path | None) -> None:
    """Write the files that were asked for, and say so beside the output."""
    from fedmlh.data.originals import pick_originals
    from fedmlh.evaluation.label_files import format_labels, format_misses
    from fedmlh.storage import write_atomically

    proposals = examined.proposals
    if per_label is not None:
        write_atomically(
            per_label, format_labels(examined.labels, dataset.labels, proposals.rule).encode(errors="backslashreplace")
        )
        tell(f"figures of {count(dataset.num_labels, 'label')}: {per_label}")
    if misses is not None:
        rows = proposals.list_misses().tolist()
        originals = pick_originals(dataset, rows)
        found = format_misses(proposals, rows, dataset.labels, originals, as_csv=misses.suffix == ".csv")
        write_atomically(misses, found.encode(errors="backslashreplace"))
        tell(f"{len(rows):,} of {count(len(dataset.test), 'test point')} got other labels than theirs: {misses}")
