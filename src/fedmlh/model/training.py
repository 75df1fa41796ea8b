"""Local training: what one client does with its shard in one round (Alg. 2, DeviceTrain)."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from fedmlh.model.losses import LOSSES, Positives
from fedmlh.model.stack import Stack, forward


@dataclass(frozen=True)
class Shard:
    """A client's points as the model sees them: hashed features (one matrix a map) and bucket labels (one a table)."""

    features: tuple[csr_matrix, ...]  # 1 or R × [n, d̃]
    buckets: tuple[csr_matrix, ...]  # R × [n, B]

    def __len__(self) -> int:
        return int(self.buckets[0].shape[0])

    def shuffled(self, order: np.ndarray) -> "Shard":
        """The same points in another order."""
        return Shard(tuple(x[order] for x in self.features), tuple(z[order] for z in self.buckets))


def train(
    stack: Stack,
    flat: Tensor,
    shard: Shard,
    rng: np.random.Generator,
    *,
    loss: str,
    optimizer: str,
    learning_rate: float,
    epochs: int,
    batch_size: int,
) -> tuple[Tensor, float]:
    """All R sub-models trained for some epochs from `flat` [P]; the new parameters and the last epoch's mean loss."""
    flat = flat.clone()
    layers = [layer.requires_grad_() for layer in stack.views(flat)]
    if optimizer == "adam":
        step: torch.optim.Optimizer = torch.optim.Adam(layers, lr=learning_rate, fused=True)
    else:
        step = torch.optim.SGD(layers, lr=learning_rate, fused=True)
    total = 0.0
    for _ in range(epochs):
        epoch = shard.shuffled(rng.permutation(len(shard)))
        losses = []
        for begin in range(0, len(shard), batch_size):
            end = min(begin + batch_size, len(shard))
            inputs = densify(epoch.features, begin, end, flat.device)
            logits = forward(layers, inputs)
            value = LOSSES[loss](logits, _positives(epoch.buckets, begin, end, flat.device))
            step.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            step.step()
            losses.append(value.detach() * ((end - begin) / len(shard)))
        total = float(torch.stack(losses).sum())
    return flat, total / stack.num_tables


def densify(features: tuple[csr_matrix, ...], begin: int, end: int, device: torch.device) -> Tensor:
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
