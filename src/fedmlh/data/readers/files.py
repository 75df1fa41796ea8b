"""Opening of data files: errors of a broken file become one sentence, and packed bombs are refused.

Packing hides how large a file is. The limits below are far above what data needs. They hold while a file is read, so
that what they refuse never fills the memory.
"""

import gzip
import io
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from fedmlh.errors import BadLine, UserError

#: A packed file may unpack to this many times its size; real data is packed to a fifth or a seventh.
MAX_RATIO = 50
#: What a small file may unpack to in any case.
SPARE_BYTES = 32 << 20
#: The longest line of a text file: a point with half a million features, or a text of a thousand pages.
MAX_LINE = 8 << 20
#: What to do with a packed text that is refused although it is honest.
GUNZIP = "unpack it with gunzip and pass what comes out"
#: The list of ten thousand files in a zip; only this list is read at once.
_MAX_LIST = 1 << 20
#: How packed files begin.
PACKED = b"\x1f\x8b"
_ZIP_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


#: Files that hold features and no text, by the ends of their names.
FEATURE_ENDS = (".npz", ".svm", ".svmlight", ".libsvm")


@dataclass(frozen=True)
class Incoming:
    """A file without a path: what came by standard input, or what a browser sent."""

    #: How messages call it; its end says what it holds, as that of a file.
    name: str
    #: Opens the bytes at their beginning; several readers do not disturb each other.
    open: Callable[[], io.BufferedIOBase]

    @classmethod
    def of(cls, name: str, content: bytes) -> "Incoming":
        """Return bytes in memory as a file."""
        return cls(name, lambda: io.BytesIO(content))

    def __str__(self) -> str:
        return self.name


#: Where bytes are from.
Origin: TypeAlias = Path | Incoming


@contextmanager
def readable(path: Origin) -> Iterator[None]:
    """Turn errors while `path` is read into a UserError that names it."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file") from None
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise UserError(
            f"{path}: cannot be read ({reason}); it may be cut short, or not be what its name says"
        ) from problem


def check_unpacked(path: Origin, packed: int, unpacked: int, instead: str) -> None:
    """Refuse a file whose content, as far as it has been read, is far too large for its size."""
    if unpacked > MAX_RATIO * packed + SPARE_BYTES:
        raise UserError(
            f"{path}: unpacks to more than {MAX_RATIO} times its size, as no data does; if you trust it, {instead}"
        )


class _Unpacked(io.RawIOBase):
    """The bytes of a packed file, counted as they come out."""

    def __init__(self, path: Origin, file: BinaryIO) -> None:
        self._path, self._file = path, file
        self._packed = file.seek(0, io.SEEK_END)
        file.seek(0)
        self._source = gzip.GzipFile(fileobj=file, mode="rb")
        self._count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._source.readinto(buffer)
        self._count += count
        check_unpacked(self._path, self._packed, self._count, GUNZIP)
        return count

    def close(self) -> None:
        self._source.close()
        self._file.close()
        super().close()


def open_bytes(path: Origin) -> io.BufferedReader:
    """Open a file's bytes, unpacked if its name ends in .gz; without a path also if they begin as packed ones do."""
    if isinstance(path, Path):
        file, is_packed = path.open("rb"), path.suffix == ".gz"
    else:
        file = io.BufferedReader(path.open())
        is_packed = path.name.endswith(".gz") or file.peek(2)[:2] == PACKED
    return io.BufferedReader(_Unpacked(path, file), 1 << 16) if is_packed else file


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line of a UTF-8 file; LF and CRLF both end a line, and nothing else does."""
    with readable(path), open_bytes(path) as file:
        lineno = 0
        while line := file.readline(MAX_LINE + 1):
            lineno += 1
            check_line(path, lineno, len(line))
            try:
                text = line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
            except UnicodeDecodeError as problem:
                raise BadLine(path, lineno, f"is not UTF-8 text (byte {problem.start})") from None
            yield lineno, text.removeprefix("\ufeff") if lineno == 1 else text


def check_line(path: Path, lineno: int, length: int) -> None:
    """Refuse a line that is too long to be a point."""
    if length > MAX_LINE:
        raise BadLine(path, lineno, f"is longer than {MAX_LINE:,} bytes, which no point is")


class _ZipBytes(io.BufferedReader):
    """The bytes of a zip file; its list of files is refused if it is longer than any archive needs."""

    def read(self, size: int | None = -1, /) -> bytes:
        here = self.tell()
        left = self.seek(0, io.SEEK_END) - here
        self.seek(here)
        size = left if size is None or size < 0 else min(size, left)
        if size > _MAX_LIST:
            raise zipfile.BadZipFile(f"its list of files takes {size:,} bytes")
        return super().read(size)


@contextmanager
def open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open a zip file for reads of 1 MiB at most."""
    with path.open("rb", buffering=0) as raw, _ZipBytes(raw) as file, zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            # Other methods unpack all that they hold, however little was asked for.
            if info.compress_type not in _ZIP_METHODS:
                raise zipfile.BadZipFile(f"{info.filename!r:.80} is packed by a method that is not deflate")
        yield archive
