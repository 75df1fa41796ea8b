"""The exchange with clients in one round: questions, and answers on disk as they come."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Never, TypeVar

from fedmlh.federated.mail import Inbox, Letter, Outbox, Reply
from fedmlh.federated.messages import Reason, measure
from fedmlh.federated.participation import Attempt, Refusal, list_refused
from fedmlh.oneround.desk import Desk, Question
from fedmlh.oneround.exchange import COUNTS, HELD_OUT, SUMS
from fedmlh.runs.events import NO_EVENTS, EventLog
from fedmlh.runs.journal import Journal
from fedmlh.runs.rounds import Tell

#: The file of the sums over the server's own points, which are in no client's.
OWN = "own"
#: How often a part reports its progress.
_LINES = 4
#: The first parts, in the order in which the log has them.
_PARTS = (COUNTS, SUMS)
#: How clients are reached, as federated.mail.Ask says; statistics travel as they are.
Ask = Callable[[Sequence[int], Outbox[Never]], Iterable[tuple[int, Reply]]]
Content = TypeVar("Content")


@dataclass
class Exchange:
    """The questions and answers so far; answers are on disk as they come."""

    desk: Desk
    ask: Ask
    #: The same, but without waiting for clients that are not connected.
    offer: Ask
    folder: Path
    tell: Tell
    events: EventLog = NO_EVENTS
    bytes_up: int = 0
    bytes_down: int = 0
    #: The bytes among these that were sent after the server had its model.
    bytes_delivered: int = 0
    #: Who took part in which part.
    log: list[Attempt] = field(default_factory=list)

    def collect(self, question: Question[Content], clients: Sequence[int]) -> Iterator[tuple[int, Content]]:
        """Yield the answer of each client; clients whose answer is on disk already are not asked again."""
        inbox, outbox = self._open(question, clients)
        with Journal(self.folder / f"{question.part}.bin") as journal:
            for client_id, message in journal.read():
                if client_id in inbox.asked and client_id not in inbox.accepted:
                    content = inbox.take(client_id, message)
                    if content is not None:
                        yield client_id, content
            inbox.refused.clear()  # answers that are damaged on disk are asked for again
            self.bytes_down += sum(measure(*self._write(question, client_id)) for client_id in inbox.accepted)
            missing = [client_id for client_id in clients if client_id not in inbox.accepted]
            if inbox.accepted:
                self.tell(f"{question.part}: {len(inbox.accepted):,} of {len(clients):,} clients had answered before")
            replies = self.events.listen(self.ask, question.part)(missing, outbox) if missing else ()
            for asked, (client_id, reply) in enumerate(replies, 1):
                content = inbox.take(client_id, reply)
                if content is not None and isinstance(reply, bytes):
                    journal.append(client_id, reply)
                    yield client_id, content
                if asked * _LINES // len(missing) > (asked - 1) * _LINES // len(missing):
                    self.tell(f"{question.part}: {len(inbox.accepted):,} of {len(clients):,} clients have answered")
            journal.sync()
        self._close(inbox, outbox)

    def deliver(self, clients: Sequence[int], payload: bytes) -> None:
        """Send these clients the result; a client that does not take it still counts as a participant."""
        question = self.desk.tell_result(payload)
        inbox, outbox = self._open(question, clients)
        for client_id, reply in self.events.listen(self.offer, question.part)(clients, outbox):
            inbox.take(client_id, reply)
        self.bytes_delivered += self._close(inbox, outbox)

    def _open(self, question: Question[Content], clients: Sequence[int]) -> tuple[Inbox[Content], Outbox[Never]]:
        """Begin a part of the exchange, which the participation log counts as an attempt."""
        place = 1, len(self.log)
        return Inbox(place, clients, question), Outbox(place, lambda client_id: self._write(question, client_id))

    def _write(self, question: Question[Any], client_id: int) -> Letter:
        return self.desk.write(question.part, client_id, question.payload), question.payload

    def _close(self, inbox: Inbox[Any], outbox: Outbox[Never]) -> int:
        """Write a part into the log; return the bytes that were sent."""
        sent = sum(length for _, length in outbox.sent)
        self.bytes_up += inbox.bytes_up
        self.bytes_down += sent
        self.log.append(inbox.close())
        self.events.close_attempt(self.log[-1])
        return sent

    def forget(self) -> None:
        """Delete what clients have sent, and the sums over the server's own points."""
        for part in (COUNTS, SUMS, HELD_OUT, OWN):
            (self.folder / f"{part}.bin").unlink(missing_ok=True)

    @property
    def figures(self) -> dict[str, Any]:
        """Return the figures on messages for the record of the round."""
        sizes = {name: getattr(self, name) for name in ("bytes_up", "bytes_down", "bytes_delivered")}
        return {"attempts": len(self.log), "refused": list_refused(self.log), **sizes}

    def line_of(self, part: str) -> Attempt:
        """Return who took part in the counts or the sums."""
        return self.log[_PARTS.index(part)]

    def refuse_sums(self, clients: Collection[int], reason: Reason, detail: str) -> None:
        """Record that the sums of these clients do not count, nor anything that they were asked for later."""
        place, line = _PARTS.index(SUMS), self.line_of(SUMS)
        refused = [*line.refused, *(Refusal(client, reason, detail) for client in clients)]
        refused.sort(key=lambda entry: entry.client)
        self.log[place] = replace(line, accepted=_without(clients, line.accepted), refused=refused)
        self.events.close_attempt(self.log[place])
        for attempt, later in enumerate(self.log[place + 1 :], place + 1):
            left = [entry for entry in later.refused if entry.client not in clients]
            asked, counted = (_without(clients, part) for part in (later.sampled, later.accepted))
            self.log[attempt] = replace(later, sampled=asked, accepted=counted, refused=left)
            self.events.close_attempt(self.log[attempt])


def _without(clients: Collection[int], others: Sequence[int]) -> list[int]:
    return [client for client in others if client not in clients]
