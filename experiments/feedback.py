"""Whether error feedback would help the integer codecs: python experiments/feedback.py DATA OUT.json [--seeds 3]

The preset `recommended` at the size of the paper's model. Each codec encodes updates as it is, and with feedback: the
client keeps what rounding left out, and adds it to its next update. Figures are of the validation part, at its best
round. Results of an earlier call are kept beside OUT.json until all is done.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from script import Rows, make_parser, run_missing, train, write

from fedmlh import Config
from fedmlh.engines.local import LocalClients, live_in_process
from fedmlh.federated.client import Client, Memory
from fedmlh.federated.codecs import make_codec, update_draws
from fedmlh.federated.messages import UpdateHeader, unpack
from fedmlh.model.local_training import train_shard
from fedmlh.runs.jobs import Job, describe_machine
from fedmlh.runs.population import Population

CODECS = ("int8", "int4", "int2")
SETTINGS = {
    "num_clients": 10,
    "clients_per_round": 4,
    "partition": "paper-code",
    "budget_mib": 1.61,
    "broadcast_codec": "fp32",
    "device": "cpu",
}


class RememberingClient:
    """A client that adds to an update what rounding left out of its last accepted update."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.codec = make_codec(client.task.config.update_codec)

    def answer(self, broadcast: bytes, memory: Memory) -> tuple[bytes, Memory]:
        """Train, and keep in memory what the update leaves out."""
        work = self.client.accept(self.client.read(broadcast), memory)
        trained, loss = train_shard(self.client.task.stack, work.model, work.shard, work.recipe, work.orders)
        change = trained - work.model + work.kept.get("residual", torch.zeros(()))
        # Like an update of zeros, which adds no rounding.
        reply, memory = self.client.reply(replace(work, model=torch.zeros_like(change)), change, loss)
        header, payload = unpack(UpdateHeader, reply, len(reply))
        went = self.codec.decode(payload, len(change), update_draws(work.header.seed, header))
        return reply, replace(memory, staged={**memory.staged, "residual": change - went})


@contextmanager
def live_with_feedback(population: Population, workers: int | None) -> Iterator[LocalClients]:
    """Run clients that remember in this process."""
    yield LocalClients({n: RememberingClient(population.client(n)) for n in population.shards}, workers or 1)


#: The two ways that are compared, with their engines.
WAYS = {"as it is": live_in_process, "with feedback": live_with_feedback}


def measure(data: str, codec: str, way: str, seed: int) -> dict[str, Any]:
    """Return the best P@1 on validation."""
    config = Config.load("recommended").replace(training="rounds", **SETTINGS, update_codec=codec, seed=seed)
    summary, _ = train(config, data, WAYS[way])
    return {"figure": float(summary["validation"]["precision"]["1"])}


def main() -> None:
    """Measure all, and print the differences seed by seed."""
    parser = make_parser(__doc__)
    parser.add_argument("data")
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    kept = Rows(arguments.out.with_suffix(".jsonl"))
    runs = list(product(CODECS, WAYS, range(arguments.seeds)))
    jobs = [Job(dict(zip(("codec", "way", "seed"), run, strict=True)), measure, (arguments.data, *run)) for run in runs]
    found = dict(zip(runs, run_missing(jobs, kept, arguments), strict=True))
    rows = []
    for codec in CODECS:
        ways = {way: [found[codec, way, seed]["figure"] for seed in range(arguments.seeds)] for way in WAYS}
        gains = [100 * (b - a) for a, b in zip(*ways.values(), strict=True)]
        rows.append({"codec": codec, **ways})
        spread = f" ± {stdev(gains):.1f}" if len(gains) > 1 else ""
        print(f"{codec}: {100 * fmean(ways['as it is']):.1f}, feedback {fmean(gains):+.1f}{spread}")
    measured = {"machine": describe_machine("cpu"), "data": Path(arguments.data).name, "measure": "validation P@1"}
    write(arguments.out, {**measured, "codecs": rows})
    kept.path.unlink()


if __name__ == "__main__":
    main()
