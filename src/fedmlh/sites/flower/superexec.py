"""Flower's SuperExec, which starts an app's process and gives it the task's token where no other account sees it.

At a site the process for each message is forked from one that has imported everything: starting Python and importing
torch takes several seconds of a core, more than many a round of training.
"""

import multiprocessing.util
import os
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import forkserver

from flwr.supercore.cli import flower_superexec
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from flwr.supercore.superexec.executor.types import ExecutionSpec, LaunchResult

from fedmlh.sites.flower import credential, origin
from fedmlh.sites.flower.child import make_command
from fedmlh.sites.flower.clientapp import answer_message

#: The modules that answer a message; none of them starts a thread, which a fork would lose.
_IMPORTED = [
    "fedmlh.sites.flower.origin",
    "fedmlh.sites.flower.clientapp",
    "fedmlh.sites.flower.client",
    "fedmlh.sites.site",
]


def list_arguments(spec: ExecutionSpec) -> list[str]:
    """Return the arguments that Flower would give the app's command, without the token."""
    return [
        *("--runtime-api-address", spec.runtime_api_address),
        *("--root-certificates", spec.root_certificates_path),
        *("--parent-pid", str(spec.parent_pid)),
    ]


def launch_serverapp(spec: ExecutionSpec) -> LaunchResult:
    """Start a ServerApp's process, which reads its token from a pipe."""
    command = make_command("fedmlh.sites.flower.serverapp", *list_arguments(spec))
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert process.stdin is not None
    with process.stdin as pipe:
        pipe.write(spec.token.encode())
    return LaunchResult.accepted()


def make_forking_launch() -> Callable[[ExecutionSpec], LaunchResult]:
    """Return a function that starts a ClientApp's process; its arguments and token are in no command line."""
    # With abstract sockets, Python 3.11.0 would accept commands from every account of the machine.
    multiprocessing.util.abstract_sockets_supported = False  # type: ignore[misc]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    os.environ[origin.VARIABLE] = str(os.getpid())
    forkserver.ensure_running()  # now, so that the first message need not wait for it

    def launch(spec: ExecutionSpec) -> LaunchResult:
        arguments = [*list_arguments(spec), "--token", spec.token]
        context.Process(target=answer_message, args=(arguments,), daemon=True).start()
        return LaunchResult.accepted()

    return launch


def main() -> None:
    """Run the SuperExec of a server or a site with the arguments of flower-superexec."""
    launch = {"server": lambda: launch_serverapp, "site": make_forking_launch}[sys.argv.pop(1)]()
    SubprocessExecutor.launch = lambda self, spec: launch(spec)
    credential.send_own()
    flower_superexec()
