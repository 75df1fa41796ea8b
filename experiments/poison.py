"""What one poisoned site of ten costs, attack by attack: accuracy on test beside that of the same run without attack.

python experiments/poison.py --data DATA [--attacks NAME ...] [--seeds 0 1 2] [--clip auto off] [--jobs 2]
    --out RESULT.json
python experiments/poison.py --table RESULT.json

The site answers every round in which it is sampled. It knows the server's bound, and encodes any values. Runs that
RESULT.json holds are not repeated.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from script import Rows, make_parser, run_missing, table, train
from torch import Tensor

import fedmlh
from fedmlh.engines.local import LocalClients, live_in_process
from fedmlh.federated.client import Memory
from fedmlh.federated.codecs import make_codec, update_draws
from fedmlh.federated.mail import Outbox, Reply
from fedmlh.federated.messages import UpdateHeader, pack, unpack
from fedmlh.federated.validate import Expected
from fedmlh.runs.jobs import Job, describe_machine
from fedmlh.runs.population import Population

#: A site's honest change, the root-mean-square the server allows, random draws -> what the site sends.
Attack = Callable[[Tensor, float, np.random.Generator], Tensor]


def _scaled_to(values: Tensor, rms: float) -> Tensor:
    return values * (rms / float(values.double().square().mean().sqrt()))


def _signs(values: Tensor, rng: np.random.Generator) -> Tensor:
    return torch.from_numpy(rng.choice(np.array([-1, 1], np.float32), len(values)))


ATTACKS: dict[str, Attack] = {
    "nothing": lambda values, bound, rng: values,
    "random signs, ±9": lambda values, bound, rng: 9 * _signs(values, rng),
    "flip × 50": lambda values, bound, rng: -50 * values,
    "flip at rms 9.9": lambda values, bound, rng: -_scaled_to(values, 9.9),
    "flip at honest length": lambda values, bound, rng: -values,
    "values × 1e6": lambda values, bound, rng: 1e6 * values,
    "constant +1": lambda values, bound, rng: torch.ones_like(values),
    "patient: flip just under the bound": lambda values, bound, rng: -_scaled_to(values, min(0.97 * bound, 1000)),
}


class PoisonedClients:
    """Clients in this process; one sends its honest update after an attack has changed it."""

    def __init__(self, local: LocalClients, attack: Attack, poisoned: int) -> None:
        self.local = local
        self.attack = attack
        self.poisoned = poisoned

    @property
    def memories(self) -> dict[int, Memory]:
        """Return what the clients keep."""
        return self.local.memories

    def exchange(self, sampled: Sequence[int], outbox: Outbox[Any]) -> Iterator[tuple[int, Reply]]:
        """Train the sampled clients, and poison the update of one."""
        for client, reply in self.local.exchange(sampled, outbox):
            if client == self.poisoned and isinstance(reply, bytes):
                reply = self._poison(reply, outbox.part().expected)
            yield client, reply

    def _poison(self, reply: bytes, expected: Expected) -> bytes:
        codec = make_codec(expected.codec)
        header, payload = unpack(UpdateHeader, reply, len(reply))
        honest = codec.decode(payload, expected.num_parameters, update_draws(expected.seed, header))
        rng = np.random.default_rng([expected.seed, expected.round])
        sent = self.attack(honest, expected.bounds.updates[self.poisoned], rng)
        return pack(header, codec.encode(sent, update_draws(expected.seed, header)))


def poison(attack: str, client: int = 0) -> Any:
    """Return an engine in which one client attacks."""

    @contextmanager
    def live(population: Population, workers: int | None) -> Iterator[PoisonedClients]:
        with live_in_process(population, workers) as local:
            yield PoisonedClients(local, ATTACKS[attack], client)

    return live


def measure(data: str, attack: str, seed: int, clip: str) -> dict[str, Any]:
    """Run `recommended` for 12 rounds with one poisoned site of ten."""
    config = fedmlh.Config.load("recommended").replace(
        training="rounds", data=data, seed=seed, rounds=12, device="cpu", clip=clip
    )
    summary, records = train(config, data, poison(attack))
    return {
        "precision": summary["precision"],
        "sampled": sum(0 in record["clients"] for record in records),
        "refused": sum(len(record["refused"]) for record in records),
        "clipped": [[record["round"], entry] for record in records for entry in record.get("clipped", [])],
        "machine": describe_machine("cpu"),
    }


def show(result: list[dict[str, Any]]) -> str:
    """Write the table: mean and spread over seeds, the largest fall of P@1 over seeds, and P@1 without the bound."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for entry in sorted(result, key=lambda entry: entry["seed"]):
        found.setdefault((entry["attack"], entry["clip"]), []).append(entry)
    heads = ["one site of ten sends", "P@1", "fall, mean", "fall, worst seed", "rounds it counted in", "scaled down"]
    clips = [clip for clip in ("auto", "off") if ("nothing", clip) in found]
    rows = []
    for attack in (name for name in ATTACKS if (name, "auto") in found):
        runs = found[attack, "auto"]
        pairs = zip(found["nothing", "auto"], runs, strict=True)
        falls = [100 * (honest["precision"]["1"] - run["precision"]["1"]) for honest, run in pairs]
        counted, clipped = (fmean(run["sampled"] for run in runs), fmean(len(run["clipped"]) for run in runs))
        figures = [fmean(falls), max(falls), counted, clipped]
        means = [_mean([100 * run["precision"]["1"] for run in found[attack, clip]]) for clip in clips]
        rows.append([attack, means[0], *(f"{figure:.1f}" for figure in figures), *means[1:]])
    return table(heads + ["P@1 with clip = off"] * ("off" in clips), rows)


def _mean(values: list[float]) -> str:
    return f"{fmean(values):.1f} ± {stdev(values):.1f}" if len(values) > 1 else f"{fmean(values):.1f}"


def main() -> None:
    """Measure what is asked for and keep it, or show kept results."""
    parser = make_parser(__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--attacks", nargs="+", choices=list(ATTACKS), default=list(ATTACKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--clip", nargs="+", choices=["auto", "off"], default=["auto", "off"])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path)
    arguments = parser.parse_args()
    if arguments.table:
        print(show(json.loads(arguments.table.read_text())))
        return
    kept = Rows(arguments.out)
    jobs = [
        Job({"attack": attack, "clip": clip, "seed": seed}, measure, (str(arguments.data), attack, seed, clip))
        for clip, seed, attack in product(arguments.clip, arguments.seeds, arguments.attacks)
    ]
    run_missing(jobs, kept, arguments)
    print(show(kept.rows))


if __name__ == "__main__":
    main()
