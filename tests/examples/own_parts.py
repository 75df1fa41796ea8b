"""Parts of one's own: fedmlh run demo --parts own_parts.py --set loss=focal --set aggregation=median."""

import numpy as np
import torch
from torch.nn import functional

import fedmlh


def focal(logits, positives):
    """Weigh down what is easy (Lin et al. 2017), γ = 2; a mean over points and buckets, a sum over tables."""
    _, points, buckets = logits.shape
    sign = torch.full_like(logits, -1.0)
    sign[positives.tables, positives.points, positives.buckets] = 1.0
    right = functional.logsigmoid(sign * logits)  # log-probability of what is true
    return -((1 - right.exp()) ** 2 * right).sum() / (points * buckets)


fedmlh.register("loss", "focal", fedmlh.Loss(focal, functional.logsigmoid))


@fedmlh.register("partition", "label-skew")
def deal_by_label(train, config, rng):
    """Give a point to the client that owns its first label; labels are dealt out in turn."""

    def assign(split, rng):
        first, none = np.append(split.Y.indices, 0)[split.Y.indptr[:-1]], np.diff(split.Y.indptr) == 0
        owners = np.where(none, rng.integers(0, config.num_clients, len(split)), first % config.num_clients)
        return [np.flatnonzero(owners == client) for client in range(config.num_clients)]

    return assign


@fedmlh.register("aggregation", "median")
class Median:
    """The coordinate-wise median of all updates (Yin et al. 2018), whatever they weigh."""

    streams = False

    def __init__(self, num_parameters, max_weight, device):
        self.updates = []

    def add(self, values, weight):
        self.updates.append(values)

    def merge(self, other):
        self.updates += other.updates

    def result(self):
        ordered, count = torch.stack(self.updates).sort(dim=0).values, len(self.updates)
        return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


@fedmlh.register("metric", "coverage")
class Coverage:
    """The share of all labels that were among the first k of any point."""

    def __init__(self, ks, num_labels):
        self.seen = {k: np.zeros(num_labels, bool) for k in ks}

    def add(self, labels, Y):
        for k, seen in self.seen.items():
            seen[labels[:, :k][labels[:, :k] >= 0]] = True

    def values(self):
        return {k: float(seen.mean()) for k, seen in self.seen.items()}
