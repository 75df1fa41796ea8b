"""A client: takes a broadcast, trains all sub-models on its own points, answers with an update."""

from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from fedmlh.data.dataset import Labels
from fedmlh.federated.codecs import control_draws, make_codec, update_draws
from fedmlh.federated.corrections import correct
from fedmlh.federated.delivery import keep_model, read_model
from fedmlh.federated.messages import BroadcastHeader, UpdateHeader, pack
from fedmlh.federated.task import Seeds, Task
from fedmlh.federated.validate import check_broadcast
from fedmlh.model.training import Shard, draw_orders, full_gradient, train
from fedmlh.randomness import generator


@dataclass(frozen=True)
class Memory:
    """What a client keeps between rounds; what a round changed waits until the server has accepted the update."""

    kept: dict[str, Tensor] = field(default_factory=dict)
    staged: dict[str, Tensor] = field(default_factory=dict)
    #: Round and attempt in which `staged` was made; empty: nothing is staged.
    staged_in: tuple[int, ...] = ()

    def settle(self, accepted: tuple[int, ...]) -> dict[str, Tensor]:
        """What holds now: the staged state if just that update was accepted, else what was kept before."""
        return self.staged if self.staged_in and self.staged_in == accepted else self.kept


@dataclass(frozen=True)
class Assignment:
    """What a client is to train: from which model, on which points, in which order."""

    header: BroadcastHeader
    model: Tensor  # [P]
    shard: Shard
    orders: np.ndarray  # [E, n]
    correction: Tensor | None  # [P] added to every gradient
    kept: dict[str, Tensor]  # the client's state before this round
    held: dict[str, Tensor]  # what of the model becomes part of its state


class Client:
    """One site's training points, hashed once with the seeds that the server sends."""

    def __init__(
        self,
        task: Task,
        number: int,
        X: csr_matrix,
        Y: csr_matrix,
        labels: Labels,
        device: torch.device,
        prepared: tuple[Seeds, Shard] | None = None,
    ) -> None:
        self.task = task
        self.number = number
        self.device = device
        self._raw = (X, Y, labels)
        #: What `prepare` made last, or somebody kept from an earlier life of this client.
        self.prepared = prepared

    def under(self, task: Task) -> "Client":
        """The same site with the same points in another task."""
        return Client(task, self.number, *self._raw, self.device)

    def answer(self, broadcast: bytes, memory: Memory) -> tuple[bytes, Memory]:
        """The update that answers a broadcast, and the client's memory with its new state staged."""
        work = self.accept(broadcast, memory)
        trained, loss = train(self.task.stack, work.model, work.shard, self.task.recipe, work.orders, work.correction)
        return self.reply(work, trained, loss)

    def accept(self, broadcast: bytes, memory: Memory) -> Assignment:
        """What a broadcast asks for, if it is one that this client should follow."""
        header, seeds, payload, control = check_broadcast(broadcast, self.number, self.task)
        kept = memory.settle(tuple(header.accepted))
        model = read_model(header, payload, self.task, kept)
        rng = generator(header.seed, "local training", header.round, header.attempt, self.number)
        orders = draw_orders(len(self), self.task.recipe, rng)
        correction = correct(self.task.config, header, model, control, kept)
        if correction is not None:
            correction = correction.to(self.device)
        held = keep_model(header, model, self.task)
        return Assignment(header, model.to(self.device), self.prepare(seeds), orders, correction, kept, held)

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
        return pack(update, payload + control), Memory(work.kept, work.held | staged, (header.round, header.attempt))

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
        now = full_gradient(self.task.stack, work.model, work.shard, self.task.recipe).cpu()
        change = codec.encode(now - before, control_draws(header.seed, header))
        return change, before + codec.decode(memoryview(change), len(before), control_draws(header.seed, header))

    def prepare(self, seeds: Seeds) -> Shard:
        """The points as the model sees them; made once, since the seeds stay the same for a run."""
        if self.prepared is None or self.prepared[0] != seeds:
            X, Y, labels = self._raw
            buckets = self.task.label_map(seeds, labels.keys).union(Y)
            self.prepared = (seeds, Shard(self.task.feature_map(seeds).apply(X), buckets))
        return self.prepared[1]

    def __len__(self) -> int:
        return int(self._raw[1].shape[0])
