"""Sizes from data and a byte budget: tables, buckets, features, width, and how clients train.

The rules were fitted on validation parts by experiments/networks.py (docs/recipe.md). Labels are hashed into many
small tables, each with its own hashed features, since an ensemble of different small networks beats one large network
of the same bytes. Everything changes gradually with the budget and with the data.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from fedmlh.config import SETTINGS, Config
from fedmlh.data.dataset import Split
from fedmlh.display import count
from fedmlh.errors import UserError

#: What sizes = "auto" chooses, beside a learning_rate or learning_rate_decay of 0 and a loss_tau of -1.
SIZED = tuple(name for name, setting in SETTINGS.items() if setting.sized == "chosen")
#: Settings that may change with the sizes: few labels or few features need no hashing.
_CHANGED = {name for name, setting in SETTINGS.items() if setting.sized == "changed"}
#: Values that leave a setting to the data; with sizes "auto" the sizes are left to it as well.
OPEN = {name: setting.open for name, setting in SETTINGS.items() if setting.open is not None}
#: Networks that correct a linear model get the budget of networks alone divided by this, but at least this many bytes.
_BESIDE, _LEAST_BESIDE = 4, 1 << 20
#: A network with fewer inputs or a narrower hidden layer is not worth training; a wider one does not help.
FEWEST_INPUTS, FEWEST_BUCKETS, NARROWEST, WIDEST = 64, 32, 8, 4096
#: FedAvg hashes its features if its hidden layer would be narrower.
_NARROWEST_ALONE = 16
#: One round has a column per label for up to this many labels; else buckets in this many tables.
MOST_OUTPUTS, _MOST_BUCKETS, _ONE_ROUND_TABLES = 50_000, 40_000, 8
#: The bytes of a message beside the parameters.
_HEADER = 1 << 10
_UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


@dataclass(frozen=True)
class Shape:
    """The sizes of the data that the rules use; None if unknown."""

    features: int
    labels: int
    points: int | None = None  # to train on, of all clients together
    positives: float | None = None  # labels per point
    repeated: int | None = None  # features that two points or more have

    @classmethod
    def of(cls, train: Split) -> "Shape":
        """Return the shape of a training part."""
        points = len(train)
        repeated = int(np.count_nonzero(np.bincount(train.X.indices) > 1))
        return cls(train.X.shape[1], train.Y.shape[1], points, train.Y.nnz / max(1, points), repeated)


@dataclass(frozen=True)
class Rule:
    """The constants of the rules, as fitted on validation parts."""

    #: Bytes of a model per d·√p, between the least and the most; d: features that two points or more have.
    bytes_per_cell: float = 40.0
    least_budget: int = 4 << 20
    most_budget: int = 48 << 20
    #: Buckets of a table per √p.
    roots: float = 8.0
    #: Features of a table per root of its parameters.
    inputs: float = 5.5
    #: MiB of a model per table; tables between the least and the most.
    mib_per_table: float = 3.0
    least_tables: int = 8
    most_tables: int = 16
    #: More tables, up to a limit, as long as the hidden layer is at least this share of the outputs wide.
    width_share: float = 0.25
    most_narrow_tables: int = 32
    #: Adam's learning rate in the first round, times the root of the width; the steps of a client in which it halves;
    #: and the least factor from round to round.
    rate: float = 0.14
    half_life: float = 700.0
    least_decay: float = 0.88
    #: τ is 0 if a point has this share of all buckets, and rises by the slope if it has a tenth of that.
    dense: float = 0.08
    slope: float = 0.6
    #: τ for FedAvg, up to a limit.
    dense_alone: float = 0.02
    slope_alone: float = 0.25
    most_tau_alone: float = 0.25

    def budget(self, shape: Shape) -> int:
        """Return the bytes of a model if the config sets no limit."""
        return round(min(self.most_budget, max(self.least_budget, self.wish(shape))))

    def wish(self, shape: Shape) -> float:
        """Return the bytes of a model beyond which more bytes hardly help."""
        features = shape.features if shape.repeated is None else max(1, shape.repeated)
        return self.bytes_per_cell * features * math.sqrt(shape.labels)

    def tables(self, budget: int) -> int:
        """Return R for a budget, if labels are hashed."""
        return min(self.most_tables, max(self.least_tables, round(budget / 2**20 / self.mib_per_table)))

    def buckets(self, shape: Shape, parameters: int) -> int:
        """Return B for a table of `parameters` parameters; if these are few, no more than it has features."""
        wanted = min(self.roots * math.sqrt(shape.labels), self.inputs * math.sqrt(parameters))
        return min(shape.labels, max(FEWEST_BUCKETS, round(wanted)))

    def fit(self, shape: Shape, parameters: int, outputs: int, *, whole: bool, alone: bool) -> tuple[int, int]:
        """Return features and width of a network of `parameters` parameters; below a width of 8 none is worth training.

        If `whole`, features are not hashed. If `alone`, it is the one network of FedAvg.
        """
        narrowest = _NARROWEST_ALONE if alone else NARROWEST
        most = (parameters - outputs) // narrowest - outputs - 1
        inputs = shape.features
        if not whole:
            wanted = most if alone else min(most, round(self.inputs * math.sqrt(parameters)))
            inputs = min(inputs, max(FEWEST_INPUTS, wanted))
        return inputs, min(WIDEST, fit_width(parameters, inputs, outputs))

    def learning_rate(self, width: int) -> float:
        """Return Adam's learning rate in the first round for a hidden layer of that width."""
        return float(f"{self.rate / math.sqrt(width):.3g}")

    def decay(self, steps: float) -> float:
        """Return the factor on the learning rate after a round in which a client takes `steps` steps."""
        return round(max(self.least_decay, math.exp2(-steps / self.half_life)), 3)

    def tau(self, density: float, *, alone: bool) -> float:
        """Return τ if a point has this share of all outputs."""
        dense, slope, most = (
            (self.dense_alone, self.slope_alone, self.most_tau_alone) if alone else (self.dense, self.slope, 1.0)
        )
        return round(min(most, max(0.0, slope * math.log10(dense / density))), 2)


