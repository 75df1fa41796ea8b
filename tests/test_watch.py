"""The page that shows a run: it says what the events say, takes no text for markup, and changes nothing."""

import contextlib
import http.client
import itertools
import json
import math
import os
import re
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from email.message import Message
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import command_line
from browser import ENTER, SPACE, TAB, Browser, browse, needs_chromium
from fedmlh.config import Config
from fedmlh.display import escape_html
from fedmlh.errors import UserError
from fedmlh.federated.messages import Reason
from fedmlh.federated.participation import Attempt, Refusal
from fedmlh.lock import LOCK, hold, is_held
from fedmlh.runs import events
from fedmlh.runs.chronicle import EVENTS, Follower
from fedmlh.runs.events import EventFile, EventLog
from fedmlh.runs.folder import RunFolder
from fedmlh.web.curves import Curve, draw_curves, find_ticks, spread
from fedmlh.web.limits import Limits
from fedmlh.web.watch import HOST, find_run, make_watch_app
from fedmlh.web.watch_page import View, estimate_left, render
from served import answering
from tiny import TINY
from waiting import PATIENCE, wait_for

CONFIG = Config(name="library network", rounds=30, num_clients=3, clients_per_round=3, patience=10)
SITES = ["north", "south", "west"]
HOUR = 3600.0


class Story:
    """A run that a test tells, at times that it chooses."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.now = 1_700_000_000.0
        monkeypatch.setattr(events.time, "time", lambda: self.now)
        self.log = EventLog(EventFile(folder, print))
        self.stack = ExitStack()
        self.stack.enter_context(self.log.record(CONFIG, SITES, resumed=False))

    def ask(self, round_index: int, attempt: int = 0, replied: int = 0) -> None:
        self.log.write("ask", round=round_index, attempt=attempt, part="updates", clients=[0, 1, 2])
        self.log.write("replies", round=round_index, attempt=attempt, clients=list(range(replied)))

    def finish(
        self, round_index: int, seconds: float = 60.0, refusals: tuple[Refusal, ...] = (), **more: object
    ) -> None:
        self.ask(round_index)
        self.now += seconds
        refused = {entry.client for entry in refusals}
        counted = [client for client in range(3) if client not in refused]
        self.log.close_attempt(Attempt(round_index, 0, [0, 1, 2], counted, list(refusals)))
        share = 1 - 0.9**round_index
        precision = {"1": share, "3": share * 0.7, "5": share * 0.5}
        record = {"round": round_index, "validation": {"precision": precision}, "bytes_up": 2**20, "bytes_down": 2**19}
        self.log.finish_round(record | {"seconds_training": seconds, "seconds_evaluation": 0.0} | more)

    def end(self, how: BaseException | None = None) -> None:
        """End the run, as the exception does."""
        with suppress(BaseException), self.stack:
            if how is not None:
                raise how


def show(folder: Path, *, is_held: bool = True, time: float = 1_700_000_000.0, **more: object) -> str:
    return render(View("runs/x", Follower(folder).read(), is_held, time, **more))


class Page(HTMLParser):
    """Elements, attributes and words of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.words: list[str] = []
        self._skips = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self._skips += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._skips -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        if not self._skips:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def test_a_page_says_all_that_the_events_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story(tmp_path, monkeypatch)
    story.finish(1)
    story.finish(2, refusals=(Refusal(1, Reason.LATE, "no reply within 60 s"),))
    story.finish(3, clipped=[{"client": 2, "factor": 0.5}])
    story.ask(4, attempt=1, replied=2)
    page = Page(show(tmp_path, time=story.now))
    for words in (
        "library network: fedmlh, seed 0",
        "Round 4 of at most 30, attempt 2: 2 of 3 sites replied (updates).",
        "rounds finished 3 of at most 30",
        "time left about 27 min",
        "best round 3",
        "P@1/3/5, validation 27.1/19.0/13.5 %",
        "MiB sent 4.50",
        "refused 1",
        "scaled down 1",
        "The run ends earlier if 10 rounds in turn bring no better one.",
        "north 3 0 0 has replied",
        "south 2 1 0 has replied",
        "west 3 0 1 asked",
        "By reason: late 1.",
        "south late no reply within 60 s",
        "3 27.1 19.0 13.5 1.00 0.50 60.0 1",
    ):
        assert words in page.text, (words, page.text)
    assert page.text.count("P@1") >= 2  # a curve by round and one by bytes


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ("nothing", "There are no events yet."),
        ("old", "fedmlh report"),
        ("begun", "Round 1 of at most 30: beginning."),
        ("asked", "Round 1 of at most 30: 0 of 3 sites replied (updates)."),
        ("closed", "Round 1 of at most 30: measuring."),
        ("testing", "Round 2 of at most 30: testing."),
        ("finished", "Finished after 1 round. Round 1 was the best; on test points P@1/3 is 50.0/20.0 %."),
        ("failed", "Ended after 1 round without a model: the quorum was not met"),
        ("broken", "Ended after 1 round without a model: RuntimeError: out of paper"),
        ("stopped", "Stopped after 1 round; it can be resumed from there."),
        ("killed", "No process of this machine writes to the folder any more"),
        ("unreadable", "The events cannot be shown: events.jsonl is a link."),
    ],
)
def test_every_state_of_a_run_has_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str, words: str
) -> None:
    view = {"is_held": told != "killed"}
    if told == "old":
        view["has_summary"] = True
    elif told == "unreadable":
        view["problem"] = "events.jsonl is a link"
    elif told != "nothing":
        story = Story(tmp_path, monkeypatch)
        if told == "asked":
            story.ask(1)
        elif told == "closed":
            story.ask(1)
            story.log.close_attempt(Attempt(1, 0, [0, 1, 2], [0, 1, 2], []))
        elif told != "begun":
            story.finish(1)
        match told:
            case "testing":
                story.log.begin_step(events.TESTING)
            case "finished":
                story.log.show_result({"best_round": 1, "precision": {"1": 0.5, "3": 0.2}})
                story.end()
            case "failed":
                story.end(UserError("the quorum was not met"))
            case "broken":
                story.end(RuntimeError("out of paper"))
            case "stopped":
                story.end(KeyboardInterrupt())
    assert words in Page(show(tmp_path, **view)).text


EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'><svg onload=x>&amp;\x1b[31m\u202e"


def make_evil(folder: Path) -> None:
    """Write events of every kind with a text that would act if it were taken for markup, wherever texts stand."""
    place = {"round": 1, "attempt": 0}
    refused = [{"client": 1, "reason": EVIL, "detail": EVIL}]
    figures = {
        "precision": {"1": 0.5},
        "train_loss": 1.0,
        "bytes_up": 1,
        "bytes_down": 1,
        "clipped": [],
        "seconds": 1.0,
    }
    begun = {"seed": 0, "clients": 2, "sampled": 2, "rounds": 2, "patience": 0, "resumed": False}
    told = [
        {"event": "begin", "name": EVIL, "method": EVIL, "sites": [EVIL, EVIL], **begun},
        {"event": "ask", "part": EVIL, "clients": [0, 1], **place},
        {"event": "attempt", "accepted": [0], "refused": refused, **place},
        {"event": "round", "round": 1, "judged": EVIL, **figures},
        {"event": "ask", "part": EVIL, "clients": [0, 1], "round": 2, "attempt": 0},
    ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / EVENTS).write_text("".join(json.dumps({"time": 1.7e9, **line}) + "\n" for line in told))


@pytest.mark.parametrize("last", ["ask", "step", "failed", "problem"])
def test_texts_from_outside_are_shown_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str) -> None:
    story = Story(tmp_path / "good", monkeypatch)
    story.finish(1, refusals=(Refusal(1, Reason.LATE, "late"),))
    story.finish(2)
    good = Page(show(tmp_path / "good"))
    make_evil(tmp_path / "evil")
    ends = {"step": {"name": EVIL}, "end": {"outcome": "failed", "problem": EVIL}}
    name = {"failed": "end"}.get(last, last)
    with open(tmp_path / "evil" / EVENTS, "a") as file:
        if name in ends:
            file.write(json.dumps({"event": name, "time": 1.7e9, **ends[name]}) + "\n")
    text = render(View(EVIL, Follower(tmp_path / "evil").read(), True, 1.7e9, EVIL if last == "problem" else ""))
    evil = Page(text)
    assert evil.tags <= good.tags
    assert evil.attributes <= good.attributes
    assert "<script>alert" not in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert text.count(escape_html(EVIL)) >= 8
    for svg in re.findall(r"<svg.*?</svg>", text):
        ElementTree.fromstring(svg)


