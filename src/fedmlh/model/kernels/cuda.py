"""Local training on a GPU: all sampled clients × all tables as one computation.

The reference is `train_plain` in fedmlh.model.local_training; tests/test_cuda.py compares the two. This module decides
which clients train together; fedmlh.model.kernels.cuda_steps holds the memory and the steps,
fedmlh.model.kernels.cuda_programs what runs on the device.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from scipy.sparse import vstack
from torch import Tensor

from fedmlh.model.kernels.cuda_steps import DeviceRows, Setup, Workspace
from fedmlh.model.local_training import HashedShard
from fedmlh.model.losses import logit_offsets
from fedmlh.model.recipe import Recipe
from fedmlh.model.stack import Stack

#: Share of the GPU's free memory that a round may take.
_SHARE = 0.8


class CudaTrainer:
    """A trainer of all clients of a run; their data and the working memory stay on the device between rounds."""

    def __init__(
        self, stack: Stack, recipe: Recipe, shards: Mapping[int, HashedShard], device: torch.device, *, tf32: bool
    ) -> None:
        self._lengths = {client: len(shard) for client, shard in shards.items()}
        self._begins = dict(zip(shards, np.cumsum([0, *self._lengths.values()]), strict=False))
        features = zip(*(shard.features for shard in shards.values()), strict=True)
        buckets = zip(*(shard.buckets for shard in shards.values()), strict=True)
        offsets = {client: logit_offsets(shard.buckets, recipe) for client, shard in shards.items()}
        self._offsets = {c: torch.from_numpy(part).to(device) for c, part in offsets.items() if part is not None}
        self._setup = Setup(
            stack,
            recipe,
            device,
            tf32,
            features=DeviceRows.gather([vstack(part, "csr") for part in features], device),
            buckets=DeviceRows.gather([vstack(part, "csr") for part in buckets], device),
            longest=max(self._lengths.values()),
            balanced=bool(self._offsets),
        )
        self._workspace: Workspace | None = None

    def train_clients(
        self,
        models: Sequence[Tensor],
        clients: Sequence[int],
        orders: Sequence[np.ndarray],
        learning_rate: float,
        corrections: Sequence[Tensor] = (),
    ) -> list[tuple[Tensor, float]]:
        """Return new parameters [P] and the last epoch's mean loss per client, from its model and its orders [E, n].

        The learning rate of the round takes the place of the recipe's. `corrections` [P], one per client, are added to
        the gradient of every step; a run has them in every round or in none.
        """
        if self._workspace is None:
            tied = self._setup.recipe.prox_mu > 0 or len(corrections) > 0
            self._workspace = Workspace(self._setup, min(len(clients), self._count_fitting(tied)), tied)
        # Longest first: the clients that still have steps to take are then always the first ones.
        line = sorted(range(len(clients)), key=lambda i: -self._lengths[clients[i]])
        done: dict[int, tuple[Tensor, float]] = {}
        for begin in range(0, len(line), self._workspace.most):
            some = line[begin : begin + self._workspace.most]
            points = [orders[i] + self._begins[clients[i]] for i in some]
            self._workspace.adjust(
                learning_rate,
                [self._offsets[clients[i]] for i in some if self._offsets],
                [corrections[i] for i in some if corrections],
            )
            done |= zip(some, self._workspace.train_group([models[i] for i in some], points), strict=True)
        return [done[i] for i in range(len(clients))]

    def _count_fitting(self, tied: bool) -> int:
        """Return how many clients fit into memory: models before and after, weights, moments, gradient, and a batch."""
        stack, device = self._setup.stack, self._setup.device
        widths = stack.num_inputs + 2 * sum(stack.hidden) + 2 * stack.num_outputs
        each = 4 * ((8 if tied else 6) * stack.num_parameters + stack.num_tables * self._setup.batch_size * widths)
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 2**30
        return max(1, int(_SHARE * free / each))