RULE = Rule()


def list_open(config: Config) -> set[str]:
    """Return the settings that this config leaves to the data."""
    names = {name for name, value in OPEN.items() if getattr(config, name) == value}
    if config.sizes == "given":
        return names
    sized = names | {*SIZED} | _CHANGED
    return sized - {"label_map", "num_tables"} if config.is_fedavg else sized  # these two make it FedAvg


def choose_sizes(config: Config, shape: Shape, rule: Rule = RULE) -> tuple[Config, list[str]]:
    """Return the config with the sizes that were left open, and one line per choice that says why."""
    if config.training == "one-round":
        config, networks = _settle_networks(config, shape, rule)
        config, outputs = _choose_outputs(config, shape)
        return config, [*outputs, *(networks if config.correct else [])]  # which may correct it later
    return (config, []) if config.sizes == "given" else _choose_networks(config, shape, rule)


def _choose_networks(config: Config, shape: Shape, rule: Rule) -> tuple[Config, list[str]]:
    """Return the config with sizes of networks; the first reason is about the budget."""
    budget = int(config.budget_mib * 2**20) or rule.budget(shape)
    alone = config.is_fedavg

    def fit_tables(budget: int, tables: int) -> tuple[int, int, int, int]:
        parameters = parameters_within(budget, tables)
        identity = alone or config.label_map == "identity"
        outputs = shape.labels if identity else rule.buckets(shape, parameters)
        return tables, outputs, *rule.fit(shape, parameters, outputs, whole=config.feature_map == "none", alone=alone)

    def fit(budget: int) -> tuple[int, int, int, int]:
        if alone:
            return fit_tables(budget, 1)
        found = fit_tables(budget, rule.tables(budget))
        for tables in range(found[0] + 1, rule.most_narrow_tables + 1):
            more = fit_tables(budget, tables)
            if more[-1] < rule.width_share * more[1]:
                break
            found = more
        return found

    tables, outputs, inputs, width = fit(budget)
    if width < NARROWEST:
        least = find_least(lambda size: fit(size)[-1] >= NARROWEST, budget)
        raise UserError(
            f"budget_mib leaves a hidden layer of {max(width, 0)} for {shape.labels:,} labels: allow at least "
            f"{show_mib(least)}"
        )
    origin = "as set" if config.budget_mib else "the default for such data"
    reasons = [f"model of at most {budget / 2**20:.2f} MiB ({origin}): {describe_neighbours(shape, budget, rule)}"]
    changes: dict[str, Any] = {}
    if not alone:
        changes = {"num_tables": tables, "num_buckets": outputs}
        if outputs == shape.labels and config.label_key == "id":
            changes["label_map"] = "identity"
            reasons.append(f"{tables} tables with an output per label: hashing so few labels would save nothing")
        else:
            why = "; sites know labels by name, so even these few are hashed" if outputs == shape.labels else ""
            reasons.append(f"{tables} tables of {outputs:,} buckets for {shape.labels:,} labels{why}")
    features = "features as they are" if inputs == shape.features else f"features hashed from {shape.features:,}"
    reasons.append(f"{inputs:,} {features}, one hidden layer of {width}: what the budget leaves")
    training, more = choose_training(config, shape, outputs, width, rule)
    feature_map = "none" if inputs == shape.features else config.feature_map
    chosen = config.replace(
        **changes,
        **training,
        sizes="given",
        budget_mib=0.0,
        feature_map=feature_map,
        feature_dim=inputs,
        hidden_sizes=(width,),
    )
    return chosen, [*reasons, *more]


