"""Checkpoints: the whole state of a run after every round, sealed, from which it resumes to the same bits."""

import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from fedmlh.errors import UserError
from fedmlh.federated.broadcast import BASE, BASE_ROUND
from fedmlh.federated.client import Memory
from fedmlh.federated.participation import Attempt, check_log
from fedmlh.federated.server import ServerState, Tried
from fedmlh.federated.transforms.clipping import Lengths
from fedmlh.model.stack import Stack
from fedmlh.storage import Sealed, write_sealed
from fedmlh.untrusted import MOST_JSON, parse_json

KEPT_GENERATIONS = 2
#: The most bytes of names and shapes at the head of a file of tensors.
_MOST_HEADER = 2**12


@dataclass
class Progress:
    """The state of a run: all that is needed to resume it."""

    server: ServerState
    best_model: Tensor  # [P]; before the first round the initial model
    best_round: int = 0
    best_score: float = -1.0
    memories: dict[int, Memory] = field(default_factory=dict)
    #: One record per finished round, as in metrics.jsonl.
    history: list[dict[str, Any]] = field(default_factory=list)
    #: One record per attempt, as in participation.jsonl.
    log: list[Attempt] = field(default_factory=list)


class Checkpoints:
    """The generations of checkpoints in one folder; the newest whole one counts."""

    def __init__(self, folder: Path, run: str, stack: Stack, device: torch.device, num_clients: int) -> None:
        self.folder = folder
        self.run = run
        self.stack = stack
        self.device = device
        self.num_clients = num_clients
        # What this object wrote last, by identity, so that unchanged tensors are linked and not written again.
        self._newest: Path | None = None
        self._saved: dict[str, object] = {}

    def save(self, progress: Progress) -> None:
        """Write a generation in one step and drop the ones that are too old."""
        sources: dict[str, tuple[object, bytes | dict[str, Tensor]]] = {
            "model.safetensors": (progress.server.model, {"model": progress.server.model}),
            "best.safetensors": (progress.best_model, {"model": progress.best_model}),
        }
        for name, vector in progress.server.vectors.items():
            sources[f"server-{name}.safetensors"] = (vector, {"model": vector})
        for client, memory in progress.memories.items():
            tensors: dict[str, Tensor] = {}
            for part, values in (("kept", memory.kept), ("staged", memory.staged)):
                tensors |= {f"{part}.{name}": value for name, value in values.items() if name != BASE}
                if BASE in values:
                    # The base model of a round has the same bits at all clients: it is written once, under its round.
                    base = values[BASE]
                    sources.setdefault(_base_file(values), (base, {"model": base}))
            if tensors:
                sources[f"client-{client:06d}.safetensors"] = (memory, tensors)
        files: dict[str, bytes | Path] = {}
        for round_index, change in progress.server.changes.items():
            sources[f"change-{round_index:06d}.bin"] = (change, change)
        for name, (identity, content) in sources.items():
            if self._newest is not None and self._saved.get(name) is identity:
                files[name] = self._newest / name
            elif isinstance(content, bytes):
                files[name] = content
            else:
                files[name] = save_tensors({key: value.cpu().contiguous() for key, value in content.items()})
        files["state.json"] = json.dumps(self._state(progress)).encode()
        newest = self.folder / f"round-{progress.server.round:06d}"
        write_sealed(newest, files)
        self._newest = newest
        self._saved = {name: identity for name, (identity, _) in sources.items()}
        for old in self._generations()[:-KEPT_GENERATIONS]:
            shutil.rmtree(old)

    def load(self) -> tuple[Progress | None, list[str]]:
        """Return the newest whole generation (None if there is none yet), and what is wrong with the others."""
        if self.folder.is_symlink():
            raise UserError(f"{self.folder} is a link, and links are not followed: replace it by what it points to")
        problems = [
            f"{path} is {'a link' if path.is_symlink() else 'not a folder'}: not taken for a checkpoint"
            for path in self._named()
            if not _is_real_folder(path)
        ]
        damaged: list[str] = []
        for folder in reversed(self._generations()):
            try:
                progress = self._load(folder)
                return progress, problems + [f"{why}; resuming from the checkpoint before it" for why in damaged]
            except UserError as error:
                damaged.append(str(error))
        if damaged:
            raise UserError(f"no checkpoint of this run can be used: {'; '.join(damaged)}")
        return None, problems

    def _load(self, folder: Path) -> Progress:
        sealed = Sealed(folder, self.folder)
        try:
            state = parse_json(sealed.read("state.json", MOST_JSON))
            if state["run"] != self.run:
                raise UserError(f"{folder} belongs to another run, with other settings or other data")
            if not all(0 <= int(client_id) < self.num_clients for client_id in state["memories"]):
                raise ValueError("a client that the run does not have")
            files = self._read_files(sealed)
            tensors = {name: load_tensors(content) for name, content in files.items() if name.endswith(".safetensors")}
            memories = {}
            for client_id, (kept_in, staged_in) in state["memories"].items():
                stored = tensors.get(f"client-{int(client_id):06d}.safetensors", {})
                kept, staged = (
                    {key.partition(".")[2]: value for key, value in stored.items() if key.startswith(part)}
                    for part in ("kept.", "staged.")
                )
                for values in (kept, staged):
                    if BASE_ROUND in values:
                        values[BASE] = tensors[_base_file(values)]["model"]
                memories[int(client_id)] = Memory(kept, staged, tuple(staged_in), tuple(kept_in))
            names = ("model", "best", *(f"server-{name}" for name in state["vectors"]))
            models = {name: tensors[f"{name}.safetensors"]["model"] for name in names}
            self._check_state(state, models, folder)
            vectors = {name: models[f"server-{name}"].to(self.device) for name in state["vectors"]}
            accepted = {int(client_id): (first, second) for client_id, (first, second) in state["accepted"].items()}
            changes = {round_index: files[f"change-{round_index:06d}.bin"] for round_index in state["changes"]}
            return Progress(
                ServerState(
                    state["round"],
                    models["model"].to(self.device),
                    accepted,
                    vectors,
                    changes,
                    frozenset(state["reached"]),
                    Tried(**state["tried"]),
                    _read_lengths(state.get("lengths", {})),
                ),
                models["best"].to(self.device),
                state["best_round"],
                state["best_score"],
                memories,
                state["history"],
                [Attempt.from_json(line) for line in state["log"]],
            )
        except (KeyError, TypeError, ValueError, AttributeError, SafetensorError) as error:
            raise UserError(f"{folder} is not a checkpoint of fedmlh ({type(error).__name__}: {error})") from None

    def _state(self, progress: Progress) -> dict[str, Any]:
        return {
            "run": self.run,
            "round": progress.server.round,
            "accepted": progress.server.accepted,
            "reached": sorted(progress.server.reached),
            "tried": vars(progress.server.tried),
            "lengths": vars(progress.server.lengths),
            "vectors": list(progress.server.vectors),
            "changes": sorted(progress.server.changes),
            "best_round": progress.best_round,
            "best_score": progress.best_score,
            "memories": {client: [memory.kept_in, memory.staged_in] for client, memory in progress.memories.items()},
            "history": progress.history,
            "log": [line.to_json() for line in progress.log],
        }

    def _check_state(self, state: dict[str, Any], models: dict[str, Tensor], folder: Path) -> None:
        """Raise an error if the state makes no sense, which its seal does not exclude."""
        rounds, history = state["round"], state["history"]
        judged = min(1, rounds) <= state["best_round"] <= rounds
        if folder.name != f"round-{rounds:06d}" or len(history) != rounds or not judged:
            raise ValueError("its rounds do not add up")
        whole = [
            state["best_round"],
            *state["reached"],
            *state["tried"].values(),
            *(number for when in state["accepted"].values() for number in when),
        ]
        first = rounds - len(state["changes"]) + 1
        if state["changes"] != list(range(first, rounds + 1)) or (state["changes"] and BASE not in state["vectors"]):
            raise ValueError("its changes do not lead up to its round")
        check_log([Attempt.from_json(line) for line in state["log"]], rounds, state["tried"]["attempts"])
        for record in history:
            whole += [record["bytes_up"], record["bytes_down"]]
            if not isinstance(record["seconds_training"] + record["seconds_evaluation"], float):
                raise TypeError("seconds that are not numbers")
        if not all(type(number) is int and number >= 0 for number in whole) or type(state["best_score"]) is not float:
            raise TypeError("a count that is not a whole number")
        if not all(self.stack.fits(model) for model in models.values()):
            raise ValueError("a model of another size, or with numbers that are not finite")

    def _read_files(self, sealed: Sealed) -> dict[str, bytes]:
        """Read all files except the state; together they may not exceed a checkpoint of this run."""
        # The server keeps fewer than 16 vectors of the model's size, and each client fewer than 8.
        left = (16 + 8 * self.num_clients) * (4 * self.stack.num_parameters + _MOST_HEADER)
        files = {}
        for name in sealed.digests:
            if name != "state.json":
                files[name] = sealed.read(name, left)
                left -= len(files[name])
        return files

    def _generations(self) -> list[Path]:
        return [path for path in self._named() if _is_real_folder(path)]

    def _named(self) -> list[Path]:
        """List everything with the name of a checkpoint, the oldest first."""
        names = self.folder.glob("round-*") if self.folder.is_dir() else []
        return sorted(path for path in names if path.name[len("round-") :].isdigit())


def _is_real_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _read_lengths(stored: dict[str, list[float]]) -> Lengths:
    """Return the lengths of recent updates; checkpoints of older versions have none."""
    lengths = Lengths(**{name: tuple(values) for name, values in stored.items()})
    if not all(type(length) is float and 0 <= length < math.inf for length in (*lengths.steps, *lengths.controls)):
        raise ValueError("the length of an update that is no length")
    return lengths


def _base_file(values: Mapping[str, Tensor]) -> str:
    return f"held-{int(values[BASE_ROUND]):06d}.safetensors"
