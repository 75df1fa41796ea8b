"""What a search may change: the knobs of networks and of the linear model of one round, and the configs they make.

The range of a knob lies around the value that the rules of `recommended` and `one-round` would choose, so that the same
ranges suit data of any size. The width of a network is no knob: it follows from the byte budget.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fedmlh.config import SETTINGS, Config
from fedmlh.errors import UserError
from fedmlh.federated.task import Task
from fedmlh.sizing import (
    FEWEST_BUCKETS,
    FEWEST_INPUTS,
    NARROWEST,
    RULE,
    SIZED,
    WIDEST,
    Shape,
    choose_sizes,
    fit_width,
    parameters_within,
)

ROUNDS, ONCE = "rounds", "one-round"
IDENTITY, HASHED = "identity", "hashed"
#: Settings that knobs of other names decide, and the option to use instead of --set.
_DECIDED = {
    **dict.fromkeys((*SIZED, "sizes", "learning_rate"), "--start"),
    **dict.fromkeys(("algorithm", "label_map"), "--labels"),
    **{"training": "--training", "budget_mib": "--budget", "seed": "--seed"},
}


class NoRoom(UserError):
    """The budget has no room for a network worth training."""


@dataclass(frozen=True)
class Knob:
    """One thing to choose: one of several options, or a number within bounds."""

    name: str
    #: The value that the rules choose: that of the first trial.
    usual: Any
    options: tuple[Any, ...] = ()
    low: float = 0
    high: float = 0
    log: bool = False
    whole: bool = False
    #: Kind of labels with which it has an effect; empty for both.
    labels: str = ""


#: Returns a value for a knob.
Pick = Callable[[Knob], Any]


class Side(Protocol):
    """One way of training, with its knobs."""

    @property
    def name(self) -> str:
        """Return the name of the side, with which names of its trials begin."""

    @property
    def start(self) -> Config:
        """Return the config of the first trial, with its sizes chosen."""

    @property
    def knobs(self) -> tuple[Knob, ...]:
        """Return what is to be chosen."""

    def build(self, values: dict[str, Any]) -> Config:
        """Return the config of these values, or raise NoRoom."""


def draw(side: Side, pick: Pick) -> dict[str, Any]:
    """Pick a value for every knob that has an effect with the kind of labels, which is picked first."""
    values: dict[str, Any] = {}
    for knob in side.knobs:
        if knob.labels in ("", values.get("labels")):
            values[knob.name] = pick(knob)
    return values


def check_settings(names: Sequence[str]) -> None:
    """Refuse settings that the search itself decides."""
    for name in names:
        if name in _DECIDED:
            raise UserError(f"tune decides {name} itself, so it cannot be set: use {_DECIDED[name]} instead")


@dataclass(frozen=True)
class Networks:
    """Networks that are trained in rounds."""

    config: Config  # sizes may be open
    start: Config
    knobs: tuple[Knob, ...]
    shape: Shape
    budget: int
    name: str = ROUNDS

    @classmethod
    def of(cls, config: Config, shape: Shape, labels: Sequence[str], budget: int, fixed: Sequence[str]) -> "Networks":
        """Set up the search around a config; settings named in `fixed` stay as they are."""
        start = size_networks(config, shape, labels[0], budget)
        own = IDENTITY if start.is_fedavg else HASHED
        if own not in labels:
            raise UserError(f"{config.name} has {own} labels, which --labels leaves out: choose another --start")
        tables = SETTINGS["num_tables"].default if start.is_fedavg else start.num_tables
        root = math.sqrt(shape.labels)
        most = min(24.0, root)
        knobs = [
            Knob("labels", own, tuple(labels)),
            _span("tables", tables, 2, 32, log=True, whole=True, labels=HASHED),
            _span("buckets", start.num_buckets / root, min(1.5, most), most, log=True, labels=HASHED),
        ]
        if config.feature_map != "none":
            share = 1.0 if start.feature_map == "none" else start.feature_dim / shape.features
            least = max(min(1.0, FEWEST_INPUTS / shape.features), min(share, 1.0) / 8)
            knobs.append(_span("features", share, least, 1.25, log=True))
        knobs += [
            _span("step", start.learning_rate / _find_rate(start), 1 / 3, 3.0, log=True),
            _span("learning_rate_decay", start.learning_rate_decay, 0.88, 1.0),
        ]
        if start.loss.startswith("balanced"):
            knobs.append(_span("loss_tau", start.loss_tau, 0.0, 1.25))
        if "softmax" not in start.loss:
            knobs.append(_pick("output_bias", start.output_bias, "random", "rare"))
        knobs += [
            _pick("model_average", start.model_average, 0.0, 0.5, 0.8),
            _span("batch_size", start.batch_size, 32, 256, log=True, whole=True),
            _span("local_epochs", start.local_epochs, 2, 8, log=True, whole=True),
        ]
        return cls(config, start, _leave_out(knobs, fixed), shape, budget)

    def build(self, values: dict[str, Any]) -> Config:
        """Return the config of these values, with a hidden layer as wide as the budget allows."""
        tables, outputs = 1, self.shape.labels
        changes: dict[str, Any] = {**_pick_settings(values), "algorithm": "fedavg"}
        if values["labels"] == HASHED:
            tables, outputs = values["tables"], _count_buckets(values["buckets"], self.shape.labels)
            # Hashing into as many buckets as there are labels would only make some labels collide.
            whole = outputs == self.shape.labels and self.config.label_key == "id"
            label_map = "identity" if whole else _hash_labels(self.config)
            changes = {**_pick_settings(values), "label_map": label_map, "num_tables": tables, "num_buckets": outputs}
        inputs, share = self.shape.features, values.get("features", 1.0)
        if share < 1:
            inputs = min(inputs, max(min(FEWEST_INPUTS, inputs), round(share * inputs)))
        width = min(WIDEST, fit_width(parameters_within(self.budget, tables), inputs, outputs))
        if width < NARROWEST:
            raise NoRoom(f"the budget leaves a hidden layer of {max(0, width)}")
        changes["feature_map"] = "none" if inputs == self.shape.features else self.config.feature_map
        built = self.start.replace(**changes, feature_dim=inputs, hidden_sizes=(width,))
        rate = _find_rate(built) * values.get("step", 1.0)
        return built.replace(learning_rate=float(f"{rate:.4g}"))


@dataclass(frozen=True)
class Linear:
    """The linear model of one round, and networks beside it."""

    start: Config
    knobs: tuple[Knob, ...]
    shape: Shape
    name: str = ONCE

    @classmethod
    def of(
        cls, config: Config, shape: Shape, labels: Sequence[str], fixed: Sequence[str], usual_slots: int
    ) -> "Linear":
        """Set up the search around a config, which would give features `usual_slots` slots."""
        start, _ = choose_sizes(config, shape)
        own = IDENTITY if start.label_map == "identity" else HASHED
        if own not in labels:
            (own,) = labels
            buckets = min(shape.labels, max(FEWEST_BUCKETS, min(5000, shape.labels // 8)))
            hashed = {"label_map": _hash_labels(config), "num_tables": 8, "num_buckets": buckets}
            start = start.replace(**(hashed if own == HASHED else {"label_map": "identity"}))
        root = math.sqrt(shape.labels)
        most = min(root, 5000 / root)
        wanted = start.num_buckets / root if own == HASHED else most / 2
        share = usual_slots / shape.features
        # λ and the power are chosen in each trial unless a knob sets them; the knob's values lie between those that are
        # tried when they are chosen.
        knobs = [
            Knob("labels", own, tuple(labels)),
            _span("tables", start.num_tables if own == HASHED else 8, 4, 16, log=True, whole=True, labels=HASHED),
            _span("buckets", wanted, most / 8, most, log=True, labels=HASHED),
            _span("features", share, share / 8, min(1.0, 2 * share), log=True),
            _pick("ridge", start.ridge, 0.0, 0.2, 0.5, 0.7, 1.5, 2.0, 5.0),
            _pick("count_power", start.count_power, -1.0, 0.0, 0.025, 0.075, 0.125, 0.175),
            _pick("correct", start.correct, 0, start.correct or start.rounds),
        ]
        return cls(start, _leave_out(knobs, fixed), shape)

    def build(self, values: dict[str, Any]) -> Config:
        """Return the config of these values."""
        changes = _pick_settings(values)
        if values["labels"] == IDENTITY:
            changes["label_map"] = "identity"
        else:
            changes |= {
                "label_map": _hash_labels(self.start),
                "num_tables": values["tables"],
                "num_buckets": _count_buckets(values["buckets"], self.shape.labels),
            }
        usual = {knob.name: knob.usual for knob in self.knobs}
        if values.get("features", usual.get("features")) != usual.get("features"):
            changes["feature_slots"] = min(2**17, max(1, round(values["features"] * self.shape.features)))
        return self.start.replace(**changes)


def _leave_out(knobs: Sequence[Knob], fixed: Sequence[str]) -> tuple[Knob, ...]:
    names = {"features" if name == "feature_slots" else name for name in fixed}
    return tuple(knob for knob in knobs if knob.name not in names)


def find_budget(config: Config, shape: Shape) -> int:
    """Return the bytes of a model if the user set no limit: those of given sizes, else by the rule."""
    if config.sizes == "given" and config.training == ROUNDS:
        return 4 * Task(config, shape.features, shape.labels).stack.num_parameters + 2**10
    return int(config.budget_mib * 2**20) or RULE.budget(shape)


def size_networks(config: Config, shape: Shape, labels: str, budget: int) -> Config:
    """Return the config of the first trial."""
    if config.sizes == "given":
        return config
    if labels == IDENTITY:
        config = config.replace(algorithm="fedavg")
    elif config.is_fedavg:
        config = config.replace(label_map=_hash_labels(config))
    return choose_sizes(config.replace(budget_mib=budget / 2**20), shape)[0]


def _pick_settings(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of knobs that are settings of the same name."""
    return {name: value for name, value in values.items() if name in SETTINGS}


def _hash_labels(config: Config) -> str:
    """Return the label map of a config, or the usual one if it does not hash."""
    return str(SETTINGS["label_map"].default) if config.label_map == "identity" else config.label_map


def _find_rate(config: Config) -> float:
    """Return the learning rate that the rule chooses for these sizes."""
    return RULE.learning_rate(config.hidden_sizes[0])


def _count_buckets(root: float, num_labels: int) -> int:
    """Return B from a multiple of √p."""
    return min(num_labels, max(min(num_labels, FEWEST_BUCKETS), round(root * math.sqrt(num_labels))))


def _span(name: str, usual: float, low: float, high: float, **options: Any) -> Knob:
    """Return a knob whose bounds include the usual value."""
    return Knob(name, usual, low=min(low, usual), high=max(high, usual), **options)


def _pick(name: str, usual: Any, *options: Any) -> Knob:
    """Return a knob whose options include the usual value."""
    return Knob(name, usual, tuple(dict.fromkeys((usual, *options))))
