"""What a client reaches by itself: the measure of what joining is worth to it."""

from dataclasses import replace

from fedmlh.federated.server import Server
from fedmlh.runs.checkpoint import Progress
from fedmlh.runs.population import Engine, Population
from fedmlh.runs.rounds import Judge, run_rounds

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


def train_alone(population: Population, number: int, judge: Judge, live: Engine) -> Progress:
    """Train one client of a population from the same initial model, without anything that is there for others."""
    task = population.task
    task = replace(task, config=task.config.replace(**ALONE))
    own = replace(population, task=task, shards={number: population.shards[number]})
    server = Server(task, {number: own.points(number)[0].shape[0]}, population.device)
    with live(own, 1) as clients:
        return run_rounds(server, clients, judge)