@pytest.mark.parametrize("first", [1.0, 5000.0])
def test_time_left_follows_from_the_rounds_since_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: float
) -> None:
    story = Story(tmp_path, monkeypatch)
    assert estimate_left(Follower(tmp_path).read(), story.now) is None
    story.finish(1, seconds=first)
    assert estimate_left(Follower(tmp_path).read(), story.now) == pytest.approx(29 * first)
    for round_index in range(2, 8):
        story.finish(round_index, seconds=60)
        assert estimate_left(Follower(tmp_path).read(), story.now) == pytest.approx(60 * (30 - round_index))
    assert estimate_left(Follower(tmp_path).read(), story.now + 45) == pytest.approx(60 * 23 - 45)
    assert estimate_left(Follower(tmp_path).read(), story.now + 24 * HOUR) == pytest.approx(60 * 22)  # it is late
    story.end()
    assert estimate_left(Follower(tmp_path).read(), story.now) is None


def test_the_pause_before_a_resumed_run_counts_as_no_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story(tmp_path, monkeypatch)
    begin = json.loads((tmp_path / EVENTS).read_text())
    begin = {name: value for name, value in begin.items() if name not in ("event", "time", "resumed")}
    story.finish(1)
    story.now += 24 * HOUR
    story.log.write("begin", **begin, resumed=True)
    story.log.write("resume", round=1, attempt=0)
    story.finish(2)
    assert estimate_left(Follower(tmp_path).read(), story.now) == pytest.approx(28 * 60)


def test_large_runs_have_small_pages(tmp_path: Path) -> None:
    """A page of 5,000 rounds with 2,000 clients is no larger than it can be shown."""
    lines = [
        {
            "event": "begin",
            "name": "large",
            "method": "fedavg",
            "seed": 0,
            "clients": 2000,
            "sampled": 20,
            "rounds": 9999,
        }
        | {"patience": 0, "sites": [], "resumed": False}
    ]
    figures = {
        "judged": "test",
        "train_loss": None,
        "bytes_up": 10**9,
        "bytes_down": 10**9,
        "clipped": [],
        "seconds": 1,
    }
    for number in range(1, 5001):
        place, clients = {"round": number, "attempt": 0}, [(number * 20 + at) % 2000 for at in range(20)]
        refused = [{"client": client, "reason": "late", "detail": "x" * 500} for client in clients[:2]]
        lines.append({"event": "ask", "part": "updates", "clients": clients, **place})
        lines.append({"event": "attempt", "accepted": clients[2:], "refused": refused, **place})
        lines.append({"event": "round", "round": number, "precision": {"1": number / 5000}, **figures})
    (tmp_path / EVENTS).write_text("".join(json.dumps({"time": 1.7e9, **line}) + "\n" for line in lines))
    text = show(tmp_path)
    assert len(text) < 400_000
    assert "200 of 2,000 are shown" in text
    assert "200 of 10,000 are shown" in text
    assert "200 of 5,000 are shown" in text


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (0, 0), (5, 5), (0, 0.003), (3.2, 3.9), (0, 1e9), (-4, 7), (17, 1234), (99.5, 100)]
)
def test_ticks_are_round_and_span_the_values(low: float, high: float) -> None:
    ticks = find_ticks(low, high)
    assert ticks[0] <= low
    assert ticks[-1] >= high
    assert 2 <= len(ticks) <= 7
    steps = {
        round((after - before) / 10 ** round_down(after - before), 6) for before, after in itertools.pairwise(ticks)
    }
    assert len(steps) == 1
    assert steps <= {1, 2, 5, 10}


@pytest.mark.parametrize("low", [0.0, 0.3, 97.0, -97.0, 1e300])
def test_values_that_differ_by_rounding_are_taken_for_one(low: float) -> None:
    ticks = find_ticks(low, math.nextafter(low, math.inf))
    assert ticks == find_ticks(low, low)
    assert ticks[-1] - ticks[0] >= max(1.0, 1e-7 * abs(low))


