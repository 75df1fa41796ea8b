"""A simulated federation: a data set is distributed over clients, which train where the engine has room for them."""

from pathlib import Path
from typing import Any

from fedmlh.config import Config
from fedmlh.data.dataset import Dataset
from fedmlh.data.division import Division, divide
from fedmlh.evaluation.calibration import halve
from fedmlh.evaluation.costs import reset_peak_memory
from fedmlh.evaluation.evaluate import Evaluator, LabelCounts
from fedmlh.federated.server import Server
from fedmlh.federated.sharing import encode_points
from fedmlh.federated.task import Task
from fedmlh.lock import hold
from fedmlh.model.device import pick_device
from fedmlh.planning.choices import settle
from fedmlh.runs.baseline import train_alone
from fedmlh.runs.checkpoint import Progress
from fedmlh.runs.folder import RunFolder
from fedmlh.runs.one_round.comparing import make_row
from fedmlh.runs.one_round.run import run_once
from fedmlh.runs.population import Engine, Population
from fedmlh.runs.remarks import describe_division
from fedmlh.runs.rounds import Judge, Run, Tell, Watch, conduct, ignore


def simulate(
    config: Config,
    dataset: Dataset,
    out: str | Path,
    *,
    engine: Engine,
    alone: Engine,
    resume: bool = False,
    workers: int | None = None,
    watch: Watch = ignore,
    tell: Tell = ignore,
) -> Run:
    """Train, select the best round, test it once and keep the model, all in the folder `out`.

    `engine` reaches the clients of the federation, `alone` the one client of a baseline.
    """
    config, reasons = settle(config, dataset)
    for reason in reasons:
        tell(reason)
    if config.training == "one-round":
        return run_once(config, dataset, out, engine=engine, resume=resume, workers=workers, watch=watch, tell=tell)
    folder = RunFolder(Path(out))
    with hold(folder.path):
        folder.check(config, resume=resume)
        reset_peak_memory()
        device = pick_device(config.device)
        task = Task(config, dataset.num_features, dataset.num_labels)
        division = divide(dataset.train, config)
        for remark in describe_division(division, config.partition):
            tell(remark)
        shared = encode_points(division.shared) if len(division.shared) else b""
        examples = {client_id: len(shard) + len(division.shared) for client_id, shard in division.shards.items()}
        server = Server(task, examples, device, shared)
        population = Population(task, server.seeds, division.shards, shared, dataset.labels, device)
        with engine(population, workers) as clients:
            evaluator = Evaluator.of_task(task, server.seeds, dataset.labels, LabelCounts.of(dataset.train), device)
            test = evaluator.prepare(dataset.test)
            fits = halve(len(division.validation), division.held_out.values())
            judge = Judge.appoint(config, evaluator, division.validation, test, fits)

            def compare(progress: Progress) -> tuple[dict[str, Any], None]:
                points = {"training_points": division.reached}
                if config.selection == "paper":
                    return points, None
                rows = _compare_clients(population, division, judge, progress, alone, tell)
                if config.partition == "folder":
                    for row in rows:
                        row["site"] = dataset.site_names[row["client"]]
                return {"clients": rows, **points}, None

            sites = dataset.site_names if config.partition == "folder" else ()
            return conduct(
                server, clients, judge, test, dataset, folder, sites=sites, watch=watch, tell=tell, survey=compare
            )


def _compare_clients(
    population: Population,
    division: Division,
    judge: Judge,
    progress: Progress,
    alone: Engine,
    tell: Tell,
) -> list[dict[str, Any]]:
    """Return a row per client: the selected model on its held-out points, and the client alone.

    Alone, a client trains on its own and the shared points, and its best round on the held-out points counts.
    """
    config, evaluator = population.task.config, judge.evaluator
    parts = {client_id: rows for client_id, rows in division.held_out.items() if client_id in division.shards}
    rows = []
    for client_id, values in evaluator.evaluate_parts(progress.best_model, judge.points, parts).items():
        row = make_row(division, client_id, len(parts[client_id]), values, config.metrics)
        if config.local_baseline:
            tell(f"training client {client_id} alone")
            held_out = evaluator.prepare(division.validation.take(parts[client_id]))
            own = Judge(evaluator, "validation", held_out, "precision")
            ended = train_alone(population, client_id, own, alone)
            best = ended.history[ended.best_round - 1]["validation"]
            row |= {f"{name}_alone": best[name] for name in ("precision", *config.metrics)}
            row["best_round_alone"] = ended.best_round
        rows.append(row)
    return rows
