"""What leaves a site: no word and no label of its data, and hardly more bytes than are counted."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

import command_line
from command_line import call
from fedmlh.sites.federation import Federation
from fedmlh.sites.flower.processes import free_port, stop
from texts import CATALOGUE, TEXTS, write_text

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
#: Words and a label that nothing but one site's data has.
CANARIES = ("zqxwordcanary", "zqxlabelcanary", "zqxheldcanary")
#: Every process of that site writes down what it gives to a socket, before TLS makes it unreadable.
SPY = """
import os, socket, ssl
def spy(owner, name):
    real = getattr(owner, name)
    def send(self, data, *rest):
        with open(os.environ["SPY"], "ab") as file:
            file.write(bytes(data))
        return real(self, data, *rest)
    setattr(owner, name, send)
for owner in (ssl.SSLSocket, socket.socket):
    for name in ("send", "sendall"):
        spy(owner, name)
spy(ssl.SSLObject, "write")
"""


def test_no_byte_that_a_site_sends_has_anything_of_its_data(tmp_path: Path) -> None:
    server = write_text(tmp_path / "data" / "server", TEXTS["server"], CATALOGUE)
    lines = [*TEXTS["south"], *((f"{CANARIES[0]} milk {n}", ["dairy", CANARIES[1]]) for n in range(20))]
    south = write_text(tmp_path / "data" / "south", lines)
    (south / "tst.jsonl").write_text(json.dumps({"text": CANARIES[2], "labels": ["dairy", CANARIES[1]]}) + "\n")
    fed, site = tmp_path / "fed", tmp_path / "south"
    settings = "num_buckets=3 feature_dim=16 hidden_sizes=8 local_epochs=1 deadline=300 update_codec=fp16".split()
    init = ("federation", "init", fed, "eurlex-4k", "--data", server, "--address", f"127.0.0.1:{free_port()}")
    options = [part for setting in (*settings, "local_baseline=true") for part in ("--set", setting)]
    assert call(*init, "--sites", "south", "--rounds", 2, *options) == 0
    assert call("site", "prepare", fed / "public", "--site", "south", "--data", south, "--out", site) == 0
    (fed / "enrolled" / "south.json").write_bytes((site / "enrolment.json").read_bytes())
    (tmp_path / "spy").mkdir()
    (tmp_path / "spy" / "sitecustomize.py").write_text(SPY)
    path = os.pathsep.join([str(tmp_path / "spy"), os.environ.get("PYTHONPATH", "")])
    start = command_line.start(tmp_path / "log", "federation", "start", fed)
    join = command_line.start(tmp_path / "log", "federation", "join", site, PYTHONPATH=path, SPY=str(tmp_path / "sent"))
    try:
        assert start.wait(900) == 0, (tmp_path / "log").read_text()
    finally:
        stop(join, start, seconds=30)
    sent = (tmp_path / "sent").read_bytes()
    # The spy sees what is sent: two updates and a report at least, each once in plain and once for TLS.
    assert sent.count(b'"kind":"update"') >= 2
    assert sent.count(b'"kind":"report"') >= 1
    row = json.loads((fed / "run" / "summary.json").read_text())["clients"][0]
    assert (row["site"], row["held_out"]) == ("south", 1)
    at_server = b"".join(path.read_bytes() for path in fed.rglob("*") if path.is_file())
    at_site = b"".join(path.read_bytes() for path in site.rglob("*") if path.is_file())
    assert CANARIES[1].encode() in at_site
    for canary in CANARIES:
        for writing in (canary.encode(), canary.upper().encode(), canary.encode("utf-16-le")):
            assert writing not in sent
            assert writing not in at_server
    assert Federation(fed).read_outcome() == (True, None)


def test_the_wire_carries_hardly_more_than_is_counted(tmp_path: Path) -> None:
    """Sites in network namespaces, with links of limited rate and delay."""
    probe = subprocess.run(
        ["sh", "-c", "ip netns add fmprobe && ip netns del fmprobe"], capture_output=True, check=False
    )
    if probe.returncode:
        pytest.skip("network namespaces are not permitted here")
    out = tmp_path / "wire.json"
    script = [sys.executable, ROOT / "benchmarks" / "flower_wire.py", "--rounds", "3", "--idle", "15", "--out", out]
    ended = subprocess.run(script, capture_output=True, text=True, check=False, timeout=900)
    assert ended.returncode == 0, ended.stderr
    verdict = json.loads(out.read_text())["verdict"]
    assert -0.01 < verdict["over_counted"] < 0.05
