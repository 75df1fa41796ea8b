"""The tables of the page that shows a run; each cell is HTML, and what comes from the events is escaped."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from fedmlh.display import escape_html
from fedmlh.runs.chronicle import Chronicle, Closed

MIB = 2**20
#: The most rows of a table; below it stands how many there are.
_MOST_ROWS = 200
NOTHING = "–"


def show_rounds(chronicle: Chronicle) -> str:
    """Return the table beside the curves."""
    if not chronicle.rounds:
        return ""
    lines = [line for _, line in sorted(chronicle.rounds.items(), reverse=True)]
    ks = sorted({k for line in lines for k in line.precision})
    attempts = _count_attempts(chronicle)
    head = ["round", *(f"P@{k} %" for k in ks), "MiB to server", "MiB to clients", "seconds", "attempts", "ended"]
    rows = [
        [
            f"{line.round:,}",
            *(show_share(line.precision[k]) if k in line.precision else NOTHING for k in ks),
            f"{line.bytes_up / MIB:,.2f}",
            f"{line.bytes_down / MIB:,.2f}",
            f"{line.seconds:,.1f}",
            f"{attempts.get(line.round, 1):,}",
            show_time(line.time),
        ]
        for line in lines[:_MOST_ROWS]
    ]
    return "<h2>Rounds</h2>" + _table("rounds, the last one first", head, rows, len(lines), numbers=len(head))


def _count_attempts(chronicle: Chronicle) -> dict[int, int]:
    """Count the attempts at each round; in one round it is what clients were asked for."""
    found: dict[int, int] = {}
    for round_index, _ in chronicle.attempts:
        found[round_index] = found.get(round_index, 0) + 1
    return found


@dataclass
class _Client:
    """What one client has done."""

    counted: int = 0
    refused: int = 0
    clipped: int = 0
    last: str = ""
    time: float = 0.0

    def answer(self, place: tuple[int, int], closed: Closed, said: str) -> None:
        """Note an answer, which may be the last."""
        if closed.time >= self.time:
            part = "" if closed.part in ("", "updates") else f" ({closed.part})"
            self.last, self.time = f"round {place[0]:,}{part}: {said}", closed.time


def show_clients(chronicle: Chronicle) -> str:
    """Return the table of clients, or of sites: what each has done, and its last answer."""
    beginning = chronicle.beginning
    if beginning is None:
        return ""
    clients: dict[int, _Client] = {number: _Client() for number in range(min(len(beginning.sites), beginning.clients))}
    for place, closed in chronicle.attempts.items():
        for number in closed.accepted:
            client = clients.setdefault(number, _Client())
            client.counted += 1
            client.answer(place, closed, "counted")
        for entry in closed.refused:
            client = clients.setdefault(entry.client, _Client())
            client.refused += 1
            client.answer(place, closed, f"{entry.reason}, {entry.detail}")
    for line in chronicle.rounds.values():
        for number in line.clipped:
            clients.setdefault(number, _Client()).clipped += 1
    waiting = chronicle.waiting
    for number in () if waiting is None else waiting.clients:
        clients.setdefault(number, _Client())
    if not clients:
        return ""
    order = sorted(clients)
    if len(order) > _MOST_ROWS:
        order.sort(key=lambda number: (-clients[number].refused, -clients[number].clipped, number))
    asked = frozenset(() if waiting is None else waiting.clients)
    rows = []
    for number in order[:_MOST_ROWS]:
        client = clients[number]
        now = NOTHING
        if waiting is not None and number in asked:
            now = "has replied" if number in waiting.replied else f"asked {show_time(waiting.time)}"
        rows.append(
            [
                escape_html(_name_client(number, beginning.sites)),
                f"{client.counted:,}",
                f"{client.refused:,}",
                f"{client.clipped:,}",
                now,
                show_time(client.time) if client.time else NOTHING,
                escape_html(client.last) or NOTHING,
            ]
        )
    names = "Sites" if beginning.sites else "Clients"
    head = [names[:-1].lower(), "counted", "refused", "scaled down", "now", "last answer", "what it was"]
    return f"<h2>{names}</h2>" + _table(f"{names.lower()} and their last answers", head, rows, len(clients), numbers=4)


def _name_client(number: int, sites: Sequence[str]) -> str:
    return sites[number] if number < len(sites) else f"client {number}"


def show_refusals(chronicle: Chronicle) -> str:
    """Return the table of replies that did not count, and why."""
    beginning = chronicle.beginning
    if beginning is None or not chronicle.attempts:
        return ""
    counts = chronicle.count_refusals()
    if not counts:
        return '<h2>Refusals</h2><p class="note">No reply was refused.</p>'
    said = ", ".join(f"{reason} {number:,}" for reason, number in counts.most_common(20))
    latest = sorted(chronicle.attempts.items(), key=lambda item: item[1].time, reverse=True)
    refused = ((place, closed, entry) for place, closed in latest for entry in closed.refused)
    rows = [
        [
            show_time(closed.time),
            f"{place[0]:,}",
            f"{place[1] + 1:,}" if closed.part in ("", "updates") else escape_html(closed.part),
            escape_html(_name_client(entry.client, beginning.sites)),
            escape_html(entry.reason),
            escape_html(entry.detail),
        ]
        for place, closed, entry in islice(refused, _MOST_ROWS)
    ]
    head = ["time", "round", "attempt", "site" if beginning.sites else "client", "reason", "detail"]
    table = _table("refusals, the last one first", head, rows, counts.total(), numbers=0)
    return f'<h2>Refusals</h2><p class="note">By reason: {escape_html(said)}.</p>{table}'


def _table(about: str, head: Sequence[str], rows: Iterable[Sequence[str]], total: int, *, numbers: int) -> str:
    """Return a table whose cells are HTML already; the first `numbers` columns hold numbers."""
    kinds = ["n" if place < numbers else "t" for place in range(len(head))]
    first = "".join(
        f'<th scope="col" class="{kind}">{escape_html(cell)}</th>' for kind, cell in zip(kinds, head, strict=True)
    )
    lines = []
    for name, *cells in rows:
        others = "".join(f'<td class="{kind}">{cell}</td>' for kind, cell in zip(kinds[1:], cells, strict=True))
        lines.append(f'<tr><th scope="row" class="t">{name}</th>{others}</tr>')
    more = f'<p class="note">{len(lines):,} of {total:,} are shown.</p>' if total > len(lines) else ""
    # Whoever has no mouse scrolls a table that has the focus.
    return (
        f'<div class="scroll" id="{head[0]}-table" tabindex="0" role="region" aria-label="{escape_html(about)}">'
        f"<table><thead><tr>{first}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>{more}"
    )


def show_share(share: float) -> str:
    """Return a share in per cent."""
    return f"{100 * share:.1f}"


def show_time(when: float) -> str:
    """Return a time of this machine, as HTML."""
    there = datetime.fromtimestamp(when).astimezone()
    return f'<time datetime="{there.isoformat(timespec="seconds")}">{there:%d %b %H:%M:%S}</time>'
