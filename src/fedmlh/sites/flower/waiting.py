"""Waiting before a run begins: for which sites, and for how long."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import httpx

from fedmlh.errors import UserError
from fedmlh.sites.enrolment import Enrolment
from fedmlh.sites.federation import Federation
from fedmlh.sites.flower.control import Control

#: Seconds between two checks of connections, and after which missing sites are named again.
PAUSE, REMIND = 1.0, 300.0


@dataclass(frozen=True)
class Patience:
    """Which sites a run waits for before it begins, and for how long."""

    min_sites: int | None = None  # None: all that have enrolled
    minutes: float | None = None  # None: until they are there


def choose_sites(federation: Federation, patience: Patience) -> dict[int, Enrolment]:
    """Return the sites that take part, or raise UserError if too few have enrolled.

    All listed sites must have enrolled, unless the operator says how many are enough or how long to wait for the rest.
    """
    listed, quorum = federation.agreement.sites, federation.agreement.config.quorum
    if patience == Patience():
        return federation.all_enrolments()
    least = patience.min_sites or 1
    if least > len(listed):
        raise UserError(f"--min-sites is {least}: this federation has {len(listed)} sites")
    found = federation.enrolments()
    needed = max(least, quorum)
    if len(found) < needed:
        why = f"a round needs {quorum} (quorum)" if needed == quorum else f"--min-sites wants {least}"
        missing = ", ".join(name for client_id, name in enumerate(listed) if client_id not in found)
        raise UserError(f"only {len(found)} sites have enrolled, {why}; not enrolled yet: {missing}")
    return found


def wait_for_sites(
    federation: Federation,
    control: Control,
    enrolments: Mapping[int, Enrolment],
    patience: Patience,
    tell: Callable[[str], None],
) -> bool:
    """Wait until enough sites are connected, and say who is missing; return False if the SuperLink has ended."""
    least = len(enrolments) if patience.min_sites is None else patience.min_sites
    end = None if patience.minutes is None else time.monotonic() + 60 * patience.minutes
    said, reminded = "", 0.0
    while True:
        try:
            statuses = control.statuses(enrolments)
        except httpx.HTTPError:
            return False
        online = {client_id for client_id, status in statuses.items() if status == "online"}
        missing = ", ".join(
            f"{name} (not {'connected' if client_id in enrolments else 'enrolled'})"
            for client_id, name in enumerate(federation.agreement.sites)
            if client_id not in online
        )
        enough = len(online) >= least
        if enough or (end is not None and time.monotonic() >= end):
            if missing:
                tell(f"begins with {len(online)} of {len(federation.agreement.sites)} sites; missing: {missing}")
            return True
        if missing != said or time.monotonic() > reminded + REMIND:
            tell(f"waits until {least} sites are connected; missing: {missing}")
            said, reminded = missing, time.monotonic()
        time.sleep(PAUSE)
