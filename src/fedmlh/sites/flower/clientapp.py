"""The process that answers one message at a site, forked from one that has imported this module."""

import sys

from flwr.supernode.cli.flwr_clientapp import flwr_clientapp

from fedmlh.sites.flower import credential
from fedmlh.sites.flower.child import end_with_parent
from fedmlh.sites.flower.origin import ORIGIN


def answer_message(arguments: list[str]) -> None:
    """Run the command flwr-clientapp."""
    end_with_parent(ORIGIN)
    credential.send_own()
    sys.argv = ["flwr-clientapp", *arguments]
    flwr_clientapp()
