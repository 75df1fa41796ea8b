"""Worker processes of a Ray cluster, which do one job at a time and are replaced when they are lost."""

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError, RayTaskError

from fedmlh.errors import UserError
from fedmlh.parts import list_sources, load_source

#: How many workers may be lost over a client before the client is left out.
MAX_LOSSES = 3
#: How long a cluster may take to find room for a worker and start it.
START_SECONDS = 120

Job = TypeVar("Job")


class Employee:
    """The base class of workers: an object of it lives in each worker process."""

    def __init__(self, sources: Sequence[tuple[str, bytes]]) -> None:
        for source in sources:
            load_source(*source)

    def pid(self) -> int:
        """Return the id of its process, once it is ready."""
        return os.getpid()


class Crew:
    """Workers of one class."""

    def __init__(self, kind: type[Employee], arguments: tuple[Any, ...], count: int) -> None:
        self.count = count
        self._worker = ray.remote(num_cpus=1)(kind)
        self._arguments = (list_sources(), *arguments)
        self.workers: list[Any] = []
        self._hire()

    def perform(self, waiting: deque[Job], begin: Callable[[Any, Job], Any]) -> Iterator[tuple[Job, Any]]:
        """Yield each job with its result, or with None if the worker was lost; jobs may be added on the way.

        `begin` starts a job at a worker and returns the reference to its result.
        """
        running: dict[Any, tuple[Any, Job]] = {}
        while waiting or running:
            busy = [worker for worker, _ in running.values()]
            # Never two at once, so that a lost worker concerns one job only.
            for worker in [worker for worker in self.workers if worker not in busy][: len(waiting)]:
                job = waiting.popleft()
                running[begin(worker, job)] = (worker, job)
            done = ray.wait(list(running), num_returns=1)[0][0]
            worker, job = running.pop(done)
            try:
                result = ray.get(done)
            except RayTaskError:
                raise
            except RayError:
                self.workers.remove(worker)
                self._hire()
                result = None
            yield job, result

    def dismiss(self) -> None:
        """End all workers."""
        for worker in self.workers:
            ray.kill(worker)

    def _hire(self) -> None:
        """Start the workers that are missing, as far as the cluster has room for them."""
        new = [self._worker.remote(*self._arguments) for _ in range(self.count - len(self.workers))]
        deadline = time.monotonic() + START_SECONDS
        for worker in new:
            try:
                ray.get(worker.pid.remote(), timeout=max(0.0, deadline - time.monotonic()))
                self.workers.append(worker)
            except RayError:
                ray.kill(worker)
        if not self.workers:
            raise UserError(
                f"the Ray cluster has not started a worker within {START_SECONDS} s: it has no free CPU, or its "
                f"machines lack this version of fedmlh"
            )
