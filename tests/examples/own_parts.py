"""Parts of your own: fedmlh run demo --parts own_parts.py --set loss=focal --set aggregation=median."""

import numpy as np
import torch
from torch.nn.functional import logsigmoid

import fedmlh


def focal(logits, positives):
    """Weigh down what is easy (Lin et al. 2017), γ = 2; a mean over points and buckets, a sum over tables."""
    sign = torch.full_like(logits, -1.0)
    sign[positives.tables, positives.points, positives.buckets] = 1.0
    right = logsigmoid(sign * logits)  # log-probability of what is true
    return -((1 - right.exp()) ** 2 * right).mean(dim=(1, 2)).sum()


fedmlh.register("loss", "focal", fedmlh.Loss(focal, logsigmoid))


@fedmlh.register("partition", "label-skew")
def spread_by_label(train, config, rng):
    """Give a point to the client that owns its first label; labels go to clients in turn."""
    n = config.num_clients
    return lambda split, rng: [np.flatnonzero(split.Y.argmax(axis=1) % n == client) for client in range(n)]


@fedmlh.register("aggregation", "median")
class Median(list):  # of updates: their coordinate-wise median (Yin et al. 2018), whatever they weigh
    streams, merge = False, list.extend

    def __init__(self, num_parameters, max_weight, device):
        super().__init__()

    def add(self, values, weight):
        self.append(values)

    def result(self):
        updates = torch.stack(self)
        return (updates.median(dim=0).values - (-updates).median(dim=0).values) / 2  # of two in the middle, the mean


@fedmlh.register("metric", "coverage")
class Coverage:  # the share of all labels that were among the first k of any point
    def __init__(self, ks, num_labels):
        self.seen = {str(k): np.zeros(num_labels, int) for k in ks}

    def add(self, labels, Y):
        for k, seen in self.seen.items():
            seen[np.setdiff1d(labels[:, : int(k)], [-1])] = 1  # that it was there, and not how often

    def sums(self):
        return {k: seen.tolist() for k, seen in self.seen.items()}

    def add_sums(self, sums):
        self.seen = {k: seen + sums[k] for k, seen in self.seen.items()}

    def values(self):
        return {int(k): float((seen > 0).mean()) for k, seen in self.seen.items()}
