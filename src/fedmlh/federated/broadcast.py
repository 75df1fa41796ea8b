"""Broadcasts of the global model: the whole model, or the changes since the base model of a client.

Codecs too coarse for a model encode changes. The base model is what clients have after a round, and the server keeps it
too. After the next round the server encodes the change from it to its own model, once for all clients. Both sides add
the decoded change, so all clients have the same bits, and the next change makes up for what this one left out. A client
keeps the base model on which its last accepted update was made. It is sent all changes since then, or the whole model
if that is fewer bytes. A client without an accepted update starts from the initial model, which follows from the seed.
A client that has lost its base model says so, and the server treats it as a new client.

With some codecs sums of changes are exact: on a grid, changes and base models are multiples of powers of two. Then all
changes since a client's base model are added up and sent as one, and the whole model is sent as the sum of all changes
since the initial model.
"""

import math
import struct
from collections.abc import Collection, Iterable, Mapping

import torch
from torch import Tensor

from fedmlh.config import parse_codec
from fedmlh.federated.codecs import make_codec
from fedmlh.federated.messages import BroadcastHeader, Reason, Rejected
from fedmlh.federated.task import Task
from fedmlh.randomness import generator

#: Names in a client's memory: its base model, and the round of that model.
BASE, BASE_ROUND = "held", "held_round"
#: The codec of the whole model, if changes would be no shorter.
WHOLE = "fp32"
#: The name for the sum of all changes since the initial model, with codecs whose changes can be added up.
SINCE_START = "since start"
_LENGTH = struct.Struct("<I")
#: Encoded changes, by the round that made them.
Changes = Mapping[int, bytes]


def sends_changes(codec: str) -> bool:
    """Say whether a broadcast codec encodes changes, not the model itself."""
    return not parse_codec(codec).family.whole


def _whole_codec(task: Task) -> str:
    codec = task.config.broadcast_codec
    return WHOLE if sends_changes(codec) else codec


def largest_payload(task: Task) -> int:
    """Return the most bytes of a model in a broadcast; changes are sent only if they are shorter than the whole."""
    return make_codec(_whole_codec(task)).size(task.stack.num_parameters)


def mean_payload(task: Task) -> int:
    """Return the mean bytes of a model in a broadcast, if changes have full length and K/S rounds are missed."""
    config, whole = task.config, largest_payload(task)
    if not sends_changes(config.broadcast_codec):
        return whole
    missed = config.num_clients / config.clients_per_round
    codec = make_codec(config.broadcast_codec)
    size = codec.size(task.stack.num_parameters)
    if codec.sums is not None:
        # Values of the sum are at most `missed` times as large.
        return min(whole, round(size + task.stack.num_parameters * math.log2(missed) / 8))
    return min(whole, round((_LENGTH.size + size) * missed))


def find_base_round(accepted: tuple[int, ...]) -> int:
    """Return the round of a client's base model, given its last accepted update; 0: the initial model."""
    return accepted[0] - 1 if accepted else 0


def encode_change(codec: str, seed: int, round_index: int, model: Tensor, base: Tensor) -> tuple[bytes, Tensor]:
    """Return the encoded change of a round, and the base model after it."""
    coder = make_codec(codec)
    if coder.sums is not None:
        return coder.sums.encode_change(model, base)
    payload = coder.encode(model - base, generator(seed, "broadcast", round_index))
    return payload, base + _decode(codec, seed, round_index, memoryview(payload), len(base)).to(base.device)


def drop_old(changes: Changes, base_rounds: Iterable[int], num_parameters: int) -> Changes:
    """Return the changes that a client may still need: newer than every base model, shorter than the whole model."""
    oldest, left = min(base_rounds), make_codec(WHOLE).size(num_parameters)
    kept = {}
    for round_index in sorted(changes, reverse=True):
        left -= _LENGTH.size + len(changes[round_index])
        if round_index <= oldest or left <= 0:
            break
        kept[round_index] = changes[round_index]
    return kept


def write_model(
    codec: str, seed: int, finished: int, model: Tensor, changes: Changes, base_round: int
) -> tuple[str, bytes]:
    """Return codec and payload for a client with the base model of `base_round`; `model` is that of the last round."""
    if finished == 0:
        return "initial", b""
    if sends_changes(codec):
        missing = range(base_round + 1, finished + 1)
        parts = [part for n in missing if n in changes for part in (_LENGTH.pack(len(changes[n])), changes[n])]
        if len(parts) == 2 * len(missing) and sum(map(len, parts)) < make_codec(WHOLE).size(len(model)):
            return codec, b"".join(parts)
        codec = WHOLE
    return codec, make_codec(codec).encode(model, generator(seed, "broadcast", finished))


