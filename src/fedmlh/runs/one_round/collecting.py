"""What clients are asked for in one round and what they answer, on disk as it comes."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedmlh.federated.messages import Reason, Rejected
from fedmlh.federated.participation import Attempt, Refusal
from fedmlh.oneround.exchange import COUNTS, HELD, RESULT, SUMS, Desk
from fedmlh.runs.journal import Journal
from fedmlh.runs.rounds import Tell

#: The file of the sums over the server's own points, which are in no client's.
OWN = "own"
#: How often a part says how far it is.
_LINES = 4
#: The first parts, in the order in which the log has them.
_PARTS = (COUNTS, SUMS)
#: How clients are reached: whom to ask, and the message for each, to replies in any order.
Ask = Callable[[Sequence[int], "Post"], Iterable[tuple[int, bytes | Rejected]]]


class Post:
    """The messages of one part of the exchange."""

    def __init__(self, attempt: int, write: Callable[[int], bytes]) -> None:
        #: Round and attempt, as the participation log counts them: each part is an attempt.
        self.place = (1, attempt)
        self.write = write

    def __call__(self, client: int) -> bytes:
        """Return the message for a client, which counts as sent."""
        return self.write(client)


@dataclass
class Exchange:
    """What was asked and answered so far, on disk as it comes."""

    desk: Desk
    ask: Ask
    #: The same, but those who are not there are not waited for.
    offer: Ask
    folder: Path
    tell: Tell
    bytes_up: int = 0
    bytes_down: int = 0
    #: Of these, what came after the server had its model.
    bytes_delivered: int = 0
    #: Who took part in which part.
    log: list[Attempt] = field(default_factory=list)

    def collect(
        self, part: str, clients: Sequence[int], payload: bytes, read: Callable[[int, bytes], Any]
    ) -> Iterator[tuple[int, Any]]:
        """Yield what each client says; those whose answer lies on disk already are not asked again."""
        known, wanted = set[int](), set(clients)
        refused: list[Refusal] = []
        sent: list[int] = []  # appended to by the engine's threads, so not a running sum
        with Journal(self.folder / f"{part}.bin") as journal:
            for client, message in journal.read():
                if client in wanted and client not in known:
                    content = self._take(client, message, read, known, [])
                    if content is not None:
                        known.add(client)
                        yield client, content
            missing = [client for client in clients if client not in known]
            if known:
                self.tell(f"{part}: {len(known):,} of {len(clients):,} clients had answered before")
            self.bytes_down += sum(len(self.desk.request(part, client, payload)) for client in known)
            replies = self.ask(missing, self._write(part, payload, sent)) if missing else ()
            for asked, (client, reply) in enumerate(replies, 1):
                content = self._take(client, reply, read, known, refused)
                if content is not None and isinstance(reply, bytes):
                    journal.append(client, reply)
                    known.add(client)
                    yield client, content
                if asked * _LINES // len(missing) > (asked - 1) * _LINES // len(missing):
                    self.tell(f"{part}: {len(known):,} of {len(clients):,} clients have answered")
            journal.sync()
        self.bytes_down += sum(sent)
        self._close(clients, known, refused)

    def deliver(self, clients: Sequence[int], payload: bytes) -> None:
        """Send these clients the result; who does not take it has had its part in it all the same."""
        taken, refused, sent = set[int](), list[Refusal](), list[int]()
        for client, reply in self.offer(clients, self._write(RESULT, payload, sent)):
            if self._take(client, reply, self.desk.read_thanks, taken, refused) is not None:
                taken.add(client)
        self.bytes_down += sum(sent)
        self.bytes_delivered += sum(sent)
        self._close(clients, taken, refused)

    def _close(self, clients: Sequence[int], accepted: set[int], refused: list[Refusal]) -> None:
        """Write a part into the log; who is in neither list has not answered."""
        answered = {entry.client for entry in refused} | accepted
        refused += [Refusal(client, Reason.LATE, "no reply came") for client in clients if client not in answered]
        refused.sort(key=lambda entry: entry.client)
        self.log.append(Attempt(1, len(self.log), list(clients), sorted(accepted), refused))

    def forget(self) -> None:
        """Delete what clients have sent, and the sums over the server's own points."""
        for part in (COUNTS, SUMS, HELD, OWN):
            (self.folder / f"{part}.bin").unlink(missing_ok=True)

    @property
    def figures(self) -> dict[str, Any]:
        """Return what the record of the round says of messages."""
        refused = [{"attempt": line.attempt, **vars(entry)} for line in self.log for entry in line.refused]
        sizes = {name: getattr(self, name) for name in ("bytes_up", "bytes_down", "bytes_delivered")}
        return {"attempts": len(self.log), "refused": refused, **sizes}

    def line_of(self, part: str) -> Attempt:
        """Return who took part in the counts or the sums."""
        return self.log[_PARTS.index(part)]

    def refuse_sums(self, clients: Collection[int], reason: Reason, detail: str) -> None:
        """Write down that the sums of these clients do not count after all, nor what they were asked for since."""
        place, line = _PARTS.index(SUMS), self.line_of(SUMS)
        refused = [*line.refused, *(Refusal(client, reason, detail) for client in clients)]
        refused.sort(key=lambda entry: entry.client)
        self.log[place] = replace(line, accepted=_without(clients, line.accepted), refused=refused)
        for number, later in enumerate(self.log[place + 1 :], place + 1):
            left = [entry for entry in later.refused if entry.client not in clients]
            asked, counted = (_without(clients, part) for part in (later.sampled, later.accepted))
            self.log[number] = replace(later, sampled=asked, accepted=counted, refused=left)

    def _write(self, part: str, payload: bytes, sent: list[int]) -> Post:
        def write(client: int) -> bytes:
            message = self.desk.request(part, client, payload)
            sent.append(len(message))
            return message

        return Post(len(self.log), write)

    def _take(
        self,
        client: int,
        reply: bytes | Rejected,
        read: Callable[[int, bytes], Any],
        known: set[int],
        refused: list[Refusal],
    ) -> Any:
        try:
            if isinstance(reply, Rejected):
                raise reply
            self.bytes_up += len(reply)
            if client in known:
                raise Rejected(Reason.DUPLICATE, "it has answered already")
            return read(client, reply)
        except Rejected as refusal:
            refused.append(Refusal(client, refusal.reason, refusal.detail))
            return None


def _without(clients: Collection[int], others: Sequence[int]) -> list[int]:
    return [client for client in others if client not in clients]
