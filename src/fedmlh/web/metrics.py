"""What a server counts, in the text format of Prometheus; several processes count in one file."""

import fcntl
import os
import time
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedmlh.web.project import Project

#: 0 stands for any other status, or an answer that the client did not wait for.
_STATUSES = (200, 400, 403, 404, 405, 408, 413, 415, 421, 500, 501, 503, 0)
#: Upper ends of the bins of seconds.
_SECONDS = (0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, float("inf"))
#: Counts per path: requests by status, requests by seconds, and the sum of their seconds.
_PER_PATH = len(_STATUSES) + len(_SECONDS) + 1
_OF_PROJECT = {
    "asked": ("fedmlh_points_total", "counter", "points that were answered"),
    "batches": ("fedmlh_batches_total", "counter", "passes over the model, each for all points that waited"),
    "waiting": ("fedmlh_waiting_requests", "gauge", "requests that wait"),
    "reloads": ("fedmlh_reloads_total", "counter", "models that replaced an earlier one"),
    "failures": ("fedmlh_reload_failures_total", "counter", "models that could not be read"),
}


class Metrics:
    """Counts of this process, in a row of its own beside those of the others."""

    def __init__(self, routes: Sequence[Route], projects: Sequence[Project], shared: tuple[Path, int] | None) -> None:
        """Count in memory, or in a file that is shared by a number of processes."""
        self.paths = [*dict.fromkeys(route.path for route in routes), "other"]
        self.places = {route.endpoint: self.paths.index(route.path) for route in routes}
        self.projects = projects
        width = len(self.paths) * _PER_PATH + len(projects) * len(_OF_PROJECT)
        self.counts, mine = np.zeros((1, width)), 0
        if shared is not None:
            path, processes = shared
            mine, self._lock = _take_row(path, processes)
            with open(path, "ab") as file:
                file.truncate(processes * width * 8)
            self.counts = np.memmap(path, np.float64, "r+", shape=(processes, width))
        split = len(self.paths) * _PER_PATH
        self.by_path = self.counts[mine, :split].reshape(-1, _PER_PATH)
        self.by_project = self.counts[mine, split:].reshape(-1, len(_OF_PROJECT))
        self._before = self.by_project.copy()
        self._before[:, list(_OF_PROJECT).index("waiting")] = 0

    def count(self, endpoint: object, status: int, seconds: float) -> None:
        """Count a request."""
        row = self.by_path[self.places.get(endpoint, -1)]
        row[_STATUSES.index(status if status in _STATUSES else 0)] += 1
        row[len(_STATUSES) + next(place for place, most in enumerate(_SECONDS) if seconds <= most)] += 1
        row[-1] += seconds
        for place, project in enumerate(self.projects):
            self.by_project[place] = self._before[place] + [getattr(project, name) for name in _OF_PROJECT]

    def write(self) -> str:
        """Return the counts of all processes."""
        return "\n".join(self._list_lines()) + "\n"

    def _list_lines(self) -> Iterator[str]:
        counts = self.counts.sum(axis=0)
        split = len(self.paths) * _PER_PATH
        by_path = counts[:split].reshape(-1, _PER_PATH)
        yield from _head("fedmlh_requests_total", "counter", "requests by path and status; 0 is any other status")
        for path, row in zip(self.paths, by_path, strict=True):
            for status, number in zip(_STATUSES, row, strict=False):
                if number:
                    yield f'fedmlh_requests_total{{path="{path}",status="{status}"}} {number:.0f}'
        yield from _head("fedmlh_request_seconds", "histogram", "seconds from the head of a request to its answer")
        for path, row in zip(self.paths, by_path, strict=True):
            below = list(accumulate(row[len(_STATUSES) : -1]))
            if below[-1]:
                for most, number in zip(_SECONDS, below, strict=True):
                    end = "+Inf" if most == float("inf") else f"{most:g}"
                    yield f'fedmlh_request_seconds_bucket{{path="{path}",le="{end}"}} {number:.0f}'
                yield f'fedmlh_request_seconds_sum{{path="{path}"}} {row[-1]:.6f}'
                yield f'fedmlh_request_seconds_count{{path="{path}"}} {below[-1]:.0f}'
        by_project = counts[split:].reshape(-1, len(_OF_PROJECT))
        for place, (name, kind, meaning) in enumerate(_OF_PROJECT.values()):
            yield from _head(name, kind, meaning)
            for project, row in zip(self.projects, by_project, strict=True):
                yield f'{name}{{project="{project.id}"}} {row[place]:.0f}'


def _head(name: str, kind: str, meaning: str) -> tuple[str, str]:
    return f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"


def _take_row(path: Path, rows: int) -> tuple[int, int]:
    """Return a row that no other process has, and its lock, held until the process ends; the next one counts on."""
    for row in range(rows):
        lock = os.open(f"{path}.{row}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            continue
        return row, lock
    raise RuntimeError("more processes than rows")


class Measure:
    """Counts requests, and the time until their answers are sent."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the application answer, and count."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begin, status = time.perf_counter(), 0

        async def send_and_look(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, send_and_look)
        finally:
            self.metrics.count(scope.get("endpoint"), status, time.perf_counter() - begin)
