"""What the sums of a site reveal: points that can be read from them word by word.

python experiments/open_statistics.py DATA_FOLDER OUT.json [--clients 10 100] [--held-out]

A label that only one point of a site has reveals that point: its column of Σ x yᵀ is the point. No attack is needed.
With --held-out, sites also send the sums over the points that they hold out, as they do if the server has no points.
"""

import argparse
from pathlib import Path
from statistics import fmean

import numpy as np
from scipy.sparse import csr_matrix
from script import write

import fedmlh
from fedmlh.data.division import divide
from fedmlh.oneround.holding import is_held_out
from fedmlh.oneround.points import Slots, round_points
from fedmlh.oneround.sums import Sums


def find_readable(X: csr_matrix, Y: csr_matrix) -> np.ndarray:
    """Return which points have a label that no other point has, after checking that they can be read."""
    sums = Sums.of(X, Y)
    alone = np.flatnonzero(np.bincount(Y.indices, minlength=Y.shape[1]) == 1)
    rows = Y.tocsc()[:, alone].indices
    shown = sums.cross.tocsc()[:, alone].T.tocsr()
    if (shown != X[rows]).nnz:
        raise AssertionError("a column is not the point")
    found = np.zeros(X.shape[0], bool)
    found[rows] = True
    return found


def main() -> None:
    """Measure for each number of clients."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 100])
    parser.add_argument("--held-out", action="store_true")
    arguments = parser.parse_args()
    dataset = fedmlh.load(arguments.data)
    result = {}
    for clients in arguments.clients:
        config = fedmlh.Config.load("one-round").replace(num_clients=clients, partition="iid")
        config = config.replace(validation_fraction=0.0) if arguments.held_out else config
        frequencies = np.bincount(dataset.train.X.indices, minlength=dataset.num_features)
        slots = Slots.fit(frequencies, len(dataset.train), 0, 0, weigh=False)
        shares = []
        for shard in divide(dataset.train, config).shards.values():
            X = round_points(slots.apply(shard.X), config.point_bits)
            Y = shard.Y.astype(np.int64)
            found, held = find_readable(X, Y), is_held_out(shard.X)
            if arguments.held_out:  # the sums over the rest are the difference
                for rows in (held, ~held):
                    found[rows] |= find_readable(X[rows], Y[rows])
            shares.append(float(found.mean()))
        result[str(clients)] = {"mean": fmean(shares), "least": min(shares), "most": max(shares)}
        print(f"{clients} sites: {100 * fmean(shares):.1f} % of a site's points can be read ({result[str(clients)]})")
    write(arguments.out, {"data": arguments.data.name, "clients": result})


if __name__ == "__main__":
    main()
