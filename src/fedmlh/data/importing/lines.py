"""Lines of a text file in any encoding, counted as an editor counts them."""

import codecs
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedmlh.data.readers.files import MAX_LINE, PACKED, Origin, open_bytes, readable
from fedmlh.errors import BadLine, UserError

#: Stands in a line for bytes that are not in its encoding; no encoding has it.
_MARK = "\udcff"
codecs.register_error("fedmlh.mark", lambda problem: (_MARK, getattr(problem, "end", 0)))

_WEB_PAGE = "is a web page, as some programs export tables: open it in a spreadsheet program and save it as CSV (UTF-8)"
#: How files begin that import does not take, in small letters, and what to do with them.
_NOT_TEXT = {
    b"pk\x03\x04": "is a file of a spreadsheet program or an archive: save the sheet as CSV (UTF-8)",
    b"\xd0\xcf\x11\xe0": "is a file of a spreadsheet program: save the sheet as CSV (UTF-8)",
    b"%PDF": "is a PDF file, and should be CSV, TSV or JSON lines",
    b"\x1f\x8b": "is packed: its name should end in .gz",
    b"<!doctype html": _WEB_PAGE,
    b"<html": _WEB_PAGE,
    b"<?xml": "is an XML file, and should be CSV, TSV or JSON lines",
}
_LONGEST_MAGIC = max(map(len, _NOT_TEXT))
_SAYS_DELIMITER = re.compile(r'"?sep=([^\r\n])"?\r?\n?', re.IGNORECASE)
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
#: How much of a file is looked at before it is read.
_SAMPLE_LINES, _SAMPLE_CHARACTERS = 500, 1 << 20


@dataclass(frozen=True)
class Sample:
    """The first lines of a file, with their ends."""

    lines: tuple[str, ...]

    @property
    def delimiter(self) -> str | None:
        """What the first line says is the delimiter, as spreadsheet programs write it: `sep=;`."""
        said = _SAYS_DELIMITER.fullmatch(self.lines[0])
        return said and said[1]

    @property
    def first(self) -> str:
        """The first line that is not blank."""
        return next((line for line in self.lines if line.strip()), "")


def take_sample(path: Origin, encoding: str | None = None, *, may_be_blank: bool = False) -> Sample:
    """Read the first lines of a file; refuse one that has none, unless it may be blank."""
    lines: list[str] = []
    length = 0
    for line in read_text(path, encoding):
        lines.append(line)
        length += len(line)
        if len(lines) >= _SAMPLE_LINES or length >= _SAMPLE_CHARACTERS:
            break
    if not may_be_blank and not any(line.strip() for line in lines):
        raise UserError(f"{path}: is empty")
    return Sample(tuple(lines))


def check_encoding(encoding: str) -> None:
    """Refuse what is not the name of an encoding of text."""
    try:
        known = getattr(codecs.lookup(encoding), "_is_text_encoding", True)
    except (LookupError, ValueError):
        known = False
    if not known:
        raise UserError(f"there is no encoding {encoding!r:.40}: choose one such as utf-8, utf-16, cp1252 or latin-1")


def check_file(path: Origin) -> None:
    """Refuse a path that leads to no file."""
    if isinstance(path, Path) and not path.is_file():
        problem = "is not a file" if path.exists() else "there is no such file"
        raise UserError(f"{path}: {problem}")


def has_mark(path: Origin) -> bool:
    """Say whether a file begins with a byte order mark, as spreadsheet programs on Windows write it."""
    with readable(path), open_bytes(path) as file:
        return file.peek()[:3].startswith((codecs.BOM_UTF8, *_UTF_16))


def read_text(path: Origin, encoding: str | None = None) -> Iterator[str]:
    """Yield the lines of a file, each with its end: LF or CRLF, or LF for CR in a file that begins without any LF.

    Without an encoding it is UTF-8, or UTF-16 if the file begins with the mark of UTF-16.
    """
    check_file(path)
    with readable(path), open_bytes(path) as file:
        head = file.peek()
        for magic, problem in _NOT_TEXT.items():
            if head.removeprefix(codecs.BOM_UTF8)[:_LONGEST_MAGIC].lower().startswith(magic):
                packed = magic == PACKED and str(path).endswith(".gz")
                raise UserError(f"{path}: {'is packed twice: unpack it once' if packed else problem}")
        codec = encoding or ("utf-16" if head[:2] in _UTF_16 else "utf-8")
        lineno, end = 0, "\r" if b"\r" in head and b"\n" not in head else "\n"
        with io.TextIOWrapper(file, codec, errors="fedmlh.mark", newline=end) as text:
            while line := text.readline(MAX_LINE + 1):
                lineno += 1
                if len(line) > MAX_LINE:
                    raise BadLine(path, lineno, f"is longer than {MAX_LINE:,} characters, which no record is")
                if _MARK in line:
                    hint = "" if encoding else " cp1252, if it is from Windows"
                    raise BadLine(
                        path,
                        lineno,
                        f"is not {codec.upper()} text: save it as UTF-8, or name its encoding (--encoding{hint})",
                    )
                if "\0" in line:
                    raise BadLine(
                        path,
                        lineno,
                        "holds a NUL, as no text does: take it out, or name the encoding (--encoding utf-16)",
                    )
                if lineno == 1:
                    line = line.lstrip("\ufeff")  # the byte order mark; programs that add one do not look for another
                yield line if end == "\n" else line.replace("\r", "\n")
