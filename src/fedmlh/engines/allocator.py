"""Blocks as large as a model are kept for the next round instead of being handed back to the system.

Left alone, the C library maps every block above 32 MB anew, and the kernel clears its pages anew: with models of 50 MB
that took half of a round's time outside training. It costs up to a third more memory at the peak.
"""

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
#: Larger ones are rare enough in a round, and too large to lie about unused.
_KEPT, _KEPT_IN_ALL = 1 << 28, 1 << 30


def keep_large_blocks() -> None:
    """Tell the C library, where it is one that can be told."""
    tell = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if tell is not None:
        tell(_MMAP_THRESHOLD, _KEPT)
        tell(_TRIM_THRESHOLD, _KEPT_IN_ALL)
