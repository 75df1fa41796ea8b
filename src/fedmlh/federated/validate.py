"""The doors: an update counts only if it is what the server asked for, whole, finite and of plausible size; a client
trains only on a broadcast that fits its own task."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedmlh.federated.aggregate import LIMIT, square_length
from fedmlh.federated.broadcast import largest_payload, read_control
from fedmlh.federated.codecs import control_draws, make_codec, update_draws
from fedmlh.federated.messages import BroadcastHeader, Reason, Rejected, UpdateHeader, unpack
from fedmlh.federated.task import Seeds, Task

#: No loss over buckets comes near it; it keeps the mean over clients finite.
MAX_LOSS = 1e9


@dataclass(frozen=True)
class Expected:
    """What the server knows by itself about the updates of one attempt at a round."""

    run: str
    config: str
    round: int
    attempt: int
    codec: str
    num_parameters: int
    #: The sampled clients and the most examples each can have.
    max_examples: Mapping[int, int]
    #: The longest update of each client, and change of a control, as root-mean-square values.
    max_rms: Mapping[int, float]
    max_control_rms: float
    #: Whether a longer update is scaled down; else it is refused.
    scales: bool
    #: The most examples that count as a client's weight.
    max_weight: int
    #: The run's, from which a codec's random choices follow.
    seed: int
    #: Whether an update carries the change of a control vector as well.
    control: bool = False
    #: The rule that makes one update of all.
    aggregation: str = "mean"


@dataclass(frozen=True)
class Update:
    """An update that may count."""

    header: UpdateHeader
    values: Tensor  # [P]
    square: float  # the squared length of the values
    factor: float  # by which it was scaled to be as short as the bound; 1: it was short enough
    control: Tensor | None  # [P] change of the control vector, where there is one
    control_length: float  # its root-mean-square value

    @property
    def length(self) -> float:
        """The root-mean-square value."""
        return math.sqrt(self.square / len(self.values))


def check_update(message: bytes, sender: int, expected: Expected, taken: Collection[int]) -> Update:
    """What a message says if it may count, or Rejected with the reason."""
    codec = make_codec(expected.codec)
    header, payload = unpack(UpdateHeader, message, (1 + expected.control) * codec.size(expected.num_parameters))
    if header.run != expected.run:
        raise Rejected(Reason.RUN, f"made for run {header.run!a}")
    if header.config != expected.config:
        raise Rejected(Reason.CONFIG, f"made under {header.config!a}")
    if (header.round, header.attempt) != (expected.round, expected.attempt):
        raise Rejected(Reason.ROUND, f"made for round {header.round}, attempt {header.attempt}")
    if header.client != sender or header.client not in expected.max_examples:
        raise Rejected(Reason.CLIENT, f"client {header.client} was not asked")
    if header.client in taken:
        raise Rejected(Reason.DUPLICATE, f"client {header.client} has already answered")
    if header.codec != expected.codec:
        raise Rejected(Reason.CODEC, f"encoded as {header.codec!a}, {expected.codec} was agreed")
    if not 1 <= header.examples <= expected.max_examples[header.client]:
        raise Rejected(Reason.EXAMPLES, f"{header.examples:,} examples claimed")
    if not 0 <= header.loss <= MAX_LOSS:
        raise Rejected(Reason.RANGE, f"a loss of {header.loss:.3g}")
    payload, change = _split(payload, header.control, wanted=expected.control)
    size = expected.num_parameters
    try:
        values = codec.decode(payload, size, update_draws(expected.seed, header))
        control = codec.decode(change, size, control_draws(expected.seed, header)) if expected.control else None
    except ValueError as error:
        raise Rejected(Reason.SIZE, str(error)) from None
    control_length = 0.0
    if control is not None:
        control, square, _ = _confine(control, "control", expected.max_control_rms, scales=False)
        control_length = math.sqrt(square / size)
    values, square, factor = _confine(values, "update", expected.max_rms[header.client], scales=expected.scales)
    return Update(header, values, square, factor, control, control_length)


def _confine(values: Tensor, name: str, max_rms: float, *, scales: bool) -> tuple[Tensor, float, float]:
    """Return a vector that may count, its squared length and by which factor it was scaled, or raise Rejected."""
    if not math.isfinite(_largest(values)):
        raise Rejected(Reason.NON_FINITE, f"the {name} contains NaN or infinity")
    square, factor = square_length(values), 1.0
    rms = math.sqrt(square / len(values))
    if rms > max_rms:
        if not scales:
            detail = f"root-mean-square change of the {name} {rms:.3g}, at most {max_rms:.3g} is plausible (clip=off)"
            raise Rejected(Reason.RANGE, detail)
        factor = max_rms / rms
        values = values * factor
        square = square_length(values)
    largest = _largest(values)
    if largest > LIMIT:
        raise Rejected(Reason.RANGE, f"a number of the {name} is {largest:.3g}, at most {LIMIT:g} is allowed")
    return values, square, factor


def _largest(values: Tensor) -> float:
    """Return the largest magnitude; NaN and infinity pass through."""
    return max(abs(float(end)) for end in torch.aminmax(values))


def _split(payload: memoryview, control: int, *, wanted: bool) -> tuple[memoryview, memoryview]:
    """The model's part of a payload and the control's, which is empty where there is to be none."""
    if control > len(payload) or (control > 0) != wanted:
        raise Rejected(Reason.SIZE, f"{control:,} bytes of control in {len(payload):,} bytes of payload")
    return payload[: len(payload) - control], payload[len(payload) - control :]


def check_broadcast(
    message: bytes, client: int, task: Task
) -> tuple[BroadcastHeader, Seeds, memoryview, Tensor | None]:
    """Header, hash seeds, encoded model and control (None: zero) of a broadcast to follow, or Rejected."""
    controlled = task.config.correction == "scaffold"
    header, payload = unpack(BroadcastHeader, message, (1 + controlled) * largest_payload(task))
    if header.config != task.fingerprint:
        raise Rejected(
            Reason.CONFIG, f"the server trains under {header.config!a}, this client under {task.fingerprint}"
        )
    if header.client != client:
        raise Rejected(Reason.CLIENT, f"the broadcast is for client {header.client}, not {client}")
    if header.round < 1:
        raise Rejected(Reason.ROUND, f"there is no round {header.round}")
    seeds = Seeds(header.seed, tuple(header.label_seeds), tuple(header.feature_seeds))
    if not task.accepts(seeds):
        raise Rejected(Reason.RANGE, "the hash seeds do not fit the task")
    if header.steps == 0 and task.config.correction == "vrl-sgd":
        raise Rejected(Reason.RANGE, "the correction needs the number of steps")
    wanted = controlled and header.codec != "initial"
    payload, tail = _split(payload, header.control, wanted=wanted)
    return header, seeds, payload, read_control(task, tail) if wanted else None
