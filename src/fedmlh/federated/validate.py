"""The doors of server and clients.

An update counts only if it is what the server asked for, whole, finite and of plausible size. A client trains only on a
broadcast that fits its own task.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedmlh.federated.aggregate import LIMIT
from fedmlh.federated.broadcast import largest_payload, read_extra
from fedmlh.federated.codecs import control_draws, make_codec, update_draws
from fedmlh.federated.drift import count_vectors, find_remedy
from fedmlh.federated.messages import BroadcastHeader, Reason, Rejected, UpdateHeader, unpack
from fedmlh.federated.task import Seeds, Task
from fedmlh.federated.transforms import list_at_server
from fedmlh.federated.transforms.clipping import Bounds, Clip
from fedmlh.federated.transforms.transform import Delta, ServerTransform

#: No loss over buckets comes near it; it keeps the mean over clients finite.
MAX_LOSS = 1e9


@dataclass(frozen=True)
class Update:
    """An update that may count."""

    header: UpdateHeader
    delta: Delta
    extra: Delta | None  # the extra vector of a remedy for drift, if one sends any


@dataclass(frozen=True)
class Expected:
    """What the server expects of the updates of one attempt at a round; the door that checks them."""

    run: str
    config: str
    round: int
    attempt: int
    codec: str
    num_parameters: int
    #: The sampled clients and the most examples each can have.
    max_examples: Mapping[int, int]
    #: How long updates and extra vectors may be.
    bounds: Bounds
    #: The most examples that count as a client's weight.
    max_weight: int
    #: The run's seed, from which a codec's random choices follow.
    seed: int
    #: The aggregation rule of the extra vectors that updates carry; empty: they carry none.
    extra: str = ""
    #: The aggregation rule of the updates.
    aggregation: str = "mean"

    def check(self, client_id: int, reply: bytes, taken: Collection[int]) -> Update:
        """Return an update if it may count, or raise Rejected with the reason."""
        codec, size = make_codec(self.codec), self.num_parameters
        header, payload = unpack(UpdateHeader, reply, (1 + bool(self.extra)) * codec.size(size))
        self._check_header(header, client_id, taken)
        payload, tail = _split(payload, header.control, wanted=bool(self.extra))
        try:
            values = codec.decode(payload, size, update_draws(self.seed, header))
            vector = codec.decode(tail, size, control_draws(self.seed, header)) if self.extra else None
        except ValueError as error:
            raise Rejected(Reason.SIZE, str(error)) from None
        extra = None
        if vector is not None:
            extra = _let_in(vector, "control", [Clip(self.bounds.extra, scales=False, name="control")])
        return Update(header, _let_in(values, "update", list_at_server(self.bounds, client_id)), extra)

    def _check_header(self, header: UpdateHeader, client_id: int, taken: Collection[int]) -> None:
        if header.run != self.run:
            raise Rejected(Reason.RUN, f"made for run {header.run!a}")
        if header.config != self.config:
            raise Rejected(Reason.CONFIG, f"made under {header.config!a}")
        if (header.round, header.attempt) != (self.round, self.attempt):
            raise Rejected(Reason.ROUND, f"made for round {header.round}, attempt {header.attempt}")
        if header.client != client_id or client_id not in self.max_examples:
            raise Rejected(Reason.CLIENT, f"client {header.client} was not asked")
        if client_id in taken:
            raise Rejected(Reason.DUPLICATE, f"client {client_id} has already answered")
        if header.codec != self.codec:
            raise Rejected(Reason.CODEC, f"encoded as {header.codec!a}, {self.codec} was agreed")
        if not 1 <= header.examples <= self.max_examples[client_id]:
            raise Rejected(Reason.EXAMPLES, f"{header.examples:,} examples claimed")
        if not 0 <= header.loss <= MAX_LOSS:
            raise Rejected(Reason.RANGE, f"a loss of {header.loss:.3g}")


def _let_in(values: Tensor, name: str, transforms: list[ServerTransform]) -> Delta:
    """Return a vector that may count, or raise Rejected."""
    if not math.isfinite(_largest(values)):
        raise Rejected(Reason.NON_FINITE, f"the {name} contains NaN or infinity")
    delta = Delta.of(values)
    for transform in transforms:
        delta = transform.apply(delta)
    largest = _largest(delta.values)
    if largest > LIMIT:
        raise Rejected(Reason.RANGE, f"a value of the {name} is {largest:.3g}, at most {LIMIT:g} is allowed")
    return delta


def _largest(values: Tensor) -> float:
    """Return the largest magnitude; NaN and infinity pass through."""
    return max(abs(float(end)) for end in torch.aminmax(values))


def _split(payload: memoryview, control: int, *, wanted: bool) -> tuple[memoryview, memoryview]:
    """Return the model's part of a payload and the extra vector's, which is empty if there is to be none."""
    if control > len(payload) or (control > 0) != wanted:
        raise Rejected(Reason.SIZE, f"{control:,} bytes of control in {len(payload):,} bytes of payload")
    return payload[: len(payload) - control], payload[len(payload) - control :]


@dataclass(frozen=True)
class Broadcast:
    """A broadcast that a client should follow."""

    header: BroadcastHeader
    seeds: Seeds  # of hash functions
    payload: memoryview  # the model, encoded
    extra: Tensor | None  # [P] the extra vector of a remedy for drift; None: zero, or there is none


def read_broadcast(message: bytes, client_id: int, task: Task) -> Broadcast:
    """Return a broadcast that this client should follow, or raise Rejected."""
    remedy = find_remedy(task.config)
    header, payload = unpack(BroadcastHeader, message, count_vectors(task.config) * largest_payload(task))
    if header.config != task.fingerprint:
        raise Rejected(
            Reason.CONFIG, f"the server trains under {header.config!a}, this client under {task.fingerprint}"
        )
    if header.client != client_id:
        raise Rejected(Reason.CLIENT, f"the broadcast is for client {header.client}, not {client_id}")
    if header.round < 1:
        raise Rejected(Reason.ROUND, f"there is no round {header.round}")
    seeds = Seeds(header.seed, tuple(header.label_seeds), tuple(header.feature_seeds))
    if not task.accepts(seeds):
        raise Rejected(Reason.RANGE, "the hash seeds do not fit the task")
    if header.steps == 0 and remedy.counts_steps:
        raise Rejected(Reason.RANGE, "the correction needs the number of steps")
    wanted = bool(remedy.extra) and header.codec != "initial"
    payload, tail = _split(payload, header.control, wanted=wanted)
    return Broadcast(header, seeds, payload, read_extra(task, tail) if wanted else None)
