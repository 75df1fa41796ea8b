"""The search: which trial comes next, which is stopped early, and what is known about each; Optuna keeps the records.

Each side is a study of its own, and both are in one journal. A value depends on the seed, the side, the trial's number,
the knob and the trials that have ended, never on earlier draws. So a trial that was cut off continues with the same
values.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from fedmlh.config import Config
from fedmlh.errors import UserError
from fedmlh.evaluation.evaluate import selection_score
from fedmlh.randomness import generator
from fedmlh.runs.folder import RunFolder
from fedmlh.tuning.goal import Goal
from fedmlh.tuning.space import ROUNDS, Knob, Side, draw
from fedmlh.tuning.workers import Order

FINISHED, STOPPED, OVER, FAILED, OPEN = "finished", "stopped early", "over the limit", "failed", "cut off"
REPEATED = "repeated"
#: Until this many trials of a side have ended, knobs keep their usual values, except for this share, which is random.
_RANDOM, _CHANGED = 10, 0.25
#: A search ends once this many times the wanted trials were drawn: then hardly anything is left to try.
_MOST_DRAWN = 10
#: Figures of a trial, beside its score.
_FIGURES = ("precision", "rounds", "bytes_up", "bytes_down", "seconds")
#: Files that stay in the folder of a trial once it has ended.
_KEPT = ("config.toml", "metrics.jsonl")

optuna.logging.set_verbosity(optuna.logging.WARNING)


@dataclass(frozen=True)
class Row:
    """What is known about a trial."""

    side: str
    number: int
    state: str
    values: dict[str, Any]
    config: Config | None  # None: no network fits
    score: float | None = None  # the mean of P@k on validation, at the best round
    precision: dict[str, float] | None = None
    rounds: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0
    reason: str = ""

    @property
    def name(self) -> str:
        """Return the name of the trial."""
        return f"{self.side}-{self.number:03d}"

    @property
    def bytes_total(self) -> int:
        """Return the bytes sent both ways, over all rounds."""
        return self.bytes_up + self.bytes_down


class Seeded(optuna.samplers.BaseSampler):
    """The sampler TPE, newly seeded for each value by the seed, the trial's number and the knob."""

    def __init__(self, seed: int, side: Side) -> None:
        self.seed, self.side = seed, side
        self.knobs = {knob.name: knob for knob in side.knobs}

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
        """Return nothing: every value is drawn by itself."""
        return {}

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
        """Return nothing: every value is drawn by itself."""
        return {}

    def sample_independent(self, study: Any, trial: FrozenTrial, param_name: str, param_distribution: Any) -> Any:
        """Return the value of a knob."""
        usual = self.knobs[param_name].usual
        rng = generator(self.seed, f"tune {self.side.name} {param_name}", trial.number)
        ended = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
        # Both kinds of labels are to be tried.
        changed = 1.0 if param_name == "labels" else _CHANGED
        if trial.number == 0 or (rng.random() >= changed and len(ended) < _RANDOM):
            return usual
        sampler = optuna.samplers.TPESampler(
            seed=int(rng.integers(2**31)), multivariate=False, n_startup_trials=_RANDOM
        )
        return sampler.sample_independent(study, trial, param_name, param_distribution)


class Alone:
    """A lock that does nothing: the search holds its folder, and a killed process would leave its lock file there."""

    def acquire(self) -> bool:
        """Do nothing."""
        return True

    def release(self) -> None:
        """Do nothing."""


def open_journal(path: Path) -> Any:
    """Return Optuna's storage in a file; a line that a kill cut off is removed first."""
    if path.exists():
        with open(path, "rb+") as file:
            content = file.read()
            if not content.endswith(b"\n"):
                file.truncate(content.rfind(b"\n") + 1)
                os.fsync(file.fileno())
    backend = optuna.storages.journal.JournalFileBackend(str(path), lock_obj=Alone())
    return optuna.storages.JournalStorage(backend)


