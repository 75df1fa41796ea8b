"""A client: takes a broadcast, trains all sub-models on its own points, answers with an update."""

from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from fedmlh.config import Config
from fedmlh.data.dataset import Labels
from fedmlh.federated.broadcast import keep_model, read_model, sends_changes
from fedmlh.federated.codecs import control_draws, make_codec, update_draws
from fedmlh.federated.corrections import correct
from fedmlh.federated.messages import BroadcastHeader, Reason, Rejected, UpdateHeader, pack
from fedmlh.federated.task import Seeds, Task
from fedmlh.federated.validate import check_broadcast
from fedmlh.model.local_training import Shard, draw_orders, full_gradient, train_shard
from fedmlh.model.recipe import Recipe
from fedmlh.randomness import generator


@dataclass(frozen=True)
class Memory:
    """What a client keeps between rounds; what a round changed waits until the server has accepted the update."""

    kept: dict[str, Tensor] = field(default_factory=dict)
    staged: dict[str, Tensor] = field(default_factory=dict)
    #: Round and attempt in which `staged` was made; empty: nothing is staged.
    staged_in: tuple[int, ...] = ()
    #: The same of `kept`; empty: nothing of this client had been accepted before.
    kept_in: tuple[int, ...] = ()

    def settle(self, accepted: tuple[int, ...]) -> dict[str, Tensor] | None:
        """What holds after the update that was accepted last; None where this memory knows nothing of that one.

        A client of which nothing was accepted, or whose past the server has forgotten, begins with nothing.
        """
        if not accepted:
            return {}
        if self.staged_in == accepted:
            return self.staged
        return self.kept if self.kept_in == accepted else None


def keeps_state(config: Config) -> bool:
    """Whether clients carry anything from round to round."""
    feedback = make_codec(config.update_codec).feedback
    return feedback or sends_changes(config.broadcast_codec) or config.correction != "none"


@dataclass(frozen=True)
class Assignment:
    """What a client is to train: from which model, on which points, in which order."""

    header: BroadcastHeader
    model: Tensor  # [P]
    shard: Shard
    recipe: Recipe  # of this round
    orders: np.ndarray  # [E, n]
    correction: Tensor | None  # [P] added to every gradient
    kept: dict[str, Tensor]  # the client's state before this round
    held: dict[str, Tensor]  # what of the model becomes part of its state


