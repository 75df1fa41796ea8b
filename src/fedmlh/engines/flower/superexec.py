"""Flower's SuperExec for a site: the process for each message is forked from one that has imported everything.

Starting Python and importing torch takes several seconds of a core, more than many a round of training.
"""

import multiprocessing
import sys
from multiprocessing import forkserver

from flwr.supercore.cli import flower_superexec
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from flwr.supercore.superexec.executor.types import ExecutionSpec, LaunchResult
from flwr.supernode.cli.flwr_clientapp import flwr_clientapp

#: What a message needs; none of it starts a thread, which a fork would lose.
_IMPORTED = ["flwr.supernode.cli.flwr_clientapp", "fedmlh.engines.flower.client", "fedmlh.deployment.site"]


def answer_message(arguments: list[str]) -> None:
    """What the command flwr-clientapp does, in a process that was forked for it."""
    sys.argv = ["flwr-clientapp", *arguments]
    flwr_clientapp()


class ForkingExecutor:
    """Starts a ClientApp's process."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(_IMPORTED)
        forkserver.ensure_running()  # now, not when the first message waits for it

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """A process with the arguments that Flower would give the command."""
        arguments = ["--runtime-api-address", spec.runtime_api_address, "--token", spec.token]
        if spec.insecure:
            arguments.append("--insecure")
        elif spec.root_certificates_path is not None:
            arguments += ["--root-certificates", spec.root_certificates_path]
        if spec.parent_pid is not None:
            arguments += ["--parent-pid", str(spec.parent_pid)]
        self._context.Process(target=answer_message, args=(arguments,), daemon=True).start()
        return LaunchResult.accepted()


def main() -> None:
    """Run the SuperExec with the arguments of flower-superexec."""
    executor = ForkingExecutor()
    SubprocessExecutor.launch = lambda self, spec: executor.launch(spec)
    flower_superexec()
