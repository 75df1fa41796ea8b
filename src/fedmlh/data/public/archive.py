"""Archives from outside: only wanted files come out, under their own names, into one folder; bombs are refused."""

import lzma
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path, PurePosixPath

from fedmlh.data.readers.files import open_zip
from fedmlh.data.readers.tape import NotATape, Source, Tape, TooMuch, read_tape, unpack_source
from fedmlh.errors import UserError

#: Numbers as text are packed to a fifth of their size; an archive made to fill a disk, to a thousandth.
MAX_RATIO = 100
#: An archive may unpack to this much in any case, however small it is.
SPARE_BYTES = 1 << 20
BLOCK_BYTES = 1 << 20
#: All that the readers of archives raise on one that is damaged, encrypted, or packed in a way they do not know.
DAMAGED = (
    EOFError,
    NotImplementedError,
    OSError,
    RuntimeError,
    ValueError,
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)

#: Path, size and the way to the bytes of a file in an archive.
Member = tuple[str, int, Callable[[], AbstractContextManager[Source]]]


def unpack(archive: Path, folder: Path, wanted: Callable[[str], bool]) -> None:
    """Put the files whose name is wanted into `folder`, whatever folders they lie in."""
    room = MAX_RATIO * archive.stat().st_size + SPARE_BYTES
    with readable_archive(archive):
        for path, size, open_member in list_members(archive, room):
            if not 0 <= size <= room:
                raise TooMuch
            room -= size
            parts = PurePosixPath(path.replace("\\", "/"))
            if parts.is_absolute() or ".." in parts.parts:
                raise UserError(f"{archive}: holds {path!r:.80}, which leads out of its folder, and is refused")
            # Some systems pack a hidden twin of each file.
            if parts.name.startswith(".") or not wanted(parts.name):
                continue
            if (folder / parts.name).exists():
                raise UserError(
                    f"{archive}: holds two files {parts.name}; unpack it, and pass the folder of the right one"
                )
            with open_member() as source, (folder / parts.name).open("xb") as target:
                shutil.copyfileobj(source, target, BLOCK_BYTES)


@contextmanager
def readable_archive(archive: Path) -> Iterator[None]:
    """Turn what is wrong with an archive into a UserError; a disk that fails has an error number, and keeps it."""
    try:
        yield
    except NotATape:
        raise UserError(f"{archive}: is neither a zip nor a tar file, or is cut short") from None
    except TooMuch:
        raise UserError(f"{archive}: would unpack to more than {MAX_RATIO} times its size, and is refused") from None
    except DAMAGED as problem:
        if isinstance(problem, OSError) and problem.errno is not None:
            raise
        raise UserError(f"{archive}: cannot be unpacked ({problem}); it may be cut short or damaged") from problem


def list_members(archive: Path, room: int) -> Iterator[Member]:
    """List the plain files of a zip or tar file, and pass over folders and links.

    At most `room` bytes of a tar file are read, its headers included.
    """
    if zipfile.is_zipfile(archive):
        with open_zip(archive) as pack:
            for info in pack.infolist():
                if not info.is_dir():
                    yield info.filename, info.file_size, partial(pack.open, info)
    else:
        with archive.open("rb") as file:
            for path, member in read_tape(Tape(unpack_source(file), room)):
                yield path, member.size, partial(_stay_open, member)


@contextmanager
def _stay_open(member: Source) -> Iterator[Source]:
    """Let a member of a tape, which needs no closing, stand in a `with`."""
    yield member
