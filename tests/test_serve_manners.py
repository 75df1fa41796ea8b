"""What a server does with clients that ask too much, too slowly or wrongly, and with models that are replaced."""

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from command_line import invoke, make_command
from drawn_models import BASE, calibrate, make_bundle
from fedmlh.data.text import TextFeatures
from fedmlh.serving.predictor import Model
from fedmlh.web import project
from fedmlh.web.headers import is_loopback
from fedmlh.web.limits import Bodies, Limits, measure_body
from fedmlh.web.metrics import Metrics
from fedmlh.web.native import make_routes
from served import Client, Reply, answering, exchange, serve
from waiting import wait_for, wait_for_words

HASHED = TextFeatures.hashing(50)
#: No log may hold it.
SECRET = "confidentialbudget"


def save_model(folder: Path, seed: int) -> Model:
    model = Model(calibrate(make_bundle(BASE, seed, d=50, text=HASHED)))
    model.save(folder)
    return model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_model(tmp_path / "texts", 5)
    return tmp_path / "texts"


def ask_head(path: str = "/health", more: str = "") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{more}\r\n".encode()


def post_head(length: int, more: str = "") -> bytes:
    return (
        f"POST /api/projects/texts/predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\n{more}\r\n"
    ).encode()


# Sizes and times.


