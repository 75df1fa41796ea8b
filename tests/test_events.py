"""What a run writes for those who watch it: all of its course, in a file on which nothing depends."""

import errno
import json
import os
from contextlib import contextmanager
from pathlib import Path

import pytest

import once
from fedmlh.engines.local import live_in_process
from fedmlh.engines.run import run
from fedmlh.errors import UserError
from fedmlh.runs import events
from fedmlh.runs.chronicle import EVENTS, Chronicle, Follower
from fedmlh.runs.folder import RunFolder
from fedmlh.runs.population import Population
from test_participation import BASE, DATA, faulty

SHORT = BASE.replace(rounds=3, name="short")


def read_lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / EVENTS).read_text().splitlines()]


def name_events(folder: Path) -> list[str]:
    return [str(line["event"]) for line in read_lines(folder)]


def tell_all(chronicle: Chronicle) -> tuple[object, ...]:
    """Return what a chronicle says of rounds and attempts, without times."""
    rounds = [
        (line.round, line.precision, line.train_loss, line.bytes_up, line.bytes_down, line.clipped)
        for _, line in sorted(chronicle.rounds.items())
    ]
    attempts = [(place, list(line.accepted), line.refused) for place, line in sorted(chronicle.attempts.items())]
    return rounds, attempts


