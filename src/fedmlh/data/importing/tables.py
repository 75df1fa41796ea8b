"""Records of CSV and TSV files, with the number of the line on which each begins."""

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fedmlh.data.importing.lines import Sample
from fedmlh.data.readers.files import MAX_LINE, Origin
from fedmlh.errors import BadLine, UserError

#: A CR within a line, and what stands for it while cells are told apart; no encoding has that character.
_LONE, _STAND_IN = re.compile("\r(?!\n)"), "\udcfe"
#: Of two delimiters that fit a file equally well, the first one is taken.
_DELIMITERS = ("\t", ";", ",", "|")


@dataclass(frozen=True)
class Dialect:
    """How the cells of a table are told apart."""

    delimiter: str = ","
    #: What a cell stands in if it holds a delimiter, a line break or this mark itself, which is then doubled; "": none.
    quote: str = '"'
    #: What stands before a mark that is part of a cell; "": none.
    escape: str = ""

    def __post_init__(self) -> None:
        marks = {"delimiter": self.delimiter, "quote": self.quote, "escape": self.escape}
        for name, mark in marks.items():
            if len(mark) > 1 or mark in ("\n", "\r") or (name == "delimiter" and not mark):
                raise UserError(f"the {name} {mark!r:.40} should be one character, and not a line break")
        given = [mark for mark in marks.values() if mark]
        if len(set(given)) < len(given):
            raise UserError(f"the delimiter, the quote and the escape should differ, and are {', '.join(given)}")

    def parse(self, lines: Iterable[str]) -> Any:
        """Return a reader of the csv module over these lines; where a CR ends no line, cells have a stand-in."""
        csv.field_size_limit(MAX_LINE)
        return csv.reader(
            # The module would end a record at a CR that ends no line.
            (_LONE.sub(_STAND_IN, line) if "\r" in line else line for line in lines),
            delimiter=self.delimiter,
            quotechar=self.quote or None,
            quoting=csv.QUOTE_MINIMAL if self.quote else csv.QUOTE_NONE,
            escapechar=self.escape or None,
            skipinitialspace=self.delimiter != " ",
            strict=True,
        )


def read_cells(path: Origin, lines: Iterable[str], dialect: Dialect) -> Iterator[tuple[int, list[str]]]:
    """Yield the cells of each record that is not blank, with the number of the line on which it begins."""
    records = dialect.parse(lines)
    while True:
        lineno = records.line_num + 1
        try:
            cells = next(records)
        except StopIteration:
            return
        except csv.Error as problem:
            raise BadLine(path, lineno, _explain(str(problem), dialect)) from None
        if any(cells):
            yield lineno, [cell.replace(_STAND_IN, "\r") if _STAND_IN in cell else cell for cell in cells]


def _explain(problem: str, dialect: Dialect) -> str:
    """Say in a user's words what the csv module does not take."""
    quote = dialect.quote
    if not quote:
        return f"is not a row of cells ({problem})"
    if "unexpected end" in problem or "field larger" in problem:
        return (
            f"a cell begins with {quote} here and does not end: close it, or double a {quote} that is part of the text"
        )
    if "expected after" in problem:
        return f"something follows a {quote} that ends a cell: double a {quote} that is part of the text"
    return f"is not a row of cells ({problem})"


def guess_dialect(sample: Sample, names: Sequence[str], **said: str | None) -> tuple[Dialect, bool]:
    """Return the dialect in which most rows have as many cells as the first one, and whether its header is as expected.

    `names` are columns that the header should have, `said` are the marks that the user named.
    """
    marks = {name: mark for name, mark in said.items() if mark is not None}
    best, best_fit = Dialect(**marks), (False, 0.0, 0)
    for candidate in _list_dialects(sample, marks):
        fit = _measure(sample, candidate, names)
        if fit > best_fit:
            best, best_fit = candidate, fit
    return best, best_fit[0]


def _list_dialects(sample: Sample, marks: dict[str, str]) -> Iterator[Dialect]:
    text = "".join(sample.lines)
    for delimiter in (marks["delimiter"],) if "delimiter" in marks else _DELIMITERS:
        # The usual ones first: others are taken only if they fit better.
        quotes, escapes = ['"'], [""]
        if any(f"{before}'" in text for before in (delimiter, "\n")):
            quotes.append("'")
        if delimiter == "\t":
            quotes.append("")
        if "\\" in text:
            escapes.append("\\")
        for quote in [marks["quote"]] if "quote" in marks else quotes:
            for escape in [marks["escape"]] if "escape" in marks else escapes:
                if delimiter not in (quote, escape) and (quote != escape or not quote):
                    yield Dialect(delimiter, quote, escape)


def _measure(sample: Sample, dialect: Dialect, names: Sequence[str]) -> tuple[bool, float, int]:
    """Return whether the header has the names, the share of regular lines, and how many cells the header has."""
    width, regular, done = 0, 0, 0
    found = False
    records = dialect.parse(sample.lines)
    try:
        for cells in records:
            if any(cells) and not width:
                width = len(cells)
                found = bool(names) and {fold(name) for name in names} <= {fold(cell) for cell in cells}
            if not any(cells) or len(cells) == width:
                regular += records.line_num - done
            done = records.line_num
    except csv.Error:
        pass  # also where the sample ends within a record
    if width < 2:
        return False, 0.0, 0
    return found, round(20 * regular / len(sample.lines)) / 20, width


def fold(name: str) -> str:
    """Return the name of a column as names are compared."""
    return " ".join(name.split()).casefold()
