"""Files of records as their columns: tables, JSON lines and Annif's corpora."""

import difflib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from fedmlh.data.importing.lines import Sample, check_encoding, read_text, take_sample
from fedmlh.data.importing.tables import Dialect, fold, guess_dialect, read_cells
from fedmlh.data.readers.files import Origin
from fedmlh.data.readers.label_lines import is_uri
from fedmlh.errors import BadLine, UserError
from fedmlh.untrusted import parse_json

#: How names of JSON lines end.
JSON_ENDS = (".jsonl", ".ndjson", ".json")
#: The columns of text and labels in Annif's corpora.
_ANNIF = ("text", "subject_uris")
#: Columns that a sentence names.
_MOST_LISTED = 20
#: Columns among which the one is looked for that was perhaps meant.
_MOST_COMPARED = 1000


class Row(NamedTuple):
    """What a record says in the columns that were asked for."""

    lineno: int
    values: list[Any]
    #: All that the record says: by field, or in the order of the columns.
    content: dict[str, Any] | list[Any]


class Source(Protocol):
    """A file of records."""

    path: Origin
    columns: tuple[str, ...]
    #: Columns of text and labels and the separator of labels, if the form of the file fixes them.
    known: tuple[str, str, str] | None

    def rows(self, names: Sequence[str]) -> Iterator[Row]:
        """Yield the values of these columns, record by record."""


@dataclass(frozen=True)
class Marks:
    """What a user says of how files are written; what is None is looked for in the file."""

    delimiter: str | None = None
    quote: str | None = None
    escape: str | None = None
    encoding: str | None = None
    header: bool = True


#: An option and its value, which nobody said.
Guess = tuple[str, str]


def open_source(
    path: Origin, marks: Marks, names: Sequence[str], is_free: bool, *, may_be_small: bool = False
) -> tuple[Source, tuple[Guess, ...]]:
    """Open a file in which these columns are wanted; return also the options that were guessed for it.

    If it `is_free`, its own form may say which columns hold text and labels. If it `may_be_small`, a table may have one
    column, and JSON lines no record.
    """
    if marks.encoding is not None:
        check_encoding(marks.encoding)
    is_json = path.name.removesuffix(".gz").lower().endswith(JSON_ENDS)
    sample = take_sample(path, marks.encoding, may_be_blank=is_json and may_be_small)
    if is_json or is_object(sample.first):
        return JsonLines(path, marks.encoding, sample), ()
    if is_free and _is_annif(sample):
        return AnnifCorpus(path, marks.encoding), ()
    named = [name for name in names if not name.isdecimal()]
    said = {"delimiter": marks.delimiter or sample.delimiter, "quote": marks.quote, "escape": marks.escape}
    dialect, is_named = guess_dialect(sample, named if marks.header else (), **said)
    table = Table(path, marks.encoding, dialect, marks.header, least=1 if may_be_small else 2)
    if is_free and table.known:
        return table, ()
    # A header with the names that were said settles the delimiter.
    sure = vars(Dialect()) | {"delimiter": dialect.delimiter if is_named else None}
    found = {name: getattr(dialect, name) for name, mark in said.items() if mark is None}
    return table, tuple((name, mark) for name, mark in found.items() if mark != sure[name])


class Table:
    """CSV or TSV with a header, whose columns have its names, or without one, whose columns are numbered from 1."""

    def __init__(self, path: Origin, encoding: str | None, dialect: Dialect, header: bool, *, least: int = 2) -> None:
        """Read the first record; refuse one with fewer cells than `least`."""
        self.path, self.dialect = path, dialect
        self._encoding, self._header = encoding, header
        self._first, cells = next(self._records(), (1, []))
        self.columns = tuple(cell.strip() for cell in cells) if header else tuple(str(n + 1) for n in range(len(cells)))
        if len(self.columns) < least:
            hint = "say what stands between cells (--delimiter), and take out lines above the header"
            raise BadLine(path, self._first, f"has only one cell: {hint}")
        folded = [fold(name) for name in self.columns]
        is_annif = all(folded.count(name) == 1 for name in _ANNIF)
        self.known: tuple[str, str, str] | None = (*_ANNIF, " ") if is_annif else None
        # Spreadsheet programs write columns without a name and content at the end, in some rows.
        self._least = max(place + 1 for place, name in enumerate(self.columns) if name or place == 0)

    def rows(self, names: Sequence[str]) -> Iterator[Row]:
        """Yield the cells of these columns."""
        places = [self._find(name) for name in names]
        width = len(self.columns)
        records = self._records()
        if self._header:
            next(records)
        for lineno, cells in records:
            if len(cells) != width:
                self._fit(lineno, cells)
            yield Row(lineno, [cells[place] for place in places], cells)

    def _records(self) -> Iterator[tuple[int, list[str]]]:
        return read_cells(self.path, read_text(self.path, self._encoding), self.dialect)

    def _fit(self, lineno: int, cells: list[str]) -> None:
        """Add or remove cells that hold nothing; refuse any other difference to the first record."""
        width = len(self.columns)
        if len(cells) < self._least or any(cells[width:]):
            hint = f"a cell that holds a {self.dialect.delimiter!r} must stand in quotes"
            number = "1 cell" if len(cells) == 1 else f"{len(cells)} cells"
            raise BadLine(self.path, lineno, f"has {number}, and line {self._first} has {width}; {hint}")
        cells[width:] = []
        cells += [""] * (width - len(cells))

    def _find(self, name: str) -> int:
        """Return the place of a column, given its name or its number from 1."""
        for compare in (str.strip, fold):
            places = [place for place, column in enumerate(self.columns) if compare(column) == compare(name)]
            if len(places) > 1:
                numbers = " or ".join(str(place + 1) for place in places)
                raise BadLine(
                    self.path, self._first, f"names two columns {name!r}: rename one, or name it by number, {numbers}"
                )
            if places:
                return places[0]
        if name.isdecimal() and 1 <= int(name[:9]) <= len(self.columns):
            return int(name) - 1
        hint = "; if this is a record, say so (--no-header) and name columns by number" if self._header else ""
        raise BadLine(self.path, self._first, f"has no column '{name:.40}': {suggest(name, self.columns)}{hint}")


