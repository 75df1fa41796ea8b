"""Files that strangers may have written: only regular files, never through a link, never beyond a size limit."""

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
    """Open a regular file of at most `most` bytes; raise UserError for links, pipes and devices.

    `root` is the folder that the user named (default: the file's own folder). It may be reached by a link; below it no
    link is followed.
    """
    handle = _open(path, root or path.parent)
    about = os.fstat(handle)
    problem = None
    if not stat.S_ISREG(about.st_mode):
        problem = "is not a regular file"
    elif about.st_size > most:
        problem = f"has {about.st_size:,} bytes, more than the {most:,} that such a file may have"
    if problem is not None:
        os.close(handle)
        raise UserError(f"{path} {problem}")
    return open(handle, "rb")


def read_bytes(path: Path, most: int, root: Path | None = None) -> bytes:
    """Return the content of a regular file, with the checks of open_regular."""
    with open_regular(path, most, root) as file:
        return file.read(min(most, os.fstat(file.fileno()).st_size))


def map_bytes(path: Path, most: int, root: Path | None = None) -> memoryview:
    """Return the content of a regular file, with the checks of open_regular, mapped into memory and read-only."""
    with open_regular(path, most, root) as file:
        size = os.fstat(file.fileno()).st_size
        return memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)) if size else memoryview(b"")


def read_text(path: Path, most: int, root: Path | None = None) -> str:
    """Return the text of a UTF-8 file, with the checks of open_regular."""
    try:
        return read_bytes(path, most, root).decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} cannot be read as a UTF-8 text file: {error}") from None


def parse_json(content: bytes | str) -> Any:
    """Return the value of UTF-8 JSON; raise ValueError also for a string with half a character (a lone surrogate)."""
    text = content if isinstance(content, str) else content.decode()
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except json.JSONDecodeError:
        raise
    except ValueError:
        raise ValueError("a number in it has too many digits") from None
    # Such a string could neither be printed nor written. Two halves that form one character are fine.
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
                raise UserError(
                    f"{here} is a link, and links are not followed: replace it by what it points to"
                ) from None
            error.filename = str(here)
            raise
        finally:
            os.close(handle)
        handle = inner
    return handle
