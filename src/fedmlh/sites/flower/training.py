"""A run over real sites, built from the parts of a simulation."""

from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial

import torch
from flwr.serverapp import Grid

from fedmlh.evaluation.evaluate import Evaluator
from fedmlh.federated.server import Server
from fedmlh.model.device import pick_device
from fedmlh.oneround.desk import Desk
from fedmlh.oneround.sums import check_room
from fedmlh.runs.events import EventFile, EventLog
from fedmlh.runs.one_round.collecting import Exchange
from fedmlh.runs.one_round.run import Work
from fedmlh.runs.rounds import Judge, conduct
from fedmlh.sites.federation import Federation, ServerPoints
from fedmlh.sites.flower.evaluation import compare_sites
from fedmlh.sites.flower.grid import GridSites


def train_federation(federation: Federation, grid: Grid) -> None:
    """Train, select the best round, test it once and keep the model in the federation's run folder."""
    agreement, points = federation.agreement, federation.server_points()
    config = agreement.config
    federation.run.check(config, resume=True)
    device = pick_device(config.device)
    enrolments = federation.enrolments()
    nodes = {client_id: node for client_id, node in federation.read_nodes().items() if client_id in enrolments}
    federation.check_confirmed({client_id: enrolments[client_id] for client_id in nodes})
    # Sites that have not enrolled are sampled like all others, and are absent: the sampling does not depend on them.
    clients = range(len(agreement.sites))
    examples = {client_id: enrolments[client_id].examples if client_id in nodes else 1 for client_id in clients}
    if config.training == "one-round":
        # There is no later round for sites that are not connected: all are waited for until the deadline.
        sites = GridSites(grid, nodes, deadline=config.deadline, quorum=len(examples))
        ask_once(federation, points, sites, examples, device)
        return
    server = Server(agreement.task, examples, device)
    evaluator = Evaluator.of_task(agreement.task, server.seeds, agreement.labels, points.frequencies, device)
    test = evaluator.prepare(points.dataset.test)
    judge = Judge.appoint(config, evaluator, points.dataset.train, test)
    sites = GridSites(grid, nodes, deadline=config.deadline, quorum=config.quorum)
    conduct(
        server,
        sites,
        judge,
        test,
        points.dataset,
        federation.run,
        sites=agreement.sites,
        tell=_say,
        survey=lambda progress: compare_sites(federation, server, sites, judge, progress),
    )


def ask_once(
    federation: Federation, points: ServerPoints, sites: GridSites, examples: Mapping[int, int], device: torch.device
) -> None:
    """Ask every site for counts and then for sums, solve, and keep the model in the federation's run folder."""
    agreement, folder, validation = federation.agreement, federation.run, points.dataset.train
    check_room(sum(examples.values()) + len(validation), agreement.config.point_bits)
    folder.open(agreement.config)
    deadline = agreement.config.deadline
    offer = partial(sites.ask, "train", quorum=0, deadline=deadline)
    events = EventLog(EventFile(folder.path, _say))
    exchange = Exchange(Desk(agreement.task, examples), sites.exchange, offer, folder.checkpoints, _say, events)
    # Networks are trained with as many sites as a round needs; those that are not connected are not waited for.
    trainers = GridSites(sites.grid, sites.nodes, deadline=deadline, quorum=agreement.config.quorum)
    work = Work(
        exchange,
        points.dataset,
        validation,
        points.frequencies,
        device,
        _say,
        lambda task, seeds: nullcontext(trainers),
    )
    with events.record(agreement.config, agreement.sites, resumed=folder.checkpoints.is_dir()):
        work.finish(folder)


def _say(line: str) -> None:
    print(line, flush=True)
