"""The baseline of a client that trains alone, which shows what the federation is worth to it."""

from dataclasses import replace

from fedmlh.config import SETTINGS
from fedmlh.federated.server import Server
from fedmlh.runs.checkpoint import Progress
from fedmlh.runs.population import Engine, Population
from fedmlh.runs.rounds import Judge, run_rounds

#: Settings that serve other clients, such as codecs or a pull to the global model, at their defaults.
_ALONE = {name: setting.default for name, setting in SETTINGS.items() if setting.for_others}


def train_alone(population: Population, client_id: int, judge: Judge, live: Engine) -> Progress:
    """Train one client of a population alone, from the same initial model, without settings that serve others."""
    task = population.task
    task = replace(task, config=task.config.replace(clients_per_round=1, **_ALONE))
    own = replace(population, task=task, shards={client_id: population.shards[client_id]})
    server = Server(task, {client_id: own.points(client_id)[0].shape[0]}, population.device)
    with live(own, 1) as clients:
        return run_rounds(server, clients, judge)