class Client:
    """One site's training points, hashed once with the seeds that the server sends."""

    def __init__(
        self, task: Task, number: int, X: csr_matrix, Y: csr_matrix, labels: Labels, device: torch.device
    ) -> None:
        self.task = task
        self.number = number
        self.device = device
        self._raw: tuple[csr_matrix, csr_matrix, Labels] | None = (X, Y, labels)
        self._prepared: tuple[Seeds, Shard] | None = None
        self._length = int(Y.shape[0])

    @classmethod
    def from_shard(cls, task: Task, number: int, seeds: Seeds, shard: Shard, device: torch.device) -> "Client":
        """A client that has its points only as they were hashed with these seeds."""
        client = cls.__new__(cls)
        client.task, client.number, client.device = task, number, device
        client._raw, client._prepared, client._length = None, (seeds, shard), len(shard)
        return client

    def answer(self, broadcast: bytes, memory: Memory) -> tuple[bytes, Memory]:
        """The update that answers a broadcast, and the client's memory with its new state staged."""
        work = self.accept(broadcast, memory)
        trained, loss = train_shard(self.task.stack, work.model, work.shard, work.recipe, work.orders, work.correction)
        return self.reply(work, trained, loss)

    def accept(self, broadcast: bytes, memory: Memory) -> Assignment:
        """What a broadcast asks for, if it is one that this client should follow."""
        header, seeds, payload, control = check_broadcast(broadcast, self.number, self.task)
        kept = self._recall(memory, tuple(header.accepted))
        model = read_model(header, payload, self.task, kept)
        rng = generator(header.seed, "local training", header.round, header.attempt, self.number)
        recipe = self.task.recipe_in(header.round)
        orders = draw_orders(len(self), recipe, rng)
        correction = correct(self.task.config, header, model, control, kept)
        if correction is not None:
            correction = correction.to(self.device)
        held = keep_model(header, model, self.task)
        return Assignment(header, model.to(self.device), self.prepare(seeds), recipe, orders, correction, kept, held)

    def reply(self, work: Assignment, trained: Tensor, loss: float) -> tuple[bytes, Memory]:
        """The update that answers an assignment once it has been trained."""
        header = work.header
        payload, staged = self._encode(trained - work.model, work)
        control = b""
        if self.task.config.correction == "scaffold":
            control, staged["control"] = self._renew_control(work)
        elif work.correction is not None:
            codec = make_codec(self.task.config.update_codec)
            went = codec.decode(memoryview(payload), len(trained), update_draws(header.seed, header))
            staged |= {"delta": -work.correction.cpu(), "end": work.model.cpu() + went}
        update = UpdateHeader(
            header.run,
            header.config,
            header.round,
            header.attempt,
            self.number,
            self.task.config.update_codec,
            len(self),
            loss,
            len(control),
        )
        memory = Memory(work.kept, work.held | staged, (header.round, header.attempt), tuple(header.accepted))
        return pack(update, payload + control), memory

    def _recall(self, memory: Memory, accepted: tuple[int, ...]) -> dict[str, Tensor]:
        """What this client keeps, or Rejected where it should keep something and has lost it, or has an old copy."""
        kept = memory.settle(accepted)
        if kept is None and keeps_state(self.task.config):
            number, attempt = accepted
            raise Rejected(
                Reason.STATE, f"this client no longer has what it kept after round {number}, attempt {attempt}"
            )
        return kept or {}

    def _encode(self, change: Tensor, work: Assignment) -> tuple[bytes, dict[str, Tensor]]:
        """Payload, and what a lossy codec left out, to be sent with the next update (error feedback)."""
        codec, header = make_codec(self.task.config.update_codec), work.header
        if not codec.feedback:
            return codec.encode(change, update_draws(header.seed, header)), {}
        change = change.cpu() + work.kept.get("residual", torch.zeros(()))
        payload = codec.encode(change, update_draws(header.seed, header))
        decoded = codec.decode(memoryview(payload), len(change), update_draws(header.seed, header))
        return payload, {"residual": change - decoded}

    def _renew_control(self, work: Assignment) -> tuple[bytes, Tensor]:
        """The change of the client's control (option I of SCAFFOLD) as it is sent, and the control that results.

        Made of what the server decodes, so that the server's control stays the mean of the clients'.
        """
        codec, header = make_codec(self.task.config.update_codec), work.header
        before = work.kept.get("control", torch.zeros(len(work.model)))
        now = full_gradient(self.task.stack, work.model, work.shard, work.recipe).cpu()
        change = codec.encode(now - before, control_draws(header.seed, header))
        return change, before + codec.decode(memoryview(change), len(before), control_draws(header.seed, header))

    def prepare(self, seeds: Seeds) -> Shard:
        """The points as the model sees them; made once, since the seeds stay the same for a run."""
        if self._prepared is None or self._prepared[0] != seeds:
            if self._raw is None:
                raise Rejected(Reason.RANGE, "the points of this client were hashed with other seeds")
            X, Y, labels = self._raw
            buckets = self.task.label_map(seeds, labels.keys).union(Y)
            if any(z.shape[1] != self.task.stack.num_outputs for z in buckets):
                raise Rejected(Reason.CONFIG, "the labels of this client do not fit the outputs of the model")
            self._prepared = (seeds, Shard(self.task.feature_map(seeds).apply(X), buckets))
        return self._prepared[1]

    def __len__(self) -> int:
        return self._length
