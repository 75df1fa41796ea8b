"""Files that are either whole or not there: atomic writes, and folders sealed with the SHA-256 of every file."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedmlh.drafts import draft_file, draft_folder
from fedmlh.errors import UserError
from fedmlh.lock import is_free
from fedmlh.tensors import look_through
from fedmlh.untrusted import MOST_BINARY, map_bytes, parse_json, read_bytes

ContentT = TypeVar("ContentT", bytes, memoryview)
FORMAT_VERSION = 1
_SEAL = "manifest.json"
#: The most bytes of a manifest: in a checkpoint it names one file per client, in about 100 bytes each.
_MOST_SEAL = 2**26


def write_atomically(path: Path, content: bytes | Iterable[bytes]) -> None:
    """Put a file in place in one step: a reader sees the old content or the new, never a part.

    Content that comes piece by piece is written as it comes; if it fails to come, no file is put in place.
    """
    with draft_file(path) as file:
        file.writelines([content] if isinstance(content, bytes) else content)
        file.flush()
        os.fsync(file.fileno())
    _sync_folder(path.parent)


def write_checked(path: Path, content: bytes) -> None:
    """Put a file in place in one step, with the SHA-256 of its content at its end."""
    write_atomically(path, content + hashlib.sha256(content).digest())


def read_checked(path: Path) -> bytes:
    """Return the content that write_checked wrote, or raise a UserError that says what is wrong with the file."""
    try:
        stored = read_bytes(path, MOST_BINARY)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from None
    content, digest = stored[:-32], stored[-32:]
    if hashlib.sha256(content).digest() != digest:
        raise UserError(f"{path} is damaged: its content does not match its SHA-256")
    return content


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Make a draft to be filled, which becomes `folder` in one step if the block succeeds; refuse a folder in use."""
    if folder.exists() and not (folder.is_dir() and is_free(folder)):
        raise UserError(f"{folder}: is there already and not empty; choose another folder or remove it")
    target = folder.resolve()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with draft_folder(target.parent) as draft:
            yield draft
            draft.replace(target)
    except OSError as problem:
        raise UserError(f"{folder}: cannot be written ({problem.strerror or problem})") from problem


def write_sealed(folder: Path, files: Mapping[str, bytes | Path]) -> None:
    """Create or replace a folder in one step; content given as a Path is hard-linked instead of written again.

    Such a Path must lie in a sealed folder.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with draft_folder(folder.parent) as draft:
        digests: dict[str, str] = {}
        sources: dict[Path, Sealed] = {}
        for name, content in files.items():
            if isinstance(content, Path):
                os.link(content, draft / name, follow_symlinks=False)
                if content.parent not in sources:
                    sources[content.parent] = Sealed(content.parent)
                digests[name] = sources[content.parent].digests[content.name]
            else:
                _write(draft / name, content)
                digests[name] = hashlib.sha256(content).hexdigest()
        _write(draft / _SEAL, _manifest(digests))
        _sync_folder(draft)
        _put(draft, folder)
    _sync_folder(folder.parent)


class Sealed:
    """A sealed folder: a file that does not have the SHA-256 in the manifest is refused by a UserError."""

    def __init__(self, folder: Path, root: Path | None = None) -> None:
        """Read the manifest; no link is followed below `root` (default: the folder itself)."""
        self.folder = folder
        self._root = root or folder
        try:
            seal = read_bytes(folder / _SEAL, _MOST_SEAL, self._root)
            manifest = parse_json(seal)
            version, self.digests = manifest["version"], manifest["files"]
            genuine = isinstance(self.digests, dict) and _manifest(self.digests, version) == seal
        except (FileNotFoundError, NotADirectoryError):
            raise UserError(f"{folder} is not there or has no {_SEAL}") from None
        except (OSError, ValueError, KeyError, TypeError):
            genuine = False
        if not genuine:
            raise UserError(f"{folder / _SEAL} is damaged")
        if version != FORMAT_VERSION:
            raise UserError(f"{folder} has format version {version}; this version of fedmlh reads {FORMAT_VERSION}")
        for name in self.digests:
            if Path(name).name != name or not name.isascii() or not name.isprintable():
                raise UserError(f"{folder / _SEAL} names a file that fedmlh never writes: {name!a}")

    def read(self, name: str, most: int) -> bytes:
        """Return the content of a file of at most `most` bytes; raise KeyError if the manifest does not name it."""
        return self._check(name, lambda path: read_bytes(path, most, self._root))

    def map(self, name: str, most: int) -> memoryview:
        """Return what `read` returns, without a copy in memory: processes that map the same file share it."""
        return self._check(name, lambda path: map_bytes(path, most, self._root))

    def _check(self, name: str, read: Callable[[Path], ContentT]) -> ContentT:
        digest, path = self.digests[name], self.folder / name
        found = hashlib.sha256()
        try:
            content = read(path)
            for part in look_through(np.frombuffer(content, np.uint8)):
                found.update(part.data)
        except OSError as error:
            raise UserError(f"{path} cannot be read ({error.strerror})") from None
        if found.hexdigest() != digest:
            raise UserError(f"{path} is damaged: its content does not match its SHA-256")
        return content


def _manifest(digests: Any, version: Any = FORMAT_VERSION) -> bytes:
    return json.dumps({"version": version, "files": digests}, indent=1, sort_keys=True).encode()


def _put(draft: Path, folder: Path) -> None:
    """Rename a draft to its final name; a folder, file or link of that name is removed."""
    if not os.path.lexists(folder):
        os.rename(draft, folder)
        return
    with draft_folder(folder.parent) as aside:
        os.rename(folder, aside / "old")
        try:
            os.rename(draft, folder)
        except OSError:
            os.rename(aside / "old", folder)
            raise


def _write(path: Path, content: bytes) -> None:
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
