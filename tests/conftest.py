"""What every test needs: a cache of its own, and, where it asks for it, one thread."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedmlh.model import threads

pytest.register_assert_rewrite("faulty_inputs")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDMLH_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Matrices this small lose more to a second thread than they gain."""
    with threads.one_thread():
        yield
