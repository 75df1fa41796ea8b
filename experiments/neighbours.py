"""How many test points resemble a training point: python experiments/neighbours.py DATA…

Prints the share of test points whose nearest training point has a cosine of more than 0.9, by the features as they are.
A random split of texts that repeat themselves is easier than new texts would be.
"""

import argparse
from pathlib import Path

import numpy as np
from script import load
from sklearn.preprocessing import normalize

NEAR = 0.9
#: Test points that are compared at once.
BLOCK = 200


def main() -> None:
    """Print a line per data set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", type=Path)
    for folder in parser.parse_args().data:
        data = load(str(folder))
        train, test = normalize(data.train.X).T.tocsr(), normalize(data.test.X)
        blocks = [test[begin : begin + BLOCK] @ train for begin in range(0, test.shape[0], BLOCK)]
        nearest = np.concatenate([block.max(axis=1).toarray().ravel() for block in blocks])
        print(f"{folder.name}: {100 * (nearest > NEAR).mean():.1f} % of {len(nearest):,} test points", flush=True)


if __name__ == "__main__":
    main()
