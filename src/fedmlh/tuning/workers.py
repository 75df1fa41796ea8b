"""Training of trials: in this process, or several at a time in separate processes.

The search itself stays in one process, which alone decides what is tried, stopped and kept. It reads all that it knows
about a trial from the trial's run folder.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Any, Protocol

import torch

from fedmlh.config import Config
from fedmlh.data.dataset import Dataset
from fedmlh.data.source import open_dataset
from fedmlh.engines.run import run
from fedmlh.errors import UserError
from fedmlh.parts import list_sources, load_source


@dataclass(frozen=True)
class Order:
    """A trial to train."""

    name: str
    config: Config
    folder: Path


class Search(Protocol):
    """The search, as workers see it: it hands out trials and is told how they go."""

    def next(self) -> Order | None:
        """Return the next trial; None if there is none, or none yet."""

    def heed(self, order: Order) -> bool:
        """Take note that a trial has finished a round; return whether it is to stop."""

    def close(self, order: Order, finished: bool, problem: str = "") -> None:
        """Take note that a trial has ended: by itself, because it was told to stop, or by a problem."""


class Stopped(Exception):
    """The search has told a trial to stop."""


def work_here(search: Search, dataset: Dataset) -> None:
    """Train one trial after the other in this process."""
    while (order := search.next()) is not None:
        search.close(order, *_train(order, dataset, search.heed, None))


def work_apart(search: Search, config: Config, jobs: int) -> None:
    """Train several trials at a time, each in its own process; `config` names the data."""
    threads = max(1, (os.cpu_count() or 1) // jobs)
    before = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")}
    os.environ |= dict.fromkeys(before, str(threads))  # spawned processes read it when they load
    spawn = multiprocessing.get_context("spawn")
    workers: dict[connection.Connection, tuple[Any, Order]] = {}
    try:
        while len(workers) < jobs and (order := search.next()) is not None:
            here, there = spawn.Pipe()
            process = spawn.Process(target=_serve, args=(there, list_sources(), config, threads), daemon=True)
            process.start()
            there.close()
            here.send(order)
            workers[here] = (process, order)
        while workers:
            for pipe in connection.wait(list(workers)):
                assert isinstance(pipe, connection.Connection)
                _answer(search, workers, pipe)
    finally:
        for process, _ in workers.values():
            process.terminate()
            process.join()
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _answer(
    search: Search, workers: dict[connection.Connection, tuple[Any, Order]], pipe: connection.Connection
) -> None:
    process, order = workers[pipe]
    try:
        ended = pipe.recv()
    except (EOFError, ConnectionError):
        process.join()
        raise UserError(
            f"the process of trial {order.name} ended with code {process.exitcode}, perhaps for lack of memory: "
            f"continue with --resume, and with fewer --jobs"
        ) from None
    if ended is None:
        pipe.send(search.heed(order))
        return
    search.close(order, *ended)
    following = search.next()
    pipe.send(following)
    if following is None:
        process.join()
        del workers[pipe]
    else:
        workers[pipe] = (process, following)


def _serve(pipe: connection.Connection, sources: Sequence[tuple[str, bytes]], config: Config, threads: int) -> None:
    """Train the trials that come through the pipe, in a process that ends with the process that started it."""
    # Ctrl-C reaches all processes of a terminal: the search decides what happens to the trials.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    for source in sources:
        load_source(*source)
    dataset = open_dataset(config, training_only=True)

    def heed(order: Order) -> bool:
        pipe.send(None)
        return bool(pipe.recv())

    while (order := pipe.recv()) is not None:
        pipe.send(_train(order, dataset, heed, threads))


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _train(order: Order, dataset: Dataset, heed: Callable[[Order], bool], workers: int | None) -> tuple[bool, str]:
    """Train a trial from the state of its folder; return whether it finished, and if not, what went wrong."""

    def watch(record: dict[str, Any]) -> None:
        if heed(order):
            raise Stopped

    try:
        run(order.config, dataset, order.folder, resume=True, workers=workers, watch=watch)
    except Stopped:
        return False, ""
    except (UserError, MemoryError, torch.OutOfMemoryError) as problem:
        return False, f"{problem}" or "not enough memory"
    return True, ""
