"""Local training: what one client does with its shard in one round (Alg. 2, DeviceTrain)."""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from fedmlh.model.forward import forward
from fedmlh.model.losses import Positives, find_loss, logit_offsets
from fedmlh.model.recipe import Recipe
from fedmlh.model.stack import Stack

try:
    from fedmlh.model.kernels import training as compiled
except (ImportError, RuntimeError):  # no numba, or no folder for its cache: plain torch, which is slower
    compiled = None  # type: ignore[assignment]

#: The learning rate that reveals a gradient: a power of two, so large that the model itself is lost in rounding.
_PROBE = 2.0**24


@dataclass(frozen=True)
class HashedShard:
    """A client's shard as the model sees it: hashed features, a matrix per map, and bucket labels, one per table."""

    features: tuple[csr_matrix, ...]  # 1 or R × [n, d̃]
    buckets: tuple[csr_matrix, ...]  # R × [n, B]

    def __len__(self) -> int:
        return int(self.buckets[0].shape[0])


def train_shard(
    stack: Stack, flat: Tensor, shard: HashedShard, recipe: Recipe, orders: np.ndarray, correction: Tensor | None = None
) -> tuple[Tensor, float]:
    """Train all R sub-models on a shard, from `flat` [P]; return new parameters and the last epoch's mean loss.

    `correction` [P] is added to the gradient of every step.
    """
    plain = compiled is None or flat.device.type != "cpu" or not find_loss(recipe.loss).kernel
    loop = train_plain if plain else compiled.train_compiled
    return loop(stack, flat, shard.features, shard.buckets, orders, recipe, correction)


def full_gradient(stack: Stack, flat: Tensor, shard: HashedShard, recipe: Recipe) -> Tensor:
    """Return the gradient at `flat` of the mean loss over all points of a shard, by the loop that trains it.  # [P]

    A step of SGD ends at flat − rate · gradient; at a rate so large the difference is the gradient to full precision.
    """
    probe = replace(recipe, optimizer="sgd", learning_rate=_PROBE, epochs=1, prox_mu=0.0)
    total = torch.zeros_like(flat)
    for begin in range(0, len(shard), recipe.batch_size):
        rows = np.arange(begin, min(begin + recipe.batch_size, len(shard)))
        moved, _ = train_shard(stack, flat, shard, probe, rows[None])
        total.add_(flat - moved, alpha=len(rows) / (len(shard) * _PROBE))
    return total


def draw_orders(length: int, recipe: Recipe, rng: np.random.Generator) -> np.ndarray:
    """Draw the orders in which a client takes its points, one per epoch.  # [E, n]"""
    return np.stack([rng.permutation(length) for _ in range(recipe.epochs)])


def train_plain(
    stack: Stack,
    flat: Tensor,
    features: tuple[csr_matrix, ...],  # 1 or R × [n, d̃]
    buckets: tuple[csr_matrix, ...],  # R × [n, B]
    orders: np.ndarray,  # [E, n] the points of each epoch in order
    recipe: Recipe,
    correction: Tensor | None = None,  # [P]
) -> tuple[Tensor, float]:
    """Train a shard in plain torch: on a GPU, for a loss without a compiled loop, and as the reference."""
    loss = find_loss(recipe.loss)
    start, flat = flat, flat.clone()
    constant = torch.zeros_like(flat) if correction is None else correction
    tied = recipe.prox_mu > 0 or correction is not None
    offsets = logit_offsets(buckets, recipe)
    shift = None if offsets is None else torch.from_numpy(offsets).to(flat.device).unsqueeze(1)  # [R, 1, B]
    layers = [layer.requires_grad_() for layer in stack.views(flat)]
    make = torch.optim.Adam if recipe.adam else torch.optim.SGD
    step = make(layers, lr=recipe.learning_rate, fused=True)
    total = 0.0
    for order in orders:
        x, z = tuple(part[order] for part in features), tuple(part[order] for part in buckets)
        losses = []
        for begin in range(0, len(order), recipe.batch_size):
            end = min(begin + recipe.batch_size, len(order))
            logits = forward(layers, _densify(x, begin, end, flat.device))
            logits = logits if shift is None else logits + shift
            value = loss.value(logits, _positives(z, begin, end, flat.device))
            step.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            if tied:
                for layer, origin, extra in zip(layers, stack.views(start), stack.views(constant), strict=True):
                    assert layer.grad is not None
                    layer.grad += recipe.prox_mu * (layer.detach() - origin) + extra
            step.step()
            losses.append(value.detach() * ((end - begin) / len(order)))
        total = float(torch.stack(losses).sum())
    return flat, total / stack.num_tables


def _densify(features: tuple[csr_matrix, ...], begin: int, end: int, device: torch.device) -> Tensor:
    """Return rows begin … end of sparse features as a dense batch.  # M × [n, d̃] -> [M, end - begin, d̃]"""
    return torch.from_numpy(np.stack([x[begin:end].toarray() for x in features])).to(device)


def _positives(buckets: tuple[csr_matrix, ...], begin: int, end: int, device: torch.device) -> Positives:
    tables, points, hits = [], [], []
    for table, z in enumerate(buckets):
        bounds = z.indptr[begin : end + 1]
        counts = [b - a for a, b in pairwise(bounds)]
        points.append(np.repeat(np.arange(end - begin), counts))
        hits.append(z.indices[bounds[0] : bounds[-1]])
        tables.append(np.full(len(hits[-1]), table))
    joined = (torch.from_numpy(np.concatenate(part).astype(np.int64)).to(device) for part in (tables, points, hits))
    return Positives(*joined)
