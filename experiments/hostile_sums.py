"""What one site of ten can do to training in one round with sums that pass every check.

python experiments/hostile_sums.py DATA_FOLDER OUT.json [--attacks NAME ...]
python experiments/hostile_sums.py --table OUT.json

The site's sums respect all bounds: the number of its points, and squares and products that points of length 1 can have.
Runs that OUT.json holds are not repeated.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, diags_array
from script import Rows, make_parser, run_missing, table, train

import fedmlh
from fedmlh.engines.local import LocalClients, live_in_process
from fedmlh.federated.mail import Outbox, Reply
from fedmlh.federated.messages import StatisticsHeader, pack, unpack
from fedmlh.oneround.sums import Sums
from fedmlh.oneround.wire import decode_sums, encode_sums
from fedmlh.runs.jobs import Job, describe_machine
from fedmlh.runs.population import Population

COMMON = {"partition": "iid", "num_clients": 10, "device": "cpu"}


def scale(sums: Sums, factor: int, sign: int) -> Sums:
    """Return the sums of points with features `factor` times as large, whose labels count for or against."""
    slots = diags_array(np.array([1] + [factor] * sums.num_slots), dtype=np.int64)
    cross = slots @ sums.cross
    turned = diags_array(np.array([1] + [sign] * sums.num_slots), dtype=np.int64) @ cross
    return Sums(sums.points, csr_matrix(slots @ sums.gram @ slots), csr_matrix(turned))


def shuffle(sums: Sums) -> Sums:
    """Give every label the points of another label."""
    order = np.random.default_rng(0).permutation(sums.cross.shape[1])
    return replace(sums, cross=csr_matrix(sums.cross[:, order]))


def flood(sums: Sums, bits: int = 5) -> Sums:
    """Say that every point has the hundred rarest labels of the site."""
    totals = sums.gram[0].T.tocsr()  # Σ x of each slot, times 2^bits; that of the 1 in front is n · 4^bits
    column = csr_matrix((totals.data >> bits, totals.indices, totals.indptr), shape=totals.shape)
    counts = sums.counts(bits)
    chosen = np.argsort(np.where(counts > 0, counts, np.iinfo(np.int64).max), kind="stable")[:100]
    cross = sums.cross.tolil()
    for label in chosen:
        cross[:, label] = column
    return replace(sums, cross=csr_matrix(cross.tocsr(), dtype=np.int64))


ATTACKS: dict[str, Callable[[Sums], Sums]] = {
    "nothing": lambda sums: sums,
    "labels of other points": shuffle,
    "labels counted against": lambda sums: scale(sums, 1, -1),
    "labels counted against, twice as loud": lambda sums: scale(sums, 2, -1),
    "every point has the hundred rarest labels": flood,
}


class HostileClients:
    """Clients in this process; the first one sends its sums after an attack has changed them."""

    def __init__(self, local: LocalClients, attack: Callable[[Sums], Sums], bits: int) -> None:
        self.local, self.attack, self.bits = local, attack, bits
        self.memories = local.memories

    def exchange(self, sampled: Sequence[int], outbox: Outbox[Any]) -> Iterator[tuple[int, Reply]]:
        """Ask all clients, and change the sums of one."""
        for client, reply in self.local.exchange(sampled, outbox):
            if client == 0 and outbox.place[1] == 1 and isinstance(reply, bytes):
                header, payload = unpack(StatisticsHeader, reply, len(reply))
                _, num_slots, num_outputs = np.frombuffer(payload[:24], "<u8").tolist()
                honest = decode_sums(payload, header.examples, num_slots, num_outputs, self.bits)
                reply = pack(header, encode_sums(self.attack(honest), self.bits))
            yield client, reply


def measure(data: str, attack: str) -> dict[str, Any]:
    """Run with one hostile site, and return the results."""
    config = fedmlh.Config.load("one-round").replace(data=data, **COMMON)

    @contextmanager
    def live(population: Population, workers: int | None) -> Iterator[HostileClients]:
        with live_in_process(population, workers) as local:
            yield HostileClients(local, ATTACKS[attack], config.point_bits)

    summary, (record,) = train(config, data, live)
    figures = {name: summary[name] for name in ("precision", "ridge", "count_power")}
    return {**figures, "refused": record["refused"], "machine": describe_machine("cpu")}


def show(result: list[dict[str, Any]]) -> str:
    """Write the table."""
    rows = []
    for run in sorted(result, key=lambda run: list(ATTACKS).index(run["attack"])):
        left = "yes" if run["refused"] else "no"
        rows.append([run["attack"], *(f"{100 * value:.1f}" for value in run["precision"].values()), left])
    return table(["one site of ten sends", "P@1", "P@3", "P@5", "left out"], rows)


def main() -> None:
    """Measure and keep the results, or show kept results."""
    parser = make_parser(__doc__)
    parser.add_argument("data", nargs="?")
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--attacks", nargs="+", choices=list(ATTACKS), default=list(ATTACKS))
    parser.add_argument("--table", type=Path)
    arguments = parser.parse_args()
    if arguments.table:
        print(show(json.loads(arguments.table.read_text())))
        return
    kept = Rows(arguments.out)
    jobs = [Job({"attack": attack}, measure, (arguments.data, attack)) for attack in arguments.attacks]
    run_missing(jobs, kept, arguments)
    print(show(kept.rows))


if __name__ == "__main__":
    main()
