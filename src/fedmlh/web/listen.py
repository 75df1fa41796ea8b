"""A server on a socket: bounded connections, timeouts, a graceful stop, and a log without what was asked."""

import asyncio
import functools
import logging
import socket
import sys
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from fedmlh.display import make_printable
from fedmlh.errors import UserError
from fedmlh.web.headers import show_place
from fedmlh.web.limits import Limits

_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\nRetry-After: 1\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%s"
)
_FULL_BODY = b'{"type":"about:blank","title":"Service Unavailable","status":503,"detail":"too many connections"}'


#: Bytes that are read from a connection at a time: a body in small pieces takes long to read, and others wait.
_READ = 16 << 10


class Connection(H11Protocol):
    """A connection that is closed where its client sends no request, or takes no answer, in time."""

    def __init__(self, limits: Limits, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._limits = limits
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Begin, or turn the client away if there are too many."""
        super().connection_made(transport)
        transport.max_size = _READ  # type: ignore[attr-defined]
        if len(self.connections) > self._limits.connections:
            transport.write(_FULL % (len(_FULL_BODY), _FULL_BODY))
            transport.close()
        else:
            self._expect(self._limits.head_seconds)

    def data_received(self, data: bytes) -> None:
        """Take some bytes of a request."""
        if self.transport.is_closing():
            return
        super().data_received(data)
        if self.flow.write_paused:
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self._expect(None)
        elif self._deadline is None and not self.transport.is_closing():
            self._expect(self._limits.head_seconds)

    def pause_writing(self) -> None:
        """Wait for a client to take its answer; end the connection if too much waits for clients to take it."""
        super().pause_writing()
        waiting = sum(other.transport.get_write_buffer_size() for other in self.connections)
        if waiting > self._limits.answers:
            self.transport.abort()
        else:
            self._expect(self._limits.write_seconds)

    def resume_writing(self) -> None:
        """Continue with the answer."""
        super().resume_writing()
        if not self.transport.is_closing():
            is_answered = self.cycle is None or self.cycle.response_complete
            # The head of a next request may have begun, which the time between requests does not bound.
            has_begun = is_answered and self.timeout_keep_alive_task is None
            self._expect(self._limits.head_seconds if has_begun else None)

    def on_response_complete(self) -> None:
        """Wait for the next request; if the connection is to be closed, for the client to take the answer."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._expect(self._limits.write_seconds)

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection without a request; an answer that is not taken in time is dropped."""
        super().timeout_keep_alive_handler()
        self._expect(self._limits.write_seconds)

    def connection_lost(self, error: Exception | None) -> None:
        """End."""
        self._expect(None)
        super().connection_lost(error)

    def _expect(self, seconds: float | None) -> None:
        """End the connection after some seconds, unless something is expected before."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)


def bind(host: str, port: int) -> socket.socket:
    """Return a socket of this address, on which nothing listens yet."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
        except BaseException:
            bound.close()
            raise
    except (OSError, UnicodeError) as problem:
        sentence = problem.strerror if isinstance(problem, OSError) else "no address"
        raise UserError(f"cannot listen at {host}, port {port} ({sentence}): choose another address or port") from None
    return bound


def show_address(bound: socket.socket) -> str:
    """Return the address of a socket as a browser takes it."""
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def make_server(app: ASGIApp, limits: Limits) -> uvicorn.Server:
    """Return a server, whose `run` takes the socket."""
    keep_quiet()
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http=functools.partial(Connection, limits),
            loop="asyncio",
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=int(limits.idle_seconds),
            timeout_graceful_shutdown=int(limits.stop_seconds),
            h11_max_incomplete_event_size=limits.head,
        )
    )


class _Sentence(logging.Formatter):
    """A line of the log: of faults their kind and place alone, since a message or traceback may hold a user's text."""

    def format(self, record: logging.LogRecord) -> str:
        if record.name.startswith("fedmlh"):
            return f"fedmlh: {make_printable(record.getMessage())}"
        error = record.exc_info[1] if record.exc_info else None
        return f"fedmlh: {record.name}: {'fault' if error is None else show_place(error)}"


def keep_quiet() -> None:
    """Log what operators need, on standard error: starts, reloads, faults; nothing of any request."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Sentence())
    for name, level in (("fedmlh.web", logging.INFO), ("uvicorn.error", logging.ERROR), ("asyncio", logging.ERROR)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
