"""The terms of one round are frozen on disk once the counts are closed: nobody who answers later changes them."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedmlh.engines.local import live_in_process
from fedmlh.engines.replay import read_log, replay
from fedmlh.engines.run import run
from fedmlh.errors import UserError
from fedmlh.federated.messages import Reason, Rejected
from fedmlh.oneround.desk import Desk
from fedmlh.runs.folder import RunFolder
from once import BASE, DATA, differing, left

#: Everybody but this client sends counts, and this many sums come before the run is stopped.
LATE, STOPPED = 5, 3
#: Parts of the exchange, as the log counts them.
FIRST, SECOND = 0, 1


class Killed(BaseException):
    """Stands for the end of the process."""


class Line:
    """An engine that notes who is asked for what, without those who are away from a part, and may be cut."""

    def __init__(self, away: Iterable[tuple[int, int]] = (), life: float = float("inf")) -> None:
        self.away, self.life = set(away), life
        self.asked: list[tuple[int, int]] = []

    @contextmanager
    def __call__(self, population: Any, workers: int | None) -> Iterator["Line"]:
        with live_in_process(population, 1) as self.clients:
            self.memories = self.clients.memories
            yield self

    def exchange(self, clients: Any, post: Any) -> Iterator[tuple[int, bytes | Rejected]]:
        part = post.place[1]
        here = [client for client in clients if (part, client) not in self.away]
        if part < 2:  # after which comes the result
            self.asked += [(part, client) for client in here]
        for client, reply in self.clients.exchange(here, post):
            if part == SECOND and self.life == 0:
                raise Killed
            self.life -= part == SECOND
            yield client, reply
        for client in clients:
            if client not in here:
                post(client)
                yield client, Rejected(Reason.ABSENT, "the site was not connected")


def stop(folder: Path) -> None:
    """Have a run end between two sums, with a client that has sent no counts."""
    with pytest.raises(Killed):
        run(BASE, DATA, folder, engine=Line(away=[(FIRST, LATE)], life=STOPPED))
    assert (folder / "checkpoint" / "terms.bin").is_file()


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run with a client that sends sums and no counts, all in one life."""
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    run(BASE, DATA, folder, engine=Line(away=[(FIRST, LATE)]))
    return folder


def test_counts_that_would_come_after_the_restart_do_not_change_the_terms(unbroken: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    stop(folder)
    engine = Line()
    run(BASE, DATA, folder, engine=engine, resume=True)
    assert [part for part, _ in engine.asked] == [SECOND] * (BASE.num_clients - STOPPED)
    assert (SECOND, LATE) in engine.asked
    assert differing(folder, unbroken) == []
    assert left(folder)["metrics 1 clients"] == list(range(BASE.num_clients))
    whole = run(BASE, DATA, tmp_path / "whole").folder
    for name in ("weights.safetensors", "terms.bin"):
        assert left(folder)[name] != left(whole)[name]


def test_a_restart_reads_no_counts_once_the_terms_are_frozen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(Desk, "read_counts", lambda *_: pytest.fail("counts were read"))
        run(BASE, DATA, tmp_path / "run", engine=Line(), resume=True)


def test_the_log_says_whose_counts_made_the_terms_and_replays(unbroken: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    stop(folder)
    run(BASE, DATA, folder, engine=Line(), resume=True)
    counts, sums, _ = RunFolder(folder).read_participation()
    assert counts.accepted == [0, 1, 2, 3, 4]
    assert [(entry.client, entry.reason) for entry in counts.refused] == [(LATE, Reason.ABSENT)]
    assert sums.accepted == list(range(BASE.num_clients))
    again = replay(*read_log(RunFolder(folder)), DATA, tmp_path / "again").folder
    assert left(again)["weights.safetensors"] == left(folder)["weights.safetensors"]


def flip(content: bytes) -> bytes:
    return content[:50] + bytes([content[50] ^ 1]) + content[51:]


@pytest.mark.parametrize("change", [flip, lambda content: content[:-1], lambda content: b"", None])
def test_terms_that_were_damaged_or_are_another_run_s_are_made_once_more(
    change: Callable[[bytes], bytes] | None, unbroken: Path, tmp_path: Path
) -> None:
    """Of the counts on disk, and of those that are missing there."""
    folder, told = tmp_path / "run", list[str]()
    stop(folder)
    path = folder / "checkpoint" / "terms.bin"
    if change is None:
        other = run(BASE.replace(seed=1), DATA, tmp_path / "other").folder
        path.write_bytes((other / "checkpoint" / "terms.bin").read_bytes())
    else:
        path.write_bytes(change(path.read_bytes()))
    engine = Line(away=[(FIRST, LATE)])
    run(BASE, DATA, folder, engine=engine, resume=True, tell=told.append)
    assert len(engine.asked) == BASE.num_clients - STOPPED
    assert sum("counts are collected once more" in line for line in told) == 1
    assert differing(folder, unbroken) == []


def test_terms_are_not_written_through_a_link(unbroken: Path, tmp_path: Path) -> None:
    folder, victim = tmp_path / "run", tmp_path / "victim"
    stop(folder)
    path = folder / "checkpoint" / "terms.bin"
    path.rename(victim)
    before = victim.read_bytes()
    path.symlink_to(victim)
    engine = Line(away=[(FIRST, LATE)])
    run(BASE, DATA, folder, engine=engine, resume=True)
    assert differing(folder, unbroken) == []
    assert victim.read_bytes() == before
    assert not path.is_symlink()


def test_with_the_counts_of_too_few_clients_nothing_is_frozen(tmp_path: Path) -> None:
    config = BASE.replace(quorum=6)
    with pytest.raises(
        UserError, match=r"only 5 clients sent counts that can be used, fewer than quorum = 6 \(client 5: not connected"
    ):
        run(config, DATA, tmp_path / "run", engine=Line(away=[(FIRST, LATE)]))
    assert not (tmp_path / "run" / "checkpoint" / "terms.bin").exists()
    engine = Line()
    run(config, DATA, tmp_path / "run", engine=engine, resume=True)
    assert [client for part, client in engine.asked if part == FIRST] == [LATE]
    whole = run(config, DATA, tmp_path / "whole").folder
    assert differing(tmp_path / "run", whole) == []
