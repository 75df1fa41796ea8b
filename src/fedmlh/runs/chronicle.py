"""What the events of a run say so far; any file may stand under their name, so every value is checked.

A line that cannot be read is left out and counted: a process that was killed may have cut one off. Where two lines say
something about one round or attempt, the later one counts.
"""

import os
from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedmlh.errors import UserError
from fedmlh.untrusted import open_regular, parse_json

EVENTS = "events.jsonl"
#: The most bytes of the file: some ten thousand rounds of a thousand clients each.
_MOST_BYTES = 2**27
#: The most bytes of a line, which may list all clients.
_MOST_LINE = 2**23
_CHUNK = 2**20
#: The most characters of a name, and of a sentence.
_MOST_NAME, _MOST_TEXT = 200, 1000
_MOST_NUMBER = 2**64
#: The end of the year 9998, so that every time zone can show it.
_MOST_TIME = 253_370_764_800
#: The most values of k.
_MOST_SHARES = 100


@dataclass(frozen=True)
class Beginning:
    """How a run began, or was resumed."""

    time: float
    name: str
    method: str
    seed: int
    clients: int
    sampled: int
    rounds: int
    patience: int
    sites: list[str]


@dataclass(frozen=True)
class Waiting:
    """An attempt whose clients are asked."""

    time: float
    round: int
    attempt: int
    part: str
    clients: "array[int]"
    replied: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Refused:
    """A client whose reply did not count, and why."""

    client: int
    reason: str
    detail: str


@dataclass(frozen=True, slots=True)
class Closed:
    """An attempt that has ended."""

    time: float
    part: str
    accepted: "array[int]"
    refused: list[Refused]


@dataclass(frozen=True, slots=True)
class Round:
    """The figures of a finished round."""

    time: float
    round: int
    judged: str | None
    precision: dict[int, float]
    train_loss: float | None
    bytes_up: int
    bytes_down: int
    #: The factor by which the update of each client that was too long was scaled.
    clipped: dict[int, float]
    seconds: float


@dataclass
class Chronicle:
    """The state of a run, as its events tell it."""

    beginning: Beginning | None = None
    rounds: dict[int, Round] = field(default_factory=dict)
    #: By round and attempt.
    attempts: dict[tuple[int, int], Closed] = field(default_factory=dict)
    waiting: Waiting | None = None
    step: str | None = None
    best_round: int | None = None
    #: P@k on the test part.
    tested: dict[int, float] = field(default_factory=dict)
    #: How the run ended, and the sentence if it failed.
    outcome: str | None = None
    problem: str = ""
    #: When the last event was written.
    time: float | None = None
    #: How many lines could not be read.
    unreadable: int = 0

    def add(self, line: bytes) -> None:
        """Take in a line of the file."""
        try:
            values = parse_json(line)
            event, when = _text(values["event"], _MOST_NAME), _number(values["time"], _MOST_TIME)
            take = getattr(self, f"_take_{event}", None)
            if take is not None:  # else a newer version wrote it
                take(when, values)
            self.time = when
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            self.unreadable += 1

    @property
    def latest(self) -> Round | None:
        """Return the last finished round."""
        return self.rounds[max(self.rounds)] if self.rounds else None

    def count_refusals(self) -> Counter[str]:
        """Count refusals by their reason."""
        return Counter(entry.reason for closed in self.attempts.values() for entry in closed.refused)

    def _take_begin(self, when: float, values: Any) -> None:
        sites = [_text(site, _MOST_NAME) for site in _list(values["sites"])]
        name, method = (_text(values[name], _MOST_NAME) for name in ("name", "method"))
        seed, clients, sampled = (_whole(values[name]) for name in ("seed", "clients", "sampled"))
        rounds, patience = (_whole(values[name]) for name in ("rounds", "patience"))
        self.beginning = Beginning(when, name, method, seed, clients, sampled, rounds, patience, sites)
        if values["resumed"] is not True:
            self.rounds, self.attempts = {}, {}
        self.waiting = self.step = self.best_round = self.outcome = None
        self.tested, self.problem = {}, ""

    def _take_resume(self, when: float, values: Any) -> None:
        place = _whole(values["round"]) + 1, _whole(values["attempt"])
        self.rounds = {at: line for at, line in self.rounds.items() if at < place[0]}
        self.attempts = {at: line for at, line in self.attempts.items() if at < place}

    def _take_ask(self, when: float, values: Any) -> None:
        place, part = _place(values), _text(values["part"], _MOST_NAME)
        self.waiting = Waiting(when, *place, part, _clients(values["clients"]))
        self.step = None

    def _take_replies(self, when: float, values: Any) -> None:
        if self.waiting is not None and _place(values) == (self.waiting.round, self.waiting.attempt):
            self.waiting.replied.update(set(self.waiting.clients).intersection(_clients(values["clients"])))

    def _take_attempt(self, when: float, values: Any) -> None:
        place = _place(values)
        refused = [
            Refused(
                _clients([entry["client"]])[0],
                _text(entry["reason"], _MOST_NAME),
                _text(entry["detail"], _MOST_TEXT),
            )
            for entry in _list(values["refused"])
        ]
        asked = (
            self.waiting if self.waiting is not None and place == (self.waiting.round, self.waiting.attempt) else None
        )
        part = asked.part if asked is not None else self.attempts[place].part if place in self.attempts else ""
        self.attempts[place] = Closed(when, part, _clients(values["accepted"]), refused)
        if asked is not None:
            self.waiting = None

    def _take_round(self, when: float, values: Any) -> None:
        judged, loss = values["judged"], values["train_loss"]
        record = Round(
            when,
            _whole(values["round"]),
            None if judged is None else _text(judged, _MOST_NAME),
            _shares(values["precision"]),
            None if loss is None else _number(loss),
            _whole(values["bytes_up"]),
            _whole(values["bytes_down"]),
            {_clients([entry["client"]])[0]: _number(entry["factor"]) for entry in _list(values["clipped"])},
            _number(values["seconds"]),
        )
        self.rounds[record.round] = record

    def _take_step(self, when: float, values: Any) -> None:
        self.step = _text(values["name"], _MOST_NAME)

    def _take_result(self, when: float, values: Any) -> None:
        self.best_round, self.tested = _whole(values["best_round"]), _shares(values["precision"])

    def _take_end(self, when: float, values: Any) -> None:
        self.outcome = _text(values["outcome"], _MOST_NAME)
        self.problem = _text(values.get("problem", ""), _MOST_TEXT)
        self.waiting = self.step = None


