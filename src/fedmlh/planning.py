"""Sizes before there is a run: what candidates cost, how safely they tell labels apart, and which one to take."""

import dataclasses
import math
import shlex
from dataclasses import dataclass
from typing import Any

from fedmlh.config import Config
from fedmlh.engines.device import pick_device
from fedmlh.errors import UserError
from fedmlh.federated.codecs import make_codec
from fedmlh.federated.delivery import mean_payload
from fedmlh.federated.messages import BroadcastHeader, UpdateHeader, pack
from fedmlh.federated.task import MAX_PARAMETERS, Task
from fedmlh.hashing.theory import collision_probability, smallest_buckets, typical_positives
from fedmlh.oneround.forecast import Forecast, Occurrences, forecast
from fedmlh.sizing import (
    FEWEST_INPUTS,
    NARROWEST,
    choose_sizes,
    default_budget,
    describe_start,
    fit_network,
    least_budget,
    numbers_within,
    show_mib,
    suggest_buckets,
    suggest_rate,
    suggest_root,
    suggest_start,
    suggest_tables,
)

#: What a plan's sizes go into, and the preset of one round; commands say how a config differs from its preset.
PRESET, ONCE = "recommended", "one-round"
SIZES = ("num_tables", "num_buckets", "feature_dim", "hidden_sizes")
TABLES = (4, 8, 16, 32)
#: Of the buckets that the rule suggests.
SHARES = (0.5, 1, 2)
#: Label ids are hashed as 32-bit integers.
_MOST_LABELS = 2**31 - 1
_MOST = 2**53


@dataclass(frozen=True)
class Candidate:
    """A set of sizes within the budget, with what it costs and what it is good for."""

    config: Config
    num_parameters: int
    model_bytes: int
    #: Of one round and all its clients, before deflating: the updates, and on average the broadcasts from the second
    #: round on (the first sends no model).
    bytes_up: int
    bytes_down: int
    #: Both ways, over all rounds.
    bytes_total: int
    #: That some pair of labels collides in all tables.
    collision_probability: float
    #: Of the bucket of a label of mean frequency; None where the data's totals are not known.
    positives: float | None

    @property
    def figures(self) -> dict[str, Any]:
        """Sizes, costs and predictions under one roof, ready for JSON."""
        sizes = {name: getattr(self.config, name) for name in SIZES}
        costs = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self) if entry.name != "config"}
        return sizes | costs

    @property
    def command(self) -> str:
        """The command that runs it, given the data."""
        return write_command(PRESET, self.config)


@dataclass(frozen=True)
class Plan:
    """Candidates that keep to the budget and to Lemma 2, the one to take, and why."""

    budget: int
    candidates: tuple[Candidate, ...]
    chosen: Candidate
    reasons: tuple[str, ...]


