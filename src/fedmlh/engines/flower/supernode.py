"""Flower's SuperNode, which runs no app but this one, and starts its processes quickly.

In Flower the code that runs at a site comes from whoever starts a run. Here the app that is sent names installed code
only, always in the same bytes: anything else is left unanswered, with a line in the site's log.
"""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from logging import ERROR
from typing import Any

from flwr.supercore import log
from flwr.supercore.fab import Fab
from flwr.supercore.run import RunNotRunningException
from flwr.supernode import start_client_internal as internal
from flwr.supernode.cli.flower_supernode import flower_supernode

from fedmlh.engines.flower.bundle import make_bundle

_GET_FAB = 4  # its place in what Flower's connection yields
_SUPEREXEC = "from fedmlh.engines.flower.superexec import main; main()"


def check_bundle(get_fab: Callable[[str, int], Fab]) -> Callable[[str, int], Fab]:
    """The same function, which gives out no app but fedmlh's."""
    expected = make_bundle().content

    def get_checked(fab_hash: str, run_id: int) -> Fab:
        fab = get_fab(fab_hash, run_id)
        if fab.content != expected:
            log(ERROR, "fedmlh: run %s is of another app than this version's: it is not followed", run_id)
            raise RunNotRunningException
        return fab

    return get_checked


class OwnSuperExec:
    """In place of the module by which Flower starts its SuperExec, and nothing else."""

    @staticmethod
    def Popen(command: list[str]) -> "subprocess.Popen[bytes]":  # noqa: N802
        """The same command with the project's own SuperExec."""
        return subprocess.Popen([sys.executable, "-c", _SUPEREXEC, *command[1:]])


def main() -> None:
    """Run the SuperNode with the arguments of flower-supernode."""
    connect = internal._init_connection

    @contextmanager
    def connect_checked(**settings: Any) -> Iterator[tuple[Any, ...]]:
        with connect(**settings) as parts:
            yield (*parts[:_GET_FAB], check_bundle(parts[_GET_FAB]), *parts[_GET_FAB + 1 :])

    internal._init_connection = connect_checked
    internal.subprocess = OwnSuperExec
    flower_supernode()
    # It returns when the connection broke down for good: Flower has left the federation, but its threads would keep the
    # process alive, and whoever starts it again when it ends would wait for ever.
    signal.raise_signal(signal.SIGTERM)


if __name__ == "__main__":
    main()
