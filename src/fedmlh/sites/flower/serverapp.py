"""The process of a ServerApp, which reads its task's token from standard input."""

import os
import sys
from importlib import import_module
from typing import Any

from flwr.superlink.cli.flwr_serverapp import flwr_serverapp

from fedmlh.sites.flower import credential
from fedmlh.sites.flower.bounded import BoundedGrid


def main() -> None:
    """Run the command flwr-serverapp."""
    token = sys.stdin.read()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    credential.send_own()
    # import_module, since the package's attribute of this name is the function in it.
    runtime: Any = import_module("flwr.superlink.runtime.run_serverapp")
    runtime.HttpGrid = BoundedGrid
    sys.argv += ["--token", token]  # in this list only: other accounts see the unchanged command
    flwr_serverapp()
