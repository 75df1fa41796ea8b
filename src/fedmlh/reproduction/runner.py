"""Runs jobs side by side, keeps each result as it comes, and skips what an earlier call has finished."""

import contextlib
import json
import multiprocessing
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from fedmlh.errors import UserError
from fedmlh.model.device import pick_device
from fedmlh.reproduction.measures import measure
from fedmlh.reproduction.plan import Job
from fedmlh.storage import FORMAT_VERSION, write_atomically
from fedmlh.untrusted import MOST_JSON, parse_json, read_bytes

#: Memory a job may need: data, a model or two, and what torch itself takes.
_JOB_MEMORY = 3 << 30
#: Processes that share one GPU; more of them wait for each other.
_GPU_JOBS = 6

#: Called after every job with the work that is done and all that there is.
Watch = Callable[[Job, float, float], None]


@dataclass
class Results:
    """What is known so far: results by the key of their job, and why others are missing."""

    found: dict[str, dict[str, Any]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


def run_jobs(
    jobs: Sequence[Job],
    out: Path,
    *,
    device: str = "auto",
    processes: int | None = None,
    begin: Callable[[float], None] = lambda total: None,
    watch: Watch = lambda job, done, total: None,
) -> Results:
    """Results of all jobs; each is written to results/ as soon as it is there, and read from there the next time.

    `begin` is told how much work there is before it starts.
    """
    folder = out / "results"
    folder.mkdir(parents=True, exist_ok=True)
    results = Results()
    open_jobs = []
    has_gpu = pick_device(device).type == "cuda"
    for job in jobs:
        known = read_result(folder / f"{job.key}.json", job)
        if known is not None:
            results.found[job.key] = known
        elif job.needs_gpu and not has_gpu:
            results.missing[job.key] = "left out: at its full size this shape is meant for a GPU (--device cuda)"
        else:
            open_jobs.append(job)
    done, total = 0.0, sum(job.work for job in open_jobs)
    begin(total)
    # Timings first, alone and each in a process of its own: beside others they would measure the others as well.
    timed = [[job] for job in open_jobs if job.kind == "time"]
    others = sorted((job for job in open_jobs if job.kind != "time"), key=lambda job: -job.work)
    for batch in (*timed, others):
        for job, outcome in _run_batch(batch, out, processes or choose_processes(has_gpu)):
            done += job.work
            if isinstance(outcome, dict):
                results.found[job.key] = outcome
            else:
                results.missing[job.key] = f"failed: {outcome}"
            watch(job, done, total)
    with contextlib.suppress(OSError):
        (out / "unfinished").rmdir()
    return results


def read_result(path: Path, job: Job) -> dict[str, Any] | None:
    """A finished result of exactly this job, or None: what is damaged or was made with other settings is made again."""
    with contextlib.suppress(OSError, UserError, ValueError, KeyError, TypeError):
        content = parse_json(read_bytes(path, MOST_JSON))
        if content["format_version"] == FORMAT_VERSION and content["job"] == job.spec:
            return dict(content)
    return None


def choose_processes(has_gpu: bool) -> int:
    """As many processes as cores and free memory allow."""
    room = max(1, _free_memory() // _JOB_MEMORY)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(room, cores, _GPU_JOBS) if has_gpu else min(room, cores)


def describe_machine(device: str) -> dict[str, str]:
    """Versions and hardware, written beside every result."""
    chosen = pick_device(device)
    try:
        own = version("fedmlh")
    except PackageNotFoundError:
        own = "source"
    return {
        "fedmlh": own,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name() if chosen.type == "cuda" else f"{os.cpu_count()} CPU cores",
    }


def _run_batch(jobs: Sequence[Job], out: Path, processes: int) -> Iterator[tuple[Job, dict[str, Any] | str]]:
    if not jobs:
        return
    spawn = multiprocessing.get_context("spawn")  # forking after torch has started threads may hang
    # Nothing is ever sent through it: workers end when its other end is closed, be it because we are done or dead.
    alive, hold = spawn.Pipe(duplex=False)
    with alive, hold:
        pool = ProcessPoolExecutor(min(processes, len(jobs)), spawn, _start_worker, (alive,))
        try:
            futures: dict[Future[dict[str, Any]], Job] = {pool.submit(_perform, job, out): job for job in jobs}
            for future in as_completed(futures):
                yield futures[future], _outcome(future)
        except BaseException:
            # Nobody waits for the jobs that are running: they go on from their checkpoints another time.
            hold.close()
            pool.shutdown(cancel_futures=True)
            raise
        pool.shutdown()


def _outcome(future: "Future[dict[str, Any]]") -> dict[str, Any] | str:
    try:
        return future.result()
    except BrokenProcessPool:
        raise UserError(
            "a worker process died, most likely for want of memory: run the same command again with fewer --jobs; "
            "what is finished is kept"
        ) from None
    except Exception as error:  # one failed job must not cost the others: the report names it
        return f"{type(error).__name__}: {error}"


def _start_worker(alive: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C as well, and decides
    threading.Thread(target=_end_with_parent, args=(alive,), daemon=True).start()
    torch.set_num_threads(1)


def _end_with_parent(alive: Connection) -> None:
    alive.poll(None)
    os._exit(1)


def _perform(job: Job, out: Path) -> dict[str, Any]:
    began = time.perf_counter()
    found = measure(job, out / "unfinished")
    result = {
        "format_version": FORMAT_VERSION,
        "job": job.spec,
        "machine": describe_machine(job.config.device),
        "seconds": round(time.perf_counter() - began, 2),
        "found": found,
    }
    write_atomically(out / "results" / f"{job.key}.json", (json.dumps(result) + "\n").encode())
    return result


def _free_memory() -> int:
    try:
        text = Path("/proc/meminfo").read_text()
        return 1024 * int(text.split("MemAvailable:")[1].split()[0])
    except (OSError, ValueError, IndexError):
        return 8 << 30