class JsonLines:
    """A JSON object per line, whose fields are the columns."""

    def __init__(self, path: Origin, encoding: str | None, sample: Sample) -> None:
        """Take the fields of the first records for the columns."""
        self.path, self._encoding = path, encoding
        fields: dict[str, bool] = {}
        for _, record in self._parse(iter(sample.lines)):
            for name, value in record.items():
                fields[name] = fields.get(name, False) or isinstance(value, list)
        self.columns = tuple(fields)
        lists = [name for name in ("labels", "subjects") if fields.get(name)]
        is_known = "text" in fields and bool(lists)
        self.known: tuple[str, str, str] | None = ("text", lists[0], "") if is_known else None

    def rows(self, names: Sequence[str]) -> Iterator[Row]:
        """Yield the values of these fields, None where a record has none; refuse a field that no record has."""
        missing = set(names)
        lineno = 0
        for lineno, record in self._parse(read_text(self.path, self._encoding)):
            values = [record.get(name) for name in names]
            if missing:
                missing -= record.keys()
            yield Row(lineno, values, record)
        for name in names:
            if lineno and name in missing:
                raise UserError(f"{self.path}: no record has a field '{name:.40}': {suggest(name, self.columns)}")

    def _parse(self, lines: Iterator[str]) -> Iterator[tuple[int, dict[str, Any]]]:
        for lineno, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                record = parse_json(line)
            except ValueError as problem:
                reason = getattr(problem, "msg", None) or str(problem)
                raise BadLine(
                    self.path, lineno, f"is not JSON ({reason}); a record is one object on one line"
                ) from None
            if not isinstance(record, dict):
                hint = "; in a list, each record needs a line of its own" if isinstance(record, list) else ""
                raise BadLine(self.path, lineno, f'should be a JSON object, such as {{"text": …, "labels": […]}}{hint}')
            yield lineno, record


class AnnifCorpus:
    """Annif's corpus of short texts: `text<TAB><uri> <uri>` on each line, without a header."""

    columns: tuple[str, ...] = _ANNIF
    known: tuple[str, str, str] | None = (*_ANNIF, " ")

    def __init__(self, path: Origin, encoding: str | None) -> None:
        """Take a file of this form."""
        self.path, self._encoding = path, encoding

    def rows(self, names: Sequence[str]) -> Iterator[Row]:
        """Yield text and URIs."""
        for lineno, line in enumerate(read_text(self.path, self._encoding), start=1):
            if not line.strip():
                continue
            text, tab, uris = line.partition("\t")
            if not tab:
                raise BadLine(self.path, lineno, "should be `text<TAB><uri> <uri>`, and has no tab")
            said = dict(zip(_ANNIF, (text, uris), strict=True))
            for name in names:
                if name not in said:
                    raise UserError(f"{self.path}: has no column '{name:.40}': {suggest(name, _ANNIF)}")
            yield Row(lineno, [said[name] for name in names], [text, uris])


def suggest(name: str, columns: Sequence[str]) -> str:
    """Say which columns there are, and which one was perhaps meant."""
    listed = list_columns(columns)
    near = difflib.get_close_matches(fold(name[:80]), [fold(column) for column in columns[:_MOST_COMPARED]], n=1)
    return f"did you mean '{near[0]}'? There are {listed}" if near else f"there are {listed}"


def list_columns(columns: Sequence[str]) -> str:
    """Return the names of the first columns."""
    named = [f"'{column:.30}'" for column in columns if column]
    return ", ".join(named[:_MOST_LISTED]) + (", …" if len(named) > _MOST_LISTED else "")


def is_object(line: str) -> bool:
    """Say whether a line is a JSON object."""
    try:
        return line.lstrip().startswith("{") and isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _is_annif(sample: Sample) -> bool:
    """Say whether nearly all lines are a text, a tab and URIs, and the first one is."""
    lines = [line.partition("\t") for line in sample.lines if line.strip()]
    fits = [bool(tab) and all(map(is_uri, uris.split())) for _, tab, uris in lines]
    with_uris = [uris for _, _, uris in lines if uris.strip()]
    return fits[0] and bool(with_uris) and sum(fits) >= 0.9 * len(fits)
