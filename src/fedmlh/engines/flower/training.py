"""A run over real sites, put together from the parts that a run in one process has."""

from flwr.serverapp import Grid

from fedmlh.deployment.federation import Federation
from fedmlh.engines.flower.grid import GridSites
from fedmlh.engines.local import pick_device
from fedmlh.engines.loop import Judge, run_rounds
from fedmlh.evaluation.evaluate import Evaluator
from fedmlh.federated.server import Server
from fedmlh.runs.checkpoint import Checkpoints, Progress
from fedmlh.runs.summary import summarize
from fedmlh.serving.bundle import save_bundle


def train(federation: Federation, grid: Grid) -> None:
    """Train, select the best round, test it once and keep the model in the federation's run folder."""
    agreement, yardstick = federation.agreement, federation.yardstick()
    config, task, folder = agreement.config, agreement.task, federation.run
    folder.check(config, resume=True)
    device = pick_device(config.device)
    enrolments = federation.all_enrolments()
    server = Server(task, {number: enrolment.examples for number, enrolment in enrolments.items()}, device)
    evaluator = Evaluator(task, server.seeds, agreement.labels, yardstick.frequencies, device)
    test = evaluator.prepare(yardstick.dataset.test)
    validation = evaluator.prepare(yardstick.dataset.train)
    judge = Judge(evaluator, "validation", validation, "precision", test if config.test_every_round else None)

    checkpoints = Checkpoints(folder.checkpoints, f"{server.run} {yardstick.dataset.fingerprint}", task.stack, device)
    progress, problems = checkpoints.load()
    folder.open(config)
    for problem in problems:
        print(f"fedmlh: {problem}; going on from the checkpoint before it", flush=True)
    if progress is not None:
        folder.write_metrics(progress.history)

    def save(progress: Progress) -> None:
        checkpoints.save(progress)
        folder.write_metrics(progress.history)

    sites = GridSites(grid, federation.read_nodes(), deadline=config.deadline, quorum=config.quorum)
    progress = run_rounds(server, sites.exchange, {}, judge, save=save, progress=progress)
    summary = summarize(task, progress, evaluator.evaluate(progress.best_model, test))
    save_bundle(folder.model, task, server.seeds, progress.best_model, yardstick.dataset)
    folder.write_summary(summary)
