"""Federations whose server and sites are commands of their own, as users give them."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import command_line
from fedmlh.config import Config
from fedmlh.data.source import open_dataset
from fedmlh.runs.folder import RunFolder
from fedmlh.sites.federation import Federation
from fedmlh.sites.flower.loopback import create_loopback, replay_loopback
from fedmlh.sites.flower.processes import stop

PATIENCE = 900.0


def wait_for(
    what: Callable[[], object], doing: subprocess.Popen[bytes] | None = None, patience: float = PATIENCE
) -> None:
    """Wait until something is so, while a command does it."""
    end = time.monotonic() + patience
    while not what():
        assert time.monotonic() < end, "nothing came of it"
        assert doing is None or doing.poll() is None, "the command ended too soon"
        time.sleep(0.1)


def find_processes(*words: str, command: str = "") -> list[int]:
    """Find processes with all these words in their command or environment, and one in their command."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line, settings = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
            except OSError:
                continue
            if line and command.encode() in line and all(word.encode() in line + settings for word in words):
                found.append(int(entry.name))
    return found


def find_parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class Commands:
    """A server and its sites, each a command of its own as users give it."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.stack = ExitStack()

    def call(self, name: str, *arguments: object, **settings: str) -> subprocess.Popen[bytes]:
        process = command_line.start(self.federation.path / f"{name}.log", *arguments, **settings)
        self.stack.callback(stop, process, seconds=30)
        return process

    def start(self, *options: object) -> subprocess.Popen[bytes]:
        return self.call("start", "federation", "start", self.federation.path, *options)

    def join(self, site: str, **settings: str) -> subprocess.Popen[bytes]:
        return self.call(site, "federation", "join", self.federation.path / site, **settings)


@contextmanager
def running(federation: Federation) -> Iterator[Commands]:
    commands = Commands(federation)
    with commands.stack:
        yield commands


class Rehearsal:
    """A federation on the data of a config, what happens in it, and its replay."""

    def __init__(self, folder: Path, config: Config) -> None:
        self.data = open_dataset(config)
        self.federation = create_loopback(config, self.data, folder)

    @contextmanager
    def running(self, lying: str = "", path: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
        """Run the server and all sites, and yield the server's process; one site finds other modules first."""
        with running(self.federation) as commands:
            start = commands.start()
            wait_for(lambda: (self.federation.server / "nodes.json").exists(), start)
            for site in self.federation.agreement.sites:
                before = os.environ.get("PYTHONPATH", "")
                commands.join(site, **({"PYTHONPATH": f"{path}{os.pathsep}{before}"} if site == lying else {}))
            yield start

    def find(self, word: str, site: str = "") -> list[int]:
        if site:
            variable = f"FLWR_HOME={(self.federation.path / site / 'flower').resolve()}\0"
        else:
            variable = f"FEDMLH_FEDERATION={self.federation.path.resolve()}\0"
        return find_processes(variable, command=word)

    def find_clients(self, site: str) -> list[int]:
        """Return the processes that answer messages: forked ones, with the command of their parent."""
        servers = set(self.find("forkserver", site))
        return [pid for pid in servers if find_parent(pid) in servers]

    def wait_for_training(self) -> tuple[str, int]:
        """Wait until a site has just begun to work; return which one, and its process."""
        sites = self.federation.agreement.sites
        before = {pid for site in sites for pid in self.find_clients(site)}
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            for site in sites:
                for pid in set(self.find_clients(site)) - before:
                    return site, pid
        raise AssertionError("nobody trains")

    def rounds(self) -> int:
        path = self.federation.run.path / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def check(self, start: subprocess.Popen[bytes]) -> list[dict[str, object]]:
        """Check that the run ends well and equals its replay; return what it recorded about refusals."""
        assert start.wait(PATIENCE) == 0, (self.federation.path / "start.log").read_text()
        assert self.rounds() == self.federation.agreement.config.rounds
        assert replay_loopback(self.federation, self.data, self.federation.path / "replay")
        log = RunFolder(self.federation.run.path).read_participation()
        return [{"round": line.round, **vars(entry)} for line in log for entry in line.refused]
