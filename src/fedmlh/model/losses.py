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


def log_odds(counts: np.ndarray, points: int) -> np.ndarray:  # [R, B] -> [R, B]
    """Logits that say of each bucket how often its points carry it, and no more; as if there were one more point,
    with each bucket as likely as the table's average one: a bucket never seen is rare, not as frequent as one point.
    """
    average = (counts.sum(axis=1, keepdims=True) + 1) / (points * counts.shape[1] + 2)
    share = (counts + average) / (points + 1)
    return np.asarray(np.log(share / (1 - share)))


def log_shares(counts: np.ndarray, points: int) -> np.ndarray:  # [R, B] -> [R, B]
    """Logits that say which share of a table's positives is each bucket's, and no more; every count raised by 1."""
    return np.asarray(np.log((counts + 1) / (counts + 1).sum(axis=1, keepdims=True)))


@dataclass(frozen=True)
class Loss:
    """What is minimised, and what the logits then mean."""

    value: Callable[[Tensor, Positives], Tensor]
    #: Log-probability of each bucket under the model that the loss fits.  # [R, n, B] -> [R, n, B]
    log_likelihood: Callable[[Tensor], Tensor]
    #: Of a balanced loss: what a client's own frequencies say, which its logits then need not.
    known: Callable[[np.ndarray, int], np.ndarray] | None = None
    #: Which compiled loop knows its gradient: bce or softmax; empty: none, it is trained in plain torch.
    kernel: str = ""
    #: The longest that its derivative by the outputs of a table can be, given their number.
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
    """What a balanced loss adds to a client's logits in training: τ times what its own bucket frequencies say.

    The model then need not learn how frequent a bucket is at this client, which differs from client to client, and
    prediction, which adds nothing, favours no bucket for it (logit adjustment, Menon et al. 2021; with softmax: Ren et
    al. 2020). None for other losses.
    """
    known = find_loss(recipe.loss).known
    if known is None:
        return None
    counts = np.stack([np.bincount(z.indices, minlength=z.shape[1]) for z in buckets])
    return np.asarray(recipe.loss_tau * known(counts, buckets[0].shape[0]), np.float32)
