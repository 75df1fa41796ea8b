"""What holds for every request and every answer: names of the server, headers for browsers, no word in any log."""

import ipaddress
import logging
import socket
import traceback
from collections.abc import Iterable, Mapping

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedmlh.web.problem import CLOSE, Problem, answer_problem

LOG = logging.getLogger("fedmlh.web")
#: Nothing is fetched, run, framed or sent by an answer; a page has a policy of its own.
NOTHING = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
_ALWAYS: Mapping[str, str] = {
    "content-security-policy": NOTHING,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
_RAW = [(name.encode(), value.encode()) for name, value in _ALWAYS.items()]


class Guard:
    """Refuses foreign names and pages, adds headers, and answers a fault of the product without showing texts."""

    def __init__(self, app: ASGIApp, names: Iterable[str] | None, origins: Iterable[str]) -> None:
        """Take the names by which clients reach the server (None: any), and the origins whose pages may ask."""
        self.app = app
        self.origins = frozenset(origin.encode() for origin in origins)
        self.names = None if names is None else frozenset(name.lower().strip("[]") for name in names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the application answer, and complete what it says."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun = False

        async def send_with_headers(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                there = {name.lower() for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(pair for pair in _RAW if pair[0] not in there)]
            await send(message)

        try:
            problem = self._find_problem(scope)
            if problem is None:
                await self.app(scope, receive, send_with_headers)
            else:
                await answer_problem(problem)(scope, receive, send_with_headers)
        except Exception as error:
            # Neither the message nor the values: they may hold what a user asked.
            LOG.error("fault: %s", show_place(error))
            if not begun:
                problem = Problem(500, "a fault of the server: it is in its log, without your text")
                await answer_problem(problem)(scope, receive, send_with_headers)

    def _find_problem(self, scope: Scope) -> Problem | None:
        said = dict(scope["headers"])
        if b"content-length" in said and b"transfer-encoding" in said:
            # A proxy in front may take the other one, and what is the body to it is a request to us (RFC 9112, 6.1).
            return Problem(400, "the request has both Content-Length and Transfer-Encoding: send one of them", CLOSE)
        if self.names is not None and _read_host(scope) not in self.names:
            return Problem(421, "this server has another name: ask it by an address that it was started with")
        # Browsers say whose page sends a form, which they let any page do.
        is_foreign = said.get(b"sec-fetch-site") == b"cross-site" and said.get(b"origin") not in self.origins
        if scope["method"] == "POST" and is_foreign:
            return Problem(403, "a page of another site asks: start the server with --allow-origin if it may")
        return None


def _read_host(scope: Scope) -> str:
    """Return the name that a client asks for, without the port."""
    said = [value for name, value in scope["headers"] if name == b"host"]
    if len(said) != 1:
        return ""
    host: str = said[0].decode("latin-1").lower().strip()
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).strip("[]")


def is_loopback(host: str) -> bool:
    """Say whether only this machine reaches an address, however it is written."""
    try:
        found = {ipaddress.ip_address(entry[4][0]) for entry in socket.getaddrinfo(host.strip("[]"), None)}
    except (OSError, UnicodeError, ValueError):
        return False
    return all((getattr(address, "ipv4_mapped", None) or address).is_loopback for address in found)


def show_place(error: BaseException) -> str:
    """Return the kind of an error and where it arose, without its message."""
    places = traceback.extract_tb(error.__traceback__)
    where = f" at {places[-1].filename.rpartition('/')[2]}:{places[-1].lineno}" if places else ""
    return f"{type(error).__name__}{where}"
