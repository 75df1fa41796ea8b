"""The Flower processes of a federation: start them, tell the SuperLink what to do, keep the run going."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

import httpx

from fedmlh.deployment.agreement import split_address
from fedmlh.deployment.federation import Federation
from fedmlh.deployment.site import Site
from fedmlh.engines.flower.control import Control, is_loopback
from fedmlh.engines.flower.server import FOLDER
from fedmlh.errors import UserError

Tell = Callable[[str], None]
#: Seconds between two looks at the run.
PAUSE = 1.0
#: How often in a row the server's process may end without having finished a round.
LIVES = 3
#: Seconds that a SuperLink has to start.
START = 60.0
#: Seconds before a SuperNode that ended is started again.
AGAIN = 10.0


def environment(home: Path, **more: str) -> dict[str, str]:
    """What Flower's processes need to work with no account, no network but their own, and no telemetry."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return os.environ | {
        "PATH": path,  # Flower starts its parts by name
        "FLWR_HOME": str(home.resolve()),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",  # seconds, on the same machine
        **more,
    }


def start_superlink(federation: Federation, log: IO[bytes]) -> "subprocess.Popen[bytes]":
    """The server's end of the connections, with its state on disk."""
    server = federation.server.resolve()
    host, port = split_address(federation.agreement.address)
    command = [sys.executable, "-m", "fedmlh.engines.flower.superlink"]
    command += ["--host", host if is_loopback(host) else "0.0.0.0", "--port", str(port)]
    command += ["--database", str(server / "superlink.db"), "--enable-supernode-auth"]
    command += ["--ssl-ca-certfile", str(server / "ca.crt"), "--ssl-certfile", str(server / "server.pem")]
    command += ["--ssl-keyfile", str(server / "server.key")]
    settings = environment(server / "flower", **{FOLDER: str(federation.path.resolve())})
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=settings)


def start_supernode(folder: Path, log: IO[bytes]) -> "subprocess.Popen[bytes]":
    """A site's end of the connection; it goes on trying while the server cannot be reached."""
    site, folder = Site(folder), folder.resolve()
    site.warm_up()
    if set(str(folder)) & set("\"'\\"):
        raise UserError(f"{folder}: Flower cannot pass on a path with quotes or backslashes: move the folder")
    command = [sys.executable, "-m", "fedmlh.engines.flower.supernode"]
    command += ["--superlink", site.agreement.address, "--host", "127.0.0.1", "--port", str(free_port())]
    command += ["--root-certificates", str(folder / "agreement" / "ca.crt")]
    command += ["--auth-supernode-private-key", str(folder / "node.key")]
    command += ["--node-config", f'site="{folder}" partition-id={site.number}']
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment(folder / "flower")
    )


def keep_supernode(folder: Path, tell: Tell) -> None:
    """A SuperNode for as long as nobody interrupts: one that ends is started again."""
    log = folder / "supernode.log"
    site = Site(folder)
    tell(f"site {site.name} takes part whenever {site.agreement.address} asks; what Flower says goes to {log}")
    while True:
        with open(log, "ab") as lines:
            process = start_supernode(folder, lines)
            try:
                process.wait()
            finally:
                stop(process)
        tell(
            f"not connected ({log} says why); if the server does not know this site's key yet, hand "
            f"{folder / 'enrolment.json'} in; trying again in {AGAIN:g} s"
        )
        time.sleep(AGAIN)


def train(
    federation: Federation,
    tell: Tell,
    watch: Callable[[int], None] = lambda rounds: None,
    sites: AbstractContextManager[object] | None = None,
) -> None:
    """Keep a SuperLink and a ServerApp running until the run has ended, whichever of them dies on the way.

    `sites` are started once their keys are registered.
    """
    federation.all_enrolments()
    if federation.read_outcome() == (True, None):
        tell("this run has finished already")
        return
    federation.clear_outcome()
    tell(f"asks {', '.join(federation.agreement.sites)} as they connect (fedmlh federation status shows who has)")
    with contextlib.ExitStack() as stack:
        link = stack.enter_context(_Link.of(federation))
        control = stack.enter_context(contextlib.closing(Control(federation)))
        finished, lives = count_rounds(federation), LIVES
        while True:
            fresh = link.ensure(control)
            federation.write_nodes(control.register(federation))
            if sites is not None:
                stack.enter_context(sites)
                sites = None
            active = list(control.runs())
            if fresh:  # what was going on went down with the SuperLink before
                for run in active:
                    control.stop(run)
            run = active[-1] if active and not fresh else control.submit()
            follow(federation, link, control, run, watch)
            ended, problem = federation.read_outcome()
            if ended:
                if problem is not None:
                    raise UserError(problem)
                return
            before, finished = finished, count_rounds(federation)
            lives = LIVES if finished > before else lives - 1
            if lives == 0:
                raise UserError(f"the server's process ended {LIVES} times without finishing a round: see {link.log}")
            tell(f"the server's process ended after round {finished}; going on from there")


def follow(federation: Federation, link: "_Link", control: Control, run: int, watch: Callable[[int], None]) -> None:
    """Until the run is over, or the SuperLink gone."""
    while True:
        watch(count_rounds(federation))
        try:
            if run not in control.runs() or federation.read_outcome()[0]:
                return
        except httpx.HTTPError:
            return
        if not link.alive():
            return
        time.sleep(PAUSE)


class _Link:
    """A SuperLink: our own child, or one that a `start` before this left running."""

    def __init__(self, federation: Federation, log: IO[bytes]) -> None:
        self.federation = federation
        self.log = log.name
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    @contextlib.contextmanager
    def of(cls, federation: Federation) -> Iterator["_Link"]:
        with open(federation.server / "superlink.log", "ab") as log:
            link = cls(federation, log)
            try:
                yield link
            finally:
                if link._process is not None:
                    stop(link._process)

    def alive(self) -> bool:
        """Whether it runs, as far as can be told from here."""
        return self._process is None or self._process.poll() is None

    def ensure(self, control: Control) -> bool:
        """Make sure that it runs; whether it had to be started."""
        if control.answers():
            return False
        if self._process is not None:
            stop(self._process)
        _check_port(self.federation)
        self._process = start_superlink(self.federation, self._log)
        end = time.monotonic() + START
        while not control.answers():
            if not self.alive() or time.monotonic() > end:
                raise UserError(f"the SuperLink did not start: see {self.log}")
            time.sleep(0.2)
        return True


def _check_port(federation: Federation) -> None:
    """Flower would only say so in its log, a minute later."""
    host, port = split_address(federation.agreement.address)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1" if is_loopback(host) else "0.0.0.0", port))
        except OSError as error:
            raise UserError(f"the server cannot listen on port {port} of this machine: {error.strerror}") from None


def stop(*processes: "subprocess.Popen[bytes]", seconds: float = 5.0) -> None:
    """End processes that were started here, gently first; none of them has anything to lose."""
    for process in processes:
        process.terminate()
    end = time.monotonic() + seconds
    for process in processes:
        try:
            process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def count_rounds(federation: Federation) -> int:
    """How many rounds are finished."""
    try:
        return (federation.run.path / "metrics.jsonl").read_bytes().count(b"\n")
    except OSError:
        return 0


def free_port() -> int:
    """A port on which nobody listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
