"""A client: takes a broadcast, trains all sub-models on its own points, answers with an update."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from fedmlh.config import Config
from fedmlh.data.dataset import Labels
from fedmlh.federated.broadcast import keep_model, read_model, sends_changes
from fedmlh.federated.codecs import control_draws, make_codec, update_draws
from fedmlh.federated.codecs.codec import Codec
from fedmlh.federated.drift import find_remedy
from fedmlh.federated.drift.remedy import Trained
from fedmlh.federated.messages import BroadcastHeader, Reason, Rejected, UpdateHeader, pack
from fedmlh.federated.task import Seeds, Task
from fedmlh.federated.transforms import list_at_client
from fedmlh.federated.validate import Broadcast, read_broadcast
from fedmlh.model.local_training import HashedShard, draw_orders, full_gradient, train_shard
from fedmlh.model.recipe import Recipe
from fedmlh.randomness import generator


@dataclass(frozen=True)
class Memory:
    """What a client keeps between rounds; a round's new state is staged until the server has accepted its update."""

    kept: dict[str, Tensor] = field(default_factory=dict)
    staged: dict[str, Tensor] = field(default_factory=dict)
    #: Round and attempt in which `staged` was made; empty: nothing is staged.
    staged_in: tuple[int, ...] = ()
    #: Round and attempt of `kept`; empty: no update of this client had been accepted.
    kept_in: tuple[int, ...] = ()

    def settle(self, accepted: tuple[int, ...]) -> dict[str, Tensor] | None:
        """Return the state after the update that was accepted last, or None if this memory does not know that update.

        A client without an accepted update, or one that the server treats as new, begins with an empty state.
        """
        if not accepted:
            return {}
        if self.staged_in == accepted:
            return self.staged
        return self.kept if self.kept_in == accepted else None


def keeps_state(config: Config) -> bool:
    """Say whether clients keep a state from round to round."""
    return bool(list_at_client(config)) or sends_changes(config.broadcast_codec) or find_remedy(config).keeps


@dataclass(frozen=True)
class Assignment:
    """What a client is to train: from which model, on which points, in which order."""

    header: BroadcastHeader
    model: Tensor  # [P]
    shard: HashedShard
    recipe: Recipe  # of this round
    orders: np.ndarray  # [E, n]
    correction: Tensor | None  # [P] added to every gradient
    kept: dict[str, Tensor]  # the client's state before this round
    kept_model: dict[str, Tensor]  # what it keeps of the model


#: Makes the generator that a vector is encoded and decoded with.
Draws = Callable[[int, BroadcastHeader], np.random.Generator]


class _Sent:
    """A vector as it is sent, and as the server will decode it."""

    def __init__(self, codec: Codec, vector: Tensor, draws: Draws, header: BroadcastHeader) -> None:
        self.payload = codec.encode(vector, draws(header.seed, header))
        self._codec, self._length, self._draws, self._header = codec, len(vector), draws, header

    @cached_property
    def decoded(self) -> Tensor:
        """Decode it, when it is first asked for."""
        draws = self._draws(self._header.seed, self._header)
        return self._codec.decode(memoryview(self.payload), self._length, draws)


