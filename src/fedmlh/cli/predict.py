"""`fedmlh predict`: labels for points or texts, from a trained model; it needs no package that trains."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedmlh.cli.options import PartsOption, check_target
from fedmlh.cli.terminal import console, errors, print_json
from fedmlh.errors import UserError

if TYPE_CHECKING:
    from fedmlh.serving.predictor import Model

#: Words that are shown with what they add.
_MOST_WORDS = 8


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
    threshold: Annotated[
        float,
        typer.Option(min=0, max=1, help="leave out labels that are less probable than this"),
    ] = 0.0,
    why: Annotated[bool, typer.Option("--why", help="say what each word adds, and how each table voted")] = False,
    out: Annotated[Path | None, typer.Option(help="write JSON lines to this file instead of the terminal")] = None,
    parts: PartsOption = None,
) -> None:
    """Predict the labels of points or texts with a trained model."""
    from fedmlh.serving.predictor import Model
    from fedmlh.storage import write_atomically

    if (text is None) == (points is None):
        raise UserError('name what to label: either --text "…" or --input FILE')
    if out is not None:
        check_target(out)
        if points is not None and out.resolve() == points.resolve():
            raise UserError(f"--out {out} would replace the --input: name another file")
    model = Model.load(folder)
    meanings = (model.score_meaning, model.probability_meaning)
    source = text if points is None else _read(model, points, first_feature)
    found = model.explain(source, top, threshold) if why else model.predict_stream(source, top, threshold)
    if text is not None and out is None:
        for line, labels in zip(text, found, strict=True):
            _show(line, labels)
        for meaning in meanings:
            console.print(meaning, style="dim", soft_wrap=True)
        return
    answers = ({"point": number, "labels": labels} for number, labels in enumerate(found))
    if out is not None:
        write_atomically(out, "".join(json.dumps(answer, ensure_ascii=False) + "\n" for answer in answers).encode())
    else:
        for answer in answers:
            print_json(answer, ensure_ascii=False)
    for meaning in meanings:
        errors.print(meaning, style="dim", soft_wrap=True)


def _read(model: "Model", points: Path, first_feature: int | None) -> Any:
    from fedmlh.data.readers.formats import read_points

    return read_points(
        points,
        text=model.bundle.text is not None,
        num_features=model.bundle.task.num_features,
        first_feature=model.bundle.first_feature if first_feature is None else first_feature,
    )


def _show(text: str, labels: Any) -> None:
    """Print a text and its labels, with the reasons if there are any."""
    console.print(text, style="bold", soft_wrap=True)
    if not labels:
        console.print("  no label: the model knows no word of this text, or no label is probable enough", style="dim")
    for label in labels:
        key = "" if label["key"] == label["name"] else f"  ({label['key']})"
        chance = "" if label["probability"] is None else f"  {100 * label['probability']:5.1f} %"
        console.print(f"  {label['score']:8.3f}{chance}  {label['name']}{key}")
        if "words" not in label:
            continue
        words = [f"{word['word']} {word['adds']:+.3f}" for word in label["words"][:_MOST_WORDS]]
        console.print(f"            words: {', '.join(words)}", style="dim", soft_wrap=True)
        for vote in label["tables"]:
            if vote["labels_in_bucket"] > 1:
                more = vote["labels_in_bucket"] - 1 - len(vote["shared_with"])
                others = "; ".join(vote["shared_with"]) + (f" and {more:,} more" if more else "")
                where = f"rank {vote['rank']:,} of {vote['buckets']:,} buckets, shared with {others}"
                console.print(f"            table {vote['table']}: {where}", style="dim", soft_wrap=True)
