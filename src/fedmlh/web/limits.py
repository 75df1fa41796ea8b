"""What one client may cost: bodies that are read whole, up to a size and within a time."""

import asyncio
from dataclasses import dataclass, field

import numpy as np
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedmlh.allocator import give_back
from fedmlh.web.problem import CLOSE, LATER, Problem, answer_problem

#: Bytes of a body that never count among those that all bodies share: small questions are not turned away.
_SMALL = 1 << 16
#: Bytes of a body that leaves much free memory behind.
_LARGE = 1 << 20


@dataclass(frozen=True)
class Limits:
    """The limits of a server, per process."""

    #: Bytes that a body stands for: a text of 5 MB and what is around it.
    body: int = 5_500_000
    #: An escape such as %C3 or \\u00e9 takes up to three times the bytes that it stands for.
    escaped: int = 3 * 5_500_000
    #: Bytes of all bodies that are read at a time, beside the first 64 KiB of each.
    bodies: int = 32 << 20
    #: Bytes of all answers that clients have not taken yet.
    answers: int = 64 << 20
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


@dataclass
class _Body:
    """What has come of a body, and how many of its bytes count among those of all bodies."""

    data: bytearray = field(default_factory=bytearray)
    counted: int = 0


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
        body, size = _Body(), 0
        try:
            try:
                await self._read(scope, receive, body)
            except Problem as problem:
                await answer_problem(problem)(scope, receive, send)
                return
            except _Gone:
                return
            size = len(body.data)
            messages: list[Message] = [{"type": "http.request", "body": bytes(body.data), "more_body": False}]
            body.data.clear()
            await self._answer(scope, messages, receive, send)
        finally:
            self.kept -= body.counted
            if size > _LARGE:
                give_back()

    async def _answer(self, scope: Scope, messages: list[Message], receive: Receive, send: Send) -> None:
        """Let the application answer what has come, for as long as the client is there."""
        left = asyncio.create_task(_wait_until_left(receive))

        async def read_whole() -> Message:
            if messages:
                return messages.pop()
            await asyncio.shield(left)
            return {"type": "http.disconnect"}

        answering = asyncio.ensure_future(self.app(scope, read_whole, send))
        try:
            await asyncio.wait({answering, left}, return_when=asyncio.FIRST_COMPLETED)
            if answering.done():
                answering.result()
        finally:
            answering.cancel()
            left.cancel()
            await asyncio.gather(answering, left, return_exceptions=True)

    def _count(self, body: _Body) -> None:
        counted = max(0, len(body.data) - _SMALL)
        self.kept += counted - body.counted
        body.counted = counted

    async def _read(self, scope: Scope, receive: Receive, body: _Body) -> None:
        """Fill `body`; raise Problem if it is too large or too slow."""
        limits, headers = self.limits, dict(scope["headers"])
        lines = (scope["raw_path"], scope["query_string"], *headers, *headers.values())
        if sum(map(len, lines)) > limits.head:
            raise Problem(400, f"the lines before the body may have {limits.head:,} bytes", CLOSE)
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
                        body.data += piece
                    else:
                        # Read on for a while: a client that still sends would not see the answer.
                        body.data.clear()
                        if total > 4 * limits.escaped:
                            raise self._too_large()
                    self._count(body)
                    if self.kept > limits.bodies:
                        raise Problem(503, "the server is busy with large texts: try again later", {**LATER, **CLOSE})
        except TimeoutError:
            raise Problem(408, "the body of the request came too slowly", CLOSE) from None
        if total > limits.escaped or measure_body(body.data, headers.get(b"content-type", b"")) > limits.body:
            raise self._too_large()

    def _too_large(self) -> Problem:
        return Problem(413, f"a request may have {self.limits.body:,} bytes: send fewer or shorter texts", CLOSE)


async def _wait_until_left(receive: Receive) -> None:
    """Return once the client has left, or has its answer."""
    while (await receive())["type"] != "http.disconnect":
        pass


def measure_body(body: bytes | bytearray, kind: bytes) -> int:
    """Return how many bytes a body stands for at least: characters may be written as escapes."""
    if kind.startswith(b"application/x-www-form-urlencoded"):
        return len(body) - 2 * sum(_count_escapes(body[at : at + _LARGE + 2]) for at in range(0, len(body), _LARGE))
    if kind.startswith(b"application/json"):
        # Without pairs of backslashes, each backslash begins an escape: \u and four digits are at most three bytes.
        return len(body) - 3 * (body.replace(b"\\\\", b"") if b"\\\\" in body else body).count(b"\\u")
    return len(body)


def _count_escapes(body: bytes | bytearray) -> int:
    """Return how often % and two hexadecimal digits stand in a part of a form; the last two bytes begin none."""
    signs = np.frombuffer(body, np.uint8)
    is_digit = _HEX[signs]
    return int(np.count_nonzero((signs[:-2] == ord("%")) & is_digit[1:-1] & is_digit[2:]))


_HEX = np.isin(np.arange(256), list(b"0123456789abcdefABCDEF"))
