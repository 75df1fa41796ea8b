"""Output and end of commands; every text passes through here on its way to the terminal."""

import json
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rich.console import Console
from rich.progress import Progress, ProgressColumn, Task
from rich.table import Column, Table
from rich.text import Text

from fedmlh.config import Config
from fedmlh.display import escape_json, make_printable

if TYPE_CHECKING:
    from fedmlh.comparison.comparison import Row
    from fedmlh.data.dataset import Dataset


class PlainConsole(Console):
    """A console that shows each text, also in tables, as it is: nothing in it is markup, an emoji code or an escape."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Turn a text into what is shown; rich calls this for every string."""
        return super().render_str(make_printable(text), **{**options, "markup": False, "emoji": False})


console = PlainConsole(highlight=False)
errors = PlainConsole(highlight=False, stderr=True)


class _Description(ProgressColumn):
    """The description of a bar, as a string that the console renders; rich's own column would read markup."""

    def render(self, task: Task) -> str:
        return task.description


def progress(*columns: ProgressColumn, **options: Any) -> Progress:
    """Make a display of bars on a terminal, each after its description; elsewhere none is shown.

    Bars and what `tell` says share a console, so that every line stands above the bars.
    """
    return Progress(
        _Description(Column(no_wrap=True)),
        *columns,
        console=errors,
        disable=not errors.is_terminal,
        redirect_stdout=console.is_terminal,  # what is printed into a file stays there
        **options,
    )


class Terminated(BaseException):
    """SIGTERM, which ends a command in the same way as Ctrl-C."""


class Interrupted(Exception):
    """Ctrl-C or SIGTERM during a run; the text says how to continue."""

    def __init__(self, how: str, number: int) -> None:
        super().__init__(how)
        self.code = 128 + number


@contextmanager
def terminable() -> Iterator[None]:
    """Make SIGTERM raise an exception in the block, so that what was begun is tidied up."""

    def terminate(number: int, frame: object) -> None:
        # Once: `timeout` sends it twice, and the second must not end the tidying up.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def resumable(how: str = "--resume continues from the last finished round") -> Iterator[None]:
    """Tell the user how to continue after Ctrl-C or SIGTERM in the block; typer would exit in silence."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(how, signal.SIGINT) from None
    except Terminated:
        raise Interrupted(how, signal.SIGTERM) from None


def complain(sentence: str) -> None:
    """Print one sentence about what went wrong, on standard error."""
    print(f"fedmlh: {make_printable(' '.join(sentence.split()))}", file=sys.stderr, flush=True)


def fail(sentence: str, code: int) -> NoReturn:
    """End the program with one sentence to the user and this exit code."""
    complain(sentence)
    sys.exit(code)


def tell(line: str) -> None:
    """Print a remark beside the output, on standard error."""
    errors.print(line, style="dim", soft_wrap=True)


def print_json(values: Any, **layout: Any) -> None:
    """Print values for a script; a terminal may show them as well."""
    print(escape_json(json.dumps(values, **layout)))


def open_data(config: Config) -> "Dataset":
    """Return the data that the config names."""
    from fedmlh.data.source import open_dataset

    with errors.status("reading data") if errors.is_terminal else nullcontext():
        return open_dataset(config)


#: Most characters of a column if several columns have to share the terminal.
_WIDEST = 24


def _print_rows(title: str, names: Sequence[str], rows: "Sequence[Row]") -> None:
    """Print a table with a column per method; methods that do not fit beside each other follow in further tables."""
    room = console.width - max(len(title), *(len(row.name) for row in rows)) - 4
    cells = [max(len(row.cells[place]) for row in rows) for place in range(len(names))]
    widths = [max(pair) for pair in zip(map(len, names), cells, strict=True)]
    if sum(widths) + 3 * len(names) > room:
        words = [max(map(len, name.split()), default=0) for name in names]
        widths = [min(max(pair), _WIDEST) for pair in zip(words, cells, strict=True)]
    begin = 0
    while begin < len(names):
        end = begin + 1
        while end < len(names) and sum(widths[begin : end + 1]) + 3 * (end + 1 - begin) <= room:
            end += 1
        shown = zip(names[begin:end], widths[begin:end], strict=True)
        table = Table(title, *(Column(name, width=width, overflow="fold") for name, width in shown))
        for row in rows:
            table.add_row(row.name, *row.cells[begin:end])
        console.print(table)
        begin = end


def print_report(folders: list[Path], target: Path, *, beside: str = "", tables: bool = False) -> None:
    """Write the report of these runs, with `tables` also as CSV, and print its tables.

    The names of files beside the report begin with `beside`.
    """
    from fedmlh.comparison.comparison import compare, show_difference
    from fedmlh.comparison.report import write_page
    from fedmlh.comparison.tables import write_tables
    from fedmlh.comparison.terms import MEANINGS
    from fedmlh.runs.folder import RunFolder

    comparison = compare([RunFolder(folder) for folder in folders])
    written = {"report": [target], "curves": write_page(comparison, target, beside)}
    if tables:
        written["table"] = write_tables(comparison, target.parent, beside)
    _print_rows("test part, at the selected round", comparison.names, comparison.figures)
    print_terms(comparison.terms)
    if comparison.settings:
        _print_rows("what differs", comparison.names, comparison.settings)
    if comparison.differences:
        title = f"difference to {comparison.names[0]}, percentage points"
        differences = Table(title, "", "", "95 % over seeds", "95 % over test points")
        for method, group in groupby(comparison.differences, lambda difference: difference.method):
            for place, difference in enumerate(group):
                differences.add_row("" if place else method, *show_difference(difference))
            differences.add_section()
        console.print(differences)
        print_terms([("intervals of 95 %", MEANINGS["intervals"])])
    for note in comparison.notes:
        console.print(note, soft_wrap=True)
    for what, paths in written.items():
        for path in paths:
            console.print(f"{what}: {path}", soft_wrap=True)


def print_terms(terms: Iterable[tuple[str, str]]) -> None:
    """Print under a table what its terms mean, a line per term."""
    for term, meaning in terms:
        console.print(f"{term}: {meaning}", style="dim")
