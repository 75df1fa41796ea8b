"""The one wire format: magic, version, header length, JSON header, payload, SHA-256 of all before it.

Both directions use it, and so does every engine: what is counted, validated and aggregated in a simulation is
what a real federation sends.
"""

import dataclasses
import hashlib
import json
import math
import struct
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

MAGIC = b"FMLH"
VERSION = 1
MAX_HEADER = 64 * 1024
_PREFIX = struct.Struct("<4sHI")
_DIGEST = 32
#: The bytes of a message beside header and payload.
FRAME = _PREFIX.size + _DIGEST


class Reason(StrEnum):
    """Why a message does not count."""

    TOO_LARGE = "too large"
    MALFORMED = "malformed"
    CORRUPT = "corrupt"
    VERSION = "other format version"
    RUN = "other run"
    CONFIG = "other configuration"
    ROUND = "other round or attempt"
    CLIENT = "not sampled"
    DUPLICATE = "duplicate"
    CODEC = "other codec"
    SIZE = "wrong size"
    EXAMPLES = "implausible example count"
    NON_FINITE = "not finite"
    RANGE = "out of range"
    STATE = "state lost"
    FAILED = "client failed"
    LATE = "late"
    ABSENT = "not connected"


class Rejected(Exception):
    """A message that must not count, with the reason."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


def name_failure(error: Exception) -> Rejected:
    """Return what an engine yields for a client that refused or failed."""
    return error if isinstance(error, Rejected) else Rejected(Reason.FAILED, f"{type(error).__name__}: {error}")


@dataclass(frozen=True)
class BroadcastHeader:
    """Server to client: which round to train, from which model, with which hash functions."""

    run: str
    config: str
    round: int
    attempt: int
    client: int
    codec: str  # "initial": the model follows from the seed, the payload is empty
    seed: int
    label_seeds: list[int]
    feature_seeds: list[int]
    #: Round and attempt of this client's last accepted update: what it staged then is now its state.
    accepted: list[int]
    #: How many bytes at the payload's end are the extra vector of a remedy for drift; 0: there is none, or it is zero.
    control: int = 0
    #: The most steps that any client takes in a round, if a remedy for drift has to know it; else 0.
    steps: int = 0


@dataclass(frozen=True)
class UpdateHeader:
    """Client to server: which client's delta this is, and which broadcast it answers."""

    run: str
    config: str
    round: int
    attempt: int
    client: int
    codec: str
    examples: int
    loss: float
    #: How many bytes at the payload's end are the extra vector of a remedy for drift.
    control: int = 0


@dataclass(frozen=True)
class QuestionHeader:
    """Server to client: how good is this model on the client's held-out points, or the best it trains alone?"""

    run: str
    config: str
    round: int
    client: int
    seed: int
    label_seeds: list[int]
    feature_seeds: list[int]
    #: 1: about the client alone, and no model follows.
    alone: int
    #: How many bytes at the payload's end are the edges of bins of scores; 0: no histogram is asked for.
    edges: int = 0


@dataclass(frozen=True)
class ReportHeader:
    """Client to server: the answer, as sums over its points."""

    run: str
    config: str
    round: int
    client: int
    alone: int


@dataclass(frozen=True)
class RequestHeader:
    """Server to client: which sums over its points the client is asked for, or the result of all."""

    run: str
    config: str
    client: int
    part: str
    #: A name for the terms that the sums depend on; empty if they depend on none.
    terms: str
    seed: int
    label_seeds: list[int]
    feature_seeds: list[int]


@dataclass(frozen=True)
class StatisticsHeader:
    """Client to server: the sums that were asked for."""

    run: str
    config: str
    client: int
    part: str
    terms: str
    examples: int


Header = TypeVar("Header", BroadcastHeader, UpdateHeader, QuestionHeader, ReportHeader, RequestHeader, StatisticsHeader)
AnyHeader = BroadcastHeader | UpdateHeader | QuestionHeader | ReportHeader | RequestHeader | StatisticsHeader
_KINDS: dict[type, str] = {
    BroadcastHeader: "broadcast",
    UpdateHeader: "update",
    QuestionHeader: "question",
    ReportHeader: "report",
    RequestHeader: "request",
    StatisticsHeader: "statistics",
}


