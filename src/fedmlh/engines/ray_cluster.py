"""Ray clusters: one that is started here and is closed to all others, or one of the user's own.

Ray's processes send each other pickles: any process that can connect to them can run code as their owner. So a cluster
that is started here listens on loopback only and asks for a token. The token lies in a folder that only its owner can
enter. So does everything that Ray writes.
"""

import contextlib
import ipaddress
import os
import secrets
import shutil
import signal
import socket
import stat
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray
from ray._private import ray_constants, services
from ray.exceptions import RayError

from fedmlh.errors import UserError
from fedmlh.lock import hold

_PREFIX = "fmray-"
#: The longest path for the parent of a cluster's folder: a socket's path has at most 103 characters, and Ray needs 81.
_MOST_CHARACTERS = 22
_TOKEN_BYTES = 32
#: Turns off usage reports, and a warning about GPUs, which no worker uses.
_QUIET = ("RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO")
_FAILURES = (OSError, ValueError, RuntimeError, RayError)


@contextmanager
def start_cluster(workers: int | None = None) -> Iterator[None]:
    """Run a cluster on this machine that is closed to other machines and accounts, with one CPU per worker."""
    with _make_folder() as folder, _closed_to_others(_write_token(folder)):
        options = {"num_cpus": workers or os.cpu_count(), "include_dashboard": False, "_temp_dir": str(folder / "r")}
        with contextlib.ExitStack() as connection:
            try:
                info = connection.enter_context(_connect("local", **options))
            except _FAILURES as error:
                raise UserError(f"Ray cannot start a cluster on this machine: {error}") from None
            _check_closed(info)
            yield


@contextmanager
def join_cluster(address: str) -> Iterator[None]:
    """Connect to a cluster of the user's own, whose protection is the user's choice."""
    with contextlib.ExitStack() as connection:
        try:
            _knock(address)
            connection.enter_context(_connect(address))
        except _FAILURES as error:
            raise UserError(
                f"there is no Ray cluster at {address!a} that lets this process in ({error}): say host:port as "
                f"`ray start` does, and if it asks for a token set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH"
            ) from None
        yield


@contextmanager
def _connect(address: str, **options: Any) -> Iterator[Mapping[str, Any]]:
    """Connect to a cluster; SIGTERM keeps the handler that it had, or gets that of Ctrl-C if it had none."""
    before = signal.getsignal(signal.SIGTERM) or signal.SIG_DFL
    answer = signal.default_int_handler if before == signal.SIG_DFL else _as_ctrl_c(before)
    came = []

    def note(number: int, frame: Any) -> None:
        came.append(number)
        if callable(answer):
            answer(number, frame)

    quiet = {name: os.environ.get(name, "0") for name in _QUIET}
    try:
        _answer_sigterm(note)
        with _variables(quiet), _without_handlers():
            context = ray.init(address=address, log_to_driver=False, logging_level="ERROR", **options)
        _answer_sigterm(answer)
        if came:  # its exception was lost: Python drops exceptions that are raised while it forks
            signal.raise_signal(signal.SIGTERM)
        yield context.address_info
    finally:
        ray.shutdown()
        _answer_sigterm(before)


def _as_ctrl_c(answer: Any) -> Any:
    """Return a signal handler that raises only what Ray passes on: its C++ turns other exceptions into SystemError."""
    if not callable(answer):
        return answer

    def give(number: int, frame: Any) -> None:
        try:
            answer(number, frame)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:
            raise KeyboardInterrupt from None

    return give


@contextmanager
def _without_handlers() -> Iterator[None]:
    """Keep Ray from handling signals: its C++ part prints a stack for each, and its Python part exits in silence."""
    with (
        _replaced(ray_constants, "RAY_DISABLE_FAILURE_SIGNAL_HANDLER", True),
        _replaced(ray._private.utils, "set_sigterm_handler", lambda handler: None),
    ):
        yield


def _answer_sigterm(answer: Any) -> None:
    # Python allows this in the main thread only.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, answer)


@contextmanager
def _closed_to_others(token: Path) -> Iterator[None]:
    """Make Ray ask for this token and listen on loopback only; restore its settings at the end."""
    variables = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # off on any system: without other machines, Ray uses loopback only
        # A user may have set these for another cluster: they would override the above, or put the store elsewhere.
        "RAY_AUTH_TOKEN": None,
        "RAY_ENABLE_K8S_TOKEN_AUTH": None,
        "RAY_REDIS_ADDRESS": None,
    }
    try:
        with _variables(variables), _replaced(ray_constants, "ENABLE_RAY_CLUSTER", False):
            _read_variables()
            yield
    finally:
        _read_variables()


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Give an attribute of Ray another value until the end of the block."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _read_variables() -> None:
    """Make Ray read its variables again, which it otherwise does only when it is imported."""
    ray._raylet.AuthenticationTokenLoader.instance().reset_cache()
    ray._raylet.Config.initialize("")


def _check_closed(info: Mapping[str, Any]) -> None:
    """Refuse a cluster that is open after all: the settings are internal to Ray and may change with its version."""
    loopback = ipaddress.ip_address(info["node_ip_address"]).is_loopback
    if not loopback or ray._raylet.get_authentication_mode() != ray._raylet.AuthenticationMode.TOKEN:
        raise UserError(
            f"with version {ray.__version__} of Ray, a cluster on this machine would be open to others: install the "
            f"version in constraints.txt"
        )


@contextmanager
def _variables(values: Mapping[str, str | None]) -> Iterator[None]:
    """Set variables of the environment, or remove those that are None, until the end of the block."""
    before = {name: os.environ.get(name) for name in values}
    try:
        _set_variables(values)
        yield
    finally:
        _set_variables(before)


def _set_variables(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@contextmanager
def _make_folder() -> Iterator[Path]:
    """Make a folder that no other account can enter, and remove it at the end."""
    parent = _choose_parent()
    _sweep(parent)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    with hold(folder):
        try:
            # Between the two lines above, another process may have removed it; the lock then makes it open to others.
            found = folder.lstat()
            if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) != 0o700:
                raise UserError(f"another process has just replaced {folder}: start the run again")
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _choose_parent() -> Path:
    """Return the folder for temporary files, or /tmp if sockets below it would have paths that are too long."""
    wanted = os.path.abspath(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir())
    return Path(wanted if len(os.fsencode(wanted)) <= _MOST_CHARACTERS else "/tmp")


def _sweep(parent: Path) -> None:
    """Remove the folders of clusters whose process was killed."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError, UserError):
            if folder.lstat().st_uid == os.geteuid() and folder.is_dir() and not folder.is_symlink():
                with hold(folder):
                    shutil.rmtree(folder, ignore_errors=True)


def _write_token(folder: Path) -> Path:
    path = folder / "token"
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(handle, "w") as file:
        file.write(secrets.token_hex(_TOKEN_BYTES))
    return path


def _knock(address: str) -> None:
    """Raise OSError or ValueError if nothing answers: Ray would wait for minutes and then end the process."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    # Ray takes another of this machine's addresses if it is told 127.0.0.1.
    with socket.create_connection((services.resolve_ip_for_localhost(host), int(port)), timeout=10):
        return
