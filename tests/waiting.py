"""Waits for what other processes do, in one place: the only loop of the tests that looks again and again."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

Found = TypeVar("Found")
#: Seconds in which anything that a test waits for happens, however busy the machine is.
PATIENCE = 900.0
#: Seconds between two looks.
PAUSE = 0.05


def wait_for(
    what: Callable[[], Found],
    doing: "subprocess.Popen[Any] | None" = None,
    *,
    patience: float = PATIENCE,
    pause: float = PAUSE,
) -> Found:
    """Wait until something is so, while a process does it; return what was found."""
    end = time.monotonic() + patience
    while True:
        gone = doing is not None and doing.poll() is not None  # looked at first: it may end once it has done it
        if found := what():
            return found
        assert not gone, "the process ended too soon"
        assert time.monotonic() < end, "nothing came of it"
        time.sleep(pause)


def wait_for_words(path: Path, words: str, doing: "subprocess.Popen[Any] | None" = None) -> None:
    """Wait until a file is there and has these words in it."""
    wait_for(lambda: path.exists() and words.encode() in path.read_bytes(), doing)
