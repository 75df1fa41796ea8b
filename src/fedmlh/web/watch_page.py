"""The page that shows a run: all of it is made here, so that it says the same without JavaScript.

Names, reasons and sentences come from a file that strangers may have written: they are escaped one by one.
"""

import base64
import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import pairwise
from statistics import median
from string import Template

from fedmlh.display import count, escape_html
from fedmlh.runs.chronicle import Chronicle, Round
from fedmlh.web.curves import Curve, draw_curves
from fedmlh.web.watch_tables import MIB, NOTHING, show_clients, show_refusals, show_rounds, show_share, show_time

#: Time left follows from this many rounds.
_RECENT = 10
#: Seconds between two looks of the page, while the run works and afterwards.
_OFTEN, _SELDOM = 2, 15


@dataclass(frozen=True)
class View:
    """What is known of a run folder at a time."""

    folder: str
    chronicle: Chronicle
    #: Whether a process of this machine writes to the folder.
    is_held: bool
    time: float
    #: Why the events cannot be read.
    problem: str = ""
    #: Whether the run in the folder has finished, by its other files.
    has_summary: bool = False

    @property
    def works(self) -> bool:
        """Say whether the run has begun and not ended, as far as its events tell."""
        return self.chronicle.beginning is not None and self.chronicle.outcome is None


