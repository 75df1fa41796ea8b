"""Corrections: what a client adds to its gradients so that local steps do not carry it to an optimum of its own.

Each is a vector that stays the same for a round, made of what the client kept from its last accepted update.
"""

import torch
from torch import Tensor

from fedmlh.config import Config
from fedmlh.federated.messages import BroadcastHeader


def correct(
    config: Config, header: BroadcastHeader, model: Tensor, control: Tensor | None, kept: dict[str, Tensor]
) -> Tensor | None:
    """What is added to every gradient of this round, or None.  # [P]"""
    if config.correction == "scaffold":
        mine = kept.get("control", torch.zeros_like(model))
        return -mine if control is None else control - mine
    if config.correction == "vrl-sgd":
        return -vrl_delta(model, kept, header.steps * config.learning_rate)
    return None


def vrl_delta(model: Tensor, kept: dict[str, Tensor], reach: float) -> Tensor:
    """Δ of variance-reduced local SGD (Liang et al. 2019): how a client's gradients differ from the average.  # [P]

    `model` is the average of where all clients ended, `kept` has where this one did; `reach` = steps · learning rate is
    the same for all clients (that of the one with most steps), or their Δ would not add up to zero.
    """
    if "end" not in kept:
        return torch.zeros_like(model)
    return kept["delta"] + (model - kept["end"]) / reach
