"""Commands that use a trained model."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from fedmlh.cli.options import PartsOption, check_target
from fedmlh.cli.terminal import console, errors, open_data, print_json, print_terms
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


def predict(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="run or model folder")],
    text: Annotated[list[str] | None, typer.Option(help="a text to label; may be given several times")] = None,
    points: Annotated[
        Path | None, typer.Option("--input", help="file of points, in any format that training reads")
    ] = None,
    first_feature: Annotated[
        int | None, typer.Option(min=0, max=1, help="svmlight input: number of the first feature, 0 or 1")
    ] = None,
    top: Annotated[int, typer.Option(min=1, max=10_000, help="number of labels per point")] = 5,
    out: Annotated[Path | None, typer.Option(help="write JSON lines to this file instead of the terminal")] = None,
    parts: PartsOption = None,
) -> None:
    """Predict the labels of points or texts with a trained model."""
    from fedmlh.data.readers.formats import read_points
    from fedmlh.serving.predictor import Model
    from fedmlh.storage import write_atomically

    if (text is None) == (points is None):
        raise UserError('name what to label: either --text "…" or --input FILE')
    if out is not None:
        check_target(out)
        if points is not None and out.resolve() == points.resolve():
            raise UserError(f"--out {out} would replace the --input: name another file")
    model = Model.load(folder)
    if points is None:
        source = text
    else:
        source = read_points(
            points,
            text=model.bundle.text is not None,
            num_features=model.bundle.task.num_features,
            first_feature=model.bundle.first_feature if first_feature is None else first_feature,
        )
    if text is not None and out is None:
        for line, predictions in zip(text, model.predict(text, top), strict=True):
            console.print(line, style="bold", soft_wrap=True)
            for label in predictions:
                key = "" if label["key"] == label["name"] else f"  ({label['key']})"
                console.print(f"  {label['score']:8.3f}  {label['name']}{key}")
        console.print(model.score_meaning, style="dim", soft_wrap=True)
        return
    answers = ({"point": number, "labels": labels} for number, labels in enumerate(model.predict_stream(source, top)))
    if out is not None:
        write_atomically(out, "".join(json.dumps(answer, ensure_ascii=False) + "\n" for answer in answers).encode())
    else:
        for answer in answers:
            print_json(answer, ensure_ascii=False)
    errors.print(model.score_meaning, style="dim", soft_wrap=True)