def write_models(
    task: Task, seed: int, finished: int, model: Tensor, changes: Changes, rounds: Collection[int]
) -> dict[int, tuple[str, bytes]]:
    """Return codec and payload by round, for clients with the base models of these rounds."""
    name = task.config.broadcast_codec
    adder = make_codec(name).sums
    if not finished or adder is None:
        return {base_round: write_model(name, seed, finished, model, changes, base_round) for base_round in rounds}
    sums = adder.add_up(changes, finished, len(model), rounds)
    written = {base_round: (name, payload) for base_round, payload in sums.items()}
    if len(written) < len(rounds):
        since_start = adder.encode_difference(model, task.initial(seed))
        if since_start is not None and len(since_start) < largest_payload(task):
            whole = SINCE_START, since_start
        else:
            whole = WHOLE, make_codec(WHOLE).encode(model, generator(seed, "broadcast", finished))
        written |= dict.fromkeys(set(rounds) - written.keys(), whole)
    return written


def read_model(header: BroadcastHeader, payload: memoryview, task: Task, kept: Mapping[str, Tensor]) -> Tensor:
    """Return the model of a broadcast, given what this client keeps, or raise Rejected."""
    codec, size = task.config.broadcast_codec, task.stack.num_parameters
    changes, adder = sends_changes(codec), make_codec(codec).sums
    if header.codec == "initial" and not payload:
        return task.initial(header.seed)
    known = {codec, WHOLE} if changes else {codec}
    if adder is not None:
        known.add(SINCE_START)
    if header.codec not in known:
        raise Rejected(Reason.CODEC, f"encoded as {header.codec!a}, {codec} was agreed")
    try:
        if adder is not None and header.codec == SINCE_START:
            model = adder.add(task.initial(header.seed), payload)
        elif changes and header.codec == codec:
            model = _add_changes(header, payload, task, kept)
        else:
            model = _decode(header.codec, header.seed, header.round - 1, payload, size)
    except ValueError as error:
        raise Rejected(Reason.SIZE, str(error)) from None
    if not task.stack.fits(model):
        raise Rejected(Reason.NON_FINITE, "the model contains NaN or infinity")
    return model


def write_extra(task: Task, extra: Tensor) -> bytes:
    """Return the encoded extra vector of a remedy for drift; it is sent whole, since no client keeps it."""
    return make_codec(_whole_codec(task)).encode(extra, generator(0, "control"))


def read_extra(task: Task, payload: memoryview) -> Tensor:
    """Return the extra vector that a broadcast carries, or raise Rejected."""
    try:
        extra = make_codec(_whole_codec(task)).decode(payload, task.stack.num_parameters, generator(0, "control"))
    except ValueError as error:
        raise Rejected(Reason.SIZE, str(error)) from None
    if not task.stack.fits(extra):
        raise Rejected(Reason.NON_FINITE, "the control contains NaN or infinity")
    return extra


def keep_model(header: BroadcastHeader, model: Tensor, task: Task) -> dict[str, Tensor]:
    """Return what a client keeps of a model, so that later changes can be added to it."""
    if not sends_changes(task.config.broadcast_codec):
        return {}
    return {BASE: model, BASE_ROUND: torch.tensor(header.round - 1)}


def _add_changes(header: BroadcastHeader, payload: memoryview, task: Task, kept: Mapping[str, Tensor]) -> Tensor:
    round_index = find_base_round(tuple(header.accepted))
    if round_index == 0:
        model = task.initial(header.seed)
    elif BASE in kept and int(kept[BASE_ROUND]) == round_index:
        model = kept[BASE]
    else:
        raise Rejected(
            Reason.STATE, f"this client no longer has the model of round {round_index}, on which changes build"
        )
    adder = make_codec(task.config.broadcast_codec).sums
    if adder is not None:
        return adder.add(model, payload)
    while payload:
        round_index += 1
        if len(payload) < _LENGTH.size:
            raise ValueError(f"{len(payload)} bytes left over after the change of round {round_index - 1}")
        stop = _LENGTH.size + _LENGTH.unpack_from(payload)[0]
        change, payload = payload[_LENGTH.size : stop], payload[stop:]
        model = model + _decode(task.config.broadcast_codec, header.seed, round_index, change, len(model))
    if round_index != header.round - 1:
        raise ValueError(f"changes up to round {round_index}, {header.round - 1} expected")
    return model


def _decode(codec: str, seed: int, round_index: int, payload: memoryview, length: int) -> Tensor:
    return make_codec(codec).decode(payload, length, generator(seed, "broadcast", round_index))
