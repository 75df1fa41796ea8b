"""Bounds on how far one client may move the model in a round; they need no setting.

Lengths are root-mean-square values over the parameters of updates, as the server decodes them. The length per local
step is compared. In the first round the bound is what the local optimizer can reach in a step. After that it is a
multiple of the median of recent lengths, which fewer than half of the clients cannot move. If the first round's own
median shows that an update was too long, the round is repeated once with a bound by that median.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median_low

import torch
from torch import Tensor

from fedmlh.errors import UserError
from fedmlh.federated.aggregate import LIMIT
from fedmlh.federated.codecs import make_codec
from fedmlh.federated.drift import find_remedy
from fedmlh.federated.messages import Reason, Rejected
from fedmlh.federated.task import Task
from fedmlh.federated.transforms.transform import Delta
from fedmlh.model.losses import find_loss

#: A step may be this many times as long as the usual one. Nearly all honest ones stay below that.
SLACK = 2.0
#: The factor while fewer lengths than this are known, since the median of a few says less.
EARLY_SLACK, _FEW = 3.0, 8
#: Refusing an honest update costs more than scaling it, so the bound is this many times wider if it refuses.
REFUSAL_SLACK = 4.0
#: How many recent lengths are kept: those of three rounds, but at least this many.
_ROUNDS, _FEWEST = 3, 16
#: A client counts as taking at most this many times the steps of the median client, however many points it claims.
_MOST_STEPS = 2
#: A step of Adam moves a value by about the learning rate; the first round allows this much more.
_STEP_SLACK = 1.5
#: The same for a gradient, on top of the loss's derivative: the length of inputs is not known beforehand.
_GRADIENT_SLACK = 32.0


@dataclass(frozen=True)
class Lengths:
    """Recent lengths: those of updates per step, and of the first extra vectors of clients."""

    steps: tuple[float, ...] = ()
    controls: tuple[float, ...] = ()


@dataclass(frozen=True)
class Bounds:
    """The longest update of each client, and the longest extra vector, that count whole."""

    updates: Mapping[int, float]
    extra: float
    #: Whether a longer update is scaled down; else it is refused. A longer extra vector is always refused.
    scales: bool


@dataclass(frozen=True)
class Clip:
    """Scales a delta that is too long down to a bound, or refuses it."""

    longest: float
    scales: bool
    name: str = "update"

    def apply(self, delta: Delta) -> Delta:
        """Return a delta that is no longer than the bound, or raise Rejected."""
        length = delta.length
        if length <= self.longest:
            return delta
        if not self.scales:
            raise Rejected(
                Reason.RANGE,
                f"the {self.name} has a root-mean-square value of {length:.3g}, at most {self.longest:.3g} is "
                f"plausible (clip=off)",
            )
        return delta.scale(self.longest / length)


class Clipping:
    """The bounds of a task's rounds, given the most examples that each client can have."""

    def __init__(self, task: Task, max_examples: Mapping[int, int]) -> None:
        self.task = task
        steps = {client: task.recipe.steps(examples) for client, examples in max_examples.items()}
        usual = median_low(steps.values())
        #: How many steps each client counts as taking; one that takes few may go as far as the median client.
        self.steps = {client: min(max(count, usual), _MOST_STEPS * usual) for client, count in steps.items()}

    def bounds(self, clients: Iterable[int], recent: Lengths) -> Bounds:
        """Return the bounds for clients of the next round."""
        config, recipe = self.task.config, self.task.recipe
        scales = not find_remedy(config).keeps
        if config.clip == "off":
            return Bounds(dict.fromkeys(clients, math.inf), math.inf, scales)
        inflation, gradient = make_codec(config.update_codec).inflation, _gradient_length(self.task)
        first = recipe.learning_rate * (_STEP_SLACK if recipe.adam else gradient)
        step = _usual(recent.steps, first * inflation) * (1.0 if scales else REFUSAL_SLACK)
        extra = _usual(recent.controls, gradient * inflation) * REFUSAL_SLACK
        return Bounds({client: self.steps[client] * step for client in clients}, extra, scales)

    def find_excess(
        self, updates: Mapping[int, float], extras: Mapping[int, float], recent: Lengths
    ) -> dict[int, float]:
        """Return the clients whose updates, or extra vectors, are too long, and how many times."""
        bounds = self.bounds(updates, recent)
        times = {
            client: max(length / bounds.updates[client], extras.get(client, 0.0) / bounds.extra)
            for client, length in updates.items()
        }
        return {client: times[client] for client in sorted(times) if times[client] > 1}

    def remember(self, recent: Lengths, updates: Mapping[int, float], extras: Mapping[int, float]) -> Lengths:
        """Return the recent lengths after a round with updates and first extra vectors of these lengths.

        Later extra vectors of a client do not count: they are differences, and much shorter than its first.
        """
        most = max(_FEWEST, _ROUNDS * self.task.config.clients_per_round)
        steps = [updates[client] / self.steps[client] for client in sorted(updates)]
        firsts = [extras[client] for client in sorted(extras)]
        return Lengths((*recent.steps, *steps)[-most:], (*recent.controls, *firsts)[-most:])


def _usual(recent: tuple[float, ...], first: float) -> float:
    """Return a multiple of the median, or the first round's bound if there is no median or it is 0."""
    usual = median_low(recent) if recent else 0.0
    return (EARLY_SLACK if len(recent) < _FEW else SLACK) * usual if usual > 0 else first


def _gradient_length(task: Task) -> float:
    """Return the longest gradient that is plausible at the first model, as a root-mean-square value."""
    stack = task.stack
    by_outputs = find_loss(task.recipe.loss).steepest(stack.num_outputs)
    return _GRADIENT_SLACK * by_outputs * math.sqrt(stack.num_tables / stack.num_parameters)


def cap_weight(examples: Mapping[int, int], share: float) -> int:
    """Return the largest weight of one client, so that none has more than the share of the weight of all.

    Heavier clients count as this many examples. If the share is too small for so few clients, all weigh the same.
    """
    ordered = sorted(examples.values(), reverse=True)
    rest = sum(ordered)
    if ordered[0] <= share * rest:
        return ordered[0]
    for capped, heaviest in enumerate(ordered, start=1):
        rest -= heaviest
        # With `capped` clients at the cap c, c = share · (capped · c + rest).
        left = 1 - share * capped
        if left <= 0:
            return heaviest
        cap = share * rest / left
        if capped == len(ordered) or cap >= ordered[capped]:
            return max(1, int(cap))
    return 1


def confine(values: Tensor, what: str) -> tuple[Tensor, int]:
    """Return values within ±LIMIT, which every codec can carry, and how many had to be clamped; NaN is an error."""
    ends = [float(end) for end in torch.aminmax(values)]
    if any(math.isnan(end) for end in ends):
        raise UserError(
            f"the server's step would leave {what} with values that are not numbers: use a smaller server_learning_rate"
        )
    if max(map(abs, ends)) <= LIMIT:
        return values, 0
    return values.clamp(-LIMIT, LIMIT), int((values.abs() > LIMIT).sum())
