"""The process of a ServerApp, which reads its task's token from standard input."""

import os
import sys
from importlib import import_module
from typing import Any

from flwr.superlink.cli.flwr_serverapp import flwr_serverapp

from fedmlh.sites.flower import credential
from fedmlh.sites.flower.bounded import BoundedGrid


def main() -> None:
    """Do what the command flwr-serverapp does."""
    token = sys.stdin.read()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    credential.send_own()
    # The package's attribute of that name is the function in it.
    runtime: Any = import_module("flwr.superlink.runtime.run_serverapp")
    runtime.HttpGrid = BoundedGrid
    sys.argv += ["--token", token]  # of this list only: the process's command stays as it is
    flwr_serverapp()
