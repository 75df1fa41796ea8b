"""What every test needs: a cache of its own, no parts of another test, and, where it asks for it, one thread."""

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedmlh import parts
from fedmlh.model import threads

# A shell starts jobs in the background with SIGINT ignored, and so would be all commands that tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest.register_assert_rewrite("data_files", "faulty_inputs", "rehearsal")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDMLH_CACHE", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def forget_parts() -> Iterator[Callable[[], None]]:
    """Give what forgets parts from outside, as in a process that has just begun; no test sees those of another."""

    def forget() -> None:
        for part in list(parts._foreign):
            del parts._parts[part], parts._foreign[part]
        for module in parts._files:
            del sys.modules[module]
        parts._files.clear()

    yield forget
    forget()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Train with one thread: matrices this small lose more to a second thread than they gain."""
    with threads.one_thread():
        yield
