"""Attacks on a federation of real sites: from other accounts of the machine, from sites, and by killing processes."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")
if not Path("/proc/self/environ").exists():
    pytest.skip("processes are found through /proc", allow_module_level=True)

from fedmlh.config import Config
from fedmlh.data.source import open_dataset
from fedmlh.deployment.federation import Federation
from fedmlh.deployment.keys import make_node_key
from fedmlh.engines.flower.control import Control
from fedmlh.engines.flower.loopback import create_loopback
from fedmlh.engines.flower.processes import stop

HERE = Path(__file__).parent
PATIENCE = 300.0
SMALL = Config(
    name="attacked",
    device="cpu",
    synthetic_points=400,
    synthetic_features=60,
    synthetic_labels=40,
    partition="iid",
    num_clients=2,
    clients_per_round=2,
    quorum=1,
    rounds=2,
    local_epochs=1,
    num_tables=2,
    num_buckets=10,
    feature_dim=16,
    hidden_sizes=(8,),
    top_k=(1, 3),
    deadline=60,
    max_attempts=10,
)


def wait_for(what: Callable[[], object], doing: "subprocess.Popen[bytes] | None" = None) -> None:
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end, "nothing came of it"
        assert doing is None or doing.poll() is None, "the command ended too soon"
        time.sleep(0.1)


def find_processes(*words: str) -> list[int]:
    """Processes that have all these words in their command or environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except OSError:
                continue
            if text and all(word.encode() in text for word in words):
                found.append(int(entry.name))
    return found


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A folder that every account can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


class Commands:
    """A server and its sites, each a command of its own as users give it."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.stack = ExitStack()

    def call(self, name: str, *arguments: object, **settings: str) -> "subprocess.Popen[bytes]":
        log = self.stack.enter_context((self.federation.path / f"{name}.log").open("ab"))
        command = [sys.executable, "-m", "fedmlh", *map(str, arguments)]
        process = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | settings)
        self.stack.callback(stop, process, seconds=30)
        return process

    def start(self, *options: object) -> "subprocess.Popen[bytes]":
        return self.call("start", "federation", "start", self.federation.path, *options)

    def join(self, site: str) -> "subprocess.Popen[bytes]":
        return self.call(site, "federation", "join", self.federation.path / site)

    def processes(self) -> list[int]:
        """All that belong to the federation's folder, but the commands themselves."""
        return find_processes("flower", str(self.federation.path.resolve()))


@contextmanager
def running(federation: Federation) -> Iterator[Commands]:
    commands = Commands(federation)
    with commands.stack:
        yield commands


def intrude(told: dict[str, Any]) -> dict[str, Any]:
    """What the script intruder.py finds as another account."""
    command = [sys.executable, HERE / "intruder.py"]
    done = subprocess.run(command, input=json.dumps(told), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = dict(json.loads(done.stdout))
    assert found["account"] == 65534
    return found


def read_credential(folder: Path) -> dict[str, str]:
    from fedmlh.engines.flower.credential import HEADER, Credential

    return {HEADER: Credential(folder / "credential").read()}


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another account")
def test_attack_01_02_22_23_another_account_gets_nothing(open_path: Path) -> None:
    """Everything but `public/` and the addresses has to be found; with the credential the same calls are answered."""
    config = SMALL.replace(synthetic_points=4000, local_epochs=2000, num_clients=1, clients_per_round=1)
    federation = create_loopback(config, open_dataset(config), open_path / "federation")
    with running(federation) as commands:
        start = commands.start()
        commands.join("site-0")
        log = federation.path / "site-0" / "supernode.log"
        wait_for(lambda: log.exists() and b"Receiving: train" in log.read_bytes(), start)
        (node,) = find_processes("fedmlh.engines.flower.supernode", str(federation.path / "site-0"))
        words = Path(f"/proc/{node}/cmdline").read_bytes().decode().split("\0")
        port = words[words.index("--port") + 1]
        with sqlite3.connect(f"file:{federation.server / 'superlink.db'}?mode=ro", uri=True) as database:
            ((token,),) = database.execute("select token from task where token is not null").fetchall()
        with closing(Control(federation)) as control:
            (run,) = control.runs()
        scheme, authority = ("https", "") if "--ssl-certfile" in words else ("http", "")
        told: dict[str, Any] = {
            "server": {
                "base": f"https://{federation.agreement.address}",
                "authority": federation.agreement.authority.decode(),
                "token": token,
                "credential": {},
            },
            "site": {"base": f"{scheme}://127.0.0.1:{port}", "authority": authority, "token": "x", "credential": {}},
            "folders": [str(federation.path)],
            "key": public_bytes().hex(),
            "run": run,
            "secrets": [token],
        }
        found = intrude(told)
        assert found["secrets"] == []
        assert found["server"] == []
        assert found["site"] == []
        assert found["readable"] == []
        with closing(Control(federation)) as control:
            assert list(control.runs()) == [run]
            assert len(control.list_nodes()) == 1
        for name, folder in (("server", federation.server), ("site", federation.path / "site-0")):
            told[name]["credential"] = read_credential(folder)
            told["secrets"] += told[name]["credential"].values()
        logs = b"".join(path.read_bytes() for path in federation.path.rglob("*.log"))
        assert not [secret for secret in told["secrets"] if secret.encode() in logs]
        found = intrude(told)
        assert found["secrets"] == []
        assert len(found["server"]) == 10
        assert len(found["site"]) == 4


def public_bytes() -> bytes:
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    return bytes(public_key_to_bytes(load_ssh_public_key(make_node_key()[1])))
