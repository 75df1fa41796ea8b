"""The server's way to sites: over Flower's Grid, with a deadline for each attempt."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from flwr.app import Message
from flwr.serverapp import Grid

from fedmlh.federated.client import Memory
from fedmlh.federated.mail import Reply
from fedmlh.federated.messages import Reason, Rejected
from fedmlh.sites.flower.envelope import unwrap, wrap

#: Seconds between two looks for replies.
PAUSE = 0.5


class GridSites:
    """Sites by client_id; Flower knows each enrolled site as the node under which its key is registered."""

    def __init__(self, grid: Grid, nodes: Mapping[int, int], *, deadline: float, quorum: int) -> None:
        self.grid = grid
        self.nodes = nodes
        self.deadline = deadline
        self.quorum = quorum
        #: Always empty: what a site keeps between rounds, it keeps itself.
        self.memories: dict[int, Memory] = {}

    def exchange(self, sampled: Sequence[int], write: Callable[[int], bytes]) -> Iterator[tuple[int, Reply]]:
        """Send the sampled sites their messages; yield replies as they arrive, until the deadline."""
        return self.ask("train", sampled, write, self.quorum, self.deadline)

    def ask(
        self, kind: str, sites: Sequence[int], write: Callable[[int], bytes], quorum: int, deadline: float
    ) -> Iterator[tuple[int, Reply]]:
        """Send each site its message once it is connected, and wait for the replies.

        Sites that have not enrolled are absent. Sites that are not connected are waited for as long as connected sites
        still work, or as long as the quorum needs them.
        """
        end = time.monotonic() + deadline
        absent, asked, answers = [client_id for client_id in sites if client_id in self.nodes], dict[str, int](), 0
        while absent or asked:
            left = end - time.monotonic()
            if left <= 0:
                break
            online = set(self.grid.get_node_ids())
            for client_id in [client_id for client_id in absent if self.nodes[client_id] in online]:
                asked[self._send(kind, client_id, write(client_id), left)] = client_id
                absent.remove(client_id)
            # One at a time, so that not all updates of a round are in memory at once.
            for identifier in list(asked):
                for reply in self.grid.pull_messages([identifier]):
                    answer = unwrap(reply)
                    answers += isinstance(answer, bytes)
                    yield asked.pop(identifier), answer
                    del reply, answer  # else they would stay in memory until the next reply is complete
            if not asked and answers >= quorum:
                break
            time.sleep(PAUSE)
        for client_id in sites:
            if client_id not in self.nodes:
                yield client_id, Rejected(Reason.ABSENT, "the site has not enrolled")
        for client_id in absent:
            yield client_id, Rejected(Reason.ABSENT, "the site was not connected")
        for client_id in asked.values():
            yield client_id, Rejected(Reason.LATE, f"no reply within {deadline:g} s")

    def _send(self, kind: str, client_id: int, message: bytes, seconds: float) -> str:
        # The message expires at the deadline: a site that connects later finds nothing to do.
        (identifier,) = self.grid.push_messages([Message(wrap(message), self.nodes[client_id], kind, ttl=seconds)])
        return str(identifier)
