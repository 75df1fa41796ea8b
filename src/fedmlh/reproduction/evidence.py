"""The evidence for tables and figures: the sets, the plan and the results of its jobs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedmlh.data.dataset import Dataset
from fedmlh.reproduction.plan import Measurement, Scale
from fedmlh.reproduction.sources import Source
from fedmlh.runs.jobs import Results


@dataclass(frozen=True)
class Evidence:
    """The sets, the plan and the results of its jobs."""

    sources: Sequence[Source]
    datasets: Sequence[Dataset]
    jobs: Sequence[Measurement]
    results: Results
    scale: Scale
    #: Results by kind, set, method and selection, and then by seed.
    _by_use: dict[tuple[str, str, str, str], dict[int, dict[str, Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for job in self.jobs:
            if job.key in self.results.found:
                selection = job.config.selection if job.kind in ("train", "sweep") else ""
                use = (job.kind, job.source.name, job.method, selection)
                self._by_use.setdefault(use, {})[job.config.seed] = self.results.found[job.key]["found"]

    def runs(self, source: Source, method: str, selection: str, kind: str = "train") -> list[dict[str, Any]]:
        """Return the training runs of a method, which differ only in the seed."""
        return list(self._by_use.get((kind, source.name, method, selection), {}).values())

    def pairs(
        self, source: Source, methods: tuple[str, str], selection: str
    ) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Return the runs of two methods in pairs of the same seed, as far as both exist."""
        one, other = (self._by_use.get(("train", source.name, method, selection), {}) for method in methods)
        return [(run, other[seed]) for seed, run in one.items() if seed in other]

    def one(self, kind: str, source: Source, method: str = "") -> dict[str, Any] | None:
        """Return the single result of that kind, if it exists."""
        return next(iter(self._by_use.get((kind, source.name, method, ""), {}).values()), None)

    def hashed(self, source: Source, about: str) -> list[dict[str, Any]]:
        """Return the rows about a lemma or theorem that hashing a set's labels gave; none if nothing was measured."""
        rows: list[dict[str, Any]] = (self.one("hash", source) or {about: []})[about]
        return rows

    @property
    def trained(self) -> list[Source]:
        """Return the sets that were trained on."""
        return [source for source in self.sources if self.runs(source, "fedmlh", "validation")]

    @property
    def sized(self) -> Iterator[tuple[Source, Dataset]]:
        """Return the sets with their data."""
        return zip(self.sources, self.datasets, strict=True)

    @property
    def timed(self) -> list[Source]:
        """Return the shapes of the paper that the plan times."""
        return list({job.source.name: job.source for job in self.jobs if job.kind == "time"}.values())


def name_of(source: Source) -> str:
    """Return the name of a set in tables, with the set for which it stands in."""
    if source.kind == "original":
        return source.shape.title
    if source.kind == "synthetic":
        return f"{source.name} synthetic data (set-up: {source.preset})"
    return f"{source.name} (stand-in for {source.shape.title})"


def is_comparable(source: Source) -> bool:
    """Say whether accuracy can be compared with the paper's; on synthetic data it cannot."""
    return source.kind != "synthetic"
