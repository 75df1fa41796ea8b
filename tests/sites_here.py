"""The sites of a rehearsal that answer questions in this process, without Flower between them and the server."""

from collections.abc import Callable, Iterator, Sequence

from fedmlh.federated.mail import Reply
from fedmlh.federated.messages import Rejected
from fedmlh.sites.federation import Federation
from fedmlh.sites.flower.evaluation import answer_question
from fedmlh.sites.site import Site


class SitesHere:
    """All sites of a federation of this machine; `change` may change what they answer on the way."""

    def __init__(self, federation: Federation, change: Callable[[int, bytes], Reply] = lambda client, reply: reply):
        self.sites = {
            client_id: Site(federation.path / name) for client_id, name in enumerate(federation.agreement.sites)
        }
        self.nodes = dict.fromkeys(self.sites, 0)
        self.change = change

    def ask(
        self, kind: str, asked: Sequence[int], write: Callable[[int], bytes], quorum: int, deadline: float
    ) -> Iterator[tuple[int, Reply]]:
        """Yield the reply of each site."""
        for client_id in asked:
            try:
                yield client_id, self.change(client_id, answer_question(self.sites[client_id], write(client_id)))
            except Rejected as refusal:
                yield client_id, refusal
