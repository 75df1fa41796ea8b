"""The rounds of a run, whatever engine reaches the clients: train, evaluate, select, checkpoint, stop early."""

import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from fedmlh.evaluation.evaluate import Evaluator, Prepared, selection_score
from fedmlh.federated.client import Memory
from fedmlh.federated.server import Exchange, Server
from fedmlh.runs.checkpoint import Progress

#: Called with the record of each round as it finishes.
Watch = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Judge:
    """Which points decide the best round, and what else is measured on the way."""

    evaluator: Evaluator
    name: str  # "validation" or "test": the key of its metrics in the record
    points: Prepared
    metric: str  # "precision" or the paper's "precision_paper"
    test: Prepared | None = None  # also measured every round, selects nothing


def run_rounds(
    server: Server,
    exchange: Exchange,
    memories: MutableMapping[int, Memory],
    judge: Judge,
    watch: Watch = lambda record: None,
    save: Callable[[Progress], None] = lambda progress: None,
    progress: Progress | None = None,
) -> Progress:
    """Rounds until there are enough or none has been better for `patience`; `save` is called after each."""
    config = server.task.config
    if progress is None:
        state = server.begin()
        progress = Progress(state, state.model)
    memories.update(progress.memories)
    while progress.server.round < config.rounds and not _is_patience_over(progress, config.patience):
        started = time.perf_counter()
        state, report = server.run_round(progress.server, exchange)
        trained = time.perf_counter()
        values = judge.evaluator.evaluate(state.shown, judge.points)
        record: dict[str, Any] = {
            "round": report.round,
            "attempts": report.attempts,
            "clients": report.accepted,
            "refused": report.refused,
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
            dict(memories),
            [*progress.history, record],
        )
        save(progress)
        watch(record)
    return progress


def _is_patience_over(progress: Progress, patience: int) -> bool:
    return patience > 0 and progress.server.round - progress.best_round >= patience
