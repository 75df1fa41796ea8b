"""A guard in front of Flower's interfaces: no call without the credential, no request above a size limit.

Only listed paths are open; all others are closed, even if Flower serves something there.
"""

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from fedmlh.sites.flower.credential import HEADER

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

#: What nodes call. Each call is signed with the node's key, which Flower checks.
FOR_NODES = frozenset(
    f"/v1/fleet/{name}"
    for name in (
        "activate-node",
        "deactivate-node",
        "send-node-heartbeat",
        "pull-messages",
        "push-messages",
        "get-run",
        "get-fab",
        "push-object",
        "pull-object",
        "confirm-message-received",
    )
)


class Guard:
    """Answers 403 to a call without the credential, and 413 to a body that is too large, before it is in memory."""

    def __init__(self, app: App, *, word: str, most_bytes: int, open_paths: frozenset[str] = frozenset()) -> None:
        self.app = app
        self.word = word.encode()
        self.most_bytes = most_bytes
        self.open_paths = open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] != "http":  # nothing that Flower serves is a web socket
            await send({"type": "websocket.close", "code": 1008})
        elif not self._is_open(scope) and not self._is_known(scope):
            await _refuse(send, 403, b"this call needs the credential of the server's account")
        else:
            await self._serve(scope, receive, send)

    def _is_open(self, scope: Scope) -> bool:
        return scope["method"] == "POST" and scope["path"] in self.open_paths

    def _is_known(self, scope: Scope) -> bool:
        words = [value for name, value in scope["headers"] if name.lower() == HEADER.encode()]
        return len(words) == 1 and hmac.compare_digest(words[0], self.word)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on while its body stays within the limit."""
        declared = [value for name, value in scope["headers"] if name.lower() == b"content-length"]
        if any(not value.isdigit() or int(value[:20]) > self.most_bytes for value in declared):
            await _refuse(send, 413, b"the request is too large")
            return
        left, answered = self.most_bytes, False

        async def receive_within() -> MutableMapping[str, Any]:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            # As if the sender had disconnected: the reader of the body stops and drops what it has.
            return {"type": "http.disconnect"} if left < 0 else message

        async def send_unless_too_large(message: MutableMapping[str, Any]) -> None:
            nonlocal answered
            if left >= 0 or answered:
                answered = True
                await send(message)

        try:
            await self.app(scope, receive_within, send_unless_too_large)
        except Exception:
            if left >= 0:
                raise
        if left < 0 and not answered:
            await _refuse(send, 413, b"the request is too large")


async def _refuse(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"text/plain"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
