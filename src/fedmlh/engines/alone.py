"""What a client reaches by itself: the measure of what joining is worth to it."""

from collections.abc import Callable
from dataclasses import replace

from fedmlh.engines.local import LocalClients, make_trainer
from fedmlh.engines.loop import Judge, run_rounds
from fedmlh.federated.client import Client
from fedmlh.federated.server import Server
from fedmlh.federated.task import Task
from fedmlh.runs.checkpoint import Progress

#: Who is alone has no one to stay near to, sends nothing, and goes on from where it ended.
ALONE = {
    "clients_per_round": 1,
    "quorum": 1,
    "correction": "none",
    "prox_mu": 0.0,
    "update_codec": "fp32",
    "broadcast_codec": "fp32",
    "server_optimizer": "average",
    "server_learning_rate": 1.0,
}


def train_alone(task: Task, number: int, make_client: Callable[[Task], Client], judge: Judge) -> Progress:
    """The same initial model, as many rounds at most, nothing that is there for the sake of others."""
    single = replace(task, config=task.config.replace(**ALONE))
    client = make_client(single)
    server = Server(single, {number: len(client)}, client.device)
    trainer = make_trainer(single, {number: client}, server.seeds, client.device)
    return run_rounds(server, LocalClients({number: client}, 1, trainer), judge)
