"""What several commands say, and how they end."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rich.console import Console
from rich.table import Table

from fedmlh.config import Config

if TYPE_CHECKING:
    from fedmlh.data.dataset import Dataset

console = Console()
errors = Console(stderr=True)


class Terminated(BaseException):
    """SIGTERM, which unwinds a command as Ctrl-C does."""


class Interrupted(Exception):
    """Ctrl-C or SIGTERM during a run; the text says what goes on from there."""

    def __init__(self, how: str, number: int) -> None:
        super().__init__(how)
        self.code = 128 + number


@contextmanager
def terminable() -> Iterator[None]:
    """Make SIGTERM raise in here, so that what was begun is tidied up."""

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
def resumable(how: str = "--resume goes on from the last finished round") -> Iterator[None]:
    """Tell the user about Ctrl-C and SIGTERM in here; typer would turn Ctrl-C into a silent exit."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(how, signal.SIGINT) from None
    except Terminated:
        raise Interrupted(how, signal.SIGTERM) from None


def fail(sentence: str, code: int) -> NoReturn:
    """End the program with one sentence to the user and this exit code."""
    print(f"fedmlh: {' '.join(sentence.split())}", file=sys.stderr)
    sys.exit(code)


def tell(line: str) -> None:
    """A remark beside the output, on standard error."""
    errors.print(line, style="dim", markup=False, highlight=False, soft_wrap=True)


def open_data(config: Config) -> "Dataset":
    """The data that the config names."""
    from fedmlh.data.source import open_dataset

    with console.status("reading data") if console.is_terminal else nullcontext():
        return open_dataset(config)


def print_report(folders: list[Path], target: Path) -> None:
    """Write the report of these runs, and print its table."""
    from fedmlh.runs.folder import RunFolder
    from fedmlh.runs.report import write_report

    heads, rows = write_report([RunFolder(folder) for folder in folders], target)
    table = Table("test part, at the selected round", *heads)
    for row in rows:
        table.add_row(row.name, *row.cells)
    console.print(table)
    console.print(f"report: {target}", markup=False, highlight=False, soft_wrap=True)
