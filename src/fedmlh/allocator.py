"""What the C library does with memory that is free again: blocks as large as a model are kept, or all is given back.

By default the C library asks the system for every block above 32 MB, and the kernel clears its pages each time: with
models of 50 MB that took half of a round's time outside training. Keeping them costs up to a third more memory at the
peak. Of smaller blocks it keeps what was freed, in an arena per thread: a server that has read a few large texts would
never be as small as before.
"""

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
#: Larger blocks are rare in a round, and too large to keep unused.
_KEPT, _KEPT_IN_ALL = 1 << 28, 1 << 30


def keep_large_blocks() -> None:
    """Have blocks as large as a model kept for the next round, if the C library has such a setting."""
    _tell("mallopt", _MMAP_THRESHOLD, _KEPT)
    _tell("mallopt", _TRIM_THRESHOLD, _KEPT_IN_ALL)


def share_arenas() -> None:
    """Have all threads take memory from two arenas, if the C library has such a setting: of many, each keeps some."""
    _tell("mallopt", _ARENA_MAX, 2)


def give_back() -> None:
    """Give what is free back to the system, if the C library can."""
    _tell("malloc_trim", 0)


def _tell(name: str, *values: int) -> None:
    function = getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
    if function is not None:
        function(*values)
