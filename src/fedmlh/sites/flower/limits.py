"""Limits on the size of a site's reply, which follow from the federation's terms before any reply comes.

The SuperLink refuses replies with more or larger pieces; the server's app refuses replies that would grow beyond them.
"""

import math
import os
from dataclasses import dataclass
from typing import Any

from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.superlink.servicer.fleet import fleet_handlers
from starlette.exceptions import HTTPException

#: Tells the processes of a server the bytes of the largest reply.
VARIABLE = "FEDMLH_LARGEST_REPLY"
#: A reply is a message with a dict of one record of one array, and the array's chunks.
_WRAPPERS = 4
#: Bytes of anything that is not a chunk: names, shapes, lists of chunks; and those by which a chunk is listed.
_SMALL, _LISTED = 64 * 1024, 200
CHUNK = int(FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE)


@dataclass(frozen=True)
class Limits:
    """The size of the largest honest reply in Flower's pieces."""

    reply: int  # bytes

    @classmethod
    def from_environment(cls) -> "Limits":
        """Read the limits that the command which started this process has set."""
        return cls(int(os.environ[VARIABLE]))

    @property
    def objects(self) -> int:
        """The pieces of a reply."""
        return _WRAPPERS + math.ceil(self.reply / CHUNK)

    @property
    def object_bytes(self) -> int:
        """The bytes of a piece."""
        return min(self.reply, CHUNK) + self.head_bytes

    @property
    def head_bytes(self) -> int:
        """The bytes of a piece that is no chunk, or of the message that announces all pieces."""
        return _SMALL + _LISTED * self.objects

    @property
    def request_bytes(self) -> int:
        """The bytes of any request; the server's own broadcasts come in whole chunks."""
        return CHUNK + self.head_bytes


def limit_replies(limits: Limits) -> None:
    """Make the SuperLink refuse replies that no honest site sends; nothing of them is stored."""
    push_messages, push_object = fleet_handlers.push_messages, fleet_handlers.push_object

    def push_few(request: Any, state: Any) -> Any:
        check_reply(request, limits)
        return push_messages(request, state)

    def push_small(request: Any, state: Any) -> Any:
        if len(request.object_content) > limits.object_bytes:
            raise HTTPException(413, "the object is too large")
        return push_object(request, state)

    fleet_handlers.push_messages, fleet_handlers.push_object = push_few, push_small


def check_reply(request: Any, limits: Limits) -> None:
    """Refuse everything but one reply of the node itself, in at most as many pieces as a reply can have."""
    if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
        raise HTTPException(400, "one reply at a time")
    about = request.messages_list[0].metadata
    if about.src_node_id != request.node.node_id or not about.reply_to_message_id:
        raise HTTPException(403, "a node may only reply, and only for itself")
    pieces = sum(1 for _ in iterate_object_tree(request.message_object_trees[0]))
    if pieces > limits.objects or request.ByteSize() > limits.head_bytes:
        raise HTTPException(413, "the reply is too large")
