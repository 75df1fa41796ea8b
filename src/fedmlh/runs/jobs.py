"""Jobs side by side: each result is kept as it comes, and jobs that an earlier call finished are not run again.

A job runs with one thread in another process, which ends when its parent ends. A job that fails is named with the
reason, and the others still run.
"""

import math
import multiprocessing
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import torch

from fedmlh.errors import UserError
from fedmlh.model.device import pick_device

#: Memory that a job may need: data, a model or two, and what torch itself takes.
_JOB_MEMORY = 3 << 30
#: Processes that share one GPU; more of them wait for each other.
_GPU_JOBS = 6

#: The result of a job, as JSON.
Found = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """A call that another process can make."""

    #: Identifies the job, as JSON.
    key: Found
    call: Callable[..., Found]
    arguments: tuple[Any, ...] = ()
    #: The job's name in messages, different from all others; default: the values of the key.
    name: str = ""
    #: About how long it takes, in any unit.
    work: float = 1.0
    #: Whether it measures time, so that no other job may run beside it.
    alone: bool = False

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", ", ".join(map(str, self.key.values())))


#: Called when a job ends: with its result or why it failed, the work that is done, and the work of all jobs.
Watch = Callable[[Job, Found | str, float, float], None]


class Store(Protocol):
    """Where results are kept from one call to the next."""

    def find(self, job: Job) -> Found | None:
        """Return the result of exactly this job that an earlier call has kept, or None."""

    def keep(self, job: Job, found: Found) -> None:
        """Keep the result of a job."""


@dataclass
class Results:
    """The results so far, by the names of the jobs, and why others are missing."""

    found: dict[str, Found] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


def run_jobs(
    jobs: Iterable[Job],
    store: Store,
    *,
    processes: int,
    minutes: float = math.inf,
    begin: Callable[[float], None] = lambda total: None,
    watch: Watch = lambda job, outcome, done, total: None,
) -> Results:
    """Return the results of all jobs, after running those that the store does not have.

    `begin` is told how much work there is. No job is begun after this many `minutes`.
    """
    results, waiting = Results(), list[Job]()
    for job in jobs:
        known = store.find(job)
        if known is None:
            waiting.append(job)
        else:
            results.found[job.name] = known
    done, total = 0.0, sum(job.work for job in waiting)
    begin(total)
    stop = time.monotonic() + 60 * minutes
    # Each timing runs in a new process: what ran there before would change it.
    timings = [[job] for job in waiting if job.alone]
    others = sorted((job for job in waiting if not job.alone), key=lambda job: -job.work)
    for batch in (*timings, others):
        for job, outcome in _run_batch(batch, processes, stop):
            done += job.work
            if isinstance(outcome, str):
                results.missing[job.name] = f"failed: {outcome}"
            else:
                store.keep(job, outcome)
                results.found[job.name] = outcome
            watch(job, outcome, done, total)
    for job in waiting:
        if job.name not in results.found:
            results.missing.setdefault(job.name, f"not begun within {minutes:g} minutes")
    return results


def choose_processes(device: str) -> int:
    """Return as many processes as cores and free memory allow."""
    room = max(1, _free_memory() // _JOB_MEMORY)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(room, cores, _GPU_JOBS) if pick_device(device).type == "cuda" else min(room, cores)


def describe_machine(device: str) -> dict[str, str]:
    """Return versions and hardware, to be written beside a result."""
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


def _run_batch(jobs: Sequence[Job], processes: int, stop: float) -> Iterator[tuple[Job, Found | str]]:
    if not jobs:
        return
    spawn = multiprocessing.get_context("spawn")  # forking after torch has started threads may hang
    # Nothing is ever sent through it: workers end when its other end is closed, because this process is done or dead.
    alive, hold = spawn.Pipe(duplex=False)
    with alive, hold:
        pool = ProcessPoolExecutor(min(processes, len(jobs)), spawn, _start_worker, (alive,))
        waiting, running = iter(jobs), dict[Future[Found], Job]()
        try:
            while True:
                # A job is submitted only when it can begin, since the time may be over by then.
                while len(running) < processes and time.monotonic() < stop and (job := next(waiting, None)):
                    running[pool.submit(job.call, *job.arguments)] = job
                if not running:
                    break
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(future), _outcome(future)
        except BaseException:
            # Jobs that still run are not waited for.
            hold.close()
            pool.shutdown(cancel_futures=True)
            raise
        pool.shutdown()


def _outcome(future: Future[Found]) -> Found | str:
    try:
        return future.result()
    except BrokenProcessPool:
        raise UserError(
            "a worker process died, most likely for lack of memory: run it again with fewer jobs at a time (--jobs); "
            "what is finished is kept"
        ) from None
    except Exception as error:  # one failed job must not cost the others
        return f"{type(error).__name__}: {error}"


def _start_worker(alive: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets Ctrl-C as well, and decides
    threading.Thread(target=_end_with_parent, args=(alive,), daemon=True).start()
    torch.set_num_threads(1)


def _end_with_parent(alive: Connection) -> None:
    alive.poll(None)
    os._exit(1)


def _free_memory() -> int:
    try:
        text = Path("/proc/meminfo").read_text()
        return 1024 * int(text.split("MemAvailable:")[1].split()[0])
    except (OSError, ValueError, IndexError):
        return 8 << 30