@cache
def read_page() -> tuple[Template, str]:
    """Return the page to be filled, and the policy that allows its own script and style and nothing else."""
    text = files(__package__).joinpath("watch.html").read_text("utf-8")
    kinds = {}
    for kind in ("script", "style"):
        (content,) = re.findall(rf"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
        kinds[kind] = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{kinds['script']}'; style-src 'sha256-{kinds['style']}'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Template(text), policy


def render(view: View) -> str:
    """Return the page."""
    template, _ = read_page()
    title, lead = _name(view)
    sections = {
        "now": _show_now(view),
        "curves": _show_curves(view.chronicle),
        "rounds": show_rounds(view.chronicle),
        "clients": show_clients(view.chronicle),
        "refusals": show_refusals(view.chronicle),
    }
    return template.substitute(
        title=escape_html(title),
        heading=escape_html(lead),
        folder=escape_html(view.folder),
        said=escape_html(_announce(view)),
        seconds=_OFTEN if view.works and view.is_held else _SELDOM,
        time=show_time(view.time),
        sections="".join(f'<section id="{name}">{content}</section>' for name, content in sections.items()),
    )


def _name(view: View) -> tuple[str, str]:
    """Return the titles of the window and of the page."""
    beginning, latest = view.chronicle.beginning, view.chronicle.latest
    if beginning is None:
        return "fedmlh watch", "No run yet"
    finished = 0 if latest is None else latest.round
    state = view.chronicle.outcome or f"{finished}/{beginning.rounds}"
    method = "" if beginning.method == beginning.name else f"{beginning.method}, "
    return f"{state} – {beginning.name}", f"{beginning.name}: {method}seed {beginning.seed}"


def _announce(view: View) -> str:
    """Return what a screen reader is told as it changes: finished rounds and the end, not every reply."""
    chronicle = view.chronicle
    if view.problem or chronicle.outcome is not None or chronicle.latest is None or chronicle.beginning is None:
        return tell_state(view)
    return f"Round {chronicle.latest.round:,} of at most {chronicle.beginning.rounds:,} has finished."


def tell_state(view: View) -> str:
    """Return in a sentence or two what the run does, or how it ended."""
    chronicle, beginning = view.chronicle, view.chronicle.beginning
    if view.problem:
        return f"The events cannot be shown: {view.problem}."
    if beginning is None:
        if view.has_summary:
            return "This run wrote no events, which earlier versions did not: fedmlh report shows what it found."
        return "There are no events yet. The run is shown here as soon as it begins."
    rounds = 0 if chronicle.latest is None else chronicle.latest.round
    after = f"after {count(rounds, 'round')}"
    if chronicle.outcome == "finished":
        return f"Finished {after}." + _tell_tested(chronicle)
    if chronicle.outcome == "failed":
        return f"Ended {after} without a model: {chronicle.problem}"
    if chronicle.outcome is not None:
        return f"Stopped {after}; it can be resumed from there."
    if not view.is_held:
        return (
            f"No process of this machine writes to the folder any more, and the run has not ended, {after}: it was "
            "killed and can be resumed, or it runs elsewhere."
        )
    waiting = chronicle.waiting
    if waiting is None:
        doing = chronicle.step or ("measuring" if (rounds + 1, 0) in chronicle.attempts else "beginning")
        return f"Round {min(rounds + 1, beginning.rounds):,} of at most {beginning.rounds:,}: {doing}."
    noun = "site" if beginning.sites else "client"
    asked = f"{len(waiting.replied):,} of {count(len(waiting.clients), noun)} replied ({waiting.part})"
    again = f", attempt {waiting.attempt + 1:,}" if waiting.attempt and waiting.part == "updates" else ""
    return f"Round {waiting.round:,} of at most {beginning.rounds:,}{again}: {asked}."


def _tell_tested(chronicle: Chronicle) -> str:
    if not chronicle.tested:
        return ""
    names, shares = "/".join(map(str, chronicle.tested)), "/".join(map(show_share, chronicle.tested.values()))
    return f" Round {chronicle.best_round} was the best; on test points P@{names} is {shares} %."


def estimate_left(chronicle: Chronicle, now: float) -> float | None:
    """Return about how many seconds all rounds that are left will take; None if it cannot be said.

    The first round after a start also loads and compiles: it counts only if there is no other.
    """
    beginning, latest = chronicle.beginning, chronicle.latest
    if beginning is None or latest is None or chronicle.outcome is not None:
        return None
    ends = [line.time for _, line in sorted(chronicle.rounds.items()) if line.time >= beginning.time]
    spent = [after - before for before, after in pairwise([beginning.time, *ends])]
    if not spent:
        return None
    one = max(0.0, median(spent[-_RECENT:] if len(spent) == 1 else spent[1:][-_RECENT:]))
    left = max(0, beginning.rounds - latest.round)
    return one * left - (min(one, max(0.0, now - latest.time)) if left else 0.0)


def _show_now(view: View) -> str:
    chronicle, beginning = view.chronicle, view.chronicle.beginning
    kind = "problem" if view.problem or chronicle.outcome == "failed" else "state"
    parts = [f'<p class="{kind}">{escape_html(tell_state(view))}</p>']
    if chronicle.unreadable:
        what = f"{count(chronicle.unreadable, 'line')} of events.jsonl could not be read and "
        said = "is left out" if chronicle.unreadable == 1 else "are left out"
        parts.append(f'<p class="note">{what}{said}: a process that is killed may cut one off.</p>')
    if beginning is None:
        return "".join(parts)
    latest, left = chronicle.latest, estimate_left(chronicle, view.time)
    best = chronicle.rounds.get(chronicle.best_round or 0) or max(chronicle.rounds.values(), key=_score, default=None)
    sent = sum(line.bytes_up + line.bytes_down for line in chronicle.rounds.values())
    facts = {"rounds finished": f"{0 if latest is None else latest.round:,} of at most {beginning.rounds:,}"}
    facts["time left"] = NOTHING if left is None or not view.is_held else f"about {_show_span(left)}"
    if best is not None and best.precision:
        ks, shares = "/".join(map(str, best.precision)), "/".join(map(show_share, best.precision.values()))
        facts |= {"best round": f"{best.round:,}", f"its P@{ks}, {best.judged}": f"{shares} %"}
    facts |= {
        "MiB sent": f"{sent / MIB:,.2f}",
        "clients": f"{beginning.clients:,}, {beginning.sampled:,} per round",
        "refused": f"{chronicle.count_refusals().total():,}",
        "scaled down": f"{sum(len(line.clipped) for line in chronicle.rounds.values()):,}",
        "began": show_time(beginning.time),
        "last event": NOTHING if chronicle.time is None else show_time(chronicle.time),
    }
    shown = "".join(f"<div><dt>{escape_html(name)}</dt><dd>{value}</dd></div>" for name, value in facts.items())
    parts.append(f"<dl>{shown}</dl>")
    if beginning.patience and chronicle.outcome is None and beginning.rounds > 1:
        rounds = count(beginning.patience, "round")
        parts.append(f'<p class="note">The run ends earlier if {rounds} in turn bring no better one.</p>')
    return "".join(parts)


def _score(line: Round) -> float:
    """Return by what the best round is selected: the mean of P@k."""
    return sum(line.precision.values()) / len(line.precision) if line.precision else -1.0


def _show_curves(chronicle: Chronicle) -> str:
    lines = [line for _, line in sorted(chronicle.rounds.items())]
    judged = [line for line in lines if line.precision]
    if not judged:
        return ""
    sent, total = {}, 0.0
    for line in lines:
        total += (line.bytes_up + line.bytes_down) / MIB
        sent[line.round] = total
    part = escape_html(f"P@k in % on {judged[-1].judged or 'no'} points")
    drawings = []
    for name, across in (("round", {line.round: float(line.round) for line in lines}), ("MiB sent", sent)):
        curves = []
        for k in judged[-1].precision:
            points = [(across[line.round], 100 * line.precision[k]) for line in judged if k in line.precision]
            curves.append(Curve(f"P@{k}", points))
        drawn = draw_curves(f"P@k by {name}; the table of rounds has the numbers", name, curves)
        drawings.append(f"<figure><figcaption>{part}, by {name}</figcaption>{drawn}</figure>")
    return f'<h2>Curves</h2><div class="row">{"".join(drawings)}</div>'


def _show_span(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:,.1f} h"
