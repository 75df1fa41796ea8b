"""A server among careless and hostile clients: what is asked rightly is answered, and nothing grows or is told."""

import contextlib
import re
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable

from command_line import make_command
from served import DESCRIPTION, Client, exchange, serve
from test_serve_manners import SECRET, make_nonsense, replace_folder, save_model
from waiting import wait_for, wait_for_words

pytestmark = pytest.mark.slow
MIB = 1 << 20


def read_memory(process: "subprocess.Popen[bytes]") -> int:
    """Return the bytes that a process has of its own: mapped files are shared with others."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    assert found
    return int(found[1]) * 1024


def test_hostile_clients_harm_nobody(tmp_path: Path) -> None:
    """1,000 malformed requests, 200 connections at once, large texts, and a model that is replaced meanwhile."""
    save_model(tmp_path / "texts", 5)
    log = tmp_path / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(make_command("serve", tmp_path / "texts", "--port", 0), stdout=file, stderr=file)
    try:
        wait_for_words(log, "/\n", process)
        port = int(re.search(r":(\d+)/\n", log.read_text())[1])
        client, stop = Client(port, keeps=False), threading.Event()
        large = f"{SECRET} " * (5_000_000 // (len(SECRET) + 1))
        for _ in range(3):
            assert client.predict("texts", texts=[large]).status == 200
        before = read_memory(process)

        def ask_on() -> int:
            """Ask over one connection until all is over: every request is answered."""
            mine, asked = Client(port), 0
            while not stop.is_set():
                reply = mine.predict("texts", texts=[f"olive oil {SECRET}"], top=3)
                assert reply.status == 200, reply
                assert len(reply.json["results"][0]) == 3
                asked += 1
            mine.close()
            return asked

        with ThreadPoolExecutor(4) as asking, ThreadPoolExecutor(200) as pool:
            honest = [asking.submit(ask_on) for _ in range(4)]
            try:
                wrong = pool.map(lambda number: exchange(port, make_nonsense(number), 5), range(1000))
                save_model(tmp_path / "other", 6)
                replace_folder(tmp_path / "texts", tmp_path / "other")
                assert all(not said or re.match(rb"HTTP/1.1 (1|2|4|50[13])", said) for said in wrong)
                together = threading.Barrier(200)

                def ask_together(number: int) -> int:
                    together.wait()
                    return client.predict("texts", texts=["olive", "fish"], top=1 + number % 7).status

                assert list(pool.map(ask_together, range(200))) == [200] * 200
                statuses = list(pool.map(lambda _: client.predict("texts", texts=[large]).status, range(12)))
                assert set(statuses) <= {200, 503}
                wait_for(lambda: b'fedmlh_reloads_total{project="texts"} 1' in client.get("/metrics").body)
            finally:
                stop.set()
            assert all(each.result() > 0 for each in honest)
        grown = read_memory(process) - before
        assert grown < 50 * MIB, f"{grown / MIB:.0f} MiB"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        said = log.read_text()
        assert SECRET not in said
        assert "Traceback" not in said
        assert "fault" not in said
    finally:
        process.kill()
        process.wait()


def list_operations() -> list[tuple[str, str]]:
    return [
        (path, method) for path, found in DESCRIPTION["paths"].items() for method in found if method != "parameters"
    ]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory):
    place = tmp_path_factory.mktemp("models")
    save_model(place / "texts", 5)
    with serve({"texts": place / "texts"}) as client:
        yield client


@pytest.mark.parametrize(("path", "method"), list_operations())
def test_generated_requests_find_no_fault(client: Client, path: str, method: str) -> None:
    """125 cases of each of the 16 operations, 2,000 in all: right ones and wrong ones, by the description."""
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    checks = pytest.importorskip("schemathesis.specs.openapi.checks")
    operation = schemathesis.openapi.from_dict(DESCRIPTION)[path][method.upper()]
    # Mostly of a project that there is: any other is answered in the same way whatever else the request says.
    there = {"path_parameters": {"project_id": "texts"}} if "{project_id}" in path else {}
    wanted = (checks.status_code_conformance, checks.content_type_conformance, checks.response_schema_conformance)
    asked = 0

    def ask(case) -> None:
        nonlocal asked
        asked += 1
        reply = case.call(base_url=f"http://127.0.0.1:{client.port}")
        assert reply.status_code < 500 or reply.status_code == 501, reply.text
        case.validate_response(reply, checks=list(wanted))

    for mode, chosen, count in (("positive", there, 63), ("negative", there, 50), ("positive", {}, 12)):
        cases = operation.as_strategy(generation_mode=schemathesis.GenerationMode(mode), **chosen)
        few = settings(
            max_examples=count, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
        )
        with contextlib.suppress(Unsatisfiable):  # nothing can be wrong where nothing is said
            few(given(cases)(ask))()
    while asked < 125 and not there:  # an operation without anything to vary
        asked += 1
        assert client.ask(method.upper(), path).status in (200, 501)
