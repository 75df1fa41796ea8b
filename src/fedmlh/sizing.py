"""Sizes from the data and a byte budget: how many tables, how many buckets, how wide, and how large a step suits that.

The rules come from the searches under experiments/recipe (docs/recipe.md): one hidden layer, more and smaller tables
than the paper's, buckets that grow with √p, a hidden layer that grows a little faster than the inputs where a table may
cost more, and a step that is the smaller the wider that layer is. Small models start with biases that call every bucket
rare, and keep their step: better in the end, after a slower first round, which large ones would not make up for.
"""

import math
import re
from fractions import Fraction
from typing import Any

from fedmlh.config import Config
from fedmlh.errors import UserError

#: What is chosen with sizes = "auto"; a learning rate or a decay above 0, an output_bias that is not "auto" and
#: feature_map "none" stay as they are.
SIZED = ("num_tables", "num_buckets", "feature_dim", "hidden_sizes")
CHOSEN = (*SIZED, "label_map", "feature_map", "learning_rate", "learning_rate_decay", "output_bias")
#: Without a budget: so many bytes of model a label, within these bounds.
_BYTES_A_LABEL, _LEAST, _MOST = 400, 1 << 20, 48 << 20
#: A large model: 16 tables, and a fast start.
_LARGE = 8 << 20
#: Fewer inputs or a narrower hidden layer are no network worth training; a wider one is no use, whatever the budget.
FEWEST_INPUTS, NARROWEST, WIDEST = 64, 8, 4096
#: Of the linear model of one round: labels that have a column each, and where they are more, buckets in so many tables.
_MOST_OUTPUTS, _MOST_BUCKETS, _ONE_ROUND_TABLES = 50_000, 40_000, 8
#: What networks that correct a linear model have in common with it.
_COMMON = (
    "seed device gpu_precision partition dirichlet_alpha frequent_threshold num_clients clients_per_round quorum "
    "max_attempts deadline budget_mib label_key validation_fraction top_k propensity_a propensity_b"
).split()
#: Of a budget, what surrounds the parameters in a message.
_HEADER = 1 << 10
_UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


