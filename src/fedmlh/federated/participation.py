"""Who took part: one record for each attempt at a round, from which the run can be repeated in process."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fedmlh.federated.messages import Reason


@dataclass(frozen=True)
class Refusal:
    """A client whose reply did not count, or never came, and why."""

    client: int
    reason: Reason
    detail: str


@dataclass(frozen=True)
class Attempt:
    """Who was asked in one attempt at a round, whose update counted, and whose did not."""

    round: int
    attempt: int
    sampled: Sequence[int]
    accepted: Sequence[int]
    refused: Sequence[Refusal]

    def to_json(self) -> dict[str, Any]:
        """Return the record as JSON values, for a line of the log."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Any) -> "Attempt":
        """Return the record that a line stands for; KeyError, TypeError or ValueError if it stands for none."""
        sampled, accepted, refused = values["sampled"], values["accepted"], values["refused"]
        refusals = [Refusal(entry["client"], Reason(entry["reason"]), entry["detail"]) for entry in refused]
        numbers = [values["round"], values["attempt"], *sampled, *accepted, *(entry.client for entry in refusals)]
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise TypeError("a number that is not whole")
        if not all(isinstance(entry.detail, str) for entry in refusals):
            raise TypeError("a detail that is not text")
        if values["round"] < 1:
            raise ValueError("rounds count from 1")
        if not set(accepted) <= set(sampled) or len(set(accepted)) != len(accepted):
            raise ValueError("a client counts that was not asked, or twice")
        return cls(values["round"], values["attempt"], sampled, accepted, refusals)


def list_refused(log: Sequence[Attempt]) -> list[dict[str, Any]]:
    """Return the clients that were left out in these attempts, as the record of a round lists them."""
    return [{"attempt": line.attempt, **vars(entry)} for line in log for entry in line.refused]


def check_log(log: Sequence[Attempt], rounds: int, more: int = 0) -> None:
    """Raise a ValueError unless a log has, in order, the attempts at `rounds` rounds and `more` at the next."""
    round_index, attempt = 0, 0
    for line in log:
        if (line.round, line.attempt) not in ((round_index, attempt + 1), (round_index + 1, 0)):
            raise ValueError(f"round {line.round}, attempt {line.attempt} is out of order")
        round_index, attempt = line.round, line.attempt
    if (round_index, attempt) != (rounds + 1, more - 1) if more else round_index != rounds:
        raise ValueError(f"it ends with round {round_index}, attempt {attempt}")
