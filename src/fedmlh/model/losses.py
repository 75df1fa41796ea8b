"""Losses over buckets, from the positive buckets' indices alone: no target matrix is ever made.

Each is a sum over tables of the loss that a table alone would have, so that the gradient of a sub-model
does not depend on how many others there are.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Positives:
    """The positive buckets of a batch: entry i says that in its table its point carries its bucket."""

    tables: Tensor  # [m]
    points: Tensor  # [m]
    buckets: Tensor  # [m]


def binary_cross_entropy(logits: Tensor, positives: Positives) -> Tensor:
    """Mean over points and buckets, summed over tables (what the research code trains with).  # [R, n, B] -> []"""
    _, points, buckets = logits.shape
    hit = logits[positives.tables, positives.points, positives.buckets]
    return (functional.softplus(logits).sum() - hit.sum()) / (points * buckets)


def softmax_cross_entropy(logits: Tensor, positives: Positives) -> Tensor:
    """Against multi-hot targets scaled to sum 1; mean over points, a point with no label adds 0.  # [R, n, B] -> []"""
    tables, points, _ = logits.shape
    row = positives.tables * points + positives.points
    count = torch.bincount(row, minlength=tables * points)
    log_probs = functional.log_softmax(logits, dim=-1)[positives.tables, positives.points, positives.buckets]
    return -(log_probs / count[row]).sum() / points


@dataclass(frozen=True)
class Loss:
    """What is minimised, and what the logits then mean."""

    value: Callable[[Tensor, Positives], Tensor]
    #: Log-probability of each bucket under the model that the loss fits.  # [R, n, B] -> [R, n, B]
    log_likelihood: Callable[[Tensor], Tensor]


LOSSES = {
    "bce": Loss(binary_cross_entropy, functional.logsigmoid),
    "softmax": Loss(softmax_cross_entropy, partial(functional.log_softmax, dim=-1)),
}
