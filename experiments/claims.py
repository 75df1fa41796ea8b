"""How many numbers of a table honest sums put into a byte; this bounds the memory that the server uses for a message.

python experiments/claims.py DATA_FOLDER...
"""

import argparse
from pathlib import Path

import numpy as np
from script import table

from fedmlh import Config
from fedmlh.data.dataset import Labels
from fedmlh.data.readers.formats import load
from fedmlh.federated.task import Task
from fedmlh.oneround.budget import choose_slots
from fedmlh.oneround.exchange import Respondent
from fedmlh.oneround.sums import Sums
from fedmlh.oneround.terms import Counts, Terms
from fedmlh.oneround.wire import encode_sums

POINTS = (1, 5, 20, 100, 1000)
DRAWS = 10
#: Bytes of a message's head, and of the number in front of a list that names its places.
HEAD, COUNT = 25, 4


def measure(folder: Path) -> list[str]:
    """Return the most numbers per byte over clients of several sizes, and how many numbers these were."""
    train = load(folder, training_only=True).train
    (points, num_features), num_labels = train.X.shape, train.Y.shape[1]
    task = Task(Config.load("one-round").replace(sizes="given", label_map="identity"), num_features, num_labels)
    counts, seeds, bits = Counts.of(train.X), task.draw_seeds(), task.config.point_bits
    terms = Terms(counts, choose_slots(counts.frequencies, points, num_labels), weigh=False)
    rng, row = np.random.default_rng(0), [folder.name]
    for size in POINTS:
        claims = []
        for _ in range(DRAWS):
            rows = rng.permutation(points)[:size]
            client = Respondent(task, 0, train.X[rows], train.Y[rows], Labels.numbered(num_labels))
            claims += list_claims(client.sum(terms, seeds), bits)
        most, count = max(claims)
        row.append(f"{most:.1f} ({count:,})")
    return row


def list_claims(sums: Sums, bits: int) -> list[tuple[float, int]]:
    """Return every claim that a message with these sums makes: numbers per byte that is still to come, and numbers.

    A table claims bands of rows; for each band it gives the number of filled cells, and then these cells.
    """
    slots, labels = (int(np.count_nonzero(present)) for present in (sums.diagonal, sums.counts(bits)))
    products, crossed = sums.gram[1:, 1:].nnz - slots, sums.cross[1:].nnz
    rest = memoryview(encode_sums(sums, bits))[HEAD:]
    for head, lists in ((COUNT, 2), (0, 1), (COUNT, 2)):  # squares, totals, points per label
        rest = skip(rest[head:], lists)
    claims = []
    for columns, cells in ((slots, products), (labels, crossed)):
        signed, rest = rest[0], rest[1:]
        bands = slots * (columns + 1).bit_length()
        claims.append((bands / len(rest), bands))
        rest = skip(rest)
        claims.append((cells / len(rest), cells))
        rest = skip(rest, 2 + signed)  # where the cells are, what they hold, and which are below 0
    if len(rest):
        raise AssertionError("sums are not laid out like this any more: see oneround/wire.py")
    return claims


def skip(rest: memoryview, lists: int = 1) -> memoryview:
    """Return what follows `lists` lists of numbers, each behind its length in bytes (LEB128)."""
    for _ in range(lists):
        width = 1 + next(at for at, byte in enumerate(rest) if byte < 128)
        rest = rest[width + sum((byte & 127) << 7 * at for at, byte in enumerate(rest[:width])) :]
    return rest


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="+")
    print(table(["", *(f"{size:,} points" for size in POINTS)], map(measure, parser.parse_args().data)))


if __name__ == "__main__":
    main()
