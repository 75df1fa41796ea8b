"""Sizes of a model before a run: what candidates cost, how well they tell labels apart, and which one to choose."""

import dataclasses
import math
import shlex
from dataclasses import dataclass
from typing import Any

from fedmlh.config import Config
from fedmlh.errors import UserError
from fedmlh.federated.broadcast import mean_payload
from fedmlh.federated.codecs import make_codec
from fedmlh.federated.messages import BroadcastHeader, UpdateHeader, pack
from fedmlh.federated.task import MAX_PARAMETERS, Task
from fedmlh.hashing.theory import collision_probability, typical_positives
from fedmlh.model.device import pick_device
from fedmlh.oneround.forecast import Forecast, Occurrences, forecast
from fedmlh.planning.choices import CLIENTS, SAMPLED
from fedmlh.sizing import RULE, SIZED, Shape, choose_sizes, estimate_gain

#: The preset that a plan sizes, and the preset of one round; commands name what differs from the preset.
PRESET, ONCE = "recommended", "one-round"
#: Shares of the budget for which models are shown.
SHARES = (0.25, 0.5, 1, 2, 4)
#: Number of features that is assumed if it is not given.
_FEATURES = 20_000
#: Label ids are hashed as 32-bit integers.
_MOST_LABELS = 2**31 - 1
_MOST = 2**53


@dataclass(frozen=True)
class Candidate:
    """A set of sizes within the budget, its costs, and how well it should do."""

    config: Config
    num_parameters: int
    model_bytes: int
    #: Bytes of one round over all its clients, before deflating: the updates, and on average the broadcasts from the
    #: second round on (the first sends no model).
    bytes_up: int
    bytes_down: int
    #: Both ways, over all rounds.
    bytes_total: int
    #: Probability that some pair of labels collides in all tables.
    collision_probability: float
    #: Expected points in the bucket of a label of mean frequency; None if the totals of the data are not known.
    positives: float | None
    #: Percentage points of P@k compared with the model of the plan's budget, roughly.
    gain: float = 0.0

    @property
    def figures(self) -> dict[str, Any]:
        """Return sizes, costs and predictions in one dict, ready for JSON."""
        sizes = {name: getattr(self.config, name) for name in SIZED}
        costs = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self) if entry.name != "config"}
        return sizes | costs


@dataclass(frozen=True)
class Plan:
    """Models of smaller and larger budgets, the model of the given budget, and why it has its sizes."""

    budget: int
    candidates: tuple[Candidate, ...]
    chosen: Candidate
    reasons: tuple[str, ...]
    command: str


def make_plan(
    num_labels: int,
    *,
    num_points: int | None = None,
    num_positives: int | None = None,
    num_features: int | None = None,
    num_repeated: int | None = None,
    budget: int | None = None,
    num_clients: int | None = None,
    clients_per_round: int | None = None,
    rounds: int | None = None,
    data: str = "",
    data_format: str = "auto",
) -> Plan:
    """Return sizes of networks for such data and a model of at most `budget` bytes, by the rules of `recommended`.

    num_repeated: the features that two points or more have, if known.
    """
    _check("num_labels", num_labels, 2, _MOST_LABELS)
    _check("num_features", num_features, 1, _MOST)
    _check("num_points", num_points, 1, _MOST)
    if (num_points is None) != (num_positives is None):
        raise UserError(
            "expected positives follow from num_points and num_positives together (--points, --positives): give both "
            "or neither"
        )
    if num_points is not None:
        _check("num_positives", num_positives, 0, num_points * num_labels)
    _check("budget", budget, 1, 4 * MAX_PARAMETERS)
    preset = Config.load(PRESET).replace(training="rounds")
    base = _fill(preset, num_clients, clients_per_round, data, data_format).replace(
        rounds=preset.rounds if rounds is None else rounds
    )
    positives = None if num_points is None or num_positives is None else num_positives / num_points
    shape = Shape(num_features or _FEATURES, num_labels, num_points, positives, num_repeated)
    allowed = RULE.budget(shape) if budget is None else budget
    candidates, chosen, why = [], None, []
    for share in SHARES:
        size = max(1, round(share * allowed))
        try:
            settled = 0.0 if budget is None and share == 1 else size / 2**20
            config, reasons = choose_sizes(base.replace(budget_mib=settled), shape)
            found = weigh(config, num_labels, shape.features, num_points, num_positives)
        except UserError:
            if share == 1:
                raise
            continue
        candidates.append(dataclasses.replace(found, gain=estimate_gain(shape, allowed, size)))
        if share == 1:
            chosen, why = candidates[-1], reasons
    assert chosen is not None  # else its budget would have been refused
    if num_features is None:
        why.append(f"{_FEATURES:,} features are assumed: give their number (num_features, --features)")
    asked = base if budget is None else base.replace(budget_mib=budget / 2**20)
    return Plan(allowed, tuple(candidates), chosen, tuple(why), write_command(PRESET, asked))


