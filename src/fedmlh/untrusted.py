"""Files that may come from anyone: regular files only, never through a link, never more than such a file may hold."""

import errno
import json
import mmap
import os
import re
import stat
from pathlib import Path
from typing import Any, BinaryIO

from fedmlh.errors import UserError

#: The most bytes of a config; a complete one has 5 kB.
MOST_TOML = 2**16
#: The most bytes of JSON: the keys and names of three million labels fit twice.
MOST_JSON = 2**29
#: The most bytes of tensors or points: more than a machine here can hold in memory.
MOST_BINARY = 2**36

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def open_regular(path: Path, most: int, root: Path | None = None) -> BinaryIO:
    """Open a regular file of at most so many bytes; links, pipes and devices are a UserError.

    `root` is the folder that the user named (default: the file's own folder). It may be reached by a link; below it no
    link is followed.
    """
    handle = _open(path, root or path.parent)
    about = os.fstat(handle)
    problem = None
    if not stat.S_ISREG(about.st_mode):
        problem = "is not a file, as it should be"
    elif about.st_size > most:
        problem = f"has {about.st_size:,} bytes, and no such file has more than {most:,}"
    if problem is not None:
        os.close(handle)
        raise UserError(f"{path} {problem}")
    return open(handle, "rb")


def read_bytes(path: Path, most: int, root: Path | None = None) -> bytes:
    """Return what a regular file holds, as open_regular opens it."""
    with open_regular(path, most, root) as file:
        return file.read(min(most, os.fstat(file.fileno()).st_size))


def map_bytes(path: Path, most: int, root: Path | None = None) -> memoryview:
    """Return what a regular file holds, as open_regular opens it, mapped into memory and read-only."""
    with open_regular(path, most, root) as file:
        size = os.fstat(file.fileno()).st_size
        return memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)) if size else memoryview(b"")


def read_text(path: Path, most: int, root: Path | None = None) -> str:
    """Return the text of a UTF-8 file, as open_regular opens it."""
    try:
        return read_bytes(path, most, root).decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} cannot be read as a UTF-8 text file: {error}") from None


def parse_json(content: bytes | str) -> Any:
    """Return the value of UTF-8 JSON; ValueError also where a text in it holds half a character (a lone surrogate)."""
    text = content if isinstance(content, str) else content.decode()
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    # Such a text could neither be printed nor written. Whole characters may be escaped as two halves as well.
    if _HALF.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("a text in it holds half a character") from None
    return value


def _open(path: Path, root: Path) -> int:
    here = root
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in path.relative_to(root).parts:
        here = here / part
        try:
            inner = os.open(part, _FLAGS, dir_fd=handle)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise UserError(f"{here} is a link, which is not followed: put what it leads to in its place") from None
            error.filename = str(here)
            raise
        finally:
            os.close(handle)
        handle = inner
    return handle
