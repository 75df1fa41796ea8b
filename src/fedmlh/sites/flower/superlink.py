"""Flower's SuperLink, open to sites for what sites do and to the server's own account for everything else.

Flower serves nodes, runs and their control on one port, and only nodes have keys: anyone who reaches the port could
start a run, or take one over. Here every path but those of nodes asks for the credential of the server's account.
"""

import subprocess
from importlib import import_module
from typing import Any

from flwr.supercore import sql_mixin
from flwr.superlink import extensions
from starlette.middleware import Middleware

from fedmlh.sites.flower import credential
from fedmlh.sites.flower.child import make_command
from fedmlh.sites.flower.guard import FOR_NODES, Guard
from fedmlh.sites.flower.limits import Limits, limit_replies

#: Milliseconds that a request waits for the database. Flower's five seconds are too short while one large model is
#: written: other callers would then be told that the server has failed.
_DATABASE_WAIT = "60000"


class OwnSuperExec:
    """Replaces the module by which Flower starts its SuperExec."""

    TimeoutExpired = subprocess.TimeoutExpired

    @staticmethod
    def Popen(command: list[str], **_: Any) -> "subprocess.Popen[bytes]":  # noqa: N802
        """Start the project's own SuperExec, with the arguments of Flower's."""
        return subprocess.Popen(make_command("fedmlh.sites.flower.superexec", "server", *command[1:]))


def main() -> None:
    """Run the SuperLink with the arguments of flower-superlink."""
    limits = Limits.from_environment()
    guard = Middleware(Guard, word=credential.read_own(), most_bytes=limits.request_bytes, open_paths=FOR_NODES)
    extensions.get_middleware = lambda: (guard,)
    limit_replies(limits)
    # If a setting is given twice, the last value counts.
    sql_mixin.SQLITE_PRAGMAS = (*sql_mixin.SQLITE_PRAGMAS, ("busy_timeout", _DATABASE_WAIT))
    # import_module, since the package's attribute of this name is the function in it.
    internal: Any = import_module("flwr.superlink.cli.flower_superlink")
    internal.subprocess = OwnSuperExec
    internal.flower_superlink()