def plan_one_round(
    occurrences: Occurrences,
    num_features: int,
    num_labels: int,
    *,
    num_clients: int | None = None,
    data: str = "",
    data_format: str = "auto",
) -> Forecast:
    """Return what one round will cost on this machine, for points in which features and labels occur in this way."""
    config = _fill(Config.load(ONCE), num_clients, None, data, data_format)
    chosen, _ = choose_sizes(config, Shape(num_features, num_labels))
    return forecast(occurrences, config, Task(chosen, num_features, num_labels), pick_device(config.device))


def write_command(preset: str, config: Config) -> str:
    """Return the command that runs a config, as a preset and what differs from it."""
    usual = Config.load(preset)
    pairs = [(name, value) for name, value in config.as_dict().items() if name != "data"]
    changed = [(name, value) for name, value in pairs if value != getattr(usual, name)]
    texts = [(name, ",".join(map(str, value)) if isinstance(value, tuple) else value) for name, value in changed]
    data = shlex.quote(config.data) if config.data else "DIR"
    return " ".join([f"fedmlh run {preset} --data {data}", *(f"--set {name}={text}" for name, text in texts)])


def _fill(preset: Config, clients: int | None, sampled: int | None, data: str, data_format: str) -> Config:
    """Return the preset for these numbers of clients; if there are few clients, all are sampled."""
    _check("num_clients", clients, 1, 10**6)
    _check("clients_per_round", sampled, 1, 10**6)
    if sampled is None:
        sampled = min(SAMPLED, clients or SAMPLED)
    return preset.replace(
        num_clients=clients or max(CLIENTS, sampled), clients_per_round=sampled, data=data, data_format=data_format
    )


def weigh(
    config: Config, num_labels: int, num_features: int, num_points: int | None, num_positives: int | None
) -> Candidate:
    """Return what a config costs on data of these sizes, and how well it should do."""
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
    """Return the bytes of an update and of the broadcasts of rounds 1 and 2, from real headers and payload sizes."""
    config, seeds, run = task.config, task.draw_seeds(), "0" * 16

    def broadcast(round_index: int, codec: str, accepted: list[int]) -> int:
        labels, features = list(seeds.labels), list(seeds.features)
        header = BroadcastHeader(run, task.fingerprint, round_index, 0, 0, codec, seeds.run, labels, features, accepted)
        return len(pack(header, b""))

    # π has as many digits as a mean loss.
    update = UpdateHeader(run, task.fingerprint, 2, 0, 0, config.update_codec, examples, math.pi)
    return (
        len(pack(update, b"")) + make_codec(config.update_codec).size(task.stack.num_parameters),
        broadcast(1, "initial", []),
        broadcast(2, config.broadcast_codec, [1, 0]) + mean_payload(task),
    )


def _check(name: str, value: int | None, least: int, most: int) -> None:
    if value is not None and not least <= value <= most:
        raise UserError(f"{name} is {value:,}: it must be from {least:,} to {most:,}")
