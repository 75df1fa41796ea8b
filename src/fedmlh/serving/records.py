"""What a model is asked about: rows of a spreadsheet, JSON lines or lines of text, with all that they say."""

import io
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from fedmlh.data.importing.lines import check_file, has_mark, read_text, take_sample
from fedmlh.data.importing.reading import join_texts, take_name
from fedmlh.data.importing.sources import (
    JSON_ENDS,
    Guess,
    JsonLines,
    Marks,
    Row,
    Source,
    Table,
    is_object,
    open_source,
    suggest,
)
from fedmlh.data.importing.tables import fold
from fedmlh.data.readers.files import FEATURE_ENDS, Incoming, Origin
from fedmlh.data.readers.json_lines import take_text
from fedmlh.errors import BadLine, UserError

_TABLE_ENDS = (".csv", ".tsv")
#: The fields of text that training reads from JSON lines.
_USUAL = ("text", "title", "content")


class Record(NamedTuple):
    """A row of the input: where it begins, its text, and all that it says."""

    lineno: int
    #: "" if no column of ids was named.
    id: str
    text: str
    fields: dict[str, Any]


class TooManyCells(UserError):
    """A file has more cells than its reader takes."""


@dataclass(frozen=True)
class Records:
    """The records of an input, read from its beginning whenever they are asked for: memory does not grow with them."""

    source: Source
    #: The columns that make the text; without any, the fields that training reads.
    text: tuple[str, ...]
    id: str | None = None
    #: What `Record.fields` may hold, and how the input calls these columns: several may have one name, or none.
    fields: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    count: int = 0
    #: What stands between the cells of a table, and whether it begins with a byte order mark.
    delimiter: str | None = None
    has_mark: bool = False
    #: How the file is written, as far as nobody said it and it does not settle it: options with their values.
    guessed: tuple[Guess, ...] = ()

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Record]:
        path, number = self.source.path, len(self.text)
        for lineno, values, content in self.source.rows((*self.text, *([] if self.id is None else [self.id]))):
            fields = content if isinstance(content, dict) else dict(zip(self.fields, content, strict=True))
            try:
                text = join_texts(self.text, values[:number]) if self.text else take_text(path, lineno, fields)
                key = "" if self.id is None else take_name(values[number], self.id, "id")
            except ValueError as problem:
                raise BadLine(path, lineno, str(problem)) from None
            yield Record(lineno, key, text, fields)


def open_records(
    origin: Origin,
    columns: Sequence[str] = (),
    id_column: str | None = None,
    marks: Marks | None = None,
    *,
    most_cells: int | None = None,
) -> Records:
    """Return the records of a file, or of bytes without a path, with the text that these columns make together.

    All are read once before any is returned, so that what cannot be read is refused before anything is answered.
    A table of them has a cell per record and field that any record has: few bytes may make very many.
    """
    marks = marks or Marks()
    source, guessed = _open(origin, tuple(columns), id_column, marks)
    text = tuple(columns) or _find_text(source)
    fields = _tell_apart(source.columns)
    records = Records(source, text, id_column, fields, source.columns, guessed=guessed)
    if isinstance(source, Table):
        records = replace(records, delimiter=source.dialect.delimiter, has_mark=has_mark(origin))
    count, found = 0, dict.fromkeys(fields)
    for record in records:
        count += 1
        found.update(dict.fromkeys(record.fields))
        if most_cells is not None and count * len(found) > most_cells:
            raise TooManyCells(f"{origin}: has more than {most_cells:,} cells, rows times columns")
    if isinstance(source, JsonLines):  # a record may have fields that the first ones lack
        records = replace(records, fields=tuple(found), headers=tuple(found))
    return replace(records, count=count)


def list_texts(texts: Sequence[str]) -> Records:
    """Return texts that are at hand as records."""
    return Records(_Listed("text", texts), ("text",), None, ("text",), ("text",), len(texts))


