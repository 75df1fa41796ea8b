"""λ if the server has no points: clients are asked for the sums over the points that they hold out."""

from collections.abc import Collection, Iterable, Iterator

from fedmlh.federated.messages import Rejected
from fedmlh.oneround.choose import Choice
from fedmlh.oneround.desk import Question
from fedmlh.oneround.exchange import HELD_OUT
from fedmlh.oneround.holding import LEAST, POWER, RIDGE, Extent, choose_ridge
from fedmlh.oneround.solve import NotPositive
from fedmlh.oneround.sums import Adder, Sums
from fedmlh.oneround.terms import Terms
from fedmlh.runs.journal import Journal
from fedmlh.runs.one_round.closing import Closing
from fedmlh.runs.one_round.collecting import Exchange


class HeldOut:
    """The sums over held-out points of the clients whose sums over all points count."""

    def __init__(self, exchange: Exchange, terms: Terms, num_slots: int) -> None:
        """Take the exchange and the terms with which the sums over all points are collected."""
        self.exchange, self.terms, self.num_slots = exchange, terms, num_slots
        self.total = self._add_up(())
        self._extents: dict[int, Extent] = {}

    def note(self, client: int, sums: Sums) -> None:
        """Note what bounds the held-out part of a client whose sums over all points have come."""
        self._extents[client] = Extent.of(sums)

    def collect(self) -> None:
        """Ask these clients; a client that sends nothing is left out."""
        question = Question(HELD_OUT, self.terms.encode(), self._read)
        found = self.exchange.collect(question, sorted(self._extents))
        self.total = self._add_up(sums for _, sums in found)

    def leave_out(self, clients: Collection[int]) -> None:
        """Remove what these clients have sent."""
        self.total -= self._add_up(self._read_back(clients))

    def _read_back(self, clients: Collection[int]) -> Iterator[Sums]:
        """Yield the sums of these clients that counted, from disk: the first of each that can be read."""
        seen = set()
        for client, message in Journal(self.exchange.folder / f"{HELD_OUT}.bin").read():
            if client in clients and client not in seen:
                try:
                    yield self._read(client, message)
                except Rejected:
                    continue
                seen.add(client)

    def _read(self, client: int, message: bytes) -> Sums:
        desk = self.exchange.desk
        return desk.read_held_out(client, message, self.terms, self.num_slots, self._extents[client])

    def _add_up(self, parts: Iterable[Sums]) -> Sums:
        adder = Adder(self.num_slots, self.exchange.desk.num_outputs)
        for part in parts:
            adder.add(part)
        return adder.result()


def choose_without_points(closing: Closing, sums: Sums, held_out: Sums | None) -> tuple[Choice, str]:
    """Return λ, the power and the origin of λ, given the sums over all points and, if asked for, held-out ones."""
    config = closing.task.config
    power = POWER if config.count_power < 0 else config.count_power
    if held_out is None:
        return Choice.given(config.ridge, power), "set"
    problem = f"{held_out.points:,} held-out points are fewer than {LEAST}"
    if held_out.points >= LEAST:
        try:
            ridge = choose_ridge(closing.pose(sums - held_out), closing.pose(held_out), closing.device)
        except NotPositive:
            problem = "no points have these held-out sums"
        else:
            why = f"least squared error on {held_out.points:,} held-out points"
            closing.tell(f"λ {ridge:g}, scores divided by count^{power:g}: {why}")
            return Choice.given(ridge, power), "held-out sums"
    closing.tell(f"λ {RIDGE:g}, scores divided by count^{power:g}: not chosen, since {problem}")
    return Choice.given(RIDGE, power), "default"
