"""Files that only their owner can read: those of a server's folder and of a site's."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: The umask under which other accounts may do nothing with a new file.
MASK = 0o077


@contextmanager
def private_files() -> Iterator[None]:
    """Make files that nobody else can read, in this process and in those that it starts."""
    before = os.umask(MASK)
    try:
        yield
    finally:
        os.umask(before)


def close_folder(folder: Path) -> None:
    """Close a folder and all its files to other accounts; targets of links stay as they are."""
    folder.chmod(0o700)
    for path in folder.rglob("*"):
        if path.is_symlink():
            continue
        try:
            path.chmod(path.stat().st_mode & ~MASK)
        except FileNotFoundError:  # a process removed it meanwhile
            continue
