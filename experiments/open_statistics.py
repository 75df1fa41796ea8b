"""What the sums of a site give away: points that can be read off them word by word.

python experiments/open_statistics.py DATA_FOLDER OUT.json [--clients 10 100]

A label that one point of a site has gives away that point: its column of Σ x yᵀ is the point. No attack is needed.
"""

import argparse
import json
from pathlib import Path
from statistics import fmean

import numpy as np

import fedmlh
from fedmlh.data.division import divide
from fedmlh.oneround.points import Slots, round_points
from fedmlh.oneround.sums import Sums


def count_readable(X: np.ndarray, Y: np.ndarray) -> int:
    """Return how many points have a label that no other point of the site has, after checking that they are there."""
    sums = Sums.of(X, Y)
    alone = np.flatnonzero(np.bincount(Y.indices, minlength=Y.shape[1]) == 1)
    rows = Y.tocsc()[:, alone].indices
    shown = sums.cross.tocsc()[:, alone].T.tocsr()
    if (shown != X[rows]).nnz:
        raise AssertionError("a column is not the point")
    return len(np.unique(rows))


def main() -> None:
    """Measure for each number of clients."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100])
    arguments = parser.parse_args()
    dataset = fedmlh.load(arguments.data)
    result = {}
    for clients in arguments.clients:
        config = fedmlh.Config.load("one-round").replace(num_clients=clients)
        frequencies = np.bincount(dataset.train.X.indices, minlength=dataset.num_features)
        slots = Slots.fit(frequencies, len(dataset.train), 0, 0, weigh=False)
        shares = []
        for shard in divide(dataset.train, config).shards.values():
            X = round_points(slots.apply(shard.X), config.point_bits)
            shares.append(count_readable(X, shard.Y.astype(np.int64)) / len(shard))
        result[str(clients)] = {"mean": fmean(shares), "least": min(shares), "most": max(shares)}
        print(f"{clients} sites: {100 * fmean(shares):.1f} % of a site's points can be read ({result[str(clients)]})")
    arguments.out.write_text(json.dumps({"data": arguments.data.name, "clients": result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