def make_plan(
    num_labels: int,
    *,
    num_points: int | None = None,
    num_positives: int | None = None,
    num_features: int | None = None,
    budget: int | None = None,
    delta: float = 0.01,
    num_clients: int | None = None,
    clients_per_round: int | None = None,
    rounds: int | None = None,
    data: str = "",
    data_format: str = "auto",
) -> Plan:
    """Sizes for such data and a model of at most `budget` bytes, by the rules of `recommended` and by Lemma 2."""
    _check("num_labels", num_labels, 2, _MOST_LABELS)
    _check("num_features", num_features, 1, _MOST)
    _check("num_points", num_points, 1, _MOST)
    if (num_points is None) != (num_positives is None):
        raise UserError("expected positives follow from num_points and num_positives together: give both or neither")
    if num_points is not None:
        _check("num_positives", num_positives, 0, num_points * num_labels)
    _check("budget", budget, 1, 4 * MAX_PARAMETERS)
    preset = Config.load(PRESET)
    base = _fill(preset, num_clients, clients_per_round, data, data_format).replace(
        rounds=preset.rounds if rounds is None else rounds
    )
    allowed = default_budget(num_labels) if budget is None else budget

    shapes = _list_shapes(num_labels, allowed, delta)
    if not shapes:
        raise UserError(
            f"delta {delta:g} cannot be met for {num_labels:,} labels: even {max(TABLES)} tables with a bucket a label "
            f"are too few; allow a larger delta"
        )
    candidates = []
    for tables, buckets in shapes:
        inputs, width = fit_network(numbers_within(allowed, tables), num_features or _MOST, buckets)
        if width >= NARROWEST:
            config = base.replace(
                sizes="given",
                num_tables=tables,
                num_buckets=buckets,
                feature_dim=inputs,
                hidden_sizes=(width,),
                learning_rate=suggest_rate(width),
                **suggest_start(base, allowed),
                feature_map="none" if inputs == num_features else base.feature_map,
            )
            candidates.append(weigh(config, num_labels, num_features or inputs, num_points, num_positives))
    if not candidates:
        inputs = min(num_features or FEWEST_INPUTS, FEWEST_INPUTS)
        least = min(least_budget(tables, inputs, buckets) for tables, buckets in shapes)
        raise UserError(
            f"a budget of {allowed:,} bytes is too small for {num_labels:,} labels at delta {delta:g}: allow at least "
            f"{show_mib(least)}"
        )

    tables, buckets = suggest_tables(allowed), suggest_buckets(num_labels, allowed)

    def distance(candidate: Candidate) -> tuple[float, float]:
        config = candidate.config
        return abs(math.log2(config.num_tables / tables)), abs(math.log2(config.num_buckets / buckets))

    chosen = min(candidates, key=distance)
    why = _explain(chosen, num_labels, num_features, allowed, budget is not None, delta)
    return Plan(allowed, tuple(candidates), chosen, tuple(why))


def plan_one_round(
    occurrences: Occurrences,
    num_features: int,
    num_labels: int,
    *,
    num_clients: int | None = None,
    data: str = "",
    data_format: str = "auto",
) -> Forecast:
    """What one round will cost for points in which features and labels occur like that, on this machine."""
    config = _fill(Config.load(ONCE), num_clients, None, data, data_format)
    chosen, _ = choose_sizes(config, num_features, num_labels)
    return forecast(occurrences, config, Task(chosen, num_features, num_labels), pick_device(config.device))


def write_command(preset: str, config: Config) -> str:
    """The command that runs a config, which differs a little from a preset."""
    usual = Config.load(preset)
    pairs = [(entry.name, getattr(config, entry.name)) for entry in dataclasses.fields(Config) if entry.name != "data"]
    changed = [(name, value) for name, value in pairs if value != getattr(usual, name)]
    texts = [(name, ",".join(map(str, value)) if isinstance(value, tuple) else value) for name, value in changed]
    data = shlex.quote(config.data) if config.data else "DIR"
    return " ".join([f"fedmlh run {preset} --data {data}", *(f"--set {name}={text}" for name, text in texts)])


def _fill(preset: Config, clients: int | None, sampled: int | None, data: str, data_format: str) -> Config:
    """The preset for so many clients, or as many as are sampled; of few clients all are sampled."""
    if sampled is None:
        sampled = min(preset.clients_per_round, preset.num_clients if clients is None else max(1, clients))
    if clients is None:
        clients = max(preset.num_clients, sampled)
    return preset.replace(num_clients=clients, clients_per_round=sampled, data=data, data_format=data_format)


def _list_shapes(num_labels: int, budget: int, delta: float) -> list[tuple[int, int]]:
    """Tables and buckets around what the rules suggest, none below what Lemma 2 asks for."""
    shapes = []
    for tables in TABLES:
        least = smallest_buckets(num_labels, tables, delta)
        wanted = [max(least, round(share * suggest_buckets(num_labels, budget))) for share in SHARES]
        # More buckets than labels would be refused by a run.
        shapes += [
            (tables, buckets) for buckets in sorted({min(num_labels, count) for count in wanted}) if buckets >= least
        ]
    return shapes


