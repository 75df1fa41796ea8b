"""A registered site that says to a SuperLink what it likes, and replies that no honest site sends."""

import hashlib
import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.app.message.arraychunk import ArrayChunk
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import Message as Proto
from flwr.proto.message_pb2 import Metadata, ObjectTree, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedmlh.sites.federation import Federation
from waiting import wait_for

CHUNK = 5 * 2**20


def deflate(kind: type[Any], children: Iterable[str], body: bytes) -> tuple[str, bytes]:
    """Return an object of Flower's with any content, and its name."""
    content = f"{kind.__qualname__} {','.join(children)} {len(body)}".encode() + b"\0" + body
    return hashlib.sha256(content).hexdigest(), content


@dataclass
class Reply:
    """The objects of a reply; chunks are made when they are sent, so that they need not lie in memory."""

    metadata: Metadata
    blocks: list[bytes]  # each is repeated to make a chunk
    repeats: int = 1  # how often the array names all its chunks
    shape: list[int] = field(default_factory=list)
    chunk: int = CHUNK

    def __post_init__(self) -> None:
        chunks = [deflate(ArrayChunk, [], self.fill(block))[0] for block in self.blocks]
        listed = [*range(len(chunks))] * self.repeats
        head = {"dtype": "bytes", "shape": self.shape, "stype": "fedmlh", "arraychunk_ids": listed}
        array, array_content = deflate(Array, chunks, json.dumps(head).encode())
        record, record_content = deflate(ArrayRecord, [array], json.dumps({"message": array}).encode())
        whole, whole_content = deflate(RecordDict, [record], json.dumps({"fedmlh": record}).encode())
        body = Proto(metadata=self.metadata).SerializeToString(deterministic=True)
        self.root, root_content = deflate(Message, [whole], body)
        self.chunks = dict(zip(chunks, self.blocks, strict=True))
        self.heads = {array: array_content, record: record_content, whole: whole_content, self.root: root_content}
        self.tree = ObjectTree(object_id=array, children=[ObjectTree(object_id=name) for name in self.chunks])
        for name in (record, whole, self.root):
            self.tree = ObjectTree(object_id=name, children=[self.tree])

    def fill(self, block: bytes) -> bytes:
        return block * (self.chunk // len(block))

    def content(self, name: str) -> bytes:
        return self.heads[name] if name in self.heads else deflate(ArrayChunk, [], self.fill(self.chunks[name]))[1]


class LyingSite:
    """Speaks with a SuperLink under a site's key."""

    def __init__(self, federation: Federation, name: str) -> None:
        key = load_ssh_private_key((federation.path / name / "node.key").read_bytes(), None)
        versions, signatures = (
            RuntimeVersionHttpInterceptor(component_name="SuperNode"),
            NodeAuthHttpInterceptor(key, key.public_key()),
        )
        self.client = FleetHttpClient.from_server_address(
            federation.agreement.address, False, federation.agreement.authority, interceptors=[versions, signatures]
        )
        public = public_key_to_bytes(key.public_key())
        answer = self.client.ActivateNode(ActivateNodeRequest(public_key=public, heartbeat_interval=300))
        self.node = Node(node_id=answer.node_id)

    def close(self) -> None:
        self.client.close()

    def receive(self) -> Metadata:
        """Wait for a message; return what a reply to it says of itself."""
        ask = PullMessagesRequest(node=self.node)
        (pulled, *_) = wait_for(lambda: list(self.client.PullMessages(ask).messages_list))
        return Metadata(
            run_id=pulled.metadata.run_id,
            src_node_id=self.node.node_id,
            dst_node_id=pulled.metadata.src_node_id,
            reply_to_message_id=pulled.metadata.message_id,
            message_type=pulled.metadata.message_type,
            created_at=time.time(),
            ttl=10.0,
        )

    def announce(self, reply: Reply, **changes: Any) -> tuple[list[str], str]:
        """Say which objects a reply has; return those that the SuperLink wants, and under which session."""
        proto = Proto(metadata=reply.metadata)
        proto.metadata.message_id = reply.root
        proto.content.SetInParent()
        for name, value in changes.items():
            setattr(proto.metadata, name, value)
        request = PushMessagesRequest(node=self.node, messages_list=[proto], message_object_trees=[reply.tree])
        answer = self.client.PushMessages(request)
        return list(answer.objects_to_push), answer.session_id

    def send(self, reply: Reply) -> None:
        """Send a whole reply."""
        wanted, session = self.announce(reply)
        for name in wanted:
            self.push(reply, name, session)

    def push(self, reply: Reply, name: str, session: str) -> None:
        content = reply.content(name)
        request = PushObjectRequest(
            node=self.node, run_id=reply.metadata.run_id, object_id=name, object_content=content, session_id=session
        )
        self.client.PushObject(request)
