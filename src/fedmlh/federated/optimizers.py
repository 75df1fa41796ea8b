"""What the server does with the mean delta of a round: the step from one global model to the next.

A server optimizer treats the mean delta as a (negative) gradient. Each is a function of the model, that delta and what
it kept from the rounds before; it returns the new model and what to keep.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedmlh.config import Config
from fedmlh.federated.aggregate import square_length
from fedmlh.parts import find, register

#: Named vectors [P] that a server keeps from round to round.
Vectors = Mapping[str, Tensor]


@dataclass(frozen=True)
class MeanDelta:
    """The mean of a round's deltas, and the mean squared length of a delta, weighted alike."""

    mean: Tensor  # [P]
    square: float
    #: How many deltas it is the mean of.
    count: int


@register("server optimizer", "average")
def average(config: Config, model: Tensor, delta: MeanDelta, kept: Vectors) -> tuple[Tensor, Vectors]:
    """Move the model by the mean delta, times the server's step size: FedAvg."""
    return torch.add(model, delta.mean, alpha=config.server_learning_rate), {}


@register("server optimizer", "momentum")
def momentum(config: Config, model: Tensor, delta: MeanDelta, kept: Vectors) -> tuple[Tensor, Vectors]:
    """Move the model by a running sum of deltas that fades by β1 per round: FedAvgM (Hsu et al. 2019)."""
    m = delta.mean + config.server_momentum * kept["m"] if kept else delta.mean.clone()
    return torch.add(model, m, alpha=config.server_learning_rate), {"m": m}


@register("server optimizer", "fedexp")
def fedexp(config: Config, model: Tensor, delta: MeanDelta, kept: Vectors) -> tuple[Tensor, Vectors]:
    """Take a longer step the more the updates disagree, never shorter than 1: FedExP (Jhunjhunwala et al. 2023).

    Updates at right angles to each other give a step of half their number. More than that takes updates that cancel.
    """
    length = square_length(delta.mean)
    step = max(1.0, min(delta.square / (2 * (length + config.server_tau)), delta.count / 2))
    return torch.add(model, delta.mean, alpha=config.server_learning_rate * step), {}


def _adaptive(second: Callable[[Config, Tensor, Tensor], Tensor]) -> "Step":
    """Return a step of FedOpt (Reddi et al. 2021): m averages the deltas; each parameter's is divided by √v + τ."""

    def step(config: Config, model: Tensor, delta: MeanDelta, kept: Vectors) -> tuple[Tensor, Vectors]:
        beta1, tau = config.server_momentum, config.server_tau
        m = (1 - beta1) * delta.mean + (beta1 * kept["m"] if kept else 0)
        v = second(config, kept["v"] if kept else torch.full_like(model, tau**2), delta.mean**2)
        return torch.addcdiv(model, m, v.sqrt() + tau, value=config.server_learning_rate), {"m": m, "v": v}

    return step


def _adam(config: Config, v: Tensor, square: Tensor) -> Tensor:
    return config.server_beta2 * v + (1 - config.server_beta2) * square


def _yogi(config: Config, v: Tensor, square: Tensor) -> Tensor:
    return v - (1 - config.server_beta2) * square * torch.sign(v - square)


def _adagrad(config: Config, v: Tensor, square: Tensor) -> Tensor:
    return v + square


Step = Callable[[Config, Tensor, MeanDelta, Vectors], tuple[Tensor, Vectors]]

for _second, _of in (("adam", _adam), ("yogi", _yogi), ("adagrad", _adagrad)):
    register("server optimizer", _second, _adaptive(_of))


def find_step(name: str) -> Step:
    """Return the server optimizer of that name."""
    step: Step = find("server optimizer", name)
    return step
