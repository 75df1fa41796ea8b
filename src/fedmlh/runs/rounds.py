"""A run on any engine: rounds with their checkpoints; the best round is selected, tested and kept."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from fedmlh.config import Config
from fedmlh.data.dataset import Dataset, Split
from fedmlh.errors import UserError
from fedmlh.evaluation.calibration import Curve, Scale, find_form
from fedmlh.evaluation.evaluate import Evaluator, HashedSplit, selection_score
from fedmlh.evaluation.histograms import Bins
from fedmlh.federated.client import Memory
from fedmlh.federated.mail import Ask, Outbox, PartT, Reply
from fedmlh.federated.participation import list_refused
from fedmlh.federated.server import GivenUp, Server
from fedmlh.federated.tally import Tally
from fedmlh.runs.checkpoint import Checkpoints, Progress
from fedmlh.runs.events import COMPARING, NO_EVENTS, TESTING, EventFile, EventLog
from fedmlh.runs.folder import RunFolder
from fedmlh.runs.labels_and_examples import describe_test
from fedmlh.runs.model_folder import save_bundle
from fedmlh.runs.remarks import describe_data, describe_resumed, describe_settings
from fedmlh.runs.summary import summarize

#: Called with the record of each round as it finishes.
Watch = Callable[[dict[str, Any]], None]
#: Called with a line for the user.
Tell = Callable[[str], None]
#: Called once the best round is known: figures about the clients, and the curve of their own points if they gave one.
Survey = Callable[[Progress], tuple[dict[str, Any], Curve | None]]


def ignore(news: object) -> None:
    """Ignore a record or a line."""


class Clients(Protocol):
    """All that an engine is: a way to reach the clients, and their memories if it keeps them."""

    @property
    def memories(self) -> dict[int, Memory]:
        """Return the memories of clients, for checkpoints; always empty if clients keep them themselves."""

    def exchange(self, sampled: Sequence[int], outbox: Outbox[PartT]) -> Iterable[tuple[int, Reply] | PartT]:
        """Send these clients their messages, and yield their replies as federated.mail.Ask says."""


@dataclass(frozen=True)
class Run:
    """A finished run: its figures, and the folder in which it lies."""

    summary: dict[str, Any]
    folder: Path

    def __repr__(self) -> str:
        found = self.summary["precision"]
        shares = "/".join(f"{100 * share:.1f}" for share in found.values())
        return f"<Run {self.summary['name']!r}: P@{'/'.join(found)} {shares} % on test points, in {str(self.folder)!r}>"


@dataclass(frozen=True)
class Judge:
    """The points that select the best round, and those that are measured beside them."""

    evaluator: Evaluator
    name: str  # "validation" or "test": the key of its metrics in the record
    points: HashedSplit
    metric: str  # "precision" or the paper's "precision_paper"
    test: HashedSplit | None = None  # also measured every round, selects nothing
    fits: np.ndarray | None = None  # which validation points fit the curve of probabilities; default: every other one

    @classmethod
    def appoint(
        cls,
        config: Config,
        evaluator: Evaluator,
        validation: Split,
        test: HashedSplit,
        fits: np.ndarray | None = None,
    ) -> "Judge":
        """Return the judge that the config asks for."""
        if config.selection == "paper":
            return cls(evaluator, "test", test, "precision_paper")
        watched = test if config.test_every_round else None
        return cls(evaluator, "validation", evaluator.prepare(validation), "precision", watched, fits)

    def calibrate(self, config: Config, model: Tensor) -> tuple[Curve | None, dict[str, Any]]:
        """Return what turns the model's scores into probabilities, with its figures, if points were held out."""
        if self.name != "validation":
            return None, {}
        return self.evaluator.calibrate(config.decoding, model, self.points, self.fits)

    def choose_bins(self, config: Config, model: Tensor) -> Bins | None:
        """Return the bins by which sites count the model's scores: those of the scores of the judge's own points."""
        if not len(self.points):
            return None
        _, scores = self.evaluator.rank_best(model, self.points)
        return Bins(Scale.fit(find_form(config.decoding), scores), self.points.Y.shape[1])


