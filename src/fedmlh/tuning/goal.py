"""The goal of a search: both sides of it for some data, and the most bytes that a round may cost."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fedmlh.config import SETTINGS, Config
from fedmlh.data.dataset import Dataset
from fedmlh.errors import UserError
from fedmlh.federated.task import TRAINING, Task
from fedmlh.model.device import pick_device
from fedmlh.oneround.forecast import Occurrences, forecast
from fedmlh.planning.choices import settle_clients
from fedmlh.planning.plan import weigh
from fedmlh.sizing import Shape, choose_sizes, show_mib
from fedmlh.tuning.space import (
    HASHED,
    IDENTITY,
    ONCE,
    ROUNDS,
    Linear,
    Networks,
    NoRoom,
    Side,
    check_settings,
    find_budget,
    size_networks,
)

PRESET = "recommended"
LABELS = {"hashed": (HASHED,), "identity": (IDENTITY,), "both": (HASHED, IDENTITY)}
TRAININGS = {"rounds": (ROUNDS,), "one-round": (ONCE,), "both": (ROUNDS, ONCE)}
#: Settings that --set gives only to the side of one round.
_ONCE_ONLY = {name for name, setting in SETTINGS.items() if setting.section.training == "one-round"}
#: Settings that --set cannot change: the test part is not read, and trials are judged by validation only.
_CLOSED = {"data", "selection", "test_every_round", "local_baseline"}
#: The forecast of one round is off by at most this factor (docs/one-round.md).
_SURE = 1.5
#: Settings on which a search does not depend: where it trains.
_FREE = ("device", "gpu_precision", "data")


@dataclass(frozen=True)
class Wish:
    """The wishes of the user."""

    labels: str = "both"
    training: str = "both"
    start: str | None = None
    settings: tuple[tuple[str, Any], ...] = ()
    clients: int | None = None
    clients_per_round: int | None = None
    rounds: int | None = None
    seed: int = 0
    device: str | None = None
    budget: int | None = None
    bytes_per_round: int | None = None

    def configs(self, data: str) -> dict[str, Config]:
        """Return the config around which each side searches; sizes may be open."""
        for name, value, known in (("--labels", self.labels, LABELS), ("--training", self.training, TRAININGS)):
            if value not in known:
                raise UserError(f"{name} is '{value}': choose one of {', '.join(known)}")
        settings = dict(self.settings)
        check_settings(list(settings))
        for name in settings:
            if name in _CLOSED:
                raise UserError(f"tune judges trials only by the validation part of DATA: {name} cannot be set")
        started = Config.load(PRESET if self.start is None else self.start)
        if started.selection == "paper":
            raise UserError(f"{self.start} selects on the test part, which tune never reads: choose another --start")
        if started.training not in (*TRAININGS[self.training], "auto"):
            raise UserError(
                f"{self.start} trains in {started.training}, which --training leaves out: choose another --start"
            )
        return {
            side: self._change(started, side, settings).replace(data=data, name="tuned")
            for side in TRAININGS[self.training]
        }

    def _change(self, started: Config, side: str, settings: dict[str, Any]) -> Config:
        config = started if started.training in (side, "auto") else Config.load(PRESET)
        changes: dict[str, Any] = {"training": side, "test_every_round": False, "local_baseline": False}
        changes |= {"seed": self.seed}
        changes |= {name: value for name, value in settings.items() if side == ONCE or name not in _ONCE_ONLY}
        flags = {"device": self.device, "num_clients": self.clients, "clients_per_round": self.clients_per_round}
        changes |= {name: value for name, value in (flags | {"rounds": self.rounds}).items() if value is not None}
        if side == ROUNDS:
            changes["correct"] = 0
        elif self.rounds is not None:
            changes.setdefault("correct", min(config.correct, self.rounds))
        clients = changes.get("num_clients", 0)
        # Few clients are all sampled, unless the user sets their number per round.
        if isinstance(clients, int) and 0 < clients < config.clients_per_round:
            changes.setdefault("clients_per_round", clients)
        config = config.replace(**changes)
        if config.validation_fraction == 0:
            raise UserError("tune judges trials by validation points: set a validation_fraction above 0")
        return config


@dataclass(frozen=True)
class Goal:
    """Both sides of a search, and the most that a round may cost."""

    wish: Wish
    dataset: Dataset
    data: str
    notes: tuple[str, ...]
    sides: tuple[Side, ...]
    budget: int

    @classmethod
    def of(cls, wish: Wish, dataset: Dataset, data: str) -> "Goal":
        """Set up the sides that the user asks for, as far as they fit into the budget."""
        shape, notes = Shape.of(dataset.train), []
        configs = {side: settle_clients(config, dataset)[0] for side, config in wish.configs(data).items()}
        partitions = {config.partition for config in configs.values()}
        if len(partitions) > 1:
            named = ", ".join(f"{side}: {config.partition}" for side, config in configs.items())
            notes.append(
                f"clients hold different points on the two sides ({named}): --set partition=iid makes them the same"
            )
        fixed = [name for name, _ in wish.settings]
        first = next(iter(configs.values()))
        budget = find_budget(first, shape) if wish.budget is None else wish.budget
        sides: list[Side] = []
        labels = LABELS[wish.labels]
        if ROUNDS in configs:
            config = configs[ROUNDS]
            budget = _keep_within(config, shape, budget, labels[0], wish.bytes_per_round)
            kinds = labels if config.sizes == "given" else _find_kinds(config, shape, labels, budget, notes)
            sides.append(Networks.of(config, shape, kinds, budget, fixed))
        if ONCE in configs:
            config = configs[ONCE]
            if wish.budget is not None:
                config = config.replace(budget_mib=wish.budget / 2**20)
            chosen, _ = choose_sizes(config, shape)
            if wish.bytes_per_round is not None:  # the networks beside it keep the limit as well
                config = config.replace(budget_mib=min(chosen.budget_mib, budget / 2**20))
            slots = _foresee_once(Occurrences.of(dataset), config, shape).slots
            sides.append(Linear.of(config, shape, labels, fixed, slots))
        goal = cls(wish, dataset, data, tuple(notes), tuple(sides), budget)
        for side in sides:
            try:
                goal.check(side.start)
            except NoRoom as problem:
                raise UserError(
                    f"the first trial of {side.name} costs more than --bytes-per-round: {problem}"
                ) from None
        return goal

    @cached_property
    def occurrences(self) -> Occurrences:
        """Return how often features and labels occur in training points."""
        return Occurrences.of(self.dataset)

    @property
    def settings(self) -> dict[str, Any]:
        """Return all that trials depend on: a resumed search must have the same."""
        starts = {
            side.name: {name: value for name, value in side.start.as_dict().items() if name not in _FREE}
            for side in self.sides
        }
        return {
            "labels": self.wish.labels,
            "training": self.wish.training,
            "budget": self.budget,
            "bytes_per_round": self.wish.bytes_per_round,
            "data": self.dataset.fingerprint,
            "training_version": TRAINING,
            **{f"{side} {name}": value for side, start in starts.items() for name, value in start.items()},
            **{f"{side.name} knobs": [dataclasses.astuple(knob) for knob in side.knobs] for side in self.sides},
        }

    def check(self, config: Config) -> None:
        """Raise NoRoom if sizes show that a round would cost too much."""
        limit, dataset = self.wish.bytes_per_round, self.dataset
        if limit is None:
            return
        if config.training == ROUNDS:
            costs = weigh(config, dataset.num_labels, dataset.num_features, len(dataset.train), None)
            least = float(costs.bytes_up + costs.bytes_down)
        else:
            costs = _foresee_once(self.occurrences, config, Shape.of(dataset.train))
            least = (costs.bytes_up + costs.bytes_down) / _SURE
        if least > limit:
            raise NoRoom(f"a round would send {show_mib(round(least))}, more than {show_mib(limit)}")


def _foresee_once(occurrences: Occurrences, config: Config, shape: Shape) -> Any:
    chosen, _ = choose_sizes(config, shape)
    return forecast(occurrences, config, Task(chosen, shape.features, shape.labels), pick_device(config.device))


def _keep_within(config: Config, shape: Shape, budget: int, labels: str, limit: int | None) -> int:
    """Return a budget for the model with which a round sends no more than the limit."""
    if limit is None or config.sizes == "given":
        return budget
    for _ in range(8):
        # Headers apart, the bytes of a round are a multiple of the model's.
        try:
            start = size_networks(config, shape, labels, budget)
        except UserError as problem:
            raise UserError(f"--bytes-per-round {show_mib(limit)} is too little for networks: {problem}") from None
        costs = weigh(start, shape.labels, shape.features, shape.points, None)
        cost = costs.bytes_up + costs.bytes_down
        if cost <= limit:
            break
        budget = int(budget * limit / cost * 0.99)
    return budget


def _find_kinds(config: Config, shape: Shape, labels: Sequence[str], budget: int, notes: list[str]) -> tuple[str, ...]:
    """Return the kinds of labels for which the budget has room for a network."""
    kinds = []
    for kind in labels:
        try:
            size_networks(config, shape, kind, budget)
        except UserError as problem:
            if len(labels) == 1 or kind == HASHED:
                raise
            notes.append(f"no networks with one output per label: {problem}")
        else:
            kinds.append(kind)
    return tuple(kinds)
