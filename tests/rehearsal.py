"""Federations whose server and sites are commands of their own, as users give them."""

import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path

import command_line
from fedmlh.config import Config
from fedmlh.data.source import open_dataset
from fedmlh.runs.folder import RunFolder
from fedmlh.sites.federation import Federation
from fedmlh.sites.flower.loopback import create_loopback, replay_loopback
from fedmlh.sites.flower.processes import stop
from waiting import PATIENCE, wait_for

WITNESS = Path(__file__).parent / "witness"


@dataclass
class Held:
    """A process of a site that is about to answer a message, and waits."""

    site: str
    process: int
    line: socket.socket

    def release(self) -> None:
        """Let it answer."""
        self.line.close()


class Commands:
    """A server and its sites, each a command of its own as users give it.

    All their processes sign a register as they begin, and those that answer for a site can be held (witness/).
    """

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.stack = ExitStack()
        self.register = Path(self.stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))

    def call(self, name: str, *arguments: object, **settings: str) -> subprocess.Popen[bytes]:
        witness = {"FEDMLH_REGISTER": str(self.register), "PYTHONPATH": extend_path(WITNESS)}
        process = command_line.start(self.federation.path / f"{name}.log", *arguments, **(witness | settings))
        self.stack.callback(stop, process, seconds=30)
        return process

    def start(self, *options: object) -> subprocess.Popen[bytes]:
        return self.call("start", "federation", "start", self.federation.path, *options)

    def join(self, site: str, **settings: str) -> subprocess.Popen[bytes]:
        return self.call(site, "federation", "join", self.federation.path / site, **settings)

    def signed(self, place: str, module: str = "") -> dict[int, list[str]]:
        """Find the processes of the server or a site, or those of one module, that were begun; give their commands."""
        home = str((self.federation.path / place / "flower").resolve())
        word, found = f"fedmlh.sites.flower.{module}", {}
        for path in self.register.iterdir():
            if path.name.isdigit():
                signed_home, *words = path.read_text().split("\0")
                if signed_home == home and (not module or word in words):
                    found[int(path.name)] = words
        return found

    def send(self, number: signal.Signals, place: str, module: str = "") -> None:
        """Send a signal to those of these processes that live."""
        for pid in self.signed(place, module):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    @contextmanager
    def holding(self, start: subprocess.Popen[bytes], *sites: str) -> Iterator[Callable[[], Held]]:
        """Hold these sites, or all, before they answer, until the block ends; give what waits for the next one."""
        with ExitStack() as stack:
            gate = stack.enter_context(socket.socket(socket.AF_UNIX))
            gate.bind(str(self.register / "gate"))
            stack.callback((self.register / "gate").unlink)
            gate.listen(100)
            for site in sites or self.federation.agreement.sites:
                (self.register / site).symlink_to("gate")
                stack.callback((self.register / site).unlink)
            ended = os.pidfd_open(start.pid)
            stack.callback(os.close, ended)

            def wait_for_next() -> Held:
                assert gate in wait([gate, ended], PATIENCE), "nobody answers"
                line = stack.enter_context(gate.accept()[0])
                site, process = line.recv(1000).decode().split()
                return Held(site, int(process), line)

            yield wait_for_next


def extend_path(folder: Path) -> str:
    """Give what makes processes to come look for modules in this folder first."""
    return os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])


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
    def running(self, lying: str = "", path: Path | None = None) -> Iterator[tuple[Commands, subprocess.Popen[bytes]]]:
        """Run the command of the server, with all sites; one of them finds other modules first."""
        with running(self.federation) as commands:
            start = commands.start()
            wait_for((self.federation.server / "nodes.json").exists, start)
            for site in self.federation.agreement.sites:
                commands.join(site, **({"PYTHONPATH": extend_path(path)} if path and site == lying else {}))
            yield commands, start

    def rounds(self) -> int:
        return self.federation.run.count_rounds()

    def check(self, start: subprocess.Popen[bytes]) -> list[dict[str, object]]:
        """Check that the run ends well and equals its replay; return what it recorded about refusals."""
        assert start.wait(PATIENCE) == 0, (self.federation.path / "start.log").read_text()
        assert self.rounds() == self.federation.agreement.config.rounds
        assert replay_loopback(self.federation, self.data, self.federation.path / "replay")
        log = RunFolder(self.federation.run.path).read_participation()
        return [{"round": line.round, **vars(entry)} for line in log for entry in line.refused]
