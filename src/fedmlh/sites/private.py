"""Files that are their owner's alone: those of a server's folder and of a site's."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: What others may not do with a new file: anything.
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
    """Take a folder and all that is in it away from other accounts; what a link points to stays as it is."""
    folder.chmod(0o700)
    for path in folder.rglob("*"):
        if path.is_symlink():
            continue
        try:
            path.chmod(path.stat().st_mode & ~MASK)
        except FileNotFoundError:  # a process removed it meanwhile
            continue
