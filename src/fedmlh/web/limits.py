"""What one client may cost: bodies that are read whole, up to a size and within a time."""

import asyncio
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedmlh.web.problem import CLOSE, LATER, Problem, answer_problem


@dataclass(frozen=True)
class Limits:
    """The limits of a server, per process."""

    #: Bytes that a body stands for: a text of 5 MB and what is around it.
    body: int = 5_500_000
    #: An escape such as %C3 or \\u00e9 takes up to three times the bytes that it stands for.
    escaped: int = 3 * 5_500_000
    #: Bytes of all bodies that are read at a time.
    bodies: int = 64 << 20
    #: Bytes of the lines before the body.
    head: int = 16 << 10
    #: Open connections.
    connections: int = 400
    #: Seconds until the head of a request must be there.
    head_seconds: float = 10.0
    #: Seconds until a body must be there, and between two pieces of it.
    body_seconds: float = 60.0
    pause_seconds: float = 10.0
    #: Seconds in which a client must take some of its answer.
    write_seconds: float = 30.0
    #: Seconds that a connection without a request stays open.
    idle_seconds: float = 30.0
    #: Seconds that requests may still take once the server is stopped.
    stop_seconds: float = 10.0


class _Gone(Exception):
    """The client has left."""


class Bodies:
    """Reads each body before the application sees the request; refuses one that is too large or too slow."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self.app, self.limits = app, limits
        self.kept = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body, then let the application answer."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        body = bytearray()
        try:
            try:
                await self._read(dict(scope["headers"]), receive, body)
            except Problem as problem:
                await answer_problem(problem)(scope, receive, send)
                return
            except _Gone:
                return
            whole: Message | None = {"type": "http.request", "body": bytes(body), "more_body": False}

            async def read_whole() -> Message:
                nonlocal whole
                if whole is None:
                    return await receive()
                message, whole = whole, None
                return message

            await self.app(scope, read_whole, send)
        finally:
            self.kept -= len(body)

    async def _read(self, headers: dict[bytes, bytes], receive: Receive, body: bytearray) -> None:
        """Fill `body`; raise Problem if it is too large or too slow."""
        limits = self.limits
        said = headers.get(b"content-length", b"0")
        if said.isdigit() and int(said[:20]) > limits.escaped and b"expect" in headers:
            raise self._too_large()  # the client asks before it sends
        try:
            async with asyncio.timeout(limits.body_seconds):
                more, total = True, 0
                while more:
                    async with asyncio.timeout(limits.pause_seconds):
                        message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _Gone
                    piece, more = message.get("body", b""), message.get("more_body", False)
                    total += len(piece)
                    if total <= limits.escaped:
                        self.kept += len(piece)
                        body += piece
                    else:
                        # Read on for a while: a client that still sends would not see the answer.
                        self.kept -= len(body)
                        body.clear()
                        if total > 4 * limits.escaped:
                            raise self._too_large()
                    if self.kept > limits.bodies:
                        raise Problem(503, "the server is busy with large texts: try again later", {**LATER, **CLOSE})
        except TimeoutError:
            raise Problem(408, "the body of the request came too slowly", CLOSE) from None
        if total > limits.escaped or measure_body(body, headers.get(b"content-type", b"")) > limits.body:
            raise self._too_large()

    def _too_large(self) -> Problem:
        return Problem(413, f"a request may have {self.limits.body:,} bytes: send fewer or shorter texts", CLOSE)


def measure_body(body: bytes | bytearray, kind: bytes) -> int:
    """Return how many bytes a body stands for: characters may be written as escapes."""
    if kind.startswith(b"application/x-www-form-urlencoded"):
        return len(body) - 2 * body.count(b"%")
    if kind.startswith(b"application/json"):
        return len(body) - 3 * body.count(b"\\u")
    return len(body)