class Client:
    """One site's training points, hashed once with the seeds that the server sends."""

    def __init__(
        self, task: Task, client_id: int, X: csr_matrix, Y: csr_matrix, labels: Labels, device: torch.device
    ) -> None:
        self.task = task
        self.client_id = client_id
        self.device = device
        self._raw: tuple[csr_matrix, csr_matrix, Labels] | None = (X, Y, labels)
        self._prepared: tuple[Seeds, HashedShard] | None = None
        self._length = int(Y.shape[0])

    @classmethod
    def from_shard(cls, task: Task, client_id: int, seeds: Seeds, shard: HashedShard, device: torch.device) -> "Client":
        """Return a client that has its points only in hashed form, under these seeds."""
        client = cls.__new__(cls)
        client.task, client.client_id, client.device = task, client_id, device
        client._raw, client._prepared, client._length = None, (seeds, shard), len(shard)
        return client

    def answer(self, message: bytes, memory: Memory) -> tuple[bytes, Memory]:
        """Return the update that answers a broadcast, and the client's memory with its new state staged."""
        return self.follow(self.read(message), memory)

    def read(self, message: bytes) -> Broadcast:
        """Return a broadcast that this client should follow, or raise Rejected."""
        return read_broadcast(message, self.client_id, self.task)

    def follow(self, broadcast: Broadcast, memory: Memory) -> tuple[bytes, Memory]:
        """Return what `answer` returns, given a broadcast that was read before."""
        work = self.accept(broadcast, memory)
        trained, loss = train_shard(self.task.stack, work.model, work.shard, work.recipe, work.orders, work.correction)
        return self.reply(work, trained, loss)

    def accept(self, broadcast: Broadcast, memory: Memory) -> Assignment:
        """Return the training that a broadcast asks for; `reply` makes the update after it."""
        header, task = broadcast.header, self.task
        kept = self._recall(memory, tuple(header.accepted))
        model = read_model(header, broadcast.payload, task, kept)
        rng = generator(header.seed, "local training", header.round, header.attempt, self.client_id)
        recipe = task.recipe_in(header.round)
        orders = draw_orders(len(self), recipe, rng)
        correction = find_remedy(task.config).correct(task.config, header.steps, model, broadcast.extra, kept)
        if correction is not None:
            correction = correction.to(self.device)
        kept_model = keep_model(header, model, task)
        shard = self.prepare(broadcast.seeds)
        return Assignment(header, model.to(self.device), shard, recipe, orders, correction, kept, kept_model)

    def reply(self, work: Assignment, trained: Tensor, loss: float) -> tuple[bytes, Memory]:
        """Return the update that answers an assignment once it has been trained, and the client's memory."""
        config, header = self.task.config, work.header
        codec, transforms = make_codec(config.update_codec), list_at_client(config)
        delta, applied = trained - work.model, []
        for transform in transforms:
            delta = transform.apply(delta, work.kept)
            applied.append(delta)
        update, beside = _Sent(codec, delta, update_draws, header), b""
        staged = dict(work.kept_model)
        for transform, vector in zip(transforms, applied, strict=True):
            staged |= transform.keep(vector, update.decoded)

        def send(vector: Tensor) -> Tensor:
            nonlocal beside
            extra = _Sent(codec, vector, control_draws, header)
            beside = extra.payload
            return extra.decoded

        staged |= find_remedy(config).keep(
            Trained(
                work.kept,
                work.correction,
                lambda: full_gradient(self.task.stack, work.model, work.shard, work.recipe).cpu(),
                lambda: work.model.cpu() + update.decoded,
            ),
            send,
        )
        message = UpdateHeader(
            header.run,
            header.config,
            header.round,
            header.attempt,
            self.client_id,
            config.update_codec,
            len(self),
            loss,
            len(beside),
        )
        memory = Memory(work.kept, staged, (header.round, header.attempt), tuple(header.accepted))
        return pack(message, update.payload + beside), memory

    def _recall(self, memory: Memory, accepted: tuple[int, ...]) -> dict[str, Tensor]:
        """Return this client's state, or raise Rejected if it does not have the state that the server expects."""
        kept = memory.settle(accepted)
        if kept is None and keeps_state(self.task.config):
            round_index, attempt = accepted
            raise Rejected(
                Reason.STATE, f"this client no longer has what it kept after round {round_index}, attempt {attempt}"
            )
        return kept or {}

    def prepare(self, seeds: Seeds) -> HashedShard:
        """Return the hashed points; they are hashed once, since the seeds stay the same for a run."""
        if self._prepared is None or self._prepared[0] != seeds:
            if self._raw is None:
                raise Rejected(Reason.RANGE, "the points of this client were hashed with other seeds")
            X, Y, labels = self._raw
            buckets = self.task.label_map(seeds, labels.keys).union(Y)
            if any(z.shape[1] != self.task.stack.num_outputs for z in buckets):
                raise Rejected(Reason.CONFIG, "the labels of this client do not fit the outputs of the model")
            self._prepared = (seeds, HashedShard(self.task.feature_map(seeds).apply(X), buckets))
        return self._prepared[1]

    def __len__(self) -> int:
        return self._length
