"""The progress of a run, as users see it."""

import sys
from collections.abc import Callable
from typing import Any


def show_precision(record: dict[str, Any]) -> str:
    """Return P@k of a round's record, on the points that select the best round."""
    values = (record.get("validation") or record["test"])["precision"]
    return f"P@{'/'.join(values)} {'/'.join(f'{100 * value:.1f}' for value in values.values())} %"


def print_rounds(rounds: int) -> Callable[[dict[str, Any]], None]:
    """Return a function that prints a line per round; on a terminal each line replaces the one before."""
    over = sys.stdout.isatty()

    def watch(record: dict[str, Any]) -> None:
        last = record["round"] == rounds
        line = f"round {record['round']} of at most {rounds}: {show_precision(record)}"
        print(f"\r{line}" if over else line, end="\n" if last or not over else "", flush=True)

    return watch
