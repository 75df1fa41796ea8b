"""Flower's SuperLink, open to sites for what sites do and to its own machine for everything else.

Flower serves nodes, runs and their control on one port, and only nodes have keys: whoever reaches the port could start
a run, or take over one. Here all paths but those of nodes answer the server's own machine only.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from ipaddress import ip_address
from typing import Any

from flwr.supercore import sql_mixin
from flwr.superlink import extensions
from flwr.superlink.cli.flower_superlink import flower_superlink
from starlette.middleware import Middleware

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_FOR_NODES = "/v1/fleet/"
#: Milliseconds that a request waits for the database. Flower's five seconds are over while one large model is written,
#: and whoever else asks meanwhile is told that the server has failed.
_DATABASE_WAIT = "60000"


class LocalControl:
    """Answers 403 to another machine that asks for more than a node needs."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or not."""
        path = scope.get("path", "")
        for_nodes = path.startswith(_FOR_NODES) and ".." not in path
        if scope["type"] == "lifespan" or for_nodes or is_local(scope):
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        await send({"type": "http.response.start", "status": 403, "headers": []})
        await send({"type": "http.response.body", "body": b"only from the server's own machine"})


def is_local(scope: Scope) -> bool:
    """Whether a request comes from the machine that it reached."""
    client, server = scope.get("client"), scope.get("server")
    if not client or not server:
        return False
    try:
        return ip_address(client[0]).is_loopback or client[0] == server[0]
    except ValueError:
        return False


def main() -> None:
    """Run the SuperLink with the arguments of flower-superlink."""
    extensions.get_middleware = lambda: (Middleware(LocalControl),)
    # The last value of a setting counts.
    sql_mixin.SQLITE_PRAGMAS = (*sql_mixin.SQLITE_PRAGMAS, ("busy_timeout", _DATABASE_WAIT))
    flower_superlink()


if __name__ == "__main__":
    main()
