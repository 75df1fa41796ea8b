"""How many numbers of a table honest sums put into a byte, which bounds what the server lays out for a message.

python experiments/claims.py DATA_FOLDER...
"""

import argparse
from pathlib import Path

import numpy as np
import pytest

from fedmlh import Config
from fedmlh.data.dataset import Labels
from fedmlh.data.readers.formats import load_training
from fedmlh.federated.task import Task
from fedmlh.oneround import wire
from fedmlh.oneround.budget import choose_slots
from fedmlh.oneround.exchange import Counts, Respondent, Terms
from fedmlh.oneround.sums import Sums

POINTS = (1, 5, 20, 100, 1000)
DRAWS = 10


def measure(folder: Path) -> list[str]:
    """Return for clients of so many points the most numbers per byte, and of how many numbers that was."""
    train = load_training(folder)
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
    """Return numbers per byte, and numbers, of every claim that a message with these sums makes."""
    claims: list[tuple[float, int]] = []
    payload = memoryview(wire.encode_sums(sums, bits))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "_check_claim", lambda count, rest: claims.append((count / len(rest), count)))
        wire.decode_sums(payload, sums.points, sums.num_slots, sums.cross.shape[1], bits)
    return claims


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="+")
    heads = ["", *(f"{size:,} points" for size in POINTS)]
    for row in (heads, ["---"] * len(heads), *map(measure, parser.parse_args().data)):
        print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