def round_down(value: float) -> int:
    return int(f"{value:e}".partition("e")[2])


@pytest.mark.parametrize("heights", [[], [50], [50, 50, 50], [10, 240, 12, 239], [14, 14, 14, 14, 14]])
def test_names_of_curves_do_not_cover_each_other(heights: list[float]) -> None:
    placed = spread(heights, 14, 216)
    assert all(after - before >= 14.999 for before, after in itertools.pairwise(sorted(placed)))
    assert all(0 <= height <= 217 for height in placed)
    for (one, at), (other, there) in itertools.combinations(zip(heights, placed, strict=True), 2):
        assert (one <= other) == (at <= there) or one == other


def test_a_curve_of_a_point_or_of_very_many_can_be_drawn() -> None:
    near, tiny = [(1.0, 97.0), (2.0, math.nextafter(97.0, 100))], [(1.0, 0.0), (2.0, 5e-324)]
    for points in ([(1.0, 50.0)], [(0.0, 0.0)], near, tiny, [(float(x), x % 90) for x in range(100_000)]):
        svg = draw_curves("P@k", "round", [Curve("P@1", points), Curve("P@3", points)])
        (line, _) = ElementTree.fromstring(svg).findall("polyline")
        drawn = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
        assert 1 <= len(drawn) <= 400
        assert all(0 <= x <= 460 and 0 <= y <= 260 for x, y in drawn)


KEY = "a-key"


@dataclass
class Answer:
    status: int
    headers: Message
    text: str


class Asker:
    """Asks a server whatever a test likes, also what no browser would."""

    def __init__(self, port: int) -> None:
        self.port = port

    def __call__(self, path: str = f"/{KEY}/", method: str = "GET", **headers: str) -> Answer:
        line = http.client.HTTPConnection(HOST, self.port, timeout=60)
        line.putrequest(method, path, skip_host=True)
        for name, value in ({"host": f"{HOST}:{self.port}"} | headers).items():
            line.putheader(name, value)
        line.endheaders()
        answer = line.getresponse()
        with contextlib.closing(line):
            return Answer(answer.status, answer.headers, answer.read().decode())


@contextmanager
def serving(folder: Path) -> Iterator[Asker]:
    """Serve the page in this process, on a real socket."""
    with answering(make_watch_app(folder, KEY), Limits()) as port:
        yield Asker(port)


def test_the_page_is_for_whoever_knows_its_address(tmp_path: Path) -> None:
    with serving(tmp_path) as ask:
        answer = ask()
        assert answer.status == 200
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in ask(origin="https://evil.example").headers
        for path in ("/", "/wrong/", f"/{KEY}/x", "/%2e%2e/", f"/{KEY[:-1]}/"):
            assert ask(path).status == 404, path
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert ask(method=method).status == 405
        for host in ("evil.example", f"evil.example:{ask.port}", "127.0.0.1.evil.example", ""):
            assert ask(host=host).status == 421, host
        assert ask(host=f"localhost:{ask.port}").status == 200


def test_the_page_needs_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story(tmp_path, monkeypatch)
    story.finish(1)
    page = Page(show(tmp_path))
    assert page.tags.isdisjoint({"iframe", "object", "embed", "form", "input", "base"})
    assert not {name for name in page.attributes if name.startswith("on") or name in ("src", "style", "srcset")}
    assert re.findall(r'href="([^"]*)"', show(tmp_path)) == ["data:,", ""]
    assert "//" not in re.sub(r"<!--.*?-->", "", show(tmp_path))


