"""Local training: what one client does with its shard in one round (Alg. 2, DeviceTrain)."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from fedmlh.model.losses import LOSSES, Positives
from fedmlh.model.recipe import Recipe
from fedmlh.model.stack import Stack, forward

try:
    from fedmlh.model.kernels import training as compiled
except (ImportError, RuntimeError):  # no numba, or nowhere to keep what it compiles: the same results, later
    compiled = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Shard:
    """A client's points as the model sees them: hashed features (one matrix a map) and bucket labels (one a table)."""

    features: tuple[csr_matrix, ...]  # 1 or R × [n, d̃]
    buckets: tuple[csr_matrix, ...]  # R × [n, B]

    def __len__(self) -> int:
        return int(self.buckets[0].shape[0])


def train(stack: Stack, flat: Tensor, shard: Shard, recipe: Recipe, orders: np.ndarray) -> tuple[Tensor, float]:
    """All R sub-models trained for a local round from `flat` [P]; the new parameters and the last epoch's mean loss."""
    if compiled is not None and flat.device.type == "cpu":
        return compiled.train_compiled(stack, flat, shard.features, shard.buckets, orders, recipe)
    return train_plain(stack, flat, shard.features, shard.buckets, orders, recipe)


def draw_orders(length: int, recipe: Recipe, rng: np.random.Generator) -> np.ndarray:
    """In which order a client of so many points takes them, anew in each epoch.  # [E, n]"""
    return np.stack([rng.permutation(length) for _ in range(recipe.epochs)])


def train_plain(
    stack: Stack,
    flat: Tensor,
    features: tuple[csr_matrix, ...],  # 1 or R × [n, d̃]
    buckets: tuple[csr_matrix, ...],  # R × [n, B]
    orders: np.ndarray,  # [E, n] the points of each epoch in order
    recipe: Recipe,
) -> tuple[Tensor, float]:
    """The same in plain torch: on a GPU, where nothing can be compiled, and as the reference."""
    flat = flat.clone()
    layers = [layer.requires_grad_() for layer in stack.views(flat)]
    make = torch.optim.Adam if recipe.optimizer == "adam" else torch.optim.SGD
    step = make(layers, lr=recipe.learning_rate, fused=True)
    total = 0.0
    for order in orders:
        x, z = tuple(part[order] for part in features), tuple(part[order] for part in buckets)
        losses = []
        for begin in range(0, len(order), recipe.batch_size):
            end = min(begin + recipe.batch_size, len(order))
            logits = forward(layers, _densify(x, begin, end, flat.device))
            value = LOSSES[recipe.loss].value(logits, _positives(z, begin, end, flat.device))
            step.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            step.step()
            losses.append(value.detach() * ((end - begin) / len(order)))
        total = float(torch.stack(losses).sum())
    return flat, total / stack.num_tables


def _densify(features: tuple[csr_matrix, ...], begin: int, end: int, device: torch.device) -> Tensor:
    """Rows begin … end of sparse features as a dense batch.  # M × [n, d̃] -> [M, end - begin, d̃]"""
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