def agree_with_results(folder: Path) -> None:
    """Hold the events to the files of results: the same rounds, the same attempts, the same figures."""
    chronicle = Follower(folder).read()
    records, log = RunFolder(folder).read_metrics(), RunFolder(folder).read_participation()
    assert chronicle.unreadable == 0
    assert sorted(chronicle.rounds) == [record["round"] for record in records]
    for record in records:
        line = chronicle.rounds[record["round"]]
        assert {str(k): share for k, share in line.precision.items()} == record["validation"]["precision"]
        assert (line.bytes_up, line.bytes_down) == (record["bytes_up"], record["bytes_down"])
        assert line.train_loss == record.get("train_loss")
    assert {(line.round, line.attempt) for line in log} == set(chronicle.attempts)
    for attempt in log:
        closed = chronicle.attempts[attempt.round, attempt.attempt]
        assert list(closed.accepted) == list(attempt.accepted)
        refused = [(entry.client, str(entry.reason), entry.detail) for entry in attempt.refused]
        assert refused == [(entry.client, entry.reason, entry.detail) for entry in closed.refused]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run with clients that fail, say nothing, are cut off, and so on."""
    folder = tmp_path_factory.mktemp("events") / "run"
    run(SHORT, DATA, folder, engine=faulty(3))
    return folder


def test_events_say_what_the_results_say(finished: Path) -> None:
    agree_with_results(finished)
    chronicle = Follower(finished).read()
    assert any(closed.refused for closed in chronicle.attempts.values())
    assert chronicle.beginning is not None
    assert (chronicle.beginning.name, chronicle.beginning.rounds, chronicle.beginning.clients) == ("short", 3, 6)
    summary = RunFolder(finished).read_summary()
    assert chronicle.best_round == summary["best_round"]
    assert {str(k): share for k, share in chronicle.tested.items()} == summary["precision"]
    assert (chronicle.outcome, chronicle.waiting) == ("finished", None)


def test_events_follow_the_course_of_a_run(finished: Path) -> None:
    named = [name for name in name_events(finished) if name != "replies"]
    attempts = len(RunFolder(finished).read_participation())
    assert named[0] == "begin"
    assert named[-4:] == ["step", "step", "result", "end"]
    assert named.count("ask") == named.count("attempt") == attempts
    assert named.count("round") == 3
    times = [line["time"] for line in read_lines(finished)]
    assert times == sorted(times)


@pytest.mark.parametrize("name", ["labels", "buckets, held out", "corrected"])
def test_one_round_writes_its_parts(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "run"
    run(once.VARIANTS[name], once.DATA, folder)
    parts = {"counts", "sums", "result"} | ({"held-out"} if "held out" in name else set())
    asked = [line["part"] for line in read_lines(folder) if line["event"] == "ask" and line["round"] == 1]
    assert set(asked) == parts
    chronicle = Follower(folder).read()
    records, log = RunFolder(folder).read_metrics(), RunFolder(folder).read_participation()
    assert sorted(chronicle.rounds) == [record["round"] for record in records]
    assert {(line.round, line.attempt): list(line.accepted) for line in log} == {
        place: list(closed.accepted) for place, closed in chronicle.attempts.items()
    }
    assert sum(line.bytes_down for line in chronicle.rounds.values()) == sum(record["bytes_down"] for record in records)
    assert chronicle.outcome == "finished"


class Stop(BaseException):
    """Ctrl-C, at a moment that a test chooses."""


def stop_after(rounds: int):
    def watch(record: dict[str, object]) -> None:
        if record["round"] == rounds:
            raise Stop

    return watch


def test_a_resumed_run_continues_the_file(tmp_path: Path) -> None:
    run(SHORT, DATA, tmp_path / "whole")
    with pytest.raises(Stop):
        run(SHORT, DATA, tmp_path / "cut", watch=stop_after(2))
    before = (tmp_path / "cut" / EVENTS).read_bytes()
    assert Follower(tmp_path / "cut").read().outcome == "stopped"
    run(SHORT, DATA, tmp_path / "cut", resume=True)
    assert (tmp_path / "cut" / EVENTS).read_bytes().startswith(before)
    assert name_events(tmp_path / "cut").count("round") == 3  # none twice
    whole, cut = (Follower(tmp_path / name).read() for name in ("whole", "cut"))
    assert tell_all(whole) == tell_all(cut)
    agree_with_results(tmp_path / "cut")


def test_a_round_that_is_repeated_is_told_once(tmp_path: Path) -> None:
    """The newest checkpoint is lost: the run resumes from the one before, and repeats a round."""
    with pytest.raises(Stop):
        run(SHORT, DATA, tmp_path / "run", watch=stop_after(2))
    whole = tell_all(Follower(tmp_path / "run").read())
    newest = max((tmp_path / "run" / "checkpoint").iterdir())
    (newest / "state.json").write_bytes(b"{}")
    with pytest.raises(Stop):
        run(SHORT, DATA, tmp_path / "run", resume=True, watch=stop_after(2))
    lines = read_lines(tmp_path / "run")
    assert [line["round"] for line in lines if line["event"] == "round"] == [1, 2, 2]
    assert [line["round"] for line in lines if line["event"] == "resume"] == [1]
    assert tell_all(Follower(tmp_path / "run").read()) == whole


def test_rounds_that_the_file_lacks_are_added(tmp_path: Path) -> None:
    """A run of an earlier version has no events; its curve has all rounds once it is resumed."""
    with pytest.raises(Stop):
        run(SHORT, DATA, tmp_path / "run", watch=stop_after(2))
    (tmp_path / "run" / EVENTS).unlink()
    run(SHORT, DATA, tmp_path / "run", resume=True)
    assert sorted(Follower(tmp_path / "run").read().rounds) == [1, 2, 3]


@pytest.mark.parametrize("cut", [1, 40])
def test_a_line_that_was_cut_off_stays_alone(tmp_path: Path, cut: int) -> None:
    with pytest.raises(Stop):
        run(SHORT.replace(rounds=2), DATA, tmp_path / "run", watch=stop_after(1))
    path = tmp_path / "run" / EVENTS
    whole = path.read_bytes()
    path.write_bytes(whole + whole.splitlines()[-2][:cut])  # as a kill leaves it
    follower = Follower(tmp_path / "run")
    first = follower.read().beginning
    assert follower.read().unreadable == 0  # it may still be written
    run(SHORT.replace(rounds=2), DATA, tmp_path / "run", resume=True)
    assert path.read_bytes().startswith(whole)
    chronicle = follower.read()
    assert (chronicle.unreadable, chronicle.outcome, sorted(chronicle.rounds)) == (1, "finished", [1, 2])
    assert chronicle.beginning != first  # the first line that the resumed run wrote can be read


def test_a_run_that_is_given_up_says_why(tmp_path: Path) -> None:
    config = SHORT.replace(quorum=4, max_attempts=2)
    with pytest.raises(UserError, match="given up") as problem:
        run(config, DATA, tmp_path / "run", engine=faulty(0))
    chronicle = Follower(tmp_path / "run").read()
    assert (chronicle.outcome, chronicle.problem) == ("failed", str(problem.value))
    tried = len(chronicle.attempts)
    assert tried >= 2
    with pytest.raises(UserError, match="given up"):
        run(config, DATA, tmp_path / "run", engine=faulty(0), resume=True)
    assert len(Follower(tmp_path / "run").read().attempts) == tried + 2  # those before are kept


def test_a_folder_that_holds_only_events_is_free(tmp_path: Path) -> None:
    """A run that died before its first round left its config and its first events."""

    @contextmanager
    def break_down(population: Population, workers: int | None):
        with live_in_process(population, workers) as clients:
            clients.exchange = lambda *arguments: (_ for _ in ()).throw(Stop)
            yield clients

    with pytest.raises(Stop):
        run(SHORT, DATA, tmp_path / "run", engine=break_down)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["config.toml", EVENTS]
    run(SHORT.replace(rounds=1), DATA, tmp_path / "run")
    chronicle = Follower(tmp_path / "run").read()
    assert (chronicle.outcome, list(chronicle.attempts)) == ("finished", [(1, 0)])


def test_events_of_something_else_are_not_added_to(tmp_path: Path) -> None:
    (tmp_path / EVENTS).write_text("my own\n")
    with pytest.raises(UserError, match="is not empty"):
        run(SHORT, DATA, tmp_path)
    assert (tmp_path / EVENTS).read_text() == "my own\n"


def weigh(folder: Path) -> tuple[bytes, list[object]]:
    """Return a model's weights, and the figures of its rounds without times."""
    records = RunFolder(folder).read_metrics()
    figures = [{key: value for key, value in record.items() if "seconds" not in key} for record in records]
    return (folder / "model" / "weights.safetensors").read_bytes(), figures


