"""Parts of a table: a title, rows of text, and cells with our values beside the paper's."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from fedmlh.reproduction.methods import METHODS, PAPER

NONE = "–"
MIB = 2**20
Row = tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A table with a title; columns that belong together share the part of their heads before ' · '."""

    id: str
    title: str
    head: Row
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    groups: int = 1  # leading columns that name a group of rows

    def to_csv(self) -> str:
        """Return the table as CSV, for spreadsheets and scripts."""
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerows([self.head, *self.rows])
        return buffer.getvalue()

    def to_markdown(self) -> str:
        """Return the table as Markdown, to be read as text."""
        lines = [f"# {self.title}", "", _line(self.head), _line(["---"] * len(self.head)), *map(_line, self.rows)]
        return "\n".join([*lines, *(f"\n{note}" for note in self.notes)]) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def show(values: Sequence[float], digits: int) -> str:
    """Return the mean, with the standard deviation over seeds if there are several."""
    if not values:
        return NONE
    spread = f" ± {stdev(values):,.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):,.{digits}f}{spread}"


def difference(ours: Sequence[float], printed: float | None, digits: int) -> str:
    """Return our value minus the paper's, to the digits that it printed."""
    if not ours or printed is None:
        return NONE
    gap = round(round(fmean(ours), digits) - printed, digits)
    return f"{gap:+,.{digits}f}" if gap else "0"


def _printed(value: float | None, digits: int) -> str:
    return NONE if value is None else f"{value:,.{digits}f}"


#: Columns of tables with our values beside the paper's; the paper has no values of the last two contestants.
SIDES = tuple(f"{METHODS[method]} · {part}" for method in PAPER for part in ("ours", "paper", "difference"))
OTHERS = ("recommended · ours", "tuned FedAvg · ours")


def side_by_side(ours: Mapping[str, Sequence[float]], printed: Mapping[str, float | None], digits: int) -> Row:
    """Return the cells of both algorithms: our value, the paper's, and the difference."""
    cells: list[str] = []
    for method in PAPER:
        values, known = ours.get(method, ()), printed.get(method)
        cells += [show(values, digits), _printed(known, digits), difference(values, known, digits)]
    return tuple(cells)


def other_methods(ours: Mapping[str, Sequence[float]], digits: int) -> Row:
    """Return the cells of the two contestants that the paper does not have."""
    return tuple(show(ours.get(method, ()), digits) for method in ("recommended", "tuned"))


def ratio(top: Sequence[float], bottom: Sequence[float], digits: int = 2) -> str:
    """Return one mean divided by the other."""
    return f"{fmean(top) / fmean(bottom):.{digits}f}×" if top and bottom else NONE


def signed(values: Sequence[float], digits: int) -> str:
    """Return a mean that is a difference, with its sign."""
    shown = show(values, digits)
    mean = round(fmean(values), digits) if values else 0.0
    return f"+{shown}" if mean > 0 else shown if mean else shown.removeprefix("-")