def read_all(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_watching_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story(tmp_path / "run", monkeypatch)
    story.finish(1)
    before = read_all(tmp_path)
    with hold(tmp_path / "run"), serving(tmp_path / "run") as ask:
        assert "Round 2 of at most 30" in ask().text
        held = read_all(tmp_path)
    assert {name: held[name] for name in before} == before
    assert set(held) - set(before) == {f"run/{LOCK}"}
    with serving(tmp_path / "none") as ask:
        assert "There are no events yet" in ask().text
    assert read_all(tmp_path) == before
    assert not (tmp_path / "none").exists()


def test_a_lock_is_seen_and_not_taken(tmp_path: Path) -> None:
    assert not is_held(tmp_path)
    assert not is_held(tmp_path / "none")
    with hold(tmp_path):
        assert is_held(tmp_path)
        assert is_held(tmp_path)
    assert not is_held(tmp_path)
    (tmp_path / LOCK).write_text("1\n")  # left by a process that was killed
    assert not is_held(tmp_path)


def spoil(path: Path, kind: str) -> None:
    """Put something else in the place of the events."""
    match kind:
        case "link":
            path.symlink_to("/etc/passwd")
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "large":
            with open(path, "wb") as file:
                file.truncate(2**40)


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "large"])
def test_what_is_no_file_of_events_is_refused_in_a_sentence(tmp_path: Path, kind: str) -> None:
    spoil(tmp_path / EVENTS, kind)
    code, out, said = command_line.invoke("watch", tmp_path)
    assert (code, out) == (2, "")
    assert EVENTS in said
    assert "Traceback" not in said
    with serving(tmp_path) as ask:  # it may be put there later
        answer = ask()
    assert answer.status == 200
    assert "The events cannot be shown" in answer.text
    assert "root:" not in answer.text


def test_the_folder_that_a_user_means(tmp_path: Path) -> None:
    assert find_run(tmp_path / "later") == tmp_path / "later"
    for name in ("public", "server"):
        (tmp_path / "federation" / name).mkdir(parents=True)
    assert find_run(tmp_path / "federation") == tmp_path / "federation" / "run"
    (tmp_path / "comparison.json").write_text("{}")
    for path, words in ((tmp_path, "name one of the runs"), (tmp_path / "comparison.json", "is a file")):
        code, _, said = command_line.invoke("watch", path)
        assert code == 2
        assert words in said


def test_a_port_in_use_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, out, said = command_line.invoke("watch", tmp_path, "--port", taken.getsockname()[1])
    assert (code, out) == (2, "")
    assert "cannot listen" in said


@contextmanager
def watching(folder: Path) -> Iterator[str]:
    """Run the command; give the address of its page."""
    command = command_line.make_command("watch", folder)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address.startswith("http://127.0.0.1:"), process.stderr and process.stderr.read()
            yield address
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
            assert process.stderr is not None
            assert "Traceback" not in process.stderr.read()


def fetch(address: str) -> str:
    with urllib.request.urlopen(address, timeout=60) as answer:
        return answer.read().decode()


RUN = ["run", "demo", *command_line.TINY, "--rounds", 12, "--set", "num_clients=4", "--set", "clients_per_round=3"]


@pytest.mark.slow
def test_a_watched_run_has_the_bits_of_one_that_nobody_watches(tmp_path: Path) -> None:
    """The watcher begins before the run, and asks as fast as it can; the run is killed once, and resumed."""
    assert command_line.call_apart(*RUN, "--out", tmp_path / "alone").returncode == 0
    folder = tmp_path / "watched"
    seen = set()
    with watching(folder) as address:
        assert "There are no events yet" in fetch(address)
        for more in ((), ("--resume",)):
            run = command_line.start(tmp_path / "log", *RUN, "--out", folder, *more)
            while run.poll() is None:
                text = fetch(address)
                seen.add(re.search(r"<title>(.*?)</title>", text)[1])
                if not more and (folder / EVENTS).exists() and len(Follower(folder).read().rounds) >= 4:
                    run.kill()
            run.wait()
            text = fetch(address)
            assert ("No process of this machine" in text) == (not more)
        assert "Finished after 12 rounds." in text
    assert len(seen) > 4  # it was live
    for name in ("model/weights.safetensors", "participation.jsonl"):
        assert (folder / name).read_bytes() == (tmp_path / "alone" / name).read_bytes(), name
    figures = [
        [
            {key: value for key, value in record.items() if "seconds" not in key}
            for record in RunFolder(run).read_metrics()
        ]
        for run in (folder, tmp_path / "alone")
    ]
    assert figures[0] == figures[1]


