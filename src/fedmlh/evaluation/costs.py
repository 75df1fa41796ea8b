"""Costs of a run beside the bytes of its messages, which are counted where they are made."""

import contextlib
import resource
import sys
from pathlib import Path


def reset_peak_memory() -> None:
    """Measure the peak of memory from now on if the system can (Linux), else since the process began."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory_bytes() -> int:
    """Return the most memory that this process has held since the last reset."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def paper_volume_bytes(rounds_to_best: int, clients_per_round: int, model_bytes: int) -> int:
    """Return the communication volume as the paper counts it: client to server only, fp32, no headers."""
    return rounds_to_best * clients_per_round * model_bytes
