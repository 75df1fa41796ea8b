"""What every table is made of: a title, rows of text, and cells that set ours beside the paper's."""

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
    """A titled table; columns that belong together share what stands before ' · ' in their heads."""

    id: str
    title: str
    head: Row
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    groups: int = 1  # leading columns that name a group of rows

    def to_csv(self) -> str:
        """For spreadsheets and scripts."""
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerows([self.head, *self.rows])
        return buffer.getvalue()

    def to_markdown(self) -> str:
        """For reading as text."""
        lines = [f"# {self.title}", "", _line(self.head), _line(["---"] * len(self.head)), *map(_line, self.rows)]
        return "\n".join([*lines, *(f"\n{note}" for note in self.notes)]) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def show(values: Sequence[float], digits: int) -> str:
    """Mean, and the standard deviation over seeds where there are several."""
    if not values:
        return NONE
    spread = f" ± {stdev(values):,.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):,.{digits}f}{spread}"


def difference(ours: Sequence[float], printed: float | None, digits: int) -> str:
    """Ours less the paper's, as far as its digits go."""
    if not ours or printed is None:
        return NONE
    gap = round(round(fmean(ours), digits) - printed, digits)
    return f"{gap:+,.{digits}f}" if gap else "0"


def _printed(value: float | None, digits: int) -> str:
    return NONE if value is None else f"{value:,.{digits}f}"


#: Columns of every table that sets ours beside the paper's; the last two contestants have no cell in the paper.
SIDES = tuple(f"{METHODS[method]} · {part}" for method in PAPER for part in ("ours", "paper", "difference"))
OTHERS = ("recommended · ours", "tuned FedAvg · ours")


def side_by_side(ours: Mapping[str, Sequence[float]], printed: Mapping[str, float | None], digits: int) -> Row:
    """The cells of both algorithms: ours, the paper's, the difference."""
    cells: list[str] = []
    for method in PAPER:
        values, known = ours.get(method, ()), printed.get(method)
        cells += [show(values, digits), _printed(known, digits), difference(values, known, digits)]
    return tuple(cells)


def other_methods(ours: Mapping[str, Sequence[float]], digits: int) -> Row:
    """The cells of the two that the paper does not have."""
    return tuple(show(ours.get(method, ()), digits) for method in ("recommended", "tuned"))


def ratio(top: Sequence[float], bottom: Sequence[float], digits: int = 2) -> str:
    """How many times one mean is the other."""
    return f"{fmean(top) / fmean(bottom):.{digits}f}×" if top and bottom else NONE


def signed(values: Sequence[float], digits: int) -> str:
    """A mean that is a difference."""
    shown = show(values, digits)
    mean = round(fmean(values), digits) if values else 0.0
    return f"+{shown}" if mean > 0 else shown if mean else shown.removeprefix("-")
