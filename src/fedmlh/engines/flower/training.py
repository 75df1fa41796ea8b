"""A run over real sites, put together from the parts that a run in one process has."""

from flwr.serverapp import Grid

from fedmlh.deployment.federation import Federation
from fedmlh.engines.device import pick_device
from fedmlh.engines.flower.evaluation import compare_sites
from fedmlh.engines.flower.grid import GridSites
from fedmlh.engines.loop import Judge, conduct
from fedmlh.evaluation.evaluate import Evaluator
from fedmlh.federated.server import Server


def train(federation: Federation, grid: Grid) -> None:
    """Train, select the best round, test it once and keep the model in the federation's run folder."""
    agreement, yardstick = federation.agreement, federation.yardstick()
    config = agreement.config
    federation.run.check(config, resume=True)
    device = pick_device(config.device)
    enrolments = federation.enrolments()
    nodes = {number: node for number, node in federation.read_nodes().items() if number in enrolments}
    federation.check_confirmed({number: enrolments[number] for number in nodes})
    # Sites that have not enrolled are sampled like all others, and absent: who is sampled does not depend on them.
    examples = {number: enrolments[number].examples if number in nodes else 1 for number in range(len(agreement.sites))}
    server = Server(agreement.task, examples, device)
    evaluator = Evaluator.of_task(agreement.task, server.seeds, agreement.labels, yardstick.frequencies, device)
    test = evaluator.prepare(yardstick.dataset.test)
    judge = Judge.appoint(config, evaluator, yardstick.dataset.train, test)
    sites = GridSites(grid, nodes, deadline=config.deadline, quorum=config.quorum)
    conduct(
        server,
        sites,
        judge,
        test,
        yardstick.dataset,
        federation.run,
        tell=lambda line: print(line, flush=True),
        more=lambda progress: compare_sites(federation, server, sites, progress),
    )