def choose_sizes(config: Config, num_features: int, num_labels: int) -> tuple[Config, list[str]]:
    """The config with its sizes filled in where they are to be chosen, and a line a choice that says why."""
    if config.sizes == "given":
        return config, []
    if config.training == "one-round":
        return _choose_outputs(config, num_labels)
    budget = int(config.budget_mib * 2**20) or default_budget(num_labels)
    reasons = [
        f"model of at most {budget / 2**20:.2f} MiB ("
        + ("as set)" if config.budget_mib else f"the default for {num_labels:,} labels)")
    ]
    tables, outputs, fewest = 1, num_labels, max(FEWEST_INPUTS, num_labels)
    if config.algorithm == "fedmlh":
        tables, fewest = suggest_tables(budget), FEWEST_INPUTS
        if config.label_map != "identity":
            outputs = suggest_buckets(num_labels, budget)
        kind = "outputs, one a label" if outputs == num_labels else f"buckets, about {suggest_root(budget)}·√p"
        reasons.append(f"{tables} tables of {outputs:,} {kind}: many small tables rather than few large")
    if config.feature_map == "none":
        fewest = num_features
    inputs, width = fit_network(numbers_within(budget, tables), num_features, outputs, fewest)
    if width < NARROWEST:
        least = least_budget(tables, inputs, outputs)
        if config.algorithm == "fedmlh":  # so much, as it is shown, may call for more tables
            least = least_budget(suggest_tables(least + 2**20 // 100), inputs, outputs)
        raise UserError(
            f"budget_mib leaves a hidden layer of {max(width, 0)} for {num_labels:,} labels: allow at least "
            f"{show_mib(least)}"
        )
    features = "features as they are" if inputs == num_features else f"features hashed from {num_features:,}"
    reasons.append(f"{inputs:,} {features}, one hidden layer of {width}: what the budget leaves")
    rate = config.learning_rate
    if rate == 0:
        rate = suggest_rate(width)
        reasons.append(f"learning rate {rate:g}: 0.07 / √{width}, since wider layers want smaller steps")
    start = suggest_start(config, budget)
    if start:
        reasons.append(describe_start(start, budget))
    feature_map = "none" if inputs == num_features else config.feature_map
    sizes = {"num_tables": tables, "num_buckets": outputs} if config.algorithm == "fedmlh" else {}
    chosen = config.replace(
        **sizes,
        sizes="given",
        budget_mib=0.0,
        feature_map=feature_map,
        feature_dim=inputs,
        hidden_sizes=(width,),
        learning_rate=rate,
        **start,
    )
    return chosen, reasons


def _choose_outputs(config: Config, num_labels: int) -> tuple[Config, list[str]]:
    """One output per label for the linear model of one round, or tables of buckets where labels are too many."""
    config = config.replace(sizes="given", budget_mib=config.budget_mib if config.correct else 0.0)
    if config.label_map == "identity" or (config.label_key == "id" and num_labels <= _MOST_OUTPUTS):
        return config.replace(label_map="identity"), [f"{num_labels:,} outputs, one per label"]
    buckets = min(num_labels, _MOST_BUCKETS // _ONE_ROUND_TABLES)
    chosen = config.replace(num_tables=_ONE_ROUND_TABLES, num_buckets=buckets)
    return chosen, [f"{_ONE_ROUND_TABLES} tables of {buckets:,} buckets for {num_labels:,} labels"]


def choose_networks(config: Config, num_features: int, num_labels: int) -> tuple[Config, list[str]]:
    """The set-up of the networks that correct a linear model: `recommended`, for the clients and points of this run."""
    common = {name: getattr(config, name) for name in _COMMON}
    networks = Config.load("recommended").replace(name=config.name, rounds=config.correct, **common)
    return choose_sizes(networks, num_features, num_labels)


def default_budget(num_labels: int) -> int:
    """Bytes of model where nobody set a limit."""
    return min(_MOST, max(_LEAST, _BYTES_A_LABEL * num_labels))


def suggest_tables(budget: int) -> int:
    """R: many small tables rather than few large ones."""
    return 16 if budget >= _LARGE else 8


def suggest_buckets(num_labels: int, budget: int) -> int:
    """B: 4·√p in 16 tables, 6·√p in 8."""
    return min(num_labels, max(32, round(suggest_root(budget) * math.sqrt(num_labels))))


def suggest_start(config: Config, budget: int) -> dict[str, Any]:
    """How the output layer starts and the step goes on, where the config leaves that open."""
    small = budget < _LARGE
    start: dict[str, Any] = {}
    if config.output_bias == "auto":
        start["output_bias"] = "rare" if small else "random"
    if config.learning_rate_decay == 0:
        start["learning_rate_decay"] = 1.0 if small else 0.95
    return start


def describe_start(start: dict[str, Any], budget: int) -> str:
    """A line that says what `suggest_start` chose, and why."""
    why = "below 8 MiB that ends better" if budget < _LARGE else "from 8 MiB on that starts faster"
    return ", ".join(f"{name} {value}" for name, value in start.items()) + f": {why}"


def suggest_root(budget: int) -> int:
    """How many times √p a table has buckets."""
    return 4 if budget >= _LARGE else 6


def fit_network(numbers: int, num_features: int, outputs: int, fewest_inputs: int = FEWEST_INPUTS) -> tuple[int, int]:
    """Inputs and hidden width of a table's network of at most so many parameters; a width of 0 or less: none fits."""
    width = min(WIDEST, max(NARROWEST, round(0.07 * numbers**0.6)))
    inputs = min(num_features, max(fewest_inputs, (numbers - outputs) // width - outputs - 1))
    return inputs, min(WIDEST, fit_width(numbers, inputs, outputs))


def suggest_rate(width: int) -> float:
    """Adam's learning rate for a hidden layer of that width."""
    return round(0.07 / math.sqrt(width), 4)


def numbers_within(budget: int, tables: int) -> int:
    """Parameters of each table's network, if the message that carries all of them is to keep to the budget."""
    return max(0, budget - _HEADER) // 4 // tables


def least_budget(tables: int, inputs: int, outputs: int) -> int:
    """Bytes for the narrowest networks that are worth training."""
    return 4 * tables * ((inputs + 1 + outputs) * NARROWEST + outputs) + _HEADER


def parse_size(text: str) -> int:
    """Bytes from `2MiB`, `500KiB`, `0.15GiB` or a plain number of bytes."""
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)\s*([kmg]ib|b|)", text.strip(), re.ASCII | re.IGNORECASE)
    if found is None:
        raise UserError(f"'{text}' is not a size: say for example 2MiB, 500KiB, 0.15GiB, or a number of bytes")
    return int(Fraction(found[1]) * _UNITS[found[2].lower()])


def show_mib(size: int) -> str:
    """Bytes in MiB, rounded up, so that a budget of what is shown suffices."""
    return f"{math.ceil(size * 100 / 2**20) / 100:,.2f} MiB"


def fit_width(numbers: int, inputs: int, outputs: int, depth: int = 1) -> int:
    """The width of the widest equal hidden layers in a network of at most so many parameters; 0 or less: none fits."""
    # inputs·h + h + (depth − 1)(h² + h) + outputs·h + outputs ≤ numbers
    square, linear, rest = depth - 1, inputs + depth + outputs, numbers - outputs
    if rest <= 0:
        return 0
    if square == 0:
        return rest // linear
    return int((math.sqrt(linear * linear + 4 * square * rest) - linear) / (2 * square))