def test_a_text_of_5_mb_is_answered_and_one_of_6_is_not(folder: Path) -> None:
    with serve({"texts": folder}) as client:
        for letter in "-–":  # few words, so that the text is read in no time; the dash is written as an escape
            many = "olive oil" + letter * (5_000_000 // len(letter.encode()))
            assert client.predict("texts", texts=[many]).json["results"][0]
            more = "olive oil" + letter * (6_000_000 // len(letter.encode()))
            assert "bytes" in client.predict("texts", texts=[more]).detail
        assert client.suggest("texts", text=many).status == 200
        assert client.suggest("texts", text=more).status == 413
        # Also where it says so before, and where it does not say how much will come.
        assert b" 413 " in exchange(client.port, post_head(10**9, "Expect: 100-continue\r\n"))
        endless = post_head(0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
        chunk = b"100000\r\n" + b" " * 0x100000 + b"\r\n"
        assert b" 413 " in exchange(client.port, endless + chunk * 20 + b"0\r\n\r\n")
        assert client.predict("texts", texts=["olive"]).status == 200


def test_what_comes_too_slowly_is_cut(folder: Path) -> None:
    limits = Limits(head_seconds=0.3, pause_seconds=0.3, body_seconds=60, idle_seconds=1)

    def drip(said: bytes, piece: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", client.port)) as slow:
            slow.sendall(said)
            slow.settimeout(0.05)
            found = b""
            while True:
                try:
                    if not (some := slow.recv(1000)):
                        return found
                    found += some
                except TimeoutError:
                    if piece:
                        slow.sendall(piece)
                except ConnectionError:
                    return found

    with serve({"texts": folder}, limits) as client:
        assert drip(b"", b"") == b""
        assert drip(b"GET /health HT", b"") == b""
        assert drip(ask_head()[:-2], b"x: y\r\n") == b""
        assert b" 408 " in drip(post_head(100), b"")
        answered = drip(ask_head(), b"")  # and one that asks, and then says nothing
        assert b" 200 " in answered
        assert client.get("/health").status == 200
    with serve({"texts": folder}, Limits(body_seconds=0.6)) as client:
        assert b" 408 " in drip(post_head(10_000), b" ")


def test_too_many_connections_are_turned_away(folder: Path) -> None:
    with serve({"texts": folder}, Limits(connections=5)) as client:
        others = [socket.create_connection(("127.0.0.1", client.port)) for _ in range(5)]
        refused = wait_for(lambda: exchange(client.port, ask_head()))
        assert b" 503 " in refused
        assert b"Retry-After" in refused
        for other in others:
            other.close()
        wait_for(lambda: b" 200 " in exchange(client.port, ask_head()))


def test_requests_beyond_the_queue_are_turned_away_and_the_others_answered(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(project, "_WAITING", 3)
    begun, go, answer_all = threading.Event(), threading.Event(), project.answer_all

    def wait_and_answer(*arguments: object) -> object:
        begun.set()
        go.wait()
        return answer_all(*arguments)

    with serve({"texts": folder}) as client, ThreadPoolExecutor(8) as pool:
        monkeypatch.setattr(project, "answer_all", wait_and_answer)
        first = pool.submit(client.apart.predict, "texts", texts=["olive"])
        begun.wait()
        waiting = [pool.submit(client.apart.predict, "texts", texts=["fish"]) for _ in range(3)]
        wait_for(lambda: b'fedmlh_waiting_requests{project="texts"} 3' in refresh(client))
        refused = client.predict("texts", texts=["oil"])
        assert refused.status == 503
        assert refused.headers["retry-after"] == "1"
        go.set()
        assert [each.result().status for each in (first, *waiting)] == [200] * 4


def refresh(client: Client) -> bytes:
    client.get("/health")
    return client.get("/metrics").body


def test_bodies_share_a_bound_that_small_ones_do_not_meet() -> None:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(b"read")(scope, receive, send)

    bodies = Bodies(answer, Limits(bodies=100_000))
    scope = {"type": "http", "method": "POST", "raw_path": b"/", "query_string": b"", "headers": []}

    async def ask(size: int, end: asyncio.Event | None = None) -> int:
        """Return the status for a body of a size; one with an end to wait for never comes whole."""
        sent, statuses = False, []

        async def receive() -> dict[str, object]:
            nonlocal sent
            if not sent:
                sent = True
                return {"type": "http.request", "body": b" " * size, "more_body": end is not None}
            await (end or asyncio.Event()).wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            statuses.append(message.get("status"))

        await bodies(scope, receive, send)
        return statuses[0] if statuses else 0

    async def ask_all() -> list[int]:
        end = asyncio.Event()
        slow = asyncio.create_task(ask(164_000, end))
        while not bodies.kept:
            await asyncio.sleep(0)
        found = [await ask(120_000), await ask(60_000)]
        end.set()
        await slow
        return [*found, await ask(120_000), await ask(170_000)]

    assert asyncio.run(ask_all()) == [503, 200, 200, 503]
    assert bodies.kept == 0


@given(st.lists(st.sampled_from([b"%", b"%4", b"%41", b"%zz", b"a", b"G", b"+", b"&"]), max_size=30))
def test_a_form_counts_for_what_it_stands_for(pieces: list[bytes]) -> None:
    body = b"".join(pieces)
    assert measure_body(body, b"application/x-www-form-urlencoded") == len(unquote_to_bytes(body))


@given(st.text(st.sampled_from('\\u"é–😀az09'), max_size=30))
def test_json_counts_for_no_less_than_its_texts(text: str) -> None:
    body = json.dumps(text).encode()
    assert len(text.encode()) + 2 <= measure_body(body, b"application/json") <= len(body)
    assert measure_body(json.dumps(text, ensure_ascii=False).encode(), b"application/json") >= len(text.encode()) + 2


def test_what_only_looks_like_an_escape_counts_in_full(folder: Path) -> None:
    with serve({"texts": folder}) as client:
        assert client.suggest("texts", text="olive").status == 200
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        assert client.ask("POST", "/v1/projects/texts/suggest", b"text=olive+" + b"zz%" * 2_000_000, kind).status == 413
        assert client.predict("texts", texts=["olive " + "\\u" * 2_000_000]).status == 413


def test_a_long_head_is_refused_also_if_it_comes_at_once(folder: Path) -> None:
    with serve({"texts": folder}) as client:
        for length, status in ((10_000, 200), (15_000, 200), (17_000, 400)):
            assert client.ask("GET", "/health", headers={"x": "y" * length}).status == status


def open_narrow(port: int) -> socket.socket:
    """Return a connection that takes little of what it does not read."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", port))
    return connection


def give(size: int) -> Callable[..., Awaitable[None]]:
    """Return an application that answers with so many bytes."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await Response(b"x" * size)(scope, receive, send)

    return answer


# Below and above what the server holds back before it waits.
@pytest.mark.parametrize("size", [1 << 16, 3 << 20])
@pytest.mark.parametrize("more", [b"", b"GET / HT"], ids=["", "and begins to ask"])
def test_an_answer_that_is_not_taken_ends_the_connection(size: int, more: bytes) -> None:
    limits = Limits(write_seconds=0.3, idle_seconds=1, head_seconds=0.3)
    with answering(give(size), limits) as port, open_narrow(port) as client:
        client.sendall(ask_head() + more)
        wait_for(lambda: not is_connected(port, client))


def is_connected(port: int, client: socket.socket) -> bool:
    """Say whether the server's end of a connection is there."""
    mine, state = client.getsockname()[1], "01"
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    ends = [line.split()[1:4] for line in lines]
    wanted = (f"0100007F:{port:04X}", f"0100007F:{mine:04X}", state)
    return any((local, remote, now) == wanted for local, remote, now in ends)


def test_answers_that_are_not_taken_share_a_bound() -> None:
    with answering(give(12 << 20), Limits(answers=40 << 20)) as port:
        clients = [open_narrow(port) for _ in range(16)]
        for client in clients:
            client.sendall(ask_head())
        wait_for(lambda: sum(is_connected(port, client) for client in clients) < 8)
        assert any(is_connected(port, client) for client in clients)
        for client in clients:
            client.close()
        assert b" 200 " in read_some(port)


def read_some(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(ask_head())
        return client.recv(100)


def test_questions_of_clients_that_left_are_not_computed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go, answer_all = threading.Event(), threading.Event(), project.answer_all
    sizes: list[int] = []

    def wait_and_answer(model: Model, questions: Sequence[project.Question]) -> object:
        sizes.append(len(questions))
        begun.set()
        go.wait()
        return answer_all(model, questions)

    with serve({"texts": folder}) as client, ThreadPoolExecutor(8) as pool:
        monkeypatch.setattr(project, "answer_all", wait_and_answer)
        first = pool.submit(client.apart.predict, "texts", texts=["olive"])
        begun.wait()
        body = json.dumps({"texts": ["fish"]}).encode()
        gone = [socket.create_connection(("127.0.0.1", client.port)) for _ in range(5)]
        for connection in gone:
            connection.sendall(post_head(len(body)) + body)
        wait_for(lambda: b'fedmlh_waiting_requests{project="texts"} 5' in refresh(client))
        for connection in gone:
            connection.close()
        wait_for(lambda: b'path="/api/projects/{project_id}/predict",status="0"} 5' in refresh(client))
        last = pool.submit(client.apart.predict, "texts", texts=["oil"])
        wait_for(lambda: b'fedmlh_waiting_requests{project="texts"} 6' in refresh(client))
        go.set()
        assert [first.result().status, last.result().status] == [200, 200]
    assert sizes == [1, 1]


def test_a_question_with_reasons_is_answered_alone() -> None:
    async def take(*questions: project.Question) -> list[list[bool]]:
        waiting = project.Project.__new__(project.Project)
        futures = [(question, asyncio.get_running_loop().create_future()) for question in questions]
        futures[0][1].cancel()
        waiting._waiting = deque(futures)
        batches = []
        while batch := waiting._take_batch():
            batches.append([question.why for question, _ in batch])
        return batches

    plain, why = (project.Question(["a"] * 10, 5, why=why) for why in (False, True))
    found = asyncio.run(take(plain, plain, plain, why, why, plain, plain, plain, plain))
    assert found == [[False, False], [True], [True], [False] * 3, [False]]


# Foreign pages, foreign names, wrong requests.


def test_headers_shut_browsers_off(folder: Path) -> None:
    with serve({"texts": folder}) as client:
        for reply in (client.get("/"), client.get("/health"), client.get("/none"), client.get("/v1/projects/none")):
            policy = reply.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert reply.headers["x-content-type-options"] == "nosniff"
            assert "server" not in reply.headers
        answer = client.ask("GET", "/v1/projects", headers={"Origin": "https://example.org"})
        assert "access-control-allow-origin" not in answer.headers


def test_pages_of_another_origin_may_ask_if_they_are_named(folder: Path) -> None:
    with serve({"texts": folder}, origins=("https://example.org",)) as client:
        for origin, allowed in (("https://example.org", True), ("https://evil.example", False)):
            reply = client.ask("GET", "/v1/projects", headers={"Origin": origin})
            assert (reply.headers.get("access-control-allow-origin") == origin) == allowed
            asks = {
                "Origin": origin,
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "content-type",
            }
            before = client.ask("OPTIONS", "/v1/projects/texts/suggest-batch", headers=asks)
            assert (before.status == 200) == allowed


def test_a_page_of_another_site_cannot_send_forms_unless_it_is_named(folder: Path) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    asked = (("/", "text=olive"), ("/file?name=a.txt", "olive\n"), ("/v1/projects/texts/suggest", "text=olive"))
    with serve({"texts": folder}, origins=("https://example.org",)) as client:
        for path, body in asked:
            for headers, status in (
                ({"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"}, 403),
                ({"Sec-Fetch-Site": "cross-site", "Origin": "null"}, 403),
                ({"Sec-Fetch-Site": "cross-site"}, 403),
                ({"Sec-Fetch-Site": "cross-site", "Origin": "https://example.org"}, 200),
                ({"Sec-Fetch-Site": "same-origin", "Origin": f"http://127.0.0.1:{client.port}"}, 200),
                ({"Sec-Fetch-Site": "none"}, 200),
                ({}, 200),
            ):
                assert client.ask("POST", path, body, form | headers).status == status, (path, headers)
        assert client.ask("GET", "/", headers={"Sec-Fetch-Site": "cross-site"}).status == 200  # a link


def test_a_request_of_two_lengths_is_refused_and_the_connection_ends(folder: Path) -> None:
    """Where a proxy takes one length and the server the other, a second request is hidden in the first."""
    hidden = ask_head()
    body = b"0\r\n\r\n" + hidden
    for chunked in ("Transfer-Encoding: chunked", "transfer-encoding: CHUNKED"):
        with serve({"texts": folder}) as client:
            said = exchange(client.port, post_head(len(body), f"{chunked}\r\n") + body)
            assert re.match(rb"HTTP/1.1 400 .*connection: close\r\n", said, re.DOTALL | re.IGNORECASE)
            assert said.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    "origin",
    ["https://x/", "https://x/page", "x", "x:80", "https://", "https://X", "https://*.x", "*", "null", "https://x:443"],
)
def test_an_origin_that_no_browser_sends_is_refused(tmp_path: Path, origin: str) -> None:
    allowed = ("--allow-origin", "http://x:8080", "--allow-origin", origin)
    code, _, said = invoke("serve", tmp_path / "none", "--port", 0, *allowed)
    assert (code, said.count("\n")) == (2, 1)
    assert f"--allow-origin '{origin}' is no origin" in said


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "localhost.evil.example", "", "127.0.0.1@evil.example"]
)
def test_a_foreign_host_name_is_refused(folder: Path, host: str) -> None:
    """A page whose name was made to point at this machine asks by that name."""
    with serve({"texts": folder}, names=("labels.example.org",)) as client:
        assert client.ask("GET", "/health", headers={"Host": host}).status == 421
        for own in ("localhost", f"LOCALHOST:{client.port}", "127.0.0.1", "[::1]:80", "labels.example.org"):
            assert client.ask("GET", "/health", headers={"Host": own}).status == 200


def make_nonsense(number: int) -> bytes:
    """Return a request that is wrong in one of many ways, with a secret in it."""
    body = json.dumps({"texts": [SECRET]}).encode()
    good = post_head(len(body)) + body
    kinds = [
        lambda: good[: number % len(good)],
        lambda: good.replace(b"\r\n", b"\n" if number % 2 else b"\r"),
        lambda: good.replace(b"HTTP/1.1", b"HTTP/9.9"),
        lambda: good.replace(b"POST", bytes([number % 256]) * (number % 20)),
        lambda: good.replace(b"Content-Length: ", b"Content-Length: -"),
        lambda: good.replace(b"Content-Length: ", b"Content-Length: 9" * (1 + number % 3)),
        lambda: good.replace(b"Content-Type", b"Transfer-Encoding: chunked\r\nContent-Type"),
        lambda: good.replace(b"Host: localhost", b"Host: localhost\r\nHost: " + SECRET.encode()),
        lambda: good.replace(b"/api", b"/" + SECRET.encode() * (number % 500)),
        lambda: good.replace(b"predict", b"predict?text=" + SECRET.encode()),
        lambda: good.replace(b"{", b"[" * (number % 3000)),
        lambda: good.replace(SECRET.encode(), bytes([number % 256, 255 - number % 256])),
        lambda: good.replace(b"application/json", SECRET.encode()),
        lambda: bytes((number * 7 + place * 31) % 256 for place in range(number % 300)),
        lambda: ask_head("/", "".join(f"{SECRET}-{n}: {n}\r\n" for n in range(number % 900))),
        lambda: good.replace(b"POST", b"CONNECT").replace(b"/api", b"http://" + SECRET.encode()),
        lambda: good.replace(b"\r\n\r\n", b"\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"),
        lambda: good * (2 + number % 5),
    ]
    return kinds[number % len(kinds)]()


def read_log(capfd: pytest.CaptureFixture[str]) -> str:
    written = capfd.readouterr()
    return written.out + written.err


def test_nonsense_is_answered_or_cut_and_never_logged(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with serve({"texts": folder}, Limits(head_seconds=1, pause_seconds=1)) as client:
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda number: exchange(client.port, make_nonsense(number), 5), range(150)))
        assert all(not said or re.match(rb"HTTP/1.1 (1|2|4|50[13])", said) for said in found)
        assert client.predict("texts", texts=[SECRET]).status == 200
    log = read_log(capfd)
    assert SECRET not in log
    assert "Traceback" not in log


def test_a_fault_is_answered_and_logged_without_what_was_asked(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(model: object, questions: object) -> None:
        raise KeyError(str(questions))

    with serve({"texts": folder}) as client:
        monkeypatch.setattr(project, "answer_all", fail)
        reply = client.predict("texts", texts=[SECRET])
        assert reply.status == 500
        assert SECRET not in reply.detail
        assert client.suggest("texts", text=SECRET).status == 500
    log = read_log(capfd)
    assert "KeyError at test_serve_manners.py:" in log
    assert SECRET not in log
    assert "Traceback" not in log


@pytest.mark.parametrize(
    ("host", "is_here"),
    [
        *(
            (host, True)
            for host in ("127.0.0.1", "127.1", "::1", "[::1]", "::ffff:127.0.0.1", "localhost", "2130706433")
        ),
        *((host, False) for host in ("0.0.0.0", "::", "192.0.2.1", "::ffff:192.0.2.1", "no.such.host.invalid")),
    ],
)
def test_an_address_is_loopback_however_it_is_written(host: str, is_here: bool) -> None:
    assert is_loopback(host) == is_here


# Models that are replaced, and the end.


def replace_folder(folder: Path, other: Path) -> None:
    """Put another model in place, as one does: by renaming."""
    folder.rename(folder.with_name("old"))
    other.rename(folder)
    shutil.rmtree(folder.with_name("old"))


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project, "_PAUSE", 0.02)


def test_a_replaced_model_is_taken_over_without_a_lost_request(folder: Path, tmp_path: Path, often: None) -> None:
    asked = ["olive oil prices"]
    expected = [round(Model.load(folder).predict(asked, 1)[0][0]["score"], 3)]
    for seed in (6, 7):
        expected.append(round(save_model(tmp_path / f"model-{seed}", seed).predict(asked, 1)[0][0]["score"], 3))
    stop = threading.Event()

    def ask_on() -> list[Reply]:
        own, found = Client(client.port), []
        while not stop.is_set():
            found.append(own.predict("texts", texts=asked, top=1))
        own.close()
        return found

    def read_score(reply: Reply) -> float:
        assert reply.status == 200, reply
        return round(reply.json["results"][0][0]["score"], 3)

    with serve({"texts": folder}) as client, ThreadPoolExecutor(3) as pool:
        asking = [pool.submit(ask_on) for _ in range(3)]
        try:
            for seed, score in zip((6, 7), expected[1:], strict=True):
                replace_folder(folder, tmp_path / f"model-{seed}")
                wait_for(lambda score=score: read_score(client.predict("texts", texts=asked, top=1)) == score)
        finally:
            stop.set()
        for each in asking:
            scores = [read_score(reply) for reply in each.result()]
            assert list(dict.fromkeys(scores)) == [score for score in expected if score in scores]
        assert b'fedmlh_reloads_total{project="texts"} 2' in refresh(client)


def test_a_model_that_cannot_be_read_is_left_alone(
    folder: Path, tmp_path: Path, often: None, capfd: pytest.CaptureFixture[str]
) -> None:
    with serve({"texts": folder}) as client:
        before = client.predict("texts", texts=["olive"]).json
        save_model(tmp_path / "broken", 6)
        (tmp_path / "broken" / "weights.safetensors").write_bytes(b"no weights")
        replace_folder(folder, tmp_path / "broken")
        wait_for(lambda: b'fedmlh_reload_failures_total{project="texts"} 1' in refresh(client))
        assert client.predict("texts", texts=["olive"]).json == before
        save_model(tmp_path / "whole", 7)
        replace_folder(folder, tmp_path / "whole")
        wait_for(lambda: client.predict("texts", texts=["olive"]).json != before)
    assert "keeps its model" in read_log(capfd)


def test_a_stop_answers_what_was_asked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, answer_all = threading.Event(), project.answer_all

    def answer_slowly(*arguments: object) -> object:
        begun.set()
        time.sleep(0.5)
        return answer_all(*arguments)

    with ThreadPoolExecutor(1) as pool:
        with serve({"texts": folder}) as client:
            monkeypatch.setattr(project, "answer_all", answer_slowly)
            asked = pool.submit(client.apart.predict, "texts", texts=["olive"])
            begun.wait()
        assert asked.result().status == 200


def test_processes_count_in_one_file(folder: Path, tmp_path: Path) -> None:
    served = project.Project("texts", folder)
    routes = make_routes({"texts": served})
    both = [Metrics(routes, [served], (tmp_path / "counts", 2)) for _ in range(2)]
    served.asked = 3
    for metrics in both:
        metrics.count(routes[0].endpoint, 200, 0.004)
        metrics.count(None, 299, 9.0)
    for metrics in both:
        lines = metrics.write().splitlines()
        assert 'fedmlh_requests_total{path="/api/projects",status="200"} 2' in lines
        assert 'fedmlh_requests_total{path="other",status="0"} 2' in lines
        assert 'fedmlh_request_seconds_bucket{path="/api/projects",le="0.003"} 0' in lines
        assert 'fedmlh_request_seconds_bucket{path="/api/projects",le="0.005"} 2' in lines
        assert 'fedmlh_points_total{project="texts"} 6' in lines
        assert all(re.fullmatch(r'# (HELP|TYPE) \w+ .+|\w+\{(\w+="[^"]*",?)+\} [\d.]+', line) for line in lines)


# The command.


@pytest.fixture
def started(folder: Path, tmp_path: Path) -> Iterator[tuple["subprocess.Popen[bytes]", int, Path]]:
    log = tmp_path / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(make_command("serve", folder, "--port", 0), stdout=file, stderr=file)
    try:
        wait_for_words(log, "/\n", process)
        yield process, int(re.search(r":(\d+)/\n", log.read_text())[1]), log
    finally:
        process.kill()
        process.wait()


def test_the_command_serves_until_it_is_told_to_stop(started) -> None:
    process, port, log = started
    client = Client(port, keeps=False)
    assert client.get("/ready").json["projects"] == ["texts"]
    assert client.predict("texts", texts=[SECRET]).status == 200
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    assert log.read_text().splitlines()[-1] == "stopped"
    assert SECRET not in log.read_text()


def test_the_command_says_what_is_wrong(folder: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"port {port}" in invoke("serve", folder, "--port", port)[2]
    code, _, said = invoke("serve", tmp_path / "none", "--port", 0)
    assert (code, said.count("\n")) == (2, 1)
    assert "none is not a folder" in said
    assert "texts-2=" in invoke("serve", folder, folder, "--port", 0)[2]
    assert invoke("serve", folder, "--host", "no.such.host.invalid", "--port", 0)[0] == 2


def test_serving_imports_nothing_that_trains(folder: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom fedmlh.web.service import Service, make_service\n"
        f"make_service(Service((('texts', Path({str(folder)!r})),), 'localhost'))\n"
        "print({name.split('.')[0] for name in sys.modules} & {'torch', 'scipy', 'sklearn', 'numba', 'matplotlib'})"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "set()\n"


def list_workers(process: "subprocess.Popen[bytes]") -> list[int]:
    """Return the processes that answer; the first child of all keeps account of shared memory."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [pid for pid in map(int, children) if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def is_there(process: int) -> bool:
    """Say whether a process lives."""
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.slow
def test_workers_share_a_socket_and_their_counts_and_are_replaced(folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        command = make_command("serve", folder, "--port", 0, "--workers", 2)
        process = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        wait_for_words(log, "/\n", process)
        client = Client(int(re.search(r":(\d+)/\n", log.read_text())[1]), keeps=False)

        def ask(_: int) -> int:
            return client.predict("texts", texts=["olive"]).status

        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(ask, range(200))) == {200}
        wait_for(lambda: b'fedmlh_points_total{project="texts"} 200' in client.get("/metrics").body)
        workers = list_workers(process)
        assert len(workers) == 2
        os.kill(workers[0], signal.SIGKILL)
        wait_for(lambda: len(set(list_workers(process)) - set(workers)) == 1)
        assert {ask(n) for n in range(20)} == {200}
        wait_for(lambda: b'fedmlh_points_total{project="texts"} 220' in client.get("/metrics").body)
        workers = list_workers(process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
        assert "Traceback" not in log.read_text()
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("pause", [0.0, 0.3, 0.8])
def test_workers_end_with_a_server_that_is_stopped_while_they_start(folder: Path, tmp_path: Path, pause: float) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        command = make_command("serve", folder, "--port", 0, "--workers", 4)
        process = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        wait_for_words(log, "/\n", process)
        time.sleep(pause)
        workers = list_workers(process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        wait_for(lambda: not any(map(is_there, workers)))
        assert "Traceback" not in log.read_text()
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_workers_end_with_a_server_that_is_killed(folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        command = make_command("serve", folder, "--port", 0, "--workers", 2)
        process = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        wait_for_words(log, "/\n", process)
        workers = wait_for(lambda: found if len(found := list_workers(process)) == 2 else None)
        client = Client(int(re.search(r":(\d+)/\n", log.read_text())[1]), keeps=False)
        assert client.get("/ready").status == 200
    finally:
        process.kill()
        process.wait()
    wait_for(lambda: not any(map(is_there, workers)))