class Follower:
    """Reads the events of a run folder as they come; each line is read once."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / EVENTS
        self._begin(None)

    def _begin(self, identity: tuple[int, int] | None) -> None:
        self.chronicle = Chronicle()
        self._identity = identity
        self._offset = 0
        self._begun = b""  # of a line whose end has not been written yet
        self._skips = False

    def read(self) -> Chronicle:
        """Return what the events say now; empty if there is no file yet. Raise UserError for what is no such file."""
        try:
            file = open_regular(self.path, _MOST_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            self._begin(None)
            return self.chronicle
        except OSError as error:
            raise UserError(f"{self.path} cannot be read ({error.strerror})") from None
        with file:
            about = os.fstat(file.fileno())
            identity = about.st_dev, about.st_ino
            if identity != self._identity or about.st_size < self._offset:
                self._begin(identity)
            file.seek(self._offset)
            while self._offset < about.st_size:
                chunk = file.read(min(_CHUNK, about.st_size - self._offset))
                if not chunk:
                    break
                self._offset += len(chunk)
                self._split(chunk)
        return self.chronicle

    def _split(self, chunk: bytes) -> None:
        """Take in the lines that end in a chunk; a line that is too long is left out."""
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            whole, self._begun = self._begun + line, b""
            if self._skips or len(whole) > _MOST_LINE:
                self.chronicle.unreadable += 1
            elif whole:
                self.chronicle.add(whole)
            self._skips = False
        self._begun += rest
        if len(self._begun) > _MOST_LINE:
            self._begun, self._skips = b"", True


def _text(value: Any, most: int) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    return value if len(value) <= most else f"{value[:most]}…"


def _number(value: Any, most: float = _MOST_NUMBER) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise ValueError("no number")
    return float(value)


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _MOST_NUMBER:
        raise ValueError("no whole number")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("no list")
    return value


def _clients(values: Iterable[Any]) -> "array[int]":
    """Return client_ids in little memory; OverflowError or TypeError for what is none."""
    return array("I", _list(values))


def _place(values: Any) -> tuple[int, int]:
    return _whole(values["round"]), _whole(values["attempt"])


def _shares(values: Any) -> dict[int, float]:
    """Return P@k by k, in the order of k."""
    shares = {int(k): _number(share, 1) for k, share in values.items()}
    if len(shares) > _MOST_SHARES or not all(0 < k < _MOST_NUMBER for k in shares):
        raise ValueError("no P@k")
    return {k: shares[k] for k in sorted(shares)}