@pytest.mark.slow
def test_a_federation_of_real_processes_can_be_watched(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from rehearsal import Rehearsal

    config = TINY.replace(partition="iid", num_clients=3, clients_per_round=3, quorum=2, rounds=3, deadline=600)
    rehearsal = Rehearsal(tmp_path / "federation", config)
    with watching(rehearsal.federation.path) as address, rehearsal.running() as (_, start):
        wait_for(lambda: "Finished" in fetch(address), start)
        text = Page(fetch(address)).text
        rehearsal.check(start)
    assert (rehearsal.federation.run.path / EVENTS).stat().st_mode & 0o077 == 0
    for name in rehearsal.federation.agreement.sites:
        assert f"{name} 3 0 0" in text
    chronicle = Follower(rehearsal.federation.run.path).read()
    assert sorted(chronicle.rounds) == [1, 2, 3]
    assert chronicle.unreadable == 0


def look(browser: Browser, expression: str) -> Any:
    """Return the value of an expression of the page."""
    return browser.run(f"return {expression}")


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize("width", [1200, 390])
def test_a_browser_shows_the_run_as_it_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    """By keyboard alone; nothing else is asked for, and the window never scrolls sideways."""
    story = Story(tmp_path / "run", monkeypatch)
    for round_index in range(1, 25):
        story.finish(round_index, refusals=(Refusal(1, Reason.LATE, "late"),))
    with browse(tmp_path, width) as browser, hold(tmp_path / "run"):
        with watching(tmp_path / "run") as address:
            browser.requests()
            browser.complaints()
            browser.open(address)
            assert look(browser, "document.title") == "24/30 – library network"
            # Tab leads to the button and to each table, which then scrolls by key.
            places = []
            for _ in range(4):
                browser.press(TAB)
                places.append(browser.focus)
            assert places == ["pause", "round-table", "site-table", "time-table"]
            browser.run("document.getElementById('round-table').focus()")
            browser.press(SPACE)
            wait_for(lambda: look(browser, "document.getElementById('round-table').scrollTop") > 0)
            # What is new appears, and neither the focus nor the place in the table is lost.
            story.finish(25)
            wait_for(lambda: look(browser, "document.title") == "25/30 – library network")
            assert browser.focus == "round-table"
            assert look(browser, "document.getElementById('round-table').scrollTop") > 0
            assert (
                look(browser, "document.getElementById('said').textContent") == "Round 25 of at most 30 has finished."
            )
            # A screen reader gets the curves' names, the tables and what has changed.
            roles = [(node.get("role", {}).get("value"), node.get("name", {}).get("value")) for node in browser.tree()]
            assert ("image", "P@k by round; the table of rounds has the numbers") in roles
            assert ("region", "rounds, the last one first") in roles
            assert {"status", "rowheader", "columnheader"} <= {role for role, _ in roles}
            # The button stops that, and continues.
            browser.run("document.getElementById('pause').focus()")
            browser.press(ENTER)
            assert look(browser, "document.activeElement.textContent") == "Continue"
            story.finish(26)
            browser.press(ENTER)
            wait_for(lambda: look(browser, "document.title") == "26/30 – library network")
            assert look(browser, "document.documentElement.scrollWidth <= innerWidth")
            assert browser.complaints() == []
            asked = [request for request in browser.requests() if not request.startswith("data:")]
            assert len(asked) >= 3
            assert set(asked) == {address}
        wait_for(lambda: "does not answer" in look(browser, "document.getElementById('link').textContent"))
        assert "26 of at most 30" in look(browser, "document.getElementById('now').textContent")  # stays


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize("scripts", [True, False])
def test_a_browser_takes_no_text_for_markup_and_needs_no_scripts(tmp_path: Path, scripts: bool) -> None:
    make_evil(tmp_path / "run")
    with (
        browse(tmp_path, 390, scripts=scripts) as browser,
        hold(tmp_path / "run"),
        watching(tmp_path / "run") as address,
    ):
        browser.requests()
        browser.complaints()
        browser.open(address)
        assert len(browser.find("svg polyline")) == 2
        assert browser.find("img, script[src], [onerror]") == []
        assert any("onerror=alert(2)" in text for text in browser.read("#refusals td"))
        assert bool(browser.find("#pause:not([hidden])")) == scripts
        assert (browser.read("noscript a") == ["Show the state now"]) != scripts
        assert {request for request in browser.requests() if not request.startswith("data:")} == {address}
        assert browser.complaints() == []
