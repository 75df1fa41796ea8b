"""What a site's client keeps between rounds, on the site's disk: one file, whole or not there."""

import json
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from fedmlh.errors import UserError
from fedmlh.federated.client import Memory
from fedmlh.storage import read_checked, write_checked


class MemoryFile:
    """The memory of one client; a new update's state is staged in it before the update is sent."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self, run: str) -> Memory:
        """Return what is kept of this run; a damaged file counts as lost, which the server is told."""
        try:
            first, _, rest = read_checked(self.path).partition(b"\n")
            about, tensors = json.loads(first), load_tensors(rest)
            if about["run"] != run:
                return Memory()
            parts: dict[str, dict[str, Tensor]] = {"kept": {}, "staged": {}}
            for name, value in tensors.items():
                part, _, own = name.partition(".")
                parts[part][own] = value
            return Memory(parts["kept"], parts["staged"], tuple(about["staged_in"]), tuple(about["kept_in"]))
        except (UserError, SafetensorError, KeyError, ValueError, TypeError):
            return Memory()

    def save(self, run: str, memory: Memory) -> None:
        """Write a client's memory in place of the old file."""
        tensors = {f"kept.{name}": value for name, value in memory.kept.items()}
        tensors |= {f"staged.{name}": value for name, value in memory.staged.items()}
        about = {"run": run, "kept_in": memory.kept_in, "staged_in": memory.staged_in}
        content = save_tensors({name: value.cpu().contiguous() for name, value in tensors.items()})
        write_checked(self.path, json.dumps(about).encode() + b"\n" + content)
