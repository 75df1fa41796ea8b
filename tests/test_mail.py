"""What goes out is counted as it travels; what comes back counts through a door, whatever it carries."""

import pytest
import torch

from fedmlh.data.division import divide
from fedmlh.data.source import open_dataset
from fedmlh.federated.client import Client, Memory
from fedmlh.federated.mail import Inbox, Outbox
from fedmlh.federated.messages import BroadcastHeader, Reason, Rejected, StatisticsHeader, UpdateHeader, pack, unpack
from fedmlh.federated.server import Server
from fedmlh.federated.task import Task
from fedmlh.oneround.desk import Desk
from fedmlh.oneround.exchange import Respondent
from fedmlh.runs.population import Population
from once import BASE
from tiny import TINY


def test_what_an_outbox_has_written_is_counted_as_it_travels():
    """Whether it is packed here or, as on a cluster, by whoever takes the letter."""
    payload = bytes(1000)
    headers = {
        client: BroadcastHeader("run", "config", 1, 0, client, "fp32", 7, [10**client], [3], []) for client in range(4)
    }
    outbox = Outbox((1, 0), lambda client: (headers[client], payload))
    messages = {client: outbox(client) for client in (2, 0)}
    letters = {client: outbox.write(client) for client in (3, 1)}
    assert {id(content) for _, content in letters.values()} == {id(payload)}
    messages |= {client: pack(*letter) for client, letter in letters.items()}
    assert outbox.sent == [(client, len(messages[client])) for client in (2, 0, 3, 1)]
    assert len({length for _, length in outbox.sent}) == 4


class Even:
    """Lets replies of an even length in, and of each client one."""

    def check(self, client_id, reply, taken):
        if client_id in taken:
            raise Rejected(Reason.DUPLICATE, "again")
        if len(reply) % 2:
            raise Rejected(Reason.SIZE, "odd")
        return len(reply)


def test_an_inbox_names_all_whose_reply_does_not_count():
    inbox = Inbox((3, 1), [4, 2, 1, 0, 5], Even())
    replies = [(5, b"12"), (2, b"123"), (5, b"1234"), (0, Rejected(Reason.FAILED, "no power")), (4, b"")]
    assert [inbox.take(*reply) for reply in replies] == [2, None, None, None, 0]
    assert inbox.bytes_up == 2 + 3 + 4, "what is refused has been sent all the same"
    attempt = inbox.close()
    assert (attempt.round, attempt.attempt) == (3, 1)
    assert (attempt.sampled, attempt.accepted) == ([0, 1, 2, 4, 5], [4, 5])
    assert [(entry.client, entry.reason, entry.detail) for entry in attempt.refused] == [
        (0, Reason.FAILED, "no power"),
        (1, Reason.LATE, "no reply came"),
        (2, Reason.SIZE, "odd"),
        (5, Reason.DUPLICATE, "again"),
    ]


def populate(config):
    data = open_dataset(config)
    task = Task(config, data.num_features, data.num_labels)
    shards = divide(data.train, config).shards
    return Population(task, task.draw_seeds(), shards, b"", data.labels, torch.device("cpu"))


class Heard(Exception):
    """What a server asks for."""


def hear(clients, outbox):
    raise Heard(clients, outbox)


@pytest.mark.parametrize("config", [TINY, BASE], ids=["rounds", "one-round"])
def test_members_of_both_kinds_answer_through_one_interface(config):
    """A delta and sums come back by the same outbox and inbox; what differs is who writes and which door it is."""
    population = populate(config)
    sizes = {client: len(shard) for client, shard in population.shards.items()}
    if population.trains:
        server = Server(population.task, sizes, population.device)
        with pytest.raises(Heard) as heard:
            server.run_round(server.begin(), hear)
        clients, outbox = heard.value.args
        door, header, kind = outbox.part().expected, UpdateHeader, Client
    else:
        desk, clients = Desk(population.task, sizes), sorted(sizes)
        door, header, kind = desk.ask_counts(), StatisticsHeader, Respondent
        outbox = Outbox((1, 0), lambda client: (desk.write(door.part, client, b""), b""))
    inbox = Inbox(outbox.place, clients, door)
    for client in clients:
        member = population.member(client)
        assert isinstance(member, kind)
        reply, _ = member.answer(outbox(client), Memory())
        assert unpack(header, reply, len(reply))[0].client == client
        assert inbox.take(client, reply) is not None
    assert inbox.close().accepted == list(clients)
    assert not inbox.refused
