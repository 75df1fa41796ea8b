"""A Grid that checks the announced size of a reply before it loads the reply.

Flower sends an array as a list of chunks, and a list may name one chunk many times: gigabytes of equal blocks are one
small chunk on the wire. Here the list is read first, and a reply that would be larger than any honest one is refused.
A reply that is not complete delays no other.
"""

import json
import time
from collections.abc import Callable, Iterable
from typing import Any

import httpx
from flwr.app import Array, Error, Message, Metadata
from flwr.app.message import make_message
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.constant import SYSTEM_MESSAGE_TYPE
from flwr.supercore.inflatable.inflatable_object import get_object_body, get_object_head_values_from_object_content
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.superlink.grid import HttpGrid

from fedmlh.federated.messages import Reason, Rejected
from fedmlh.sites.flower.envelope import REFUSALS
from fedmlh.sites.flower.limits import Limits

#: Returns the content of the object of a name, or None while it has not arrived.
Fetch = Callable[[str], bytes | None]
#: Bytes of a chunk that are not data.
_HEAD = 100
#: Seconds to wait for missing pieces once the piece that a site sends last has arrived.
_REST = 10.0
_PAUSE = 0.2


class BoundedGrid(HttpGrid):  # type: ignore[misc]
    """Flower's Grid, with limits on the size of a reply."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._limits = Limits.from_environment()
        #: Names of replies that may not be complete yet, by the messages that they answer.
        self._coming: dict[str, str] = {}

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies that are complete; a refused one is a message with an Error that says why."""
        wanted = list(message_ids)
        asked = PullAppMessagesRequest(message_ids=[name for name in wanted if name not in self._coming])
        if asked.message_ids:
            for reply in self._runtime_client.PullMessages(asked).messages_list:
                self._coming[reply.metadata.reply_to_message_id] = reply.metadata.message_id
        replies = (self._take(name) for name in wanted if name in self._coming)
        return [reply for reply in replies if reply is not None]

    def _take(self, name: str) -> Message | None:
        """Return a reply that is ready, and forget it."""
        root = self._coming[name]
        try:
            message = inflate_object_from_contents(root, collect(root, self._fetch, self._limits))
            if not isinstance(message, Message):
                raise Rejected(Reason.MALFORMED, "not a message")
            message.metadata.__dict__["_message_id"] = root
        except Unfinished:
            return None
        except Rejected as refusal:
            message = self._refuse(name, refusal)
        except (httpx.HTTPError, MemoryError):
            raise
        except Exception as error:  # a site's bytes may raise anything in the code that parses them
            kind = type(error).__name__
            message = self._refuse(name, Rejected(Reason.MALFORMED, f"cannot be taken apart ({kind})"))
        del self._coming[name]
        self._runtime_client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=self.node, run_id=self.run.run_id, message_object_id=root)
        )
        return message

    def _refuse(self, name: str, refusal: Rejected) -> Message:
        """Return the message that stands for a refused reply."""
        node = self.node.node_id
        metadata = Metadata(
            run_id=self.run.run_id,
            message_id="",
            src_node_id=node,
            dst_node_id=node,
            reply_to_message_id=name,
            group_id="",
            created_at=time.time(),
            ttl=0,
            message_type=SYSTEM_MESSAGE_TYPE,
        )
        return make_message(metadata=metadata, error=Error(REFUSALS[refusal.reason], refusal.detail))

    def _fetch(self, object_id: str) -> bytes | None:
        """Return an object, or None while it has not arrived."""
        response = self._runtime_client.PullObject(
            PullObjectRequest(node=self.node, run_id=self.run.run_id, object_id=object_id)
        )
        if not response.object_found:
            raise Rejected(Reason.LATE, "the reply did not come whole")
        return bytes(response.object_content) if response.object_available else None


class Unfinished(Exception):
    """Pieces of a reply are still to come."""


def collect(root: str, fetch: Fetch, limits: Limits) -> dict[str, bytes]:
    """Return all objects of a message by name, or raise Rejected before they exceed the size of any reply."""
    contents: dict[str, bytes] = {}
    end: float | None = None
    expanded = 0

    def add(name: str, most: int) -> tuple[str, list[str]]:
        """Fetch an object; return its type and its children."""
        nonlocal end
        if len(contents) == limits.objects:
            raise Rejected(Reason.TOO_LARGE, f"more than {limits.objects:,} objects")
        while (content := fetch(name)) is None:
            if end is None:  # the message itself, which a site sends after all else
                raise Unfinished
            if time.monotonic() > end:
                raise Rejected(Reason.LATE, "the reply did not come whole")
            time.sleep(_PAUSE)
        end = end or time.monotonic() + _REST
        if len(content) > most:
            raise Rejected(Reason.TOO_LARGE, f"an object of {len(content):,} bytes")
        contents[name] = content
        kind, children, _ = get_object_head_values_from_object_content(content)
        return kind, children

    waiting = [root]
    while waiting:
        name = waiting.pop()
        if name in contents:
            continue
        kind, children = add(name, limits.head_bytes)
        if kind != Array.__qualname__:
            waiting += children
            continue
        head = json.loads(get_object_body(contents[name], Array))
        listed, (length,) = [children[place] for place in head["arraychunk_ids"]], head["shape"]
        if type(length) is not int:
            raise Rejected(Reason.MALFORMED, "an array without a length")
        if length > limits.reply or len(listed) > limits.objects:
            raise Rejected(Reason.TOO_LARGE, f"an array of {length:,} bytes in {len(listed):,} chunks")
        for chunk in dict.fromkeys(listed):
            if chunk not in contents:
                add(chunk, limits.object_bytes)
        expanded += sum(len(contents[chunk]) for chunk in listed)
        if expanded > limits.reply + len(listed) * _HEAD:
            raise Rejected(Reason.TOO_LARGE, f"{expanded:,} bytes")
    return contents
