"""What the columns of files mean, as the user says it or as their first records show it."""

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from fedmlh.data.importing.labels import LabelCells, guess_separator
from fedmlh.data.importing.sources import Guess, Marks, Source, open_source
from fedmlh.data.importing.tables import fold
from fedmlh.data.readers.files import Origin
from fedmlh.display import is_printable
from fedmlh.errors import BadLine, UserError

#: How columns of text are called; all that are there are taken.
_TEXT = ("title", "subtitle", "abstract", "summary", "description", "text", "content", "body")
#: How columns of labels are called; the first that is there is taken.
_LABELS = (
    *("labels", "label", "subjects", "subject", "subject_uris", "keywords", "keyword", "tags", "tag"),
    *("categories", "category", "topics", "topic", "descriptors", "concepts", "classes", "class"),
)
#: How many records a guess looks at, and how many a user is shown.
_LOOKED_AT, SHOWN = 200, 5
_LONGEST_SITE = 200


@dataclass(frozen=True)
class Columns:
    """Which columns hold what; what a user leaves out is empty or None."""

    text: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    #: What stands between the labels of a cell; see LabelCells.
    separator: str | None = None
    id: str | None = None
    site: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All columns that are named, in the order in which a record is read."""
        return (*self.text, *self.labels, *filter(None, (self.id, self.site)))


class Record(NamedTuple):
    """What a row says, in the form of the product."""

    path: Origin
    lineno: int
    id: str | None
    site: str | None
    text: str
    labels: tuple[str, ...]
    #: All that the row says, to tell when another one repeats it.
    whole: str


@dataclass(frozen=True)
class Reading:
    """Files, and what their columns mean."""

    sources: tuple[Source, ...]
    columns: Columns
    #: What nobody said and the files do not settle: options with their values.
    guessed: tuple[Guess, ...]
    cells: LabelCells

    def records(self) -> Iterator[Record]:
        """Yield the records of all files; refuse one that cannot be read, by its line."""
        for source in self.sources:
            lineno = 0
            for lineno, values, content in source.rows(self.columns.names):
                try:
                    yield self._read(source.path, lineno, values, repr(content))
                except ValueError as problem:
                    raise BadLine(source.path, lineno, str(problem)) from None
            if lineno == 0:
                raise UserError(f"{source.path}: has a header and no record below it")

    def show(self) -> list[Record]:
        """Return the first records."""
        return list(islice(self.records(), SHOWN))

    def _read(self, path: Origin, lineno: int, values: Sequence[Any], whole: str) -> Record:
        columns = self.columns
        first, last = len(columns.text), len(columns.text) + len(columns.labels)
        text = join_texts(columns.text, values[:first])
        labels = [label for value in values[first:last] for label in self.cells.read(value)]
        key = None if columns.id is None else take_name(values[last], columns.id, "id")
        site = None if columns.site is None else _check_site(take_name(values[-1], columns.site, "site"))
        return Record(path, lineno, key, site, text, tuple(dict.fromkeys(labels)), whole)


def understand(files: Sequence[Path], columns: Columns, marks: Marks) -> Reading:
    """Return what the files mean; what the user does not say is taken from the form of the first file, or guessed."""
    is_free = not columns.text and not columns.labels
    first, guessed = open_source(files[0], marks, columns.names, is_free)
    wanted: tuple[str, ...]
    if is_free and first.known is not None:
        text, labels, separator = first.known
        separator = separator if columns.separator is None else columns.separator
        known, wanted = replace(columns, text=(text,), labels=(labels,), separator=separator), columns.names
    else:
        known, more = _guess_columns(first, columns)
        guessed, wanted, is_free = (*guessed, *more), known.names, False
    sources = [first]
    for path in files[1:]:
        source, more = open_source(path, marks, wanted, is_free)
        sources.append(source)
        guessed = (*guessed, *(guess for guess in more if guess not in guessed))
    return Reading(tuple(sources), known, guessed, LabelCells(known.separator or ""))


def _guess_columns(source: Source, columns: Columns) -> tuple[Columns, tuple[Guess, ...]]:
    """Fill in the columns and the separator that are not said; return also what was filled in."""
    guessed: list[Guess] = []
    taken = [fold(name) for name in (*columns.names, *source.columns)]
    # A name that stands twice tells no column.
    free = [name for name in source.columns if name and taken.count(fold(name)) == 1]
    if not columns.labels:
        best = _find_names(free, _LABELS)[:1] or _find_largest(source, free, "labels", _is_several, 0.2)
        columns = replace(columns, labels=best)
        guessed += [("labels", name) for name in best]
    if not columns.text:
        free = [name for name in free if name not in columns.labels]
        best = _find_names(free, _TEXT) or _find_largest(source, free, "text", _count_words, 1)
        columns = replace(columns, text=best)
        guessed += [("text", name) for name in best]
    if columns.separator is None:
        values = [value for values in _look(source, columns.labels) for value in values]
        cells = [value.strip() for value in values if isinstance(value, str) and value.strip()]
        separator = guess_separator(cells)
        columns = replace(columns, separator=separator)
        if cells or not any(isinstance(value, list) for value in values):
            guessed.append(("separator", separator))
    return columns, tuple(guessed)


def _find_names(names: Sequence[str], usual: Sequence[str]) -> tuple[str, ...]:
    """Return the names that are usual ones, in the order of these."""
    by_name = {fold(name): name for name in names}
    return tuple(by_name[name] for name in usual if name in by_name)


def _find_largest(
    source: Source, names: Sequence[str], what: str, measure: Callable[[Any], float], least: float
) -> tuple[str]:
    """Return the column whose first cells that are not empty have the largest mean of a measure."""
    means = []
    for cells in zip(*_look(source, names), strict=True):
        measured = [measure(cell) for cell in cells if cell not in (None, "")]
        means.append(sum(measured) / max(1, len(measured)))
    if max(means, default=0) < least:
        listed = ", ".join(f"'{name:.30}'" for name in source.columns if name)
        raise UserError(f"{source.path}: which column holds the {what}? Name it (--{what}); there are {listed}")
    return (names[means.index(max(means))],)


def _look(source: Source, names: Sequence[str]) -> Iterator[list[Any]]:
    return (row.values for row in islice(source.rows(names), _LOOKED_AT))


def _is_several(cell: Any) -> float:
    """Say whether a cell looks like several labels; commas are in any text."""
    if isinstance(cell, str) and cell.strip():
        return float(guess_separator([cell.strip()]) not in ("", ","))
    return float(isinstance(cell, list))


def _count_words(cell: Any) -> float:
    return float(len(cell.split())) if isinstance(cell, str) else 0.0


def join_texts(names: Sequence[str], values: Sequence[Any]) -> str:
    """Return the text of a record from its cells, or raise a ValueError that says what is wrong with one."""
    texts = [_take_text(value, name) for name, value in zip(names, values, strict=True)]
    return " ".join(filter(None, texts))


def _take_text(value: Any, name: str) -> str:
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError(f"'{name:.40}' is {value!r:.40}, and should be a text")
    return str(value).strip()


def take_name(value: Any, name: str, what: str) -> str:
    """Return the id of a record or the name of its site, or raise a ValueError if it has none."""
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise ValueError(f"has no {what} ('{name:.40}'): every record needs one if the column is named (--{what})")
    return str(value).strip()


def _check_site(site: str) -> str:
    """Return the name of a site as a folder can have it."""
    site = " ".join(unicodedata.normalize("NFC", site).split())
    if Path(site).name != site or site.startswith(".") or not is_printable(site) or len(site.encode()) > _LONGEST_SITE:
        raise ValueError(f"the site {site!r:.60} cannot be the name of a folder: rename it")
    return site
