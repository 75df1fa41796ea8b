"""`fedmlh eval`: how good a trained model is."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fedmlh.cli.options import PartsOption
from fedmlh.cli.terminal import console, open_data, print_json, print_terms
from fedmlh.errors import UserError

#: Figures as `eval` shows them, with the names under which they are explained.
_TERMS = {
    "precision, P@k": "precision",
    "infrequent labels": "infrequent",
    "recall": "recall",
    "ndcg": "ndcg",
    "psp": "psp",
    "recall_macro": "recall_macro",
    "labels seen n times": "recall_by_count",
}


def evaluate(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="run or model folder")],
    data: Annotated[Path | None, typer.Option(help="data folder; without it the data of the run")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print all metrics as JSON")] = False,
    parts: PartsOption = None,
) -> None:
    """Measure a trained model on the test part of a data set."""
    from fedmlh.comparison.terms import explain
    from fedmlh.serving.predictor import Model

    model = Model.load(folder)
    config = model.bundle.task.config
    dataset = open_data(config.replace(data=str(data)) if data else config)
    if data is None and dataset.fingerprint != model.bundle.data:
        raise UserError(
            "the run's data has changed since, or came from Python: name the folder of the data with --data"
        )
    values = model.evaluate(dataset)
    if as_json:
        print_json(values, indent=2)
        return
    table = Table("test part", *(f"@{k}" for k in config.top_k))
    by_count = values.pop("recall_by_count")
    if config.selection != "paper":
        values = {metric: by_k for metric, by_k in values.items() if not metric.startswith("precision_paper")}
    for metric, by_k in values.items():
        own = metric in config.metrics  # may be any number
        table.add_row(metric, *(f"{value:.4f}" if own else f"{100 * value:.2f} %" for value in by_k.values()))
    for name, value in by_count.items():
        table.add_row(f"recall, labels seen {name} times", *[""] * (len(config.top_k) - 1), f"{100 * value:.2f} %")
    console.print(table)
    terms = _TERMS | ({"precision_paper": "precision_paper"} if config.selection == "paper" else {})
    print_terms((term, explain(name, config.frequent_threshold)) for term, name in terms.items())