def list_points(count: int) -> Records:
    """Return the numbers of points as records: rows of features say nothing else that could be shown."""
    return Records(_Listed("point", range(count)), ("point",), None, ("point",), ("point",), count)


@contextmanager
def keep_stream(stream: BinaryIO, name: str) -> Iterator[Incoming]:
    """Keep what a stream says in a temporary file, so that it can be read twice."""
    with tempfile.NamedTemporaryFile(prefix="fedmlh-") as file:
        shutil.copyfileobj(stream, file)
        file.flush()
        kept = Path(file.name)
        yield Incoming(name, lambda: kept.open("rb"))


class _Lines:
    """Lines of text, each a record."""

    columns: tuple[str, ...] = ("text",)
    known: tuple[str, str, str] | None = None

    def __init__(self, path: Origin, encoding: str | None) -> None:
        self.path: Origin = path
        self._encoding = encoding

    def rows(self, names: Sequence[str]) -> Iterator[Row]:
        """Yield the lines; they have no other column than `text`."""
        for name in names:
            if name not in self.columns:
                raise UserError(f"{self.path}: each line is a text, and has no column '{name:.40}'")
        for lineno, line in enumerate(read_text(self.path, self._encoding), start=1):
            text = line.removesuffix("\n").removesuffix("\r")
            yield Row(lineno, [text], {"text": text})


class _Listed:
    """Records of one field, which are in memory."""

    known: tuple[str, str, str] | None = None

    def __init__(self, field: str, values: Sequence[Any]) -> None:
        self.path: Origin = Incoming(field, io.BytesIO)
        self.columns: tuple[str, ...] = (field,)
        self._values = values

    def rows(self, names: Sequence[str]) -> Iterator[Row]:
        """Yield the values."""
        for number, value in enumerate(self._values, start=1):
            yield Row(number, [value], {self.columns[0]: value})


def _open(
    origin: Origin, columns: tuple[str, ...], id_column: str | None, marks: Marks
) -> tuple[Source, tuple[Guess, ...]]:
    """Return the rows of a file; where no column is named, its name says whether its lines are texts."""
    check_file(origin)
    name = origin.name.lower().removesuffix(".gz")
    if name.endswith(FEATURE_ENDS):
        raise UserError(f"{origin}: holds features, but the model was trained on text")
    if not columns and not name.endswith((*JSON_ENDS, *_TABLE_ENDS)):
        is_text = name.endswith(".txt")
        if not is_text and isinstance(origin, Incoming):
            is_text = not is_object(take_sample(origin, marks.encoding, may_be_blank=True).first)
        elif not is_text:
            ends = ", ".join((*_TABLE_ENDS, *JSON_ENDS))
            raise UserError(f"{origin}: should end in {ends} or .txt (all also with .gz), or name a column (--column)")
        if is_text:
            lines: Source = _Lines(origin, marks.encoding)
            return lines, ()
    names = [*(columns or ("text",)), *([] if id_column is None else [id_column])]
    return open_source(origin, marks, names, not columns, may_be_small=True)


def _find_text(source: Source) -> tuple[str, ...]:
    """Return the columns of text if nobody named one; none stands for what training reads from JSON lines."""
    if isinstance(source, JsonLines) and (not source.columns or set(_USUAL) & set(source.columns)):
        return ()
    if "text" in map(fold, source.columns):
        return ("text",)
    raise UserError(
        f"{source.path}: which column holds the text? Name it (--column); {suggest('text', source.columns)}"
    )


def _tell_apart(columns: Sequence[str]) -> tuple[str, ...]:
    """Return a name for each column that no other one has; a column without a name gets its number."""
    taken, names = set(columns), dict[str, None]()
    for number, column in enumerate(columns, start=1):
        name = column or str(number)
        while name in names or (name != column and name in taken):
            name = f"{name} ({number})"
        names[name] = None
    return tuple(names)
