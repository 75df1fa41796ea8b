"""Files that are either whole or not there: atomic writes, and folders sealed with the SHA-256 of every file."""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedmlh.errors import UserError

FORMAT_VERSION = 1
_SEAL = "manifest.json"


def write_atomically(path: Path, content: bytes) -> None:
    """Put a file in place in one step: a reader sees the old content or the new, never a part."""
    draft = path.with_name(path.name + ".writing")
    try:
        _write(draft, content)
        os.replace(draft, path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def write_checked(path: Path, content: bytes) -> None:
    """Put a single file in place in one step, its own SHA-256 behind its content."""
    write_atomically(path, content + hashlib.sha256(content).digest())


def read_checked(path: Path) -> bytes:
    """The content that write_checked wrote, or a UserError that says what is wrong with the file."""
    try:
        stored = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from None
    content, digest = stored[:-32], stored[-32:]
    if hashlib.sha256(content).digest() != digest:
        raise UserError(f"{path} is damaged: its content does not match its SHA-256")
    return content


def write_sealed(folder: Path, files: Mapping[str, bytes | Path]) -> None:
    """Make or replace a folder in one step; a Path stands for a file that is linked instead of written again.

    The source of a link must come from a folder that read_sealed or write_sealed has just vouched for.
    """
    draft = folder.with_name(folder.name + ".writing")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    digests = {}
    for name, content in files.items():
        if isinstance(content, Path):
            os.link(content, draft / name)
            digests[name] = json.loads((content.parent / _SEAL).read_bytes())["files"][content.name]
        else:
            _write(draft / name, content)
            digests[name] = hashlib.sha256(content).hexdigest()
    _write(draft / _SEAL, _manifest(digests))
    _sync_folder(draft)
    if folder.exists():
        old = folder.with_name(folder.name + ".old")
        shutil.rmtree(old, ignore_errors=True)
        os.rename(folder, old)
        os.rename(draft, folder)
        shutil.rmtree(old)
    else:
        os.rename(draft, folder)
    _sync_folder(folder.parent)


def read_sealed(folder: Path) -> dict[str, bytes]:
    """All files of a sealed folder, or a UserError that says what is damaged or missing."""
    try:
        seal = (folder / _SEAL).read_bytes()
        manifest = json.loads(seal)
        version, digests = manifest["version"], manifest["files"]
        genuine = isinstance(digests, dict) and _manifest(digests, version) == seal
    except FileNotFoundError:
        raise UserError(f"{folder} is not there or has no {_SEAL}") from None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        genuine = False
    if not genuine:
        raise UserError(f"{folder / _SEAL} is damaged")
    if version != FORMAT_VERSION:
        raise UserError(f"{folder} has format version {version}; this version of fedmlh reads {FORMAT_VERSION}")
    files = {}
    for name, digest in digests.items():
        if Path(name).name != name or not name.isascii() or not name.isprintable():
            raise UserError(f"{folder / _SEAL} names a file that fedmlh never writes: {name!a}")
        try:
            files[name] = (folder / name).read_bytes()
        except OSError as error:
            raise UserError(f"{folder / name} cannot be read ({error.strerror})") from None
        if hashlib.sha256(files[name]).hexdigest() != digest:
            raise UserError(f"{folder / name} is damaged: its content does not match its SHA-256")
    return files


def _manifest(digests: Any, version: Any = FORMAT_VERSION) -> bytes:
    return json.dumps({"version": version, "files": digests}, indent=1, sort_keys=True).encode()


def _write(path: Path, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