def weigh(
    config: Config, num_labels: int, num_features: int, num_points: int | None, num_positives: int | None
) -> Candidate:
    """What a config costs and what it is good for, on data of such sizes."""
    task = Task(config, num_features, num_labels)
    up, first, down = _message_bytes(task, 1000 if num_points is None else num_points // config.num_clients)
    sampled, rounds = config.clients_per_round, config.rounds
    positives = None
    if num_points is not None and num_positives is not None:
        positives = typical_positives(num_points, num_positives, num_labels, config.num_buckets)
    return Candidate(
        config,
        task.stack.num_parameters,
        4 * task.stack.num_parameters,
        sampled * up,
        sampled * down,
        sampled * (rounds * up + first + (rounds - 1) * down),
        collision_probability(num_labels, config.num_tables, config.num_buckets),
        positives,
    )


def _message_bytes(task: Task, examples: int) -> tuple[int, int, int]:
    """What an update, a broadcast of round 1 and one of round 2 weigh: real headers, and the payload's size."""
    config, seeds, run = task.config, task.draw_seeds(), "0" * 16

    def broadcast(number: int, codec: str, accepted: list[int]) -> int:
        labels, features = list(seeds.labels), list(seeds.features)
        header = BroadcastHeader(run, task.fingerprint, number, 0, 0, codec, seeds.run, labels, features, accepted)
        return len(pack(header, b""))

    # π has as many digits as a mean loss.
    update = UpdateHeader(run, task.fingerprint, 2, 0, 0, config.update_codec, examples, math.pi)
    return (
        len(pack(update, b"")) + make_codec(config.update_codec).size(task.stack.num_parameters),
        broadcast(1, "initial", []),
        broadcast(2, config.broadcast_codec, [1, 0]) + mean_payload(task),
    )


def _explain(
    chosen: Candidate, num_labels: int, num_features: int | None, budget: int, is_set: bool, delta: float
) -> list[str]:
    config = chosen.config
    tables, buckets = suggest_tables(budget), suggest_buckets(num_labels, budget)
    least = smallest_buckets(num_labels, config.num_tables, delta)
    reasons = [
        f"model of at most {budget / 2**20:,.2f} MiB: {'as set' if is_set else 'the default for so many labels'}"
    ]
    if config.num_tables == tables:
        reasons.append(f"{tables} tables: many small ones rather than few large ones, by the rule for this budget")
    else:
        reasons.append(f"{config.num_tables} tables: budget and δ = {delta:g} leave no room for the rule's {tables}")
    if config.num_buckets == buckets:
        reasons.append(
            f"{buckets:,} buckets: the rule's {suggest_root(budget)}·√p (32 at least); Lemma 2 asks for {least:,} at "
            f"δ = {delta:g}"
        )
    elif config.num_buckets == least:
        reasons.append(f"{least:,} buckets: what Lemma 2 asks for at δ = {delta:g}; the rule's would be {buckets:,}")
    else:
        reasons.append(f"{config.num_buckets:,} buckets: the budget leaves no room for the rule's {buckets:,}")
    (width,) = config.hidden_sizes
    if num_features is None:
        of = ", if the data has as many (say --features)"
    elif config.feature_map == "none":
        of = ", all of them as they are"
    else:
        of = f" hashed from {num_features:,}"
    reasons.append(f"{config.feature_dim:,} features{of}, one hidden layer of {width}: what the budget leaves")
    reasons.append(describe_start(suggest_start(Config.load(PRESET), budget), budget))
    return reasons


def _check(name: str, value: int | None, least: int, most: int) -> None:
    if value is not None and not least <= value <= most:
        raise UserError(f"{name} is {value:,}: it must be from {least:,} to {most:,}")
