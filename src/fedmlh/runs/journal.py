"""A journal of messages on disk, appended as they come, so that a process that is killed loses at most the last one."""

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from fedmlh.errors import UserError

_LENGTH = struct.Struct("<IQ")


class Journal:
    """Messages of clients in one file, each behind the client's number and its length."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> "Journal":
        """Open the file behind its last whole message."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        end = sum(_LENGTH.size + len(message) for _, message in self.read())
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        self._file = open(os.open(self.path, flags, 0o666), "r+b")
        self._file.truncate(end)
        self._file.seek(end)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the file."""
        self._file.close()

    def append(self, client: int, message: bytes) -> None:
        """Write a message; once this returns, no crash of the process can lose it."""
        self._file.write(_LENGTH.pack(client, len(message)) + message)
        self._file.flush()

    def sync(self) -> None:
        """Wait until no crash of the machine can lose what was written."""
        os.fsync(self._file.fileno())

    def read(self) -> Iterator[tuple[int, bytes]]:
        """Yield client and message; a message that was cut off while it was written is left out."""
        if self.path.is_symlink():
            raise UserError(f"{self.path} is a link, and links are not followed: replace it by what it points to")
        if not self.path.is_file():
            return
        with open(self.path, "rb") as file:
            left = os.fstat(file.fileno()).st_size
            while left >= _LENGTH.size:
                client, length = _LENGTH.unpack(file.read(_LENGTH.size))
                left -= _LENGTH.size + length
                if left < 0:
                    return
                yield client, file.read(length)