def conduct(
    server: Server,
    clients: Clients,
    judge: Judge,
    test: HashedSplit,
    dataset: Dataset,
    folder: RunFolder,
    *,
    sites: Sequence[str] = (),
    watch: Watch = ignore,
    tell: Tell = ignore,
    survey: Survey = lambda progress: ({}, None),
) -> Run:
    """Run all rounds from the last checkpoint on, write model and summary.

    `sites` are the names of clients by client_id, if they have names; `survey` adds figures.
    """
    task, rounds = server.task, server.task.config.rounds
    identity = f"{server.run} {dataset.fingerprint}"
    checkpoints = Checkpoints(folder.checkpoints, identity, task.stack, server.device, task.config.num_clients)
    progress, problems = checkpoints.load()
    if progress is not None and progress.server.round > rounds:
        raise UserError(
            f"{folder.path} has finished {progress.server.round} rounds already, more than rounds = {rounds}"
        )
    folder.open(task.config)
    for problem in problems:
        tell(problem)
    for remark in (*describe_data(dataset, task.config.partition), *describe_settings(task)):
        tell(remark)

    def write(progress: Progress) -> None:
        folder.write_metrics(progress.history)
        folder.write_participation(progress.log)

    def save(progress: Progress) -> None:
        checkpoints.save(progress)
        write(progress)

    if progress is not None:
        tell(describe_resumed(progress.server.round, rounds, over=is_patience_over(progress, task.config.patience)))
        # The run may have stopped after its last checkpoint was written, but before the files that follow from it.
        write(progress)
    events = EventLog(EventFile(folder.path, tell))
    with events.record(task.config, sites, resumed=progress is not None):
        progress = run_rounds(server, clients, judge, watch, save, progress, events)
        for client, rounds in sorted(_count_clipped(progress).items()):
            tell(
                f"updates of client {client} were too long in {rounds} rounds and were scaled down: metrics.jsonl says "
                f"by how much; the setting clip turns this off"
            )
        events.begin_step(COMPARING)
        figures, curve = survey(progress)
        events.begin_step(TESTING)
        if curve is None:
            curve, calibration = judge.calibrate(task.config, progress.best_model)
            figures |= calibration
        tested = judge.evaluator.examine(progress.best_model, test, curve)
        summary = summarize(task, progress, tested) | figures
        save_bundle(folder.model, task, server.seeds, progress.best_model.cpu().numpy(), dataset, curve=curve)
        folder.write_points(tested.points)
        folder.write_examples(describe_test(tested, dataset))
        folder.write_summary(summary)
        events.show_result(summary)
    return Run(summary, folder.path)


def run_rounds(
    server: Server,
    clients: Clients,
    judge: Judge,
    watch: Watch = ignore,
    save: Callable[[Progress], None] = ignore,
    progress: Progress | None = None,
    events: EventLog = NO_EVENTS,
) -> Progress:
    """Run rounds until all are done or none was better for `patience` rounds; call `save` after each."""
    config = server.task.config
    if progress is None:
        state = server.begin()
        progress = Progress(state, state.model)
    clients.memories.update(progress.memories)
    events.resume(progress.history, progress.server.tried.attempts)
    exchange: Ask[Tally] = events.listen(clients.exchange)
    while progress.server.round < config.rounds and not is_patience_over(progress, config.patience):
        started = time.perf_counter()
        try:
            state, report = server.run_round(progress.server, exchange, events.close_attempt)
        except GivenUp as end:
            # Else a run that resumes from here would repeat the same attempts with the same clients.
            save(replace(progress, server=end.state, memories=dict(clients.memories), log=[*progress.log, *end.log]))
            raise
        trained = time.perf_counter()
        values = judge.evaluator.evaluate(state.shown, judge.points)
        record: dict[str, Any] = {
            "round": report.round,
            "attempts": report.attempts,
            "clients": report.accepted,
            "refused": list_refused(report.told),
            "clipped": [
                {"client": client_id, "factor": factor} for client_id, factor in sorted(report.clipped.items())
            ],
            "clamped": report.clamped,
            "train_loss": report.loss,
            judge.name: values,
            "bytes_up": report.bytes_up,
            "bytes_down": report.bytes_down,
        }
        if judge.test is not None:
            record["test"] = judge.evaluator.evaluate(state.shown, judge.test)
        record["seconds_training"] = trained - started
        record["seconds_evaluation"] = time.perf_counter() - trained
        score = selection_score(values, judge.metric)
        better = score > progress.best_score
        progress = Progress(
            state,
            state.shown if better else progress.best_model,
            report.round if better else progress.best_round,
            score if better else progress.best_score,
            dict(clients.memories),
            [*progress.history, record],
            [*progress.log, *report.log],
        )
        save(progress)
        events.finish_round(record)
        watch(record)
    return progress


def _count_clipped(progress: Progress) -> Counter[int]:
    """Count for each client the rounds in which its update was scaled down."""
    return Counter(entry["client"] for record in progress.history for entry in record.get("clipped", ()))


def is_patience_over(progress: Progress, patience: int) -> bool:
    """Say whether the last `patience` rounds have brought no better one."""
    return patience > 0 and progress.server.round - progress.best_round >= patience
