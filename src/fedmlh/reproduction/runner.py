"""The measuring of a plan, into a folder with one file per result."""

import contextlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from fedmlh.errors import UserError
from fedmlh.model.device import pick_device
from fedmlh.reproduction.measures import measure
from fedmlh.reproduction.plan import Measurement
from fedmlh.runs.jobs import Found, Job, Results, Watch, choose_processes, describe_machine, run_jobs
from fedmlh.storage import FORMAT_VERSION, write_atomically
from fedmlh.untrusted import MOST_JSON, parse_json, read_bytes


class ResultsFolder:
    """A file per result, named as its job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def find(self, job: Job) -> Found | None:
        """Return a finished result; None if there is none, or if it is damaged or has other settings."""
        with contextlib.suppress(OSError, UserError, ValueError, KeyError, TypeError):
            content = parse_json(read_bytes(self.folder / f"{job.name}.json", MOST_JSON))
            if content["format_version"] == FORMAT_VERSION and content["job"] == job.key:
                return dict(content)
        return None

    def keep(self, job: Job, found: Found) -> None:
        """Write the file."""
        write_atomically(self.folder / f"{job.name}.json", (json.dumps(found) + "\n").encode())


def measure_all(
    plan: Sequence[Measurement],
    out: Path,
    *,
    device: str = "auto",
    processes: int | None = None,
    begin: Callable[[float], None] = lambda total: None,
    watch: Watch = lambda job, outcome, done, total: None,
) -> Results:
    """Return all results: those in results/, and those that can be measured here, which are put there."""
    store, has_gpu = ResultsFolder(out / "results"), pick_device(device).type == "cuda"
    jobs, left_out = list[Job](), dict[str, str]()
    for measurement in plan:
        job = make_job(measurement, out)
        if measurement.needs_gpu and not has_gpu and store.find(job) is None:
            left_out[job.name] = "left out: at its full size this shape is meant for a GPU (--device cuda)"
        else:
            jobs.append(job)
    results = run_jobs(jobs, store, processes=processes or choose_processes(device), begin=begin, watch=watch)
    results.missing |= left_out
    with contextlib.suppress(OSError):
        (out / "unfinished").rmdir()
    return results


def make_job(measurement: Measurement, out: Path) -> Job:
    """Return the job that makes a measurement; a stopped one is kept in unfinished/ until it continues."""
    return Job(
        measurement.spec,
        _perform,
        (measurement, out / "unfinished"),
        measurement.key,
        measurement.work,
        alone=measurement.kind == "time",
    )


def _perform(measurement: Measurement, scratch: Path) -> Found:
    began = time.perf_counter()
    found = measure(measurement, scratch)
    return {
        "format_version": FORMAT_VERSION,
        "job": measurement.spec,
        "machine": describe_machine(measurement.config.device),
        "seconds": round(time.perf_counter() - began, 2),
        "found": found,
    }