def test_no_bit_depends_on_the_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is followed, one whose disk is full, and one whose clock jumps have the same bits."""
    follower = Follower(tmp_path / "followed")
    run(SHORT, DATA, tmp_path / "followed", watch=lambda record: follower.read())
    assert len(follower.read().rounds) == 3

    told: list[str] = []
    real = os.write

    def write(handle: int, content: bytes) -> int:
        if os.readlink(f"/proc/self/fd/{handle}").endswith(EVENTS):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(handle, content)

    with monkeypatch.context() as patch:
        patch.setattr(events.os, "write", write)
        run(SHORT, DATA, tmp_path / "full", tell=told.append)
    (said,) = [line for line in told if EVENTS in line]
    assert "No space left on device" in said

    with monkeypatch.context() as patch:
        clock = iter(range(10**9, 0, -(10**6)))
        patch.setattr(events.time, "time", lambda: next(clock))
        run(SHORT, DATA, tmp_path / "clock")
    assert weigh(tmp_path / "followed") == weigh(tmp_path / "full") == weigh(tmp_path / "clock")


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "folder", "hard link", "binary"])
def test_what_lies_in_the_place_of_the_events_cannot_stop_a_run(tmp_path: Path, kind: str) -> None:
    folder, other = tmp_path / "run", tmp_path / "other"
    with pytest.raises(Stop):
        run(SHORT.replace(rounds=2), DATA, folder, watch=stop_after(1))
    path = folder / EVENTS
    path.unlink()
    other.write_bytes(b"of someone else")
    match kind:
        case "link":
            path.symlink_to(other)
        case "dangling":
            path.symlink_to(tmp_path / "nothing")
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "hard link":
            os.link(other, path)
        case "binary":
            path.write_bytes(bytes(range(256)) * 50)
    told: list[str] = []
    run(SHORT.replace(rounds=2), DATA, folder, resume=True, tell=told.append)
    assert len(RunFolder(folder).read_metrics()) == 2
    assert other.read_bytes() == b"of someone else"
    assert not (tmp_path / "nothing").exists()
    if kind == "binary":
        assert sorted(Follower(folder).read().rounds) == [1, 2]
    else:
        assert len([line for line in told if EVENTS in line]) == 1


def make_line(event: str, **values: object) -> bytes:
    return json.dumps({"event": event, "time": 1.0, **values}).encode()


ROUND = {"judged": "validation", "precision": {"1": 0.5}, "train_loss": 1.0, "bytes_up": 1, "bytes_down": 1}
ROUND |= {"round": 1, "clipped": [], "seconds": 1.0}
HOSTILE = [
    b"",
    b"\x00\xff\xfe",
    b"[]",
    b"null",
    b"1e999",
    b'"text"',
    b"{}",
    b"[" * 100_000,
    b'{"event": "round", "time": NaN}',
    b'{"event": ["begin"], "time": 1}',
    b'{"event": "\\ud800", "time": 1}',
    b'{"event": "end", "time": ' + b"9" * 5000 + b"}",
    make_line("end", outcome=["finished"]),
    make_line("begin"),
    make_line("begin", name=3, method="x", seed=0, clients=1, sampled=1, rounds=1, patience=0, sites=[], resumed=False),
    make_line("ask", round=1, attempt=0, part="updates", clients=[-1]),
    make_line("ask", round=1, attempt=0, part="updates", clients=[2**40]),
    make_line("ask", round=1, attempt=0, part="updates", clients="12"),
    make_line("ask", round=1.5, attempt=0, part="updates", clients=[]),
    make_line("attempt", round=1, attempt=0, accepted=[], refused=[{"client": 1}]),
    make_line("attempt", round=1, attempt=0, accepted={}, refused=[]),
    make_line("resume", round=-1, attempt=0),
    *(make_line("round", **{**ROUND, name: float("nan")}) for name in ("round", "train_loss", "bytes_up", "seconds")),
    make_line("round", **{**ROUND, "precision": {"1": 7}}),
    make_line("round", **{**ROUND, "precision": {"one": 0.5}}),
    make_line("round", **{**ROUND, "precision": {str(k): 0.5 for k in range(1, 200)}}),
    make_line("round", **{**ROUND, "clipped": [{"client": True, "factor": None}]}),
    make_line("round", **{**ROUND, "bytes_up": True}),
    make_line("round", **{**ROUND, "time": 1e18}),
]


@pytest.mark.parametrize("line", HOSTILE, ids=lambda line: repr(line[:40]))
def test_a_line_of_nonsense_is_left_out(line: bytes) -> None:
    chronicle = Chronicle()
    chronicle.add(make_line("round", **ROUND))
    chronicle.add(line)
    chronicle.add(make_line("round", **{**ROUND, "round": 2}))
    assert chronicle.unreadable == 1
    assert sorted(chronicle.rounds) == [1, 2]
    assert chronicle.attempts == {}
    assert chronicle.outcome is None


def test_what_a_resumed_run_repeats_is_forgotten() -> None:
    chronicle = Chronicle()
    begin = {
        "name": "x",
        "method": "fedmlh",
        "seed": 0,
        "clients": 2,
        "sampled": 2,
        "rounds": 9,
        "patience": 0,
        "sites": [],
    }
    attempts = [(1, 0), (2, 0), (2, 1), (3, 0), (3, 1)]
    chronicle.add(make_line("begin", **begin, resumed=False))
    for round_index, attempt in attempts:
        chronicle.add(make_line("attempt", round=round_index, attempt=attempt, accepted=[0], refused=[]))
    for round_index in (1, 2):
        chronicle.add(make_line("round", **{**ROUND, "round": round_index}))
    chronicle.add(make_line("begin", **begin, resumed=True))
    chronicle.add(make_line("resume", round=2, attempt=1))  # an attempt at round 3 was given up, and counts
    assert (sorted(chronicle.rounds), list(chronicle.attempts)) == ([1, 2], attempts[:4])
    chronicle.add(make_line("resume", round=1, attempt=0))
    assert (sorted(chronicle.rounds), list(chronicle.attempts)) == ([1], attempts[:1])
    chronicle.add(make_line("begin", **begin, resumed=False))
    assert (chronicle.rounds, chronicle.attempts) == ({}, {})


def test_a_line_without_end_takes_little_memory(tmp_path: Path) -> None:
    with open(tmp_path / EVENTS, "wb") as file:
        for _ in range(20):
            file.write(b"x" * 2**20)
        file.write(b"\n" + make_line("round", **ROUND) + b"\n")
    follower = Follower(tmp_path)
    chronicle = follower.read()
    assert (chronicle.unreadable, sorted(chronicle.rounds)) == (1, [1])


def test_a_follower_reads_each_line_once_and_begins_again_with_another_file(tmp_path: Path) -> None:
    path, follower = tmp_path / EVENTS, Follower(tmp_path)
    assert follower.read() == Chronicle()
    for round_index in range(1, 5):
        line = make_line("round", **{**ROUND, "round": round_index}) + b"\n"
        for cut in (slice(30), slice(30, -1), slice(-1, None)):  # read while it is being written
            assert len(follower.read().rounds) == round_index - 1
            with open(path, "ab") as file:
                file.write(line[cut])
        assert max(follower.read().rounds) == round_index
        assert follower.read().unreadable == 0
    path.unlink()
    path.write_bytes(make_line("round", **{**ROUND, "round": 7}) + b"\n")
    assert list(follower.read().rounds) == [7]
    path.unlink()
    assert follower.read() == Chronicle()


def test_names_from_outside_are_whole_lines(tmp_path: Path) -> None:
    """A folder's name may hold a line break or half a character."""
    file = events.EventFile(tmp_path, print)
    with events.EventLog(file).record(SHORT, ["a\nb", "c\udcff", "é\u2028"], resumed=False):
        pass
    beginning = Follower(tmp_path).read().beginning
    assert beginning is not None
    assert beginning.sites == ["a\nb", "c?", "é\u2028"]
