"""A whole reproduction: plan, measure what is missing, and write tables, figures and the page."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from fedmlh.lock import hold
from fedmlh.reproduction.evidence import Evidence
from fedmlh.reproduction.figures import FIGURES
from fedmlh.reproduction.figures.drawing import Figure, check_matplotlib
from fedmlh.reproduction.page import render_page
from fedmlh.reproduction.plan import Scale, check_items, make_plan
from fedmlh.reproduction.runner import measure_all
from fedmlh.reproduction.sources import Source
from fedmlh.reproduction.tables import TABLES
from fedmlh.reproduction.tables.table import Table
from fedmlh.runs.jobs import Watch
from fedmlh.storage import write_atomically

#: Headings of the page, by how an item's name starts.
_HEADINGS = {"table": "Tables", "figure": "Figures", "theory": "Theory"}


@dataclass(frozen=True)
class Report:
    """The page that was written, and the measurements that it lacks."""

    page: Path
    missing: dict[str, str]


def reproduce(
    sources: Sequence[Source],
    scale: Scale,
    out: Path,
    *,
    only: Sequence[str] = (),
    seeds: int | None = None,
    device: str = "auto",
    processes: int | None = None,
    command: str = "fedmlh reproduce",
    begin: Callable[[float], None] = lambda total: None,
    watch: Watch = lambda job, outcome, done, total: None,
) -> Report:
    """Measure what the items need and is missing, and write the folder."""
    items = check_items(only)
    if any(item in FIGURES for item in items):
        check_matplotlib()
    if seeds is not None:
        scale = dataclasses.replace(scale, seeds=seeds)
    with hold(out):
        datasets = [source.open() for source in sources]
        jobs = make_plan(items, sources, datasets, scale, device)
        results = measure_all(jobs, out, device=device, processes=processes, begin=begin, watch=watch)
        evidence = Evidence(sources, datasets, jobs, results, scale)
        things = {item: _make_things(item, evidence) for item in items}
        parts = []
        for start, heading in _HEADINGS.items():
            own = [thing for item in items if item.startswith(start) for thing in things[item]]
            if own:
                parts.append((heading, own))
                _write_files(out, own)
        page = out / "report.html"
        write_atomically(page, render_page(evidence, parts, command).encode())
        return Report(page, results.missing)


def _make_things(item: str, evidence: Evidence) -> list[Table | Figure]:
    """Return the tables and figures of an item; each table is followed by its figure."""
    tables = [make(evidence) for make in TABLES.get(item, ())]
    figures = [draw(evidence) for draw in FIGURES.get(item, ())]
    return [thing for pair in zip_longest(tables, figures) for thing in pair if thing is not None]


def _write_files(out: Path, things: Sequence[Table | Figure]) -> None:
    for folder in ("tables", "figures"):
        (out / folder).mkdir(exist_ok=True)
    for thing in things:
        if isinstance(thing, Table):
            write_atomically(out / "tables" / f"{thing.id}.csv", thing.to_csv().encode())
            write_atomically(out / "tables" / f"{thing.id}.md", thing.to_markdown().encode())
        else:
            write_atomically(out / "figures" / f"{thing.id}.svg", thing.svg)
            write_atomically(out / "figures" / f"{thing.id}.png", thing.png)
