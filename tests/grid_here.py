"""Flower's Grid without Flower's processes: the sites of a rehearsal answer in this process, from their folders."""

from collections.abc import Callable, Iterable

import pytest
from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity

from fedmlh.federated.messages import Rejected
from fedmlh.sites.federation import Federation
from fedmlh.sites.flower import grid
from fedmlh.sites.flower.envelope import unwrap, wrap, wrap_refusal
from fedmlh.sites.flower.evaluation import answer_question
from fedmlh.sites.site import Site

#: Changes what a site answers on its way to the server: called with client_id, kind of message and reply.
Change = Callable[[int, str, bytes], bytes]


def act_as_flower(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set what Flower sets in its processes before it calls an app; and no long pauses."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    monkeypatch.setattr(grid, "PAUSE", 0.01)


class GridHere:
    """All sites of a federation of this machine, each registered as a node."""

    def __init__(self, federation: Federation, change: Change = lambda client, kind, reply: reply) -> None:
        sites = [Site(federation.path / name) for name in federation.agreement.sites]
        self.sites = {100 + site.client_id: site for site in sites}
        self.change = change
        self.replies: dict[str, Message] = {}
        self.nodes = {site.client_id: node for node, site in self.sites.items()}
        federation.write_nodes(self.nodes)

    def get_node_ids(self) -> list[int]:
        return list(self.sites)

    def push_messages(self, messages: list[Message]) -> list[str]:
        names = []
        for message in messages:
            names.append(f"m{len(self.replies)}")
            site, kind = self.sites[message.metadata.dst_node_id], message.metadata.message_type
            answer = site.answer if kind == "train" else lambda question, site=site: answer_question(site, question)
            try:
                content = wrap(self.change(site.client_id, kind, answer(unwrap(message))))
            except Rejected as refusal:
                content = wrap_refusal(refusal.reason)
            message.metadata.__dict__.update(_message_id=names[-1], _src_node_id=1, _run_id=1)
            self.replies[names[-1]] = Message(content, reply_to=message)
        return names

    def pull_messages(self, names: Iterable[str]) -> list[Message]:
        return [self.replies[name] for name in names]
