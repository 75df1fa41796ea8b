"""The Flower processes of a federation: start them, control the SuperLink, and restart what ends too early."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

import httpx

from fedmlh.errors import UserError
from fedmlh.evaluation.own import AddedMetrics
from fedmlh.evaluation.questions import largest_report
from fedmlh.federated.codecs import make_codec
from fedmlh.federated.drift import count_vectors
from fedmlh.federated.messages import FRAME, MAX_HEADER
from fedmlh.federated.task import Task
from fedmlh.lock import InUse, hold
from fedmlh.oneround.desk import Desk
from fedmlh.runs.remarks import describe_resumed
from fedmlh.sites.agreement import split_address
from fedmlh.sites.federation import DAYS, Federation
from fedmlh.sites.flower.child import make_command
from fedmlh.sites.flower.control import Control, is_loopback
from fedmlh.sites.flower.credential import VARIABLE as CREDENTIAL
from fedmlh.sites.flower.credential import Credential
from fedmlh.sites.flower.limits import VARIABLE as LARGEST_REPLY
from fedmlh.sites.flower.server import FOLDER
from fedmlh.sites.flower.waiting import Patience, choose_sites, wait_for_sites
from fedmlh.sites.keys import make_server_identity, write_secret
from fedmlh.sites.private import MASK, close_folder, private_files
from fedmlh.sites.site import Site

Tell = Callable[[str], None]
#: Seconds between two checks of the run.
PAUSE = 1.0
#: How often in a row the server's process may end without having finished a round.
LIVES = 3
#: Seconds that a SuperLink has to start.
START = 60.0
#: Seconds that a SuperLink whose command was killed may take to give its port back.
RELEASE = 10.0
#: Seconds before a SuperNode that ended is started again.
AGAIN = 10.0
#: A run begins only when all listed sites have enrolled and are connected.
EVERYONE = Patience()


def environment(home: Path, **more: str) -> dict[str, str]:
    """Return an environment in which Flower's processes need no account, use no other network, send no telemetry."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    # A variable that the user has set for Flower could open an unguarded interface.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("FLWR_")}
    return inherited | {
        "PATH": path,  # Flower starts its parts by name
        "FLWR_HOME": str(home.resolve()),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",  # seconds, on the same machine
        **more,
    }


def start_superlink(federation: Federation, log: IO[bytes]) -> "subprocess.Popen[bytes]":
    """Start the server's end of the connections, with its state on disk."""
    server = federation.server.resolve()
    host, port = split_address(federation.agreement.address)
    credential = Credential(server / "credential")
    credential.renew()
    arguments = ["--host", host if is_loopback(host) else "0.0.0.0", "--port", str(port)]
    arguments += ["--database", str(server / "superlink.db"), "--enable-supernode-auth"]
    arguments += ["--ssl-ca-certfile", str(server / "ca.crt"), "--ssl-certfile", str(server / "server.pem")]
    arguments += ["--ssl-keyfile", str(server / "server.key")]
    examples = [enrolment.examples for enrolment in federation.enrolments().values()]
    settings = environment(
        server / "flower",
        **{
            FOLDER: str(federation.path.resolve()),
            CREDENTIAL: str(credential.path),
            LARGEST_REPLY: str(largest_reply(federation.agreement.task, examples)),
        },
    )
    return _start("fedmlh.sites.flower.superlink", arguments, settings, log)


def start_supernode(site: Site, log: IO[bytes]) -> "subprocess.Popen[bytes]":
    """Start a site's end of the connection; it keeps trying while the server cannot be reached."""
    folder = site.folder.resolve()
    site.warm_up()
    if set(str(folder)) & set("\"'\\"):
        raise UserError(f"{folder}: Flower cannot pass on a path with quotes or backslashes: move the folder")
    credential = Credential(folder / "credential")
    credential.renew()
    settings = environment(folder / "flower", **{CREDENTIAL: str(credential.path)})
    identity = write_identity(folder / "flower")
    arguments = ["--superlink", site.agreement.address, "--host", "127.0.0.1", "--port", str(free_port())]
    arguments += ["--root-certificates", str(folder / "agreement" / "ca.crt")]
    arguments += ["--auth-supernode-private-key", str(folder / "node.key"), *identity]
    arguments += ["--node-config", f'site="{folder}" partition-id={site.client_id}']
    return _start("fedmlh.sites.flower.supernode", arguments, settings, log)


def _start(module: str, arguments: list[str], settings: dict[str, str], log: IO[bytes]) -> "subprocess.Popen[bytes]":
    """Start a process that ends with this one, and whose files only its account can read."""
    command = make_command(module, *arguments)
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=settings, umask=MASK)


def write_identity(folder: Path) -> list[str]:
    """Make the certificate by which a site's processes recognise their own SuperNode on its port."""
    identity = make_server_identity(["127.0.0.1"], DAYS)
    options = []
    for option, name, content in (
        ("--ssl-ca-certfile", "ca.crt", identity.authority),
        ("--ssl-certfile", "node.pem", identity.certificate),
        ("--ssl-keyfile", "node.key", identity.key),
    ):
        (folder / name).unlink(missing_ok=True)
        write_secret(folder / name, content)
        options += [option, str(folder / name)]
    return options