def pack(header: AnyHeader, payload: bytes | memoryview) -> bytes:
    """Return the message as it travels."""
    head = _write_head(header)
    prefix = _PREFIX.pack(MAGIC, VERSION, len(head))
    digest = hashlib.sha256(prefix + head)
    digest.update(payload)
    return b"".join((prefix, head, payload, digest.digest()))


def measure(header: AnyHeader, payload: bytes | memoryview) -> int:
    """Return the length of a message, without packing it."""
    return FRAME + len(_write_head(header)) + len(payload)


def claims(kind: type[Header], message: bytes) -> bool:
    """Say whether a message claims to be of this kind; the reader of that kind checks the rest."""
    if len(message) < FRAME:
        return False
    length = min(_PREFIX.unpack_from(message)[2], MAX_HEADER)
    try:
        return bool(json.loads(message[_PREFIX.size : _PREFIX.size + length])["kind"] == _KINDS[kind])
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def unpack(kind: type[Header], message: bytes, max_payload: int) -> tuple[Header, memoryview]:
    """Return header and payload of a message, or raise Rejected; nothing is parsed before size and digest hold."""
    view = memoryview(message)
    if len(view) > FRAME + MAX_HEADER + max_payload:
        raise Rejected(Reason.TOO_LARGE, f"{len(view):,} bytes")
    if len(view) < FRAME:
        raise Rejected(Reason.MALFORMED, f"only {len(view)} bytes")
    magic, version, length = _PREFIX.unpack_from(view)
    if magic != MAGIC:
        raise Rejected(Reason.MALFORMED, "not a fedmlh message")
    if version != VERSION:
        raise Rejected(Reason.VERSION, f"format {version}, this side speaks {VERSION}")
    if length > MAX_HEADER or FRAME + length > len(view):
        raise Rejected(Reason.MALFORMED, f"header of {length:,} bytes")
    if hashlib.sha256(view[:-_DIGEST]).digest() != view[-_DIGEST:]:
        raise Rejected(Reason.CORRUPT, "digest does not match")
    head = bytes(view[_PREFIX.size : _PREFIX.size + length])
    return _parse(kind, head), view[_PREFIX.size + length : -_DIGEST]


def _write_head(header: AnyHeader) -> bytes:
    return _canonical({"kind": _KINDS[type(header)], **dataclasses.asdict(header)})


def _parse(kind: type[Header], head: bytes) -> Header:
    try:
        values = json.loads(head)
        canonical = isinstance(values, dict) and _canonical(values) == head
    except (ValueError, RecursionError):
        canonical = False
    if not canonical:
        raise Rejected(Reason.MALFORMED, "header is not canonical JSON")
    if values.pop("kind", None) != _KINDS[kind]:
        raise Rejected(Reason.MALFORMED, f"not a message of kind {_KINDS[kind]}")
    fields = {entry.name: entry.type for entry in dataclasses.fields(kind)}
    if values.keys() != fields.keys():
        odd = sorted(values.keys() ^ fields.keys())[0]
        raise Rejected(Reason.MALFORMED, f"header field {odd[:40]!a} is missing or unknown")
    for name, expected in fields.items():
        if not _fits(values[name], expected):
            raise Rejected(Reason.MALFORMED, f"header field '{name}' is not of type {expected}")
    return kind(**values)


def _fits(value: Any, expected: Any) -> bool:
    if expected is str:
        return isinstance(value, str) and len(value) <= 64
    if expected is float:
        return isinstance(value, float) and math.isfinite(value)
    if expected is int:
        return type(value) is int and 0 <= value < 2**63
    return isinstance(value, list) and all(_fits(part, int) for part in value)


def _canonical(values: dict[str, Any]) -> bytes:
    return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
