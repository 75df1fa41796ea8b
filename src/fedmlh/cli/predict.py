"""`fedmlh predict`: labels for points or texts, from a trained model; it needs no package that trains."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn

from fedmlh.cli.options import (
    DelimiterOption,
    EncodingOption,
    EscapeOption,
    NoHeaderOption,
    PartsOption,
    QuoteOption,
    check_target,
    unescape,
    write_guesses,
)
from fedmlh.cli.terminal import console, errors, progress, tell
from fedmlh.display import count, escape_json
from fedmlh.errors import UserError

if TYPE_CHECKING:
    from fedmlh.data.importing.sources import Marks
    from fedmlh.serving.answers import Answer
    from fedmlh.serving.predictor import Model
    from fedmlh.serving.records import Record, Records

#: Words that are shown with what they add.
_MOST_WORDS = 8
#: Characters of a text of a file that are shown.
_SHOWN = 200
_ENDS = (".csv", ".tsv", ".jsonl")


def predict(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="run or model folder")],
    text: Annotated[list[str] | None, typer.Option(help="a text to label; may be given several times")] = None,
    points: Annotated[
        Path | None,
        typer.Option(
            "--input", metavar="FILE", help="CSV, TSV, JSON lines, lines of text, also .gz, or features; - reads a pipe"
        ),
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option("--column", metavar="NAME", help="a column of text; several are joined, as by data import"),
    ] = None,
    id_column: Annotated[
        str | None, typer.Option("--id", metavar="COLUMN", help="the column of ids; every record needs one")
    ] = None,
    top: Annotated[int, typer.Option(min=1, max=10_000, help="number of labels per point")] = 5,
    threshold: Annotated[
        float,
        typer.Option(min=0, max=1, help="leave out labels that are less probable than this"),
    ] = 0.0,
    why: Annotated[bool, typer.Option("--why", help="say what each word adds, and how each table voted")] = False,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="write to this file instead: .csv, .tsv or .jsonl, by its name"),
    ] = None,
    delimiter: DelimiterOption = None,
    quote: QuoteOption = None,
    escape: EscapeOption = None,
    encoding: EncodingOption = None,
    no_header: NoHeaderOption = False,
    first_feature: Annotated[
        int | None, typer.Option(min=0, max=1, help="svmlight input: number of the first feature, 0 or 1")
    ] = None,
    parts: PartsOption = None,
) -> None:
    """Predict the labels of points or texts with a trained model.

    The rows of a file keep their order and all their columns. Without --out a terminal shows the labels, and a pipe
    gets JSON lines.
    """
    from fedmlh.data.importing.sources import Marks
    from fedmlh.serving.answers import answer, write_json
    from fedmlh.serving.predictor import Model
    from fedmlh.serving.records import list_points, list_texts

    if (text is None) == (points is None):
        raise UserError('name what to label: either --text "…" or --input FILE')
    if text is not None and (columns or id_column is not None):
        raise UserError("--column and --id name columns of a file: name the file with --input, or leave them out")
    if out is not None:
        _check_out(out, points)
    model = Model.load(folder)
    with ExitStack() as opened:
        if points is not None and model.bundle.text is None:
            features = _read_features(model, points, first_feature, named=bool(columns) or id_column is not None)
            records = list_points(features.shape[0])
            found = model.explain(features, top, threshold) if why else model.predict_stream(features, top, threshold)
            answers: Iterator[Answer] = zip(records, found, strict=True)
        else:
            marks = Marks(unescape(delimiter), quote, escape, encoding, not no_header)
            records = list_texts(text or []) if points is None else _read(opened, points, columns, id_column, marks)
            answers = answer(model, records, top, threshold, why=why)
        if out is not None:
            _write(out, model, records, answers, why)
        elif points is None or console.is_terminal:
            for record, labels in answers:
                _show((record.text or "(no text)") if points is None else _title(record), labels)
        else:
            for line in write_json(model, records, answers):
                print(escape_json(line), end="")
    # Beside a listing, where a reader looks for it; not in what a script reads.
    said = console if points is None and out is None else errors
    for meaning in (model.score_meaning, model.probability_meaning):
        said.print(meaning, style="dim", soft_wrap=True)


def _check_out(out: Path, points: Path | None) -> None:
    """Refuse a file that cannot be written, before any work is done for it."""
    check_target(out)
    if points is not None and points.exists() and out.exists() and out.samefile(points):
        raise UserError(f"--out {out} would replace the --input: name another file")
    if out.suffix not in _ENDS:
        raise UserError(f"--out {out} should end in .csv, .tsv or .jsonl, which says how to write it")


def _read_features(model: "Model", points: Path, first_feature: int | None, *, named: bool) -> Any:
    from fedmlh.data.readers.formats import read_points

    if named:
        raise UserError(
            f"{points}: this model was trained on features, not on text: leave --column and --id out, and name a file "
            f"of features with --input"
        )
    return read_points(
        points,
        num_features=model.bundle.task.num_features,
        first_feature=model.bundle.first_feature if first_feature is None else first_feature,
    )


def _read(
    opened: ExitStack, points: Path, columns: list[str] | None, id_column: str | None, marks: "Marks"
) -> "Records":
    """Return the records of a file, or of standard input, which is kept until `opened` ends."""
    from fedmlh.serving.records import keep_stream, open_records

    if str(points) == "-" and sys.stdin.isatty():
        tell("reading from the terminal: end with Ctrl-D on a line of its own")
    with errors.status("reading") if errors.is_terminal else nullcontext():
        origin = opened.enter_context(keep_stream(sys.stdin.buffer, "standard input")) if str(points) == "-" else points
        records = open_records(origin, columns or (), id_column, marks)
    if records.guessed:
        tell(f"guessed: {write_guesses(records.guessed)}")
    return records


def _write(out: Path, model: "Model", records: "Records", answers: Iterator["Answer"], why: bool) -> None:
    """Write all answers, or no file; say how many there are."""
    from fedmlh.serving.answers import write_json, write_table
    from fedmlh.storage import write_atomically

    labelled = 0

    def watch() -> Iterator["Answer"]:
        nonlocal labelled
        for record, labels in bar.track(answers, len(records), description="predicting"):
            labelled += bool(labels)
            yield record, labels

    with progress(BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()) as bar:
        if out.suffix == ".jsonl":
            lines = write_json(model, records, watch())
        else:
            lines = write_table(model, records, watch(), tabs=out.suffix == ".tsv", why=why)
        # A text of the command line may hold half a character, which no file can hold.
        write_atomically(out, (line.encode(errors="backslashreplace") for line in lines))
    tell(f"{out}: {count(len(records), 'row')}, {labelled:,} with labels")


def _title(record: "Record") -> str:
    """Return what a record of a file is shown under: its id and the beginning of its text, or the point's number."""
    if "point" in record.fields and len(record.fields) == 1:
        return f"point {record.text}"
    text = record.text if len(record.text) <= _SHOWN else f"{record.text[: _SHOWN - 1]}…"
    text = text or "(no text)"
    return f"{record.id}  {text}" if record.id else text


def _show(title: str, labels: Sequence[Mapping[str, Any]]) -> None:
    """Print a text and its labels, with the reasons if there are any."""
    console.print(title, style="bold", soft_wrap=True)
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
