"""What a user's mistake turns into: one sentence that says what is wrong, where, and what to do."""

from pathlib import Path


class UserError(Exception):
    """A mistake outside the program; the command line prints its one sentence and exits with 2."""


class BadLine(UserError):
    """A line of a data file that cannot be what it should be."""

    def __init__(self, path: Path | str, lineno: int, problem: str) -> None:
        super().__init__(f"{path}, line {lineno}: {problem}")


def how_to_install(extras: str) -> str:
    """Return the command that adds these extras, of a checkout: no package index has fedmlh."""
    return f'pip install -c constraints.txt ".[{extras}]" in a checkout of fedmlh'