def choose_training(
    config: Config, shape: Shape, outputs: int, width: int, rule: Rule = RULE
) -> tuple[dict[str, Any], list[str]]:
    """Return learning rate, decay and τ if the config leaves them open, and why; unknown counts are assumed."""
    alone = config.is_fedavg
    found: dict[str, Any] = {}
    reasons = []
    if config.learning_rate == 0:
        found["learning_rate"] = rule.learning_rate(width)
        reasons.append(f"learning rate {found['learning_rate']:g}: wider layers need smaller ones")
    if config.learning_rate_decay == 0:
        points = 1000.0 if shape.points is None else shape.points / max(1, config.num_clients)
        steps = max(1.0, points * config.local_epochs / config.batch_size)
        found["learning_rate_decay"] = rule.decay(steps)
        reasons.append(
            f"learning rate times {found['learning_rate_decay']:g} after each round: about "
            f"{count(round(steps), 'step')} of a client"
        )
    if config.loss_tau < 0:
        positives = 5.0 if shape.positives is None else shape.positives
        density = max(positives, 1e-9) / outputs
        found["loss_tau"] = rule.tau(density, alone=alone)
        weight = "get more weight" if found["loss_tau"] else "need no more weight"
        reasons.append(
            f"loss_tau (τ) {found['loss_tau']:g}: a point has {100 * density:.2g} % of the outputs, so rare outputs "
            f"{weight}"
        )
    return found, reasons


