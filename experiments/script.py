"""What the scripts share: options, jobs side by side, a run that leaves no folder, and tables."""

import argparse
import json
import math
import tempfile
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import fedmlh
from fedmlh.engines.local import live_in_process
from fedmlh.runs.jobs import Found, Job, Store, choose_processes, run_jobs
from fedmlh.runs.population import Engine
from fedmlh.storage import write_atomically

#: Returns the data set of a folder, which a process reads once.
load = cache(fedmlh.load)


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of every script that runs several jobs."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, help="number of processes; default: as many as cores and memory allow")
    return parser


def run_missing(jobs: Iterable[Job], store: Store, arguments: argparse.Namespace) -> list[Found]:
    """Return the result of each job, after running the jobs whose results are missing.

    Each job that ends prints a line. The script ends here if a job has failed, or if time is over.
    """
    jobs = list(jobs)
    device, minutes = getattr(arguments, "device", "cpu"), getattr(arguments, "minutes", math.inf)
    processes = arguments.jobs or choose_processes(device)
    results = run_jobs(jobs, store, processes=processes, minutes=minutes, watch=tell)
    if results.missing:
        raise SystemExit(f"{len(results.missing)} jobs are missing: run the same command again")
    return [results.found[job.name] for job in jobs]


def tell(job: Job, outcome: Found | str, done: float, total: float) -> None:
    """Print the result of a job, or why it failed."""
    if isinstance(outcome, str):
        outcome = f"failed: {outcome}"
    else:
        precision = outcome.get("precision") or outcome.get("validation", {}).get("precision")
        outcome = show_precision(precision) if isinstance(precision, dict) else "done"
    print(f"{done:g} of {total:g}: {job.name}: {outcome}", flush=True)


def train(
    config: fedmlh.Config, data: str | fedmlh.Dataset, engine: Engine = live_in_process
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the summary of a run, and the record of each round."""
    with tempfile.TemporaryDirectory() as folder:
        dataset = load(data) if isinstance(data, str) else data
        done = fedmlh.run(config, dataset, Path(folder) / "run", engine=engine, workers=1, progress=False)
        return done.summary, list(map(json.loads, (done.folder / "metrics.jsonl").read_text().splitlines()))


class Rows:
    """Results as rows of one file, each with the key of its job: a JSON list, or, in a .jsonl file, a line per row."""

    def __init__(self, path: Path) -> None:
        """Read what earlier calls have kept."""
        self.path, self.lines = path, path.suffix == ".jsonl"
        text = path.read_text() if path.exists() else "" if self.lines else "[]"
        self.rows: list[Found] = list(map(json.loads, text.splitlines())) if self.lines else json.loads(text)

    def find(self, job: Job) -> Found | None:
        """Return the first row that has the key of this job."""
        key = _as_read(job.key)
        return next((row for row in self.rows if key.items() <= row.items()), None)

    def keep(self, job: Job, found: Found) -> None:
        """Add a row to the file."""
        self.rows.append(_as_read({**job.key, **found}))
        if self.lines:
            with self.path.open("a") as file:
                file.write(json.dumps(self.rows[-1]) + "\n")
        else:
            write(self.path, self.rows)


def _as_read(content: Found) -> Found:
    return dict(json.loads(json.dumps(content)))


def write(path: Path, content: Any) -> None:
    """Put a file in place in one step."""
    write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())


def show_precision(precision: dict[str, float]) -> str:
    """Write P@1, P@3 and P@5 in percent."""
    return "/".join(f"{100 * value:.1f}" for value in precision.values())


def mean_of(precision: dict[str, float] | Sequence[float]) -> float:
    """Return the mean of P@k in percent."""
    return 100 * fmean(precision.values() if isinstance(precision, dict) else precision)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table in Markdown."""
    return "\n".join("| " + " | ".join(line) + " |" for line in (heads, ["---"] * len(heads), *rows))
