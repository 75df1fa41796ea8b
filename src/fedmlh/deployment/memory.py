"""What a site's client keeps between rounds, on the site's disk: one file, whole or not there."""

import json
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from fedmlh.config import Config
from fedmlh.errors import UserError
from fedmlh.federated.client import Memory
from fedmlh.federated.codecs import make_codec
from fedmlh.federated.delivery import sends_changes
from fedmlh.federated.messages import BroadcastHeader, Reason, Rejected
from fedmlh.storage import read_checked, write_checked


def keeps_state(config: Config) -> bool:
    """Whether a client's next update depends on its last accepted one."""
    feedback = make_codec(config.update_codec).feedback
    return feedback or sends_changes(config.broadcast_codec) or config.correction != "none"


class MemoryFile:
    """The memory of one client in one run; a new update's state is staged in it before the update is sent."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self, header: BroadcastHeader, config: Config) -> Memory:
        """The memory that a broadcast builds on, or Rejected where it is lost."""
        accepted = tuple(header.accepted)
        if not accepted or not keeps_state(config):
            return Memory()  # nothing of this client counts yet, or nothing is kept: what lies there is of no use
        try:
            run, kept_in, memory = self._read()
        except UserError as error:
            raise Rejected(Reason.STATE, str(error)) from None
        if run != header.run or accepted not in (memory.staged_in, kept_in):
            raise Rejected(Reason.STATE, "what is kept belongs to another run or update")
        return memory

    def save(self, header: BroadcastHeader, memory: Memory) -> None:
        """Keep what a client staged in answer to a broadcast."""
        tensors = {f"kept.{name}": value for name, value in memory.kept.items()}
        tensors |= {f"staged.{name}": value for name, value in memory.staged.items()}
        about = {"run": header.run, "kept_in": list(header.accepted), "staged_in": list(memory.staged_in)}
        content = save_tensors({name: value.cpu().contiguous() for name, value in tensors.items()})
        write_checked(self.path, json.dumps(about).encode() + b"\n" + content)

    def _read(self) -> tuple[str, tuple[int, ...], Memory]:
        first, _, rest = read_checked(self.path).partition(b"\n")
        try:
            about, tensors = json.loads(first), load_tensors(rest)
            parts: dict[str, dict[str, Tensor]] = {"kept": {}, "staged": {}}
            for name, value in tensors.items():
                part, _, own = name.partition(".")
                parts[part][own] = value
            memory = Memory(parts["kept"], parts["staged"], tuple(about["staged_in"]))
            return about["run"], tuple(about["kept_in"]), memory
        except (SafetensorError, KeyError, ValueError, TypeError) as error:
            raise UserError(f"{self.path} is not a client's memory ({type(error).__name__})") from None
