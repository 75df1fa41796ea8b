"""Memory blocks as large as a model, which are kept for the next round instead of going back to the system.

By default the C library asks the system for every block above 32 MB, and the kernel clears its pages each time: with
models of 50 MB that took half of a round's time outside training. It costs up to a third more memory at the peak.
"""

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
#: Larger blocks are rare in a round, and too large to keep unused.
_KEPT, _KEPT_IN_ALL = 1 << 28, 1 << 30


def keep_large_blocks() -> None:
    """Set this in the C library, if it has such a setting."""
    tell = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if tell is not None:
        tell(_MMAP_THRESHOLD, _KEPT)
        tell(_TRIM_THRESHOLD, _KEPT_IN_ALL)
