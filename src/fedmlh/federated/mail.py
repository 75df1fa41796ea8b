"""Messages to clients and their replies, which carry deltas of a model or sums over points.

A server gives an engine an outbox with the message for each client. The engine lets the clients answer. An inbox takes
their replies through a door, which decides whether a reply counts.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from fedmlh.federated.client import Memory
from fedmlh.federated.messages import BroadcastHeader, Reason, Rejected, RequestHeader, measure, pack
from fedmlh.federated.participation import Attempt, Refusal

#: What a reply contributes.
Content = TypeVar("Content")
Content_co = TypeVar("Content_co", covariant=True)
#: What a client answers: a message, or why there is none.
Reply = bytes | Rejected
#: Header and payload of a message.
Letter = tuple[BroadcastHeader | RequestHeader, bytes]


class Participant(Protocol):
    """A client, as an engine knows it."""

    def answer(self, message: bytes, memory: Memory, /) -> tuple[bytes, Memory]:
        """Return the reply to a message and what the client keeps, or raise Rejected."""


class Door(Protocol[Content_co]):
    """Decides which replies count."""

    def check(self, client_id: int, reply: bytes, taken: Collection[int], /) -> Content_co:
        """Return what a reply contributes, or raise Rejected; the replies of the clients in `taken` count already."""


class Inbox(Generic[Content]):
    """The replies to one attempt at a round: whose reply counts, and who is left out."""

    def __init__(self, place: tuple[int, int], asked: Collection[int], door: Door[Content]) -> None:
        """Take round and attempt, the clients that are asked, and the door."""
        self.place = place
        self.asked = frozenset(asked)
        self.door = door
        self.accepted: set[int] = set()
        self.refused: list[Refusal] = []
        self.bytes_up = 0

    def take(self, client_id: int, reply: Reply) -> Content | None:
        """Return what a reply contributes; if it does not count, note why and return None."""
        try:
            if isinstance(reply, Rejected):
                raise reply
            self.bytes_up += len(reply)
            content = self.door.check(client_id, reply, self.accepted)
        except Rejected as refusal:
            self.refused.append(Refusal(client_id, refusal.reason, refusal.detail))
            return None
        self.accepted.add(client_id)
        return content

    def close(self) -> Attempt:
        """Return who took part, ordered by client; a client that was asked and did not reply is late."""
        silent = self.asked - self.accepted - {entry.client for entry in self.refused}
        self.refused += [Refusal(client_id, Reason.LATE, "no reply came") for client_id in silent]
        self.refused.sort(key=lambda entry: entry.client)
        return Attempt(*self.place, sorted(self.asked), sorted(self.accepted), self.refused)


class Part(Protocol):
    """Counts some of the replies to an attempt in another process, so that they need not travel."""

    def add(self, client_id: int, reply: Reply, /) -> None:
        """Count a reply, or note why it does not count."""


PartT = TypeVar("PartT", bound=Part)


class Outbox(Generic[PartT]):
    """The message for each client in one attempt at a round."""

    def __init__(
        self, place: tuple[int, int], write: Callable[[int], Letter], part: Callable[[], PartT] | None = None
    ) -> None:
        """Take round and attempt, and what writes the letter for a client.

        `part`, which can be pickled, makes what counts replies in another process; None: all replies must come here.
        """
        self.place = place
        self.part = part
        #: Clients and bytes of what was sent; appended to by the engine's threads, so not a running sum.
        self.sent: list[tuple[int, int]] = []
        self._write = write

    def write(self, client_id: int) -> Letter:
        """Return header and payload for a client, to be packed elsewhere; they count as sent.

        Clients that are sent the same share one payload.
        """
        letter = self._write(client_id)
        self.sent.append((client_id, measure(*letter)))
        return letter

    def __call__(self, client_id: int) -> bytes:
        """Return the message for a client, which counts as sent."""
        message = pack(*self._write(client_id))
        self.sent.append((client_id, len(message)))
        return message


#: How an engine reaches clients: given clients to ask and their messages, it yields (client_id, reply) in any order, or
#: parts that have counted replies in other processes. If a client could not answer, its reply is the Rejected that
#: says why. A client without a reply is late.
Ask = Callable[[Sequence[int], Outbox[PartT]], Iterable[tuple[int, Reply] | PartT]]