def largest_reply(task: Task, examples: Sequence[int] = ()) -> int:
    """Return the bytes of the largest message that an honest site with these numbers of points can answer with."""
    if task.config.training == "one-round":
        sums = FRAME + MAX_HEADER + Desk(task, dict(enumerate(examples))).most_reply()
        return max(sums, largest_reply(task.networks)) if task.config.correct else sums
    update = count_vectors(task.config) * make_codec(task.config.update_codec).size(task.stack.num_parameters)
    return FRAME + MAX_HEADER + max(update, largest_report(AddedMetrics.of(task)))


@contextlib.contextmanager
def joined(folder: Path) -> Iterator[Site]:
    """Take part for a site; raise UserError at once if another process does so already."""
    site = Site(folder)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(hold(folder))
        except InUse as taken:
            who = "another process" if taken.process is None else f"process {taken.process}"
            raise UserError(f"site {site.name} is already joined by {who}: end it first") from None
        yield site


def keep_supernode(folder: Path, tell: Tell) -> None:
    """Run a SuperNode until the user interrupts it; start it again if it ends."""
    log = folder / "supernode.log"
    with joined(folder) as site, private_files():
        close_folder(folder)
        tell(f"site {site.name} takes part whenever {site.agreement.address} asks; what Flower says goes to {log}")
        while True:
            with open(log, "ab") as lines:
                process = start_supernode(site, lines)
                try:
                    process.wait()
                finally:
                    stop(process)
            tell(
                f"not connected ({log} says why); if the server does not know this site's key yet, hand "
                f"{folder / 'enrolment.json'} in; trying again in {AGAIN:g} s"
            )
            time.sleep(AGAIN)


def supervise(
    federation: Federation,
    tell: Tell,
    watch: Callable[[int], None] = lambda rounds: None,
    sites: AbstractContextManager[object] | None = None,
    patience: Patience = EVERYONE,
) -> None:
    """Run a SuperLink and a ServerApp until the run has ended; restart each of them if it dies.

    `sites` are started once their keys are registered; the run then begins without waiting for them.
    """
    enrolments = choose_sites(federation, patience)
    federation.check_confirmed(enrolments)
    if federation.read_outcome() == (True, None):
        tell("this run has finished already")
        return
    with contextlib.ExitStack() as stack:
        stack.enter_context(hold(federation.path))
        stack.enter_context(private_files())
        federation.close()
        federation.clear_outcome()
        link = stack.enter_context(_Link.of(federation))
        control = stack.enter_context(contextlib.closing(Control(federation)))
        finished, lives, begun = federation.run.count_rounds(), LIVES, False
        if finished:
            tell(describe_resumed(finished, federation.agreement.config.most_rounds))
        while True:
            fresh = link.ensure(control)
            federation.write_nodes(control.register(enrolments))
            if not begun and sites is not None:
                stack.enter_context(sites)
            elif not begun and not wait_for_sites(federation, control, enrolments, patience, tell):
                continue
            begun = True
            active = list(control.runs())
            if fresh:  # their processes ended with the SuperLink before
                for run in active:
                    control.stop(run)
            run = active[-1] if active and not fresh else control.submit()
            follow(federation, link, control, run, watch)
            ended, problem = federation.read_outcome()
            if ended:
                if problem is not None:
                    raise UserError(problem)
                return
            before, finished = finished, federation.run.count_rounds()
            lives = LIVES if finished > before else lives - 1
            if lives == 0:
                raise UserError(f"the server's process ended {LIVES} times without finishing a round: see {link.log}")
            tell(f"the server's process ended after round {finished}; resuming from there")


def follow(federation: Federation, link: "_Link", control: Control, run: int, watch: Callable[[int], None]) -> None:
    """Wait until the run is over or the SuperLink has ended."""
    while True:
        watch(federation.run.count_rounds())
        try:
            if run not in control.runs() or federation.read_outcome()[0]:
                return
        except httpx.HTTPError:
            return
        if not link.alive():
            return
        time.sleep(PAUSE)


class _Link:
    """The SuperLink of this process, which ends with it."""

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
        """Say whether the SuperLink runs."""
        return self._process is not None and self._process.poll() is None

    def ensure(self, control: Control) -> bool:
        """Make sure that the SuperLink runs; return whether it had to be started."""
        if self.alive() and control.answers():
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
    """Refuse a port that stays taken; Flower would report it only in its log, a minute later."""
    host, port = split_address(federation.agreement.address)
    end = time.monotonic() + RELEASE
    while True:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1" if is_loopback(host) else "0.0.0.0", port))
                return
            except OSError as error:
                if time.monotonic() > end:
                    reason = f"the server cannot listen on port {port} of this machine: {error.strerror}"
                    raise UserError(reason) from None
        time.sleep(0.2)


def stop(*processes: "subprocess.Popen[bytes]", seconds: float = 5.0) -> None:
    """End processes that were started here, first by SIGTERM, then by SIGKILL; none has unsaved data."""
    for process in processes:
        process.terminate()
    end = time.monotonic() + seconds
    for process in processes:
        try:
            process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def free_port() -> int:
    """Return a port on which no process listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
