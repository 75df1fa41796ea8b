"""Parts of one's own: fedmlh run demo --parts own_parts.py --set loss=focal --set aggregation=median."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

import fedmlh


def focal(logits: Tensor, positives: fedmlh.Positives) -> Tensor:
    """Weigh down what is easy (Lin et al. 2017), γ = 2; a mean over points and buckets, a sum over tables."""
    _, points, buckets = logits.shape
    sign = torch.full_like(logits, -1.0)
    sign[positives.tables, positives.points, positives.buckets] = 1.0
    right = functional.logsigmoid(sign * logits)  # log-probability of what is true
    return -((1 - right.exp()) ** 2 * right).sum() / (points * buckets)


fedmlh.register("loss", "focal", fedmlh.Loss(focal, functional.logsigmoid))


@fedmlh.register("partition", "label-skew")
def deal_by_label(train: fedmlh.Split, config: fedmlh.Config, rng: np.random.Generator):
    """Give a point to the client that owns its first label; labels are dealt out in turn."""

    def assign(split: fedmlh.Split, rng: np.random.Generator) -> list[np.ndarray]:
        starts, none = split.Y.indptr[:-1], np.diff(split.Y.indptr) == 0
        first = np.append(split.Y.indices, 0)[starts]
        owners = np.where(none, rng.integers(0, config.num_clients, len(split)), first % config.num_clients)
        return [np.flatnonzero(owners == client) for client in range(config.num_clients)]

    return assign


@fedmlh.register("aggregation", "median")
class Median:
    """The coordinate-wise median of all updates (Yin et al. 2018), whatever they weigh."""

    streams = False

    def __init__(self, num_parameters: int, max_weight: int, device: torch.device) -> None:
        self.updates: list[Tensor] = []

    def add(self, values: Tensor, weight: int) -> None:
        self.updates.append(values)

    def merge(self, other: "Median") -> None:
        self.updates += other.updates

    def result(self) -> Tensor:
        ordered, count = torch.stack(self.updates).sort(dim=0).values, len(self.updates)
        return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
