"""Drafts: files and folders that are written under another name first, and then put in place in one step.

The name of a draft cannot be guessed, and a draft is always new: what lies there already, such as a planted link, is
never written to. The writer locks its draft. A draft that nobody has locked was left by a process that died, and the
next process that makes a draft in the same folder removes it.
"""

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_NAME = re.compile(r"\.fedmlh-[0-9a-f]{16}\.draft", re.ASCII)


@contextmanager
def draft_file(target: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Open a file that takes the place of `target` when the block ends, and is removed if the block fails."""

    def make(path: Path) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)

    with _naming(target):
        path, handle = _create(target.parent, make)
        try:
            with open(handle, "wb", closefd=False) as file:
                yield file
            os.replace(path, target)
        except BaseException:
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        finally:
            os.close(handle)


@contextmanager
def draft_folder(parent: Path) -> Iterator[Path]:
    """Make a folder to be filled and renamed; it is removed if it has not been renamed when the block ends."""
    with _naming(parent):
        path, handle = _create(parent, _make_folder)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(handle)


def is_draft(name: str) -> bool:
    """Say whether a file or folder of this name is a draft."""
    return _NAME.fullmatch(name) is not None


def sweep(folder: Path) -> None:
    """Remove the drafts in a folder whose writers have died."""
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = [name for name in os.listdir(folder) if is_draft(name)]
    for name in names:
        with contextlib.suppress(OSError):
            _remove_stale(folder / name)


def is_same(handle: int, path: Path) -> bool:
    """Say whether a path still leads to the file that was opened."""
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except FileNotFoundError:
        return False


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name this path in errors of the file system, instead of a draft that the user has never heard of."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def _create(folder: Path, make: Callable[[Path], int | None]) -> tuple[Path, int]:
    sweep(folder)
    while True:
        path = folder / f".fedmlh-{secrets.token_hex(8)}.draft"
        try:
            handle = make(path)
        except FileExistsError:
            continue
        if handle is None:
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked = is_same(handle, path)
        except BlockingIOError:
            locked = False
        except OSError:
            locked = True  # a file system without locks: nobody can sweep there either
        if locked:
            return path, handle
        # Before it was locked, another process took it for a draft of a dead process, and removes it.
        os.close(handle)


def _make_folder(path: Path) -> int | None:
    os.mkdir(path)
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:  # removed before it was locked
        return None


def _remove_stale(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if is_same(handle, path):
            if stat.S_ISDIR(os.fstat(handle).st_mode):
                shutil.rmtree(path)
            else:
                path.unlink()
    finally:
        os.close(handle)
