"""A Flower app that does nothing: messages go out, messages of the agreed size come back, and nobody reads them.

`flower_overhead.py` has it carried out by the same SuperLink as a real run. Sites run it under Flower's own SuperNode,
or under the product's, which forks a process for each message:

    python benchmarks/flower_echo.py ARGUMENTS-OF-FLOWER-SUPERNODE
"""

import json
import os
import sys
import time
from pathlib import Path

import torch  # noqa: F401  # any app that trains does
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

PROJECT = b"""\
[project]
name = "echo"
version = "1.0.0"
description = "Nothing"
license = "MIT"
dependencies = []

[tool.flwr.app]
publisher = "fedmlh"

[tool.flwr.app.components]
serverapp = "flower_echo:server"
clientapp = "flower_echo:client"

[tool.flwr.app.config]
"""

#: Bytes that differ from one node's message to the next.
HEADER = 500

server = ServerApp()
client = ClientApp()


def wrap(content: bytes) -> RecordDict:
    """Return bytes as an array, since Flower sends arrays in pieces."""
    return RecordDict({"echo": ArrayRecord({"bytes": Array("bytes", (len(content),), "echo", content)})})


@client.train()
def echo(message: Message, context: Context) -> Message:
    """Return as many bytes as came, but different ones: Flower sends only the hash of bytes that it knows."""
    record = message.content["echo"]
    assert isinstance(record, ArrayRecord)
    return Message(wrap(os.urandom(len(record["bytes"].data))), reply_to=message)


@server.main()
def serve(grid: Grid, context: Context) -> None:
    """Run the rounds of the plan; write a line into the run folder after each, and a note at the end."""
    folder = Path(os.environ["FEDMLH_FEDERATION"])
    plan = json.loads((folder / "server" / "echo.json").read_text())
    nodes = set(json.loads((folder / "server" / "nodes.json").read_text()).values())
    while set(grid.get_node_ids()) != nodes:
        time.sleep(0.5)
    (folder / "run").mkdir()
    for _ in range(plan["rounds"]):
        model = os.urandom(plan["bytes"] - HEADER)
        if plan["pause"] is None:
            exchange_at_once(grid, nodes, model)
        else:
            exchange_one_by_one(grid, nodes, model, plan["pause"])
        with open(folder / "run" / "metrics.jsonl", "a") as file:
            file.write("{}\n")
    (folder / "server" / "outcome.json").write_text('{"problem": null}')


def address(model: bytes, node: int) -> Message:
    """Return a message that begins with a node's own bytes and is the same for all after them, as a broadcast is."""
    return Message(wrap(os.urandom(HEADER) + model), node, "train")


def exchange_at_once(grid: Grid, nodes: set[int], model: bytes) -> None:
    """Exchange all messages at once, as Flower's own strategies do."""
    replies = list(grid.send_and_receive([address(model, node) for node in nodes]))
    assert len(replies) == len(nodes)
    assert not any(reply.has_error() for reply in replies)


def exchange_one_by_one(grid: Grid, nodes: set[int], model: bytes, pause: float) -> None:
    """Exchange in the leanest way: one message of the round in memory, and a look for replies after every pause."""
    asked = [identifier for node in nodes for identifier in grid.push_messages([address(model, node)])]
    while asked:
        for identifier in list(asked):
            for reply in grid.pull_messages([identifier]):
                assert not reply.has_error()
                asked.remove(identifier)
                del reply
        if asked:
            time.sleep(pause)


def main() -> None:
    """Run the product's SuperNode for this app."""
    from flower_overhead import carrying_echo

    from fedmlh.sites.flower import supernode

    with carrying_echo(supernode):
        supernode.main()


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