class Search:
    """A search: hands out trials until there are enough or time is over, and records their results."""

    def __init__(
        self,
        goal: Goal,
        out: Path,
        trials: int,
        *,
        minutes: float | None = None,
        ended: Callable[["Search", Row], None] = lambda search, row: None,
    ) -> None:
        """Open the records in a folder that the caller holds; `ended` is called with each trial that has ended."""
        self.goal, self.out, self.trials, self.ended = goal, out, trials, ended
        self.deadline = None if minutes is None else time.monotonic() + 60 * minutes
        storage = open_journal(out / "journal.log")
        self.sides = {side.name: side for side in goal.sides}
        self.studies = {
            name: optuna.create_study(
                storage=storage,
                study_name=name,
                direction="maximize",
                sampler=Seeded(goal.wish.seed, side),
                pruner=optuna.pruners.MedianPruner(
                    n_startup_trials=3, n_warmup_steps=max(1, side.start.rounds // 8), n_min_trials=2
                ),
                load_if_exists=True,
            )
            for name, side in self.sides.items()
        }
        self._live: dict[str, tuple[Side, Any]] = {}
        self._judged: dict[str, int] = {}
        self._verdicts: dict[str, tuple[str, int]] = {}
        # A kill may have come between the end of a trial and the removal of its files.
        self._cut_off = []
        for name, study in self.studies.items():
            for trial in study.get_trials(deepcopy=False):
                if trial.state == TrialState.RUNNING:
                    self._cut_off.append((name, trial._trial_id))
                else:
                    self._tidy(f"{name}-{trial.number:03d}")

    @property
    def is_time_over(self) -> bool:
        """Say whether no further round is to begin."""
        return self.deadline is not None and time.monotonic() >= self.deadline

    def next(self) -> Order | None:
        """Return the next trial: first those that were cut off, then one of the side with the fewest trials."""
        while not self.is_time_over:
            if self._cut_off:
                name, trial_id = self._cut_off.pop(0)
                trial = optuna.Trial(self.studies[name], trial_id)
            else:
                counts = {name: self._count(name) for name in self.studies}
                if sum(trained for trained, _ in counts.values()) >= self.trials:
                    return None
                if sum(drawn for _, drawn in counts.values()) >= _MOST_DRAWN * self.trials:
                    return None
                name = min(counts, key=lambda name: counts[name][0])
                trial = self.studies[name].ask()
            order = self._prepare(self.sides[name], trial)
            if order is not None:
                return order
        return None

    def heed(self, order: Order) -> bool:
        """Record the rounds that a trial has finished; return whether it is to stop."""
        side, trial = self._live[order.name]
        if side.name == ROUNDS:
            self._catch_up(order, trial)
        return order.name in self._verdicts or self.is_time_over

    def close(self, order: Order, finished: bool, problem: str = "") -> None:
        """Record the end of a trial; it stays open if it neither finished nor was stopped because of its results."""
        side, trial = self._live[order.name]
        if problem:
            if trial.number == 0:
                raise UserError(problem)
            self._end(side, trial, FAILED, reason=problem)
            return
        if side.name == ROUNDS:
            self._catch_up(order, trial)
        if order.name in self._verdicts:
            state, rounds = self._verdicts[order.name]
            self._end(side, trial, state, **_measure(RunFolder(order.folder).read_metrics()[:rounds]))
        elif finished:
            folder = RunFolder(order.folder)
            history, validation = folder.read_metrics(), folder.read_summary()["validation"]
            figures = _measure(history) | {"precision": validation["precision"], "score": selection_score(validation)}
            limit = self.goal.wish.bytes_per_round
            over = limit is not None and side.name != ROUNDS and _heaviest_round(history) > limit
            self._end(side, trial, OVER if over else FINISHED, **figures)

    def rows(self) -> list[Row]:
        """Return all trials, one side after the other, by their numbers."""
        return [
            self._row(side, trial)
            for name, side in self.sides.items()
            for trial in self.studies[name].get_trials(deepcopy=False)
        ]

    def _prepare(self, side: Side, trial: Any) -> Order | None:
        """Return what to train; None if the trial has ended because training it is not needed."""
        values = draw(side, partial(_suggest, trial))
        try:
            config = side.start if trial.number == 0 else side.build(values)
            self.goal.check(config)
        except UserError as problem:
            self._end(side, trial, OVER, reason=str(problem))
            return None
        if self._repeat(side, trial, config):
            return None
        name = f"{side.name}-{trial.number:03d}"
        order = Order(name, config, self.out / "trials" / name)
        self._live[name] = (side, trial)
        if (order.folder / "metrics.jsonl").exists() and side.name == ROUNDS:
            self._catch_up(order, trial)
            if name in self._verdicts:
                self.close(order, False)
                return None
        return order

    def _repeat(self, side: Side, trial: Any, config: Config) -> bool:
        """End a trial with the figures of an earlier trial that had the same settings, if there is one."""
        for other in self.studies[side.name].get_trials(deepcopy=False)[: trial.number]:
            row = self._row(side, other)
            if row.state in (FINISHED, STOPPED) and row.config == config:
                figures = {name: getattr(row, name) for name in _FIGURES}
                again = {"reason": f"the same as {row.name}", "score": other.values[0] if other.values else None}
                self._end(side, trial, REPEATED, **figures, **again)
                return True
        return False

    def _catch_up(self, order: Order, trial: Any) -> None:
        """Record the rounds that were not recorded before, and judge each once."""
        reported = self.studies[ROUNDS].get_trials(deepcopy=False)[trial.number].intermediate_values
        last, limit = max(reported, default=0), self.goal.wish.bytes_per_round
        # A kill may have come between the last report and its verdict.
        judged, sent = self._judged.get(order.name, last - 1), 0
        for record in RunFolder(order.folder).read_metrics():
            round_index = record["round"]
            sent += record["bytes_up"] + record["bytes_down"]
            if round_index <= judged or order.name in self._verdicts:
                continue
            if round_index > last:
                trial.report(selection_score(record["validation"]), round_index)
            if limit is not None and sent > limit * round_index:
                self._verdicts[order.name] = (OVER, round_index)
            elif round_index < order.config.rounds and trial.should_prune():
                self._verdicts[order.name] = (STOPPED, round_index)
            self._judged[order.name] = round_index

    def _end(self, side: Side, trial: Any, state: str, **figures: Any) -> None:
        score = figures.pop("score", None)
        study = self.studies[side.name]
        trial.set_user_attr("end", {"state": state, **figures})
        if score is not None and state in (FINISHED, REPEATED):
            study.tell(trial, score)
        else:
            study.tell(trial, state=TrialState.FAIL if state == FAILED else TrialState.PRUNED)
        self._tidy(f"{side.name}-{trial.number:03d}")
        self.ended(self, self._row(side, study.get_trials(deepcopy=False)[trial.number]))

    def _row(self, side: Side, trial: FrozenTrial) -> Row:
        values, end = dict(trial.params), dict(trial.user_attrs.get("end", {"state": OPEN}))
        config = None
        with contextlib.suppress(UserError, KeyError):  # KeyError: cut off before it had all values
            config = side.start if trial.number == 0 else side.build(values)
        score = trial.values[0] if trial.values else None
        if score is None and end.get("precision"):
            score = selection_score({"precision": end["precision"]})
        return Row(side.name, trial.number, values=values, config=config, score=score, **end)

    def _count(self, name: str) -> tuple[int, int]:
        """Return how many trials of a side are or were trained, and how many were drawn."""
        trials = self.studies[name].get_trials(deepcopy=False)
        ends = [trial.user_attrs.get("end", {}) for trial in trials]
        unseen = sum(end.get("state") == REPEATED or (end.get("state") == OVER and "rounds" not in end) for end in ends)
        return len(trials) - unseen, len(trials)

    def _tidy(self, name: str) -> None:
        """Remove models and checkpoints of a trial that has ended."""
        folder = self.out / "trials" / name
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name not in _KEPT:
                path.unlink()


def describe(knob: Knob) -> Any:
    """Return the distribution of a knob, as Optuna has it."""
    if knob.options:
        return optuna.distributions.CategoricalDistribution(knob.options)
    if knob.whole:
        return optuna.distributions.IntDistribution(int(knob.low), int(knob.high), log=knob.log)
    return optuna.distributions.FloatDistribution(knob.low, knob.high, log=knob.log)


def _suggest(trial: Any, knob: Knob) -> Any:
    if knob.options:
        return trial.suggest_categorical(knob.name, knob.options)
    if knob.whole:
        return trial.suggest_int(knob.name, int(knob.low), int(knob.high), log=knob.log)
    return trial.suggest_float(knob.name, knob.low, knob.high, log=knob.log)


def _measure(history: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of the rounds of a trial, with the precision of the best round."""
    best = max(history, key=lambda record: selection_score(record["validation"]))
    return {
        "precision": best["validation"]["precision"],
        "rounds": len(history),
        "bytes_up": sum(record["bytes_up"] for record in history),
        "bytes_down": sum(record["bytes_down"] for record in history),
        "seconds": sum(record["seconds_training"] + record["seconds_evaluation"] for record in history),
    }


def _heaviest_round(history: list[dict[str, Any]]) -> float:
    """Return the bytes of the round of the linear model, or the mean of the rounds of networks, if that is more."""
    first, *others = (record["bytes_up"] + record["bytes_down"] for record in history)
    return float(max(first, sum(others) / len(others) if others else 0))
