"""One writer at a time per folder, by a lock that is released when its process ends, even if it is killed.

Readers never lock. The lock is a file in the folder; a folder that holds nothing else counts as empty.
"""

import contextlib
import errno
import fcntl
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedmlh.drafts import is_draft, is_same
from fedmlh.errors import UserError

LOCK = ".lock"
_PAUSE = 0.2
_MOST_BYTES = 64


class InUse(UserError):
    """Another process writes to the folder."""

    def __init__(self, folder: Path, process: int | None) -> None:
        who = "another process" if process is None else f"process {process}"
        super().__init__(f"{folder} is in use by {who}: wait until it ends, or end it")
        self.process = process


@contextmanager
def hold(folder: Path, wait: float = 0.0) -> Iterator[None]:
    """Hold the lock of a folder, which is created if it is missing; raise InUse if it stays taken for `wait` seconds.

    A folder that was created for the lock is removed again if nothing was written to it.
    """
    try:
        made, handle = _enter(folder, time.monotonic() + wait)
    except FileExistsError:
        raise UserError(f"{folder} is not a folder: choose another") from None
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror}") from None
    try:
        yield
    finally:
        _release(folder / LOCK, handle)
        with contextlib.suppress(OSError):  # not empty: something was written
            for path in made:
                path.rmdir()


@contextmanager
def take_turns(path: Path) -> Iterator[None]:
    """Let one process at a time into the block, by the lock file `path`; raise OSError if it cannot be created."""
    handle = _acquire(path, math.inf)
    try:
        yield
    finally:
        _release(path, handle)


def is_empty(folder: Path) -> bool:
    """Say whether a folder is empty, apart from a lock and from drafts of processes that were killed."""
    return all(entry.name == LOCK or is_draft(entry.name) for entry in folder.iterdir())


def is_held(folder: Path) -> bool:
    """Say whether a process of this machine holds the lock of a folder; the lock itself is not touched."""
    try:
        number = str(os.lstat(folder / LOCK).st_ino)
        lines = Path("/proc/locks").read_text().splitlines()
    except FileNotFoundError as error:
        return str(error.filename) == "/proc/locks"  # another system: the file is all that is known
    except OSError:
        return False
    return any(part.rpartition(":")[2] == number for line in lines if " FLOCK " in line for part in line.split())


def is_free(folder: Path) -> bool:
    """Say whether a folder is empty, and remove a lock file left in it; raise InUse if another process holds it."""
    if not is_empty(folder):
        return False
    with hold(folder):
        return is_empty(folder)


def _enter(folder: Path, deadline: float, attempts: int = 10) -> tuple[list[Path], int]:
    try:
        return _make(folder), _acquire(folder / LOCK, deadline)
    except FileNotFoundError:
        # Another process, which had created the folder or one above it, may have removed it just now.
        if attempts == 1:
            raise
        return _enter(folder, deadline, attempts - 1)


def _make(folder: Path) -> list[Path]:
    """Create a folder and its parents; return those that were missing, the innermost first."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return missing


def _acquire(path: Path, deadline: float) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The last holder may have removed the file between the two calls: then this lock guards nothing.
            if is_same(handle, path):
                if os.fstat(handle).st_nlink > 1:
                    raise OSError(errno.EMLINK, f"{LOCK} has a second hard link")
                os.ftruncate(handle, 0)
                os.write(handle, f"{os.getpid()}\n".encode())
                return handle
        except BlockingIOError:
            if time.monotonic() >= deadline:
                holder = os.pread(handle, _MOST_BYTES, 0).strip()
                os.close(handle)
                raise InUse(path.parent, int(holder) if holder.isdigit() else None) from None
            time.sleep(_PAUSE)
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _release(path: Path, handle: int) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
    os.close(handle)
