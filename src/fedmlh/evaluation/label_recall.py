"""Recall label by label, over a test part that lies in one process.

The recall of a label is the share of its test points where it is among the first k. Sites do not exchange it: it needs
a number per label.

- recall_macro@k: its mean over the labels that occur in the test part; each label counts the same;
- recall_by_count: at the largest k, the share of test occurrences that are found, for labels with 1 to 5 training
  points, with 6 to 20, with 21 to 100, and with more. Labels without training points are in no bin. A bin has no value
  if none of its labels occurs in the test part.
"""

from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_matrix

from fedmlh.evaluation.metrics import canonical, find_hits

#: Bins by training points: name, fewest, most.
BINS = (("1-5", 1, 5), ("6-20", 6, 20), ("21-100", 21, 100), ("101+", 101, None))


def list_bands(counts: np.ndarray) -> dict[str, np.ndarray]:
    """Return which labels are in each bin, given how many training points carry each label.  # [p] -> [p] each"""
    return {name: (counts >= low) & (counts <= (np.inf if high is None else high)) for name, low, high in BINS}


class LabelRecall:
    """Counts per label how often it occurs and how often it is found, over batches of points."""

    def __init__(self, ks: Sequence[int], counts: np.ndarray) -> None:
        """Start at zero, given the k and how many training points carry each label.  # [p]"""
        self._ks, self._counts = tuple(ks), counts
        self._occurs = np.zeros(len(counts), np.int64)
        self._found = np.zeros((len(self._ks), len(counts)), np.int64)

    def add(self, top: np.ndarray, Y: csr_matrix) -> None:
        """Count a batch of points with their predictions and true labels.  # [n, >= max k], [n, p]"""
        Y = canonical(Y)
        hit = find_hits(top, Y)
        self._occurs += np.bincount(Y.indices, minlength=len(self._occurs))
        for found, k in zip(self._found, self._ks, strict=True):
            found += np.bincount(top[:, :k][hit[:, :k]], minlength=len(found))

    def values(self) -> dict[str, dict[str, float]]:
        """Return the metrics over all points added so far."""
        there = self._occurs > 0
        shares = self._found[:, there] / self._occurs[there]
        macro = [float(share.mean()) if there.any() else 0.0 for share in shares]
        largest, by_count = self._found[int(np.argmax(self._ks))], {}
        for name, members in list_bands(self._counts).items():
            occurs = int(self._occurs[members].sum())
            if occurs:
                by_count[name] = int(largest[members].sum()) / occurs
        return {"recall_macro": dict(zip(map(str, self._ks), macro, strict=True)), "recall_by_count": by_count}
