"""A tar file, read as a tape: block by block, in fixed memory, and every block counts.

Python's own reader takes an extended header into memory whole, however long it says it is, and keeps every member.
"""

import bz2
import gzip
import lzma
import tarfile
from collections.abc import Iterator
from typing import BinaryIO, Protocol

BLOCK = 512
PIECE_BYTES = 1 << 20
#: The longest name or list of attributes that is taken into memory; both are a few hundred bytes in practice.
MAX_HEADER = 1 << 20
#: What `xz -9` needs to be unpacked is half of it.
MAX_XZ_MEMORY = 128 << 20
#: Headers that give the member after them a name or a size, and others that may stand between.
_SAYS_MORE = (tarfile.GNUTYPE_LONGNAME, tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE)
_SAYS_NOTHING = (tarfile.GNUTYPE_LONGLINK, tarfile.XGLTYPE)
#: Links, folders and devices: nothing follows them, whatever size they state.
_WITHOUT_CONTENT = (
    *(tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.DIRTYPE),
    *(tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE),
)
_XZ = b"\xfd7zXZ\0"


class NotATape(Exception):
    """Bytes that are no tar file."""


class TooMuch(Exception):
    """More is on the tape than there is room for."""


class Source(Protocol):
    """Bytes, packed or not."""

    def read(self, size: int = ..., /) -> bytes:
        """Return some bytes, at most `size`, and none at the end."""


class Tape:
    """The unpacked bytes of a tar file, one after another; bytes without room are refused before they are read."""

    def __init__(self, source: Source, room: int) -> None:
        self._source = source
        self._room = room

    def read(self, size: int) -> bytes:
        """Return exactly `size` bytes."""
        pieces = []
        while size:
            pieces.append(self.read_some(size))
            size -= len(pieces[-1])
        return b"".join(pieces)

    def read_some(self, size: int) -> bytes:
        """Return at least one byte and at most `size`."""
        self.check(size)
        piece = self._source.read(min(size, PIECE_BYTES))
        if not piece:
            raise EOFError("its end is missing")
        self._room -= len(piece)
        return piece

    def skip(self, size: int) -> None:
        """Pass over `size` bytes."""
        while size:
            size -= len(self.read_some(size))

    def check(self, size: int) -> None:
        """Refuse `size` bytes if there is no room for them."""
        if not 0 <= size <= self._room:
            raise TooMuch


class TapeFile:
    """The bytes of the member at which the tape stands."""

    def __init__(self, tape: Tape, size: int) -> None:
        self._tape = tape
        self.size = self.left = size

    def read(self, size: int = PIECE_BYTES, /) -> bytes:
        """Return at most `size` bytes, none at the end of the member."""
        piece = self._tape.read_some(min(size, self.left)) if self.left else b""
        self.left -= len(piece)
        return piece


def read_tape(tape: Tape) -> Iterator[tuple[str, TapeFile]]:
    """Yield path and bytes of each plain file; the bytes can be read until the next file is asked for."""
    try:
        member = parse_block(tape.read(BLOCK))
    except (tarfile.HeaderError, EOFError):
        raise NotATape from None
    # What extended headers say of the member after them.
    name: str | None = None
    size: int | None = None
    while member is not None:
        if member.type in _SAYS_MORE:
            tape.check(member.size)
            said_name, said_size = read_header(tape, member)
            name = name if said_name is None else said_name
            size = size if said_size is None else said_size
        elif member.type == tarfile.GNUTYPE_SPARSE:
            raise ValueError("it holds a file with holes")
        elif member.type not in _WITHOUT_CONTENT:
            length = member.size if size is None else size
            tape.check(length)
            file = TapeFile(tape, length)
            if member.type in tarfile.REGULAR_TYPES:
                yield member.name if name is None else name, file
            tape.skip(file.left)
            tape.skip(-length % BLOCK)
        if member.type not in (*_SAYS_MORE, *_SAYS_NOTHING):
            name, size = None, None
        member = parse_block(tape.read(BLOCK))


def parse_block(block: bytes) -> tarfile.TarInfo | None:
    """Return the member that a block announces; None for the block that ends a tape."""
    return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape") if any(block) else None


def read_header(tape: Tape, header: tarfile.TarInfo) -> tuple[str | None, int | None]:
    """Return the path and the size that an extended header gives the member after it."""
    if header.size > MAX_HEADER:
        raise ValueError(f"it has a header of {header.size:,} bytes")
    content = tape.read(header.size)
    tape.skip(-header.size % BLOCK)
    if header.type == tarfile.GNUTYPE_LONGNAME:
        return content.partition(b"\0")[0].decode("utf-8", "surrogateescape"), None
    return parse_attributes(content)


def parse_attributes(content: bytes) -> tuple[str | None, int | None]:
    """Return the path and the size among records `LENGTH KEY=VALUE`; the other keys do not matter here."""
    path, size, start = None, None, 0
    while start < len(content):
        digits = content[start : start + 20].partition(b" ")[0]
        if not digits.isdigit() or int(digits) <= len(digits) + 1:
            raise ValueError("it has a header that makes no sense")
        key, _, value = content[start + len(digits) + 1 : start + int(digits) - 1].partition(b"=")
        start += int(digits)
        if key == b"path":
            path = value.decode("utf-8", "surrogateescape")
        elif key == b"size":
            if not value.isdigit() or len(value) > 18:
                raise ValueError("it has a header that makes no sense")
            size = int(value)
        elif key.startswith(b"GNU.sparse."):
            raise ValueError("it holds a file with holes")
    return path, size


def unpack_source(file: BinaryIO) -> Source:
    """Return the bytes of a file, unpacked if they are packed as tar files are."""
    magic = file.read(len(_XZ))
    file.seek(0)
    if magic.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=file)
    if magic.startswith(b"BZh"):
        return bz2.BZ2File(file)
    return XzSource(file) if magic == _XZ else file


class XzSource:
    """The unpacked bytes of an xz file; one that asks for more memory than `xz -9` ever does is refused."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._unpacker = self._begin()

    def _begin(self) -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MAX_XZ_MEMORY)

    def read(self, size: int = PIECE_BYTES, /) -> bytes:
        """Return some bytes, at most `size`, and none at the end."""
        while True:
            packed = b""
            if self._unpacker.eof:
                packed = self._find_next()
                if not packed:
                    return b""
                self._unpacker = self._begin()
            elif self._unpacker.needs_input:
                packed = self._file.read(PIECE_BYTES)
                if not packed:
                    raise EOFError("its end is missing")
            piece = self._unpacker.decompress(packed, size)
            if piece:
                return piece

    def _find_next(self) -> bytes:
        """Return the start of the next stream; zeros may lie between two streams."""
        packed = self._unpacker.unused_data.lstrip(b"\0")
        while not packed and (piece := self._file.read(PIECE_BYTES)):
            packed = piece.lstrip(b"\0")
        return packed
