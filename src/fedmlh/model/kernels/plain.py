"""Exact top-k in plain torch: what compiled decoding must agree with, to the bit."""

import numpy as np
import torch
from torch import Tensor


def label_scores(bucket_scores: Tensor, buckets: Tensor) -> Tensor:
    """Score each label by the mean of its buckets' scores over the tables.  # [R, n, B], [R, p] -> [n, p]"""
    total = bucket_scores[0].index_select(1, buckets[0])
    for scores, table in zip(bucket_scores[1:], buckets[1:], strict=True):
        total += scores.index_select(1, table)
    return total.div_(len(buckets))


def top_labels(scores: Tensor, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the k best labels of each point with their scores, best first, the lower id first where scores tie.

    # [n, p] -> labels [n, min(k, p)], scores [n, min(k, p)]
    """
    k = min(k, scores.shape[1])
    best, labels = scores.topk(k, dim=1)
    # torch breaks ties in any order. Inside the top k a sort by (score, id) repairs that. If a tie crosses
    # the k-th place, labels that were left out may have lower ids, so the whole row is sorted.
    crossing = ((scores >= best[:, -1:]).sum(dim=1) > k).nonzero().squeeze(1)
    for row in crossing.tolist():
        whole = torch.sort(scores[row], descending=True, stable=True).indices[:k]
        labels[row], best[row] = whole, scores[row, whole]
    ids, values = labels.cpu().numpy(), best.cpu().numpy()
    order = np.lexsort((ids, -values), axis=1)
    return np.take_along_axis(ids, order, axis=1), np.take_along_axis(values, order, axis=1)


def decode(bucket_scores: Tensor, buckets: Tensor, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the top-k labels from bucket scores.  # [R, n, B], [R, p] -> labels [n, k], scores [n, k]"""
    return top_labels(label_scores(bucket_scores, buckets), k)
