"""The door for data files: they open here, and what a broken one raises becomes one sentence."""

import gzip
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from fedmlh.errors import BadLine, UserError


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn what goes wrong while `path` is read into a UserError that names it."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise UserError(
            f"{path}: cannot be read ({reason}); it may be cut short, or not be what its name says"
        ) from problem


def open_bytes(path: Path) -> BinaryIO:
    """The file's bytes, unpacked where its name ends in .gz."""
    return cast(BinaryIO, gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Number and text of each line of a UTF-8 file; LF and CRLF both end a line, and nothing else does."""
    with readable(path), open_bytes(path) as file:
        for lineno, line in enumerate(file, start=1):
            try:
                text = line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
            except UnicodeDecodeError as problem:
                raise BadLine(path, lineno, f"is not UTF-8 text (byte {problem.start})") from None
            yield lineno, text.removeprefix("\ufeff") if lineno == 1 else text
