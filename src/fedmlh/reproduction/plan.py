"""The measurements that the wanted tables and figures need, each with its settings."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fedmlh.config import SETTINGS, Config
from fedmlh.data.dataset import Dataset
from fedmlh.errors import UserError
from fedmlh.federated.task import TRAINING
from fedmlh.reproduction.methods import METHODS, PAPER, make_config
from fedmlh.reproduction.sources import Source, paper_shapes

SELECTIONS = ("validation", "paper")
#: Settings that do not change the result of a job, or that only say where it runs.
_FREE = {"data", "device", "max_attempts", "gpu_precision", "sizes", "budget_mib"}
#: Presets whose models take minutes per step on a CPU.
NEEDS_GPU = {"amazontitles-131k", "wikiseealsotitles-320k"}


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    name: str
    rounds: int
    seeds: int
    max_sets: int | None  # how many sets are trained on, from the first; None for all
    bucket_factors: tuple[float, ...]  # of the preset's B
    table_factors: tuple[float, ...]  # of the preset's R
    draws: int  # hash functions over which theory is averaged
    shapes: bool = True  # time the paper's shapes


SCALES = {
    "quick": Scale("quick", 25, 2, 1, (0.5, 1, 2), (0.5, 1, 2), 8),
    "full": Scale("full", 70, 3, None, (0.25, 0.5, 1, 2, 4), (0.25, 0.5, 1, 2), 20),
}

#: The kinds of jobs that each item of the report needs.
ITEMS = {
    "table1": {"describe"},
    "table2": set(),
    "table3": {"train"},
    "table4": {"train"},
    "table5": set(),
    "table6": {"train"},
    "table7": {"time"},
    "table8": {"time"},
    "figure1": {"describe"},
    "figure2": {"describe"},
    "figure3": {"train"},
    "figure4": {"train"},
    "figure5": {"train", "sweep"},
    "theory": {"hash", "embed"},
}


@dataclass(frozen=True)
class Measurement:
    """One measurement; `spec` holds all that its result depends on."""

    kind: str  # describe, train, sweep, time, hash or embed
    source: Source
    config: Config
    method: str = ""
    fingerprint: str = ""  # of the data; empty if the sizes alone determine the data
    options: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def key(self) -> str:
        """Return the name of the result file."""
        parts = [self.kind, self.source.name, self.method]
        if self.kind in ("train", "sweep"):
            parts += [self.config.selection, f"seed{self.config.seed}"]
        return "_".join(re.sub(r"[^A-Za-z0-9.=-]+", "-", part) for part in parts if part)

    @property
    def spec(self) -> dict[str, Any]:
        """Return all that the result depends on, in the types that JSON gives back."""
        # Only changed settings: finished results stay valid when a later version adds a setting.
        settings = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in self.config.as_dict().items()
            if name not in _FREE and value != SETTINGS[name].default
        }
        return {
            "set": self.source.name,
            "method": self.method,
            "data": self.fingerprint,
            "training": TRAINING,
            **self.options,
            "settings": settings,
        }

    @property
    def needs_gpu(self) -> bool:
        """Say whether a CPU would need hours for it."""
        return self.kind == "time" and self.source.preset in NEEDS_GPU

    @property
    def work(self) -> float:
        """Return roughly how long it takes, in no particular unit, to estimate the time left."""
        sizes = {"describe": 0.2, "hash": 2.0, "embed": 0.5, "time": 8.0}
        if self.kind in sizes:
            return sizes[self.kind]
        # Training grows with the outputs, but even small models cost something.
        return self.config.rounds * (0.5 + self.config.feature_dim * sum(self.config.hidden_sizes) / 5e5)


def check_items(only: Sequence[str]) -> list[str]:
    """Return the wanted items in the order of the report; no name means all items."""
    for name in only:
        if name not in ITEMS:
            raise UserError(f"--only {name}: there is no such item; choose one of {', '.join(ITEMS)}")
    return [name for name in ITEMS if not only or name in only]


def make_plan(
    items: Sequence[str], sources: Sequence[Source], datasets: Sequence[Dataset], scale: Scale, device: str
) -> list[Measurement]:
    """Return the jobs that the items need, each once."""
    kinds = set().union(*(ITEMS[item] for item in items))
    jobs: list[Measurement] = []
    if "time" in kinds and scale.shapes:
        for source in paper_shapes():
            for method in ("fedmlh", "fedavg"):
                config = source.config.replace(algorithm=method, selection="paper", device=device)
                jobs.append(Measurement("time", source, config, method))
    for number, (source, dataset) in enumerate(zip(sources, datasets, strict=True)):
        trained = scale.max_sets is None or number < scale.max_sets
        common: dict[str, Any] = {"fingerprint": dataset.fingerprint}
        base = source.config.replace(device=device, rounds=scale.rounds)
        if "describe" in kinds:
            jobs.append(Measurement("describe", source, base.replace(selection="paper"), **common))
        if "hash" in kinds:
            jobs.append(Measurement("hash", source, base, **common, options={"draws": scale.draws}))
        if "train" in kinds and trained:
            for seed in range(scale.seeds):
                for selection in SELECTIONS:
                    # The paper selects the round that is best on test; only its own two methods are shown in this way.
                    for method in METHODS if selection == "validation" else PAPER:
                        config = make_config(method, source, dataset).replace(
                            seed=seed, selection=selection, rounds=scale.rounds, device=device
                        )
                        jobs.append(Measurement("train", source, config, method, **common))
        first_of_preset = source.preset not in {other.preset for other in sources[:number]}
        if "sweep" in kinds and trained and first_of_preset:
            for name, change in sweep(base, scale, dataset.num_labels):
                jobs.append(Measurement("sweep", source, base.replace(**change), name, **common))
    if "embed" in kinds:
        jobs.append(Measurement("embed", sources[0], Config(), options={"draws": 40 * scale.draws}))
    return jobs


def sweep(base: Config, scale: Scale, num_labels: int) -> list[tuple[str, dict[str, int]]]:
    """Return names and settings of the runs around the paper's B and R; the middle is the paper's own run."""
    buckets = {round(factor * base.num_buckets) for factor in scale.bucket_factors} - {base.num_buckets}
    tables = {max(1, round(factor * base.num_tables)) for factor in scale.table_factors} - {base.num_tables}
    found = [(f"fedmlh-B={size}", {"num_buckets": size}) for size in sorted(buckets) if size <= num_labels]
    return found + [(f"fedmlh-R={size}", {"num_tables": size}) for size in sorted(tables)]
