"""Losses over buckets, from the positive buckets' indices alone: no target matrix is ever made.

Each is a sum over tables of the loss that a table alone would have, so that the gradient of a sub-model
does not depend on how many others there are.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor
from torch.nn import functional

from fedmlh.model.recipe import Recipe
from fedmlh.parts import find, register


@dataclass(frozen=True)
class Positives:
    """The positive buckets of a batch: in tables[i], points[i] carries buckets[i]."""

    tables: Tensor  # [m]
    points: Tensor  # [m]
    buckets: Tensor  # [m]


def binary_cross_entropy(logits: Tensor, positives: Positives) -> Tensor:
    """Return the mean over points and buckets, summed over tables (as in the research code).  # [R, n, B] -> []"""
    _, points, buckets = logits.shape
    hit = logits[positives.tables, positives.points, positives.buckets]
    return (functional.softplus(logits).sum() - hit.sum()) / (points * buckets)


def softmax_cross_entropy(logits: Tensor, positives: Positives) -> Tensor:
    """Return the mean over points against targets scaled to sum 1, summed over tables.  # [R, n, B] -> []

    A point without labels adds 0.
    """
    tables, points, _ = logits.shape
    row = positives.tables * points + positives.points
    count = torch.bincount(row, minlength=tables * points)
    log_probs = functional.log_softmax(logits, dim=-1)[positives.tables, positives.points, positives.buckets]
    return -(log_probs / count[row]).sum() / points


def log_odds(counts: np.ndarray, points: int) -> np.ndarray:  # [R, B] -> [R, B]
    """Return logits that say how often points carry each bucket, and no more.

    One more point is assumed, in which each bucket is as likely as the table's average one: so a bucket that was never
    seen counts as rare, not as one that was seen once.
    """
    average = (counts.sum(axis=1, keepdims=True) + 1) / (points * counts.shape[1] + 2)
    share = (counts + average) / (points + 1)
    return np.asarray(np.log(share / (1 - share)))


def log_shares(counts: np.ndarray, points: int) -> np.ndarray:  # [R, B] -> [R, B]
    """Return logits that say each bucket's share of a table's positives, and no more; every count is raised by 1."""
    return np.asarray(np.log((counts + 1) / (counts + 1).sum(axis=1, keepdims=True)))


@dataclass(frozen=True)
class Loss:
    """What is minimised, and what the logits then mean."""

    value: Callable[[Tensor, Positives], Tensor]
    #: Log-probability of each bucket under the model that the loss fits.  # [R, n, B] -> [R, n, B]
    log_likelihood: Callable[[Tensor], Tensor]
    #: If balanced: from counts and points, what a client's bucket frequencies say, so that its logits need not say it.
    known: Callable[[np.ndarray, int], np.ndarray] | None = None
    #: The compiled loop that knows its gradient: bce or softmax. If empty, plain torch trains it.
    kernel: str = ""
    #: Bounds the length of its derivative by the outputs of a table, given their number.
    steepest: Callable[[int], float] = lambda outputs: math.inf


def find_loss(name: str) -> Loss:
    """Return the loss of that name."""
    loss: Loss = find("loss", name)
    return loss


_log_softmax = partial(functional.log_softmax, dim=-1)


def _steepest_bce(outputs: int) -> float:
    return 1 / math.sqrt(outputs)  # a mean over buckets


def _steepest_softmax(outputs: int) -> float:
    return math.sqrt(2)


_BCE = Loss(binary_cross_entropy, functional.logsigmoid, kernel="bce", steepest=_steepest_bce)
_SOFTMAX = Loss(softmax_cross_entropy, _log_softmax, kernel="softmax", steepest=_steepest_softmax)
register("loss", "bce", _BCE)
register("loss", "softmax", _SOFTMAX)
register("loss", "balanced-bce", replace(_BCE, known=log_odds))
register("loss", "balanced-softmax", replace(_SOFTMAX, known=log_shares))


def logit_offsets(buckets: tuple[csr_matrix, ...], recipe: Recipe) -> np.ndarray | None:  # R × [n, B] -> [R, B]
    """Return what a balanced loss adds to a client's logits in training: τ times what its bucket frequencies say.

    The model then need not learn how frequent a bucket is at this client, which differs from client to client.
    Prediction adds nothing, and so does not favour frequent buckets (logit adjustment, Menon et al. 2021; with softmax:
    Ren et al. 2020). None for other losses.
    """
    known = find_loss(recipe.loss).known
    if known is None:
        return None
    counts = np.stack([np.bincount(z.indices, minlength=z.shape[1]) for z in buckets])
    return np.asarray(recipe.loss_tau * known(counts, buckets[0].shape[0]), np.float32)
