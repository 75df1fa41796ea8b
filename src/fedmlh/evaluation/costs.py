"""What a run costs beside the bytes that its messages count by themselves."""

import resource
import sys


def peak_memory_bytes() -> int:
    """The most memory this process has held so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def paper_volume_bytes(rounds_to_best: int, clients_per_round: int, model_bytes: int) -> int:
    """The paper's communication volume: client to server only, fp32, no headers."""
    return rounds_to_best * clients_per_round * model_bytes
