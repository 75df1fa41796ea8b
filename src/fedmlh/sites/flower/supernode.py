"""Flower's SuperNode, which runs no app but this one, and starts its processes quickly.

In Flower, the starter of a run decides which code runs at a site. Here the app that is sent names installed code only,
always in the same bytes: any other app is not run, and the site's log says so. The interface by which
its processes get their work asks for the credential of the site's account.
"""

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging import ERROR
from typing import Any

from flwr.supercore import log
from flwr.supercore.exit import add_exit_handler
from flwr.supercore.fab import Fab
from flwr.supercore.run import RunNotRunningException
from flwr.supernode import main as interface
from flwr.supernode import start_client_internal as internal
from flwr.supernode.cli.flower_supernode import flower_supernode

from fedmlh.sites.flower import credential
from fedmlh.sites.flower.bundle import make_bundle
from fedmlh.sites.flower.child import make_command
from fedmlh.sites.flower.guard import Guard

_SUPEREXEC = "fedmlh.sites.flower.superexec"
_GET_FAB = 4  # its place in what Flower's connection yields
#: Seconds that the SuperExec has to end when the SuperNode is told to.
_END = 2.0
#: Bytes of a request; the largest carries a chunk of an array.
_MOST_BYTES = 16 * 2**20


def check_bundle(get_fab: Callable[[str, int], Fab]) -> Callable[[str, int], Fab]:
    """Return the function, restricted to fedmlh's own app."""
    expected = make_bundle().content

    def get_checked(fab_hash: str, run_id: int) -> Fab:
        fab = get_fab(fab_hash, run_id)
        if fab.content != expected:
            log(ERROR, "fedmlh: run %s is of another app than this version's: it is not followed", run_id)
            raise RunNotRunningException
        return fab

    return get_checked


class OwnSuperExec:
    """Replaces the module by which Flower starts its SuperExec."""

    @staticmethod
    def Popen(command: list[str]) -> "subprocess.Popen[bytes]":  # noqa: N802
        """Start the project's own SuperExec, with the arguments of Flower's."""
        process = subprocess.Popen(make_command(_SUPEREXEC, "site", *command[1:]))

        def end() -> None:
            process.terminate()
            process.wait(_END)

        add_exit_handler(end)  # else it would be killed with this process, and leave its temporary folder behind
        return process


def guard_interface(create_app: Callable[..., Any], word: str) -> Callable[..., Any]:
    """Return the function, whose app then answers only calls with the credential."""

    def create_guarded(*arguments: Any, **settings: Any) -> Any:
        app = create_app(*arguments, **settings)
        app.add_middleware(Guard, word=word, most_bytes=_MOST_BYTES)  # the last one added is asked first
        return app

    return create_guarded


def main() -> None:
    """Run the SuperNode with the arguments of flower-supernode."""
    connect = internal._init_connection

    @contextmanager
    def connect_checked(**settings: Any) -> Iterator[tuple[Any, ...]]:
        with connect(**settings) as parts:
            yield (*parts[:_GET_FAB], check_bundle(parts[_GET_FAB]), *parts[_GET_FAB + 1 :])

    internal._init_connection = connect_checked
    internal.subprocess = OwnSuperExec
    interface.create_app = guard_interface(interface.create_app, credential.read_own())
    flower_supernode()
    # It returns when the connection is lost for good. Flower has then left the federation, but its threads would keep
    # the process alive, and the parent, which restarts it when it ends, would wait for ever.
    signal.raise_signal(signal.SIGTERM)
