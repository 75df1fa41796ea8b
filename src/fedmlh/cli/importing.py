"""The command that makes a data set of spreadsheets and of other files of records."""

import shlex
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Column, Table

from fedmlh.cli.options import (
    DelimiterOption,
    EncodingOption,
    EscapeOption,
    NoHeaderOption,
    QuoteOption,
    unescape,
    write_guesses,
)
from fedmlh.cli.terminal import console, errors
from fedmlh.errors import UserError

if TYPE_CHECKING:
    from fedmlh.data.importing.folder import Imported
    from fedmlh.data.importing.reading import Reading

#: Characters of a cell that are shown.
_SHOWN = 60


def import_files(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="CSV, TSV or JSON lines, also .gz")],
    out: Annotated[Path, typer.Option(help="folder to write")],
    text: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="a column of text; may be given several times")
    ] = None,
    labels: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="the column of labels; may be given several times")
    ] = None,
    separator: Annotated[
        str | None,
        typer.Option(
            help='what stands between labels: a text, \\n, \'\' for one label per cell, or list for ["a", "b"]'
        ),
    ] = None,
    id_column: Annotated[
        str | None, typer.Option("--id", metavar="COLUMN", help="the column of ids; rows of one id make one record")
    ] = None,
    site: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="the column of sites; each becomes a folder of its own")
    ] = None,
    vocabulary: Annotated[
        Path | None, typer.Option(metavar="FILE", help="labels with their names: Annif's TSV or CSV, or a labels.txt")
    ] = None,
    language: Annotated[
        str | None, typer.Option(help="language of the names, where the vocabulary has several")
    ] = None,
    test: Annotated[float, typer.Option(help="share of records for the test part; 0 for none")] = 0.2,
    seed: Annotated[int, typer.Option(min=0, help="which records are the test part follows from it")] = 0,
    delimiter: DelimiterOption = None,
    quote: QuoteOption = None,
    escape: EscapeOption = None,
    encoding: EncodingOption = None,
    no_header: NoHeaderOption = False,
    yes: Annotated[bool, typer.Option("--yes", help="import what was guessed")] = False,
) -> None:
    """Make a data set of spreadsheets: CSV, TSV, JSON lines, or Annif's corpora.

    What is not said is guessed. The guess is shown with the first records, and nothing is written without --yes.
    """
    from fedmlh.data.importing.folder import write_folder
    from fedmlh.data.importing.reading import Columns, understand
    from fedmlh.data.importing.sources import Marks
    from fedmlh.data.importing.vocabulary import read_vocabulary

    if language is not None and vocabulary is None:
        raise UserError("--language chooses names of a vocabulary: name its file with --vocabulary")
    columns = Columns(tuple(text or ()), tuple(labels or ()), unescape(separator), id_column, site)
    marks = Marks(unescape(delimiter), quote, escape, encoding, not no_header)
    reading = understand(files, columns, marks)
    if reading.guessed and not yes:
        _show_guess(reading)
        raise UserError("nothing was written: add --yes if the records above are right, or name what is not")
    with errors.status("importing") if errors.is_terminal else nullcontext():
        listed = None if vocabulary is None else read_vocabulary(vocabulary, language)
        imported = write_folder(reading, listed, out, test, seed)
    if reading.guessed:
        console.print(f"guessed: {write_guesses(reading.guessed)}", soft_wrap=True)
    for line in _describe(imported, len(files)):
        console.print(line, soft_wrap=True)


def _show_guess(reading: "Reading") -> None:
    """Print the first records as they would be imported, and the options that say the same."""
    records = reading.show()
    columns = reading.columns
    heads = [("line", ""), ("id", columns.id), ("site", columns.site)]
    heads += [("text", " + ".join(columns.text)), ("labels", " + ".join(columns.labels))]
    shown = [(what, name) for what, name in heads if name is not None]
    table = Table(*(Column(f"{what} ({name})" if name else what, overflow="fold") for what, name in shown))
    for record in records:
        cells = {
            "line": str(record.lineno),
            "id": record.id or "",
            "site": record.site or "",
            "text": _shorten(record.text),
            "labels": " | ".join(map(_shorten, record.labels)),
        }
        table.add_row(*(cells[what] for what, _ in shown))
    console.print(table)
    console.print(f"guessed: {write_guesses(reading.guessed)}", soft_wrap=True)


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _describe(imported: "Imported", num_files: int) -> list[str]:
    """Say what was written, what was left out and why, and what to do next."""
    counts, sites = imported.counts, imported.sites
    train, test = imported.count(test=False), imported.count(test=True)
    source = "1 file" if num_files == 1 else f"{num_files} files"
    lines = [
        f"{imported.folder}: {train:,} training and {test:,} test points of {counts.rows:,} rows in {source}, "
        f"{imported.num_labels:,} labels, {counts.pairs / (train + test):.1f} per point"
    ]
    left = (
        (counts.continued, "continue the row above, which has the same id: their labels were put together"),
        (counts.repeated, "repeat another row: each record counts once"),
        (counts.without_labels, "have no label: left out, since there is nothing to learn from them"),
        (counts.without_text, "have no text: left out"),
    )
    lines += [f"rows that {what}: {number:,}" for number, what in left if number]
    if counts.unlisted:
        more = ", …" if counts.unlisted > len(counts.named) else ""
        lines.append(f"labels that the vocabulary lacks: {counts.unlisted:,} left out, {', '.join(counts.named)}{more}")
    if sites:
        lines.append(_describe_sites(sites, imported))
    if not test:
        lines.append(
            "there is no test part: `tune` and `plan` need none, `run` and `site prepare` need points in tst.jsonl"
        )
        return lines
    own = (
        f" --set partition=folder --set num_clients={len(sites)} --set clients_per_round={len(sites)}" if sites else ""
    )
    lines.append(f"next: fedmlh run recommended --data {shlex.quote(str(imported.folder))}{own}")
    return lines


def _describe_sites(sites: Sequence[str], imported: "Imported") -> str:
    points = imported.counts.points
    shown = [f"{site} {points[site, False]:,} + {points[site, True]:,}" for site in sites[:10]]
    return f"{len(sites):,} sites (training + test points): {', '.join(shown)}{', …' if len(sites) > 10 else ''}"
