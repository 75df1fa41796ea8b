"""The command line as tests call it: in this process, or in one of its own."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

from fedmlh import cli

#: Options of a run that takes seconds.
TINY = [
    *("--set", "synthetic_points=400", "--set", "synthetic_features=300", "--set", "synthetic_labels=60"),
    *("--set", "feature_dim=64", "--set", "num_buckets=20", "--set", "hidden_sizes=16", "--set", "local_epochs=1"),
]


def call(*arguments: object) -> int:
    """Run a command in this process; return its exit code."""
    argv, sys.argv = sys.argv, ["fedmlh", *map(str, arguments)]
    try:
        cli.main()
    except SystemExit as stop:
        return int(stop.code or 0)
    finally:
        sys.argv = argv
    return 0


def invoke(*arguments: object) -> tuple[int, str, str]:
    """Run a command in this process; return its exit code, standard output and standard error."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = call(*arguments)
    return code, out.getvalue(), err.getvalue()


def make_command(*arguments: object) -> list[str]:
    """Return the words that run a command in a separate process."""
    return [sys.executable, "-m", "fedmlh", *map(str, arguments)]


def call_apart(*arguments: object) -> "subprocess.CompletedProcess[str]":
    """Run a command in a separate process, to its end."""
    return subprocess.run(make_command(*arguments), capture_output=True, text=True, check=False)


def start(log: Path, *arguments: object, **settings: str) -> "subprocess.Popen[bytes]":
    """Start a command in a separate process, which adds its output to a log."""
    with log.open("ab") as file:
        return subprocess.Popen(make_command(*arguments), stdout=file, stderr=file, env=os.environ | settings)