def _choose_outputs(config: Config, shape: Shape) -> tuple[Config, list[str]]:
    """Choose one output per label for the linear model of one round, or tables of buckets if labels are too many."""
    if config.sizes == "given":
        return config, []
    config = config.replace(sizes="given")
    if config.label_map == "identity" or (config.label_key == "id" and shape.labels <= MOST_OUTPUTS):
        return config.replace(label_map="identity"), [f"{shape.labels:,} outputs, one per label"]
    buckets = min(shape.labels, _MOST_BUCKETS // _ONE_ROUND_TABLES)
    chosen = config.replace(num_tables=_ONE_ROUND_TABLES, num_buckets=buckets)
    return chosen, [f"{_ONE_ROUND_TABLES} tables of {buckets:,} buckets for {shape.labels:,} labels"]


def _settle_networks(config: Config, shape: Shape, rule: Rule) -> tuple[Config, list[str]]:
    """Return the config with the settings of the networks beside a linear model, and the reasons."""
    if config.validation_fraction == 0:  # no points would show whether networks help
        return config.replace(budget_mib=0.0, learning_rate=0.001, learning_rate_decay=1.0, loss_tau=0.0), []
    if config.budget_mib and config.learning_rate and config.learning_rate_decay and config.loss_tau >= 0:
        return config, []
    origin = "as set"
    if not config.budget_mib:
        budget = max(_LEAST_BESIDE, rule.budget(shape) // _BESIDE)
        config, origin = config.replace(budget_mib=budget / 2**20), "a quarter of what networks alone would get"
    networks, (_, *reasons) = _choose_networks(_make_networks(config), shape, rule)
    reasons = [f"model of at most {config.budget_mib:.2f} MiB ({origin})", *reasons]
    config = config.replace(
        learning_rate=networks.learning_rate,
        learning_rate_decay=networks.learning_rate_decay,
        loss_tau=networks.loss_tau,
    )
    return config, [f"networks beside it: {reason}" for reason in reasons]


def choose_networks(config: Config, num_features: int, num_labels: int) -> Config:
    """Return the set-up of the networks that correct a linear model, given a config in which only sizes are open."""
    return _choose_networks(_make_networks(config), Shape(num_features, num_labels), RULE)[0]


def _make_networks(config: Config) -> Config:
    """Return the set-up of the networks beside a linear model; its sizes are open."""
    changes: dict[str, Any] = {"label_map": "murmur3", "label_seeds": "drawn", "feature_seeds": "drawn"}
    return config.replace(training="rounds", sizes="auto", rounds=max(1, config.correct), correct=0, **changes)


def describe_neighbours(shape: Shape, budget: int, rule: Rule = RULE) -> str:
    """Say how much P@k would change with half and with twice the bytes."""
    half, twice = (estimate_gain(shape, budget, size, rule) for size in (budget / 2, 2 * budget))
    return f"about {half:+.1f} points of P@k with half of it, {twice:+.1f} with twice as much"


def estimate_gain(shape: Shape, budget: float, other: float, rule: Rule = RULE) -> float:
    """Estimate by how many points P@k changes with another budget, as on the data sets of the fit."""

    def loss(size: float) -> float:
        return 0.3 * max(0.0, math.log2(rule.wish(shape) / size)) ** 2

    return loss(budget) - loss(other)


def find_least(fits: Callable[[int], bool], low: int) -> int:
    """Return about the fewest bytes that fit, given that `low` bytes do not."""
    high = max(2 * low, 1 << 12)
    while not fits(high):
        low, high = high, 2 * high
    while high - low > 1 << 8:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def parameters_within(budget: int, tables: int) -> int:
    """Return how many parameters per table a message within the budget can carry."""
    return max(0, budget - _HEADER) // 4 // tables


def parse_size(text: str) -> int:
    """Return the bytes that `2MiB`, `500KiB`, `0.15GiB` or a plain number of bytes stands for."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)\s*([kmg]ib|b|)", text.strip(), re.ASCII | re.IGNORECASE)
    if found is None:
        raise UserError(f"'{text}' is not a size: say for example 2MiB, 500KiB, 0.15GiB, or a number of bytes")
    return int(Fraction(found[1]) * _UNITS[found[2].lower()])


def show_mib(size: int) -> str:
    """Show bytes in MiB, rounded up, so that a budget of what is shown suffices."""
    return f"{math.ceil(size * 100 / 2**20) / 100:,.2f} MiB"


def fit_width(parameters: int, inputs: int, outputs: int, depth: int = 1) -> int:
    """Return the width of the widest equal hidden layers that `parameters` parameters allow; 0 or less if none fits."""
    # inputs·h + h + (depth − 1)(h² + h) + outputs·h + outputs ≤ parameters
    square, linear, rest = depth - 1, inputs + depth + outputs, parameters - outputs
    if rest <= 0:
        return 0
    if square == 0:
        return rest // linear
    return int((math.sqrt(linear * linear + 4 * square * rest) - linear) / (2 * square))
