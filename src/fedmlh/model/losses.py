"""Losses over buckets, from the indices of positive buckets alone: no target matrix is built.

Each is a sum over tables of the loss that the table alone would have, so that the gradient of a sub-model
does not depend on the number of tables.
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
    """Return the logits that predict each bucket's frequency, and nothing else.

    One more point is assumed, with the table's average frequency in each bucket. So a bucket that no point carries
    counts as rare, not as carried once.
    """
    average = (counts.sum(axis=1, keepdims=True) + 1) / (points * counts.shape[1] + 2)
    share = (counts + average) / (points + 1)
    return np.asarray(np.log(share / (1 - share)))


def log_shares(counts: np.ndarray, points: int) -> np.ndarray:  # [R, B] -> [R, B]
    """Return the logits that predict each bucket's share of a table's positives; 1 is added to every count."""
    return np.asarray(np.log((counts + 1) / (counts + 1).sum(axis=1, keepdims=True)))


@dataclass(frozen=True)
class Loss:
    """A function to minimise, and what the logits mean under it."""

    value: Callable[[Tensor, Positives], Tensor]
    #: Log-probability of each bucket under the model that the loss fits.  # [R, n, B] -> [R, n, B]
    log_likelihood: Callable[[Tensor], Tensor]
    #: If balanced: from counts and points, the logits of a client's bucket frequencies, which the model need not learn.
    known: Callable[[np.ndarray, int], np.ndarray] | None = None
    #: The compiled loop that knows its gradient: bce or softmax. If empty, plain torch trains it.
    kernel: str = ""
    #: A bound on the length of its derivative with respect to the outputs of a table, given their number.
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
    """Return what a balanced loss adds to a client's logits in training: τ times the logits of its frequencies.

    The model then need not learn how frequent a bucket is at this client, which differs from client to client.
    Prediction adds nothing, and so does not favour frequent buckets (logit adjustment, Menon et al. 2021; with softmax:
    Ren et al. 2020). None for other losses.
    """
    known = find_loss(recipe.loss).known
    if known is None:
        return None
    counts = np.stack([np.bincount(z.indices, minlength=z.shape[1]) for z in buckets])
    return np.asarray(recipe.loss_tau * known(counts, buckets[0].shape[0]), np.float32)
