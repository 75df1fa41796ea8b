"""The service that `fedmlh serve` runs: models under names, behind the interfaces of our own and of Annif."""

import asyncio
import contextlib
import logging
import multiprocessing
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from socket import socket
from typing import NoReturn

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fedmlh.allocator import share_arenas
from fedmlh.errors import UserError
from fedmlh.web import annif, native, page
from fedmlh.web.app import make_app
from fedmlh.web.headers import is_loopback
from fedmlh.web.limits import Limits
from fedmlh.web.listen import keep_quiet, make_server, show_address
from fedmlh.web.metrics import Measure, Metrics
from fedmlh.web.problem import Problem, answer_json
from fedmlh.web.project import Project

LOG = logging.getLogger("fedmlh.web")
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
#: Seconds until a worker that has ended is replaced: at first, and at most, where workers end again and again.
_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
#: Seconds beyond those of a graceful stop after which a worker is killed.
_PATIENCE = 5.0
_STOPS = (signal.SIGINT, signal.SIGTERM)
_DESCRIPTION = Path(__file__).with_name("openapi.json")


@dataclass(frozen=True)
class Service:
    """What is served, to whom."""

    #: The folder of each project's model, by the project's id.
    folders: tuple[tuple[str, Path], ...]
    #: The address that the server listens at.
    host: str
    #: Further names by which clients reach the server, and origins whose pages may ask it.
    names: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    #: What Annif's clients are told of the language of texts and labels.
    language: str = "und"
    limits: Limits = field(default_factory=Limits)
    workers: int = 1


def name_projects(models: Sequence[str]) -> tuple[tuple[str, Path], ...]:
    """Return the id and the folder of each model: ID=FOLDER, or a folder whose name is the id."""
    found: dict[str, Path] = {}
    for model in models:
        before, equals, after = model.partition("=")
        is_named = bool(equals) and _ID.fullmatch(before) is not None and not Path(model).exists()
        folder = Path(after if is_named else model)
        place = folder.resolve()
        project_id = before if is_named else (place.parent if place.name == "model" else place).name
        if not _ID.fullmatch(project_id):
            raise UserError(f"{project_id!a} cannot be the id of a project: name it in letters and digits, ID={folder}")
        if project_id in found:
            raise UserError(f"two models are called {project_id}: name them, as in {project_id}-2={folder}")
        found[project_id] = folder
    return tuple(found.items())


def make_service(service: Service, counts: Path | None = None) -> Starlette:
    """Load the models and return the application; `counts` is the file in which several processes count."""
    projects = {project_id: Project(project_id, folder) for project_id, folder in service.folders}
    is_open = False

    async def show_health(_: Request) -> Response:
        return answer_json({"status": "ok"})

    async def show_ready(_: Request) -> Response:
        if not is_open:
            raise Problem(503, "the server is being stopped")
        return answer_json({"status": "ready", "projects": list(projects)})

    async def show_metrics(_: Request) -> Response:
        return Response(metrics.write(), media_type="text/plain; version=0.0.4")

    async def show_description(_: Request) -> Response:
        return Response(_DESCRIPTION.read_bytes(), media_type="application/json")

    @contextlib.asynccontextmanager
    async def live(_: Starlette) -> AsyncIterator[None]:
        nonlocal is_open
        watching = [asyncio.create_task(project.watch()) for project in projects.values()]
        is_open = True
        yield
        is_open = False
        for task in watching:
            task.cancel()
        for project in projects.values():
            project.close()

    routes = [
        Route("/health", show_health),
        Route("/ready", show_ready),
        Route("/metrics", show_metrics),
        Route("/openapi.json", show_description),
        *native.make_routes(projects),
        *annif.make_routes(projects, service.language),
        *page.make_routes(projects),
    ]
    metrics = Metrics(routes, list(projects.values()), None if counts is None else (counts, service.workers))
    names = None
    if service.names or is_loopback(service.host):
        names = [service.host, "localhost", "127.0.0.1", "::1", *service.names]
    outer = [Middleware(Measure, metrics=metrics)]
    return make_app(routes, names=names, origins=service.origins, limits=service.limits, outer=outer, lifespan=live)


def run_service(service: Service, bound: socket) -> None:
    """Serve until the process is told to stop; with several workers, in processes of their own on the one socket."""
    keep_quiet()
    share_arenas()
    # Also with workers: a model that cannot be read ends the command.
    app = make_service(service)
    bound.listen()
    listed = ", ".join(project_id for project_id, _ in service.folders)
    LOG.info("%s at %s", listed, show_address(bound))
    if not is_loopback(service.host):
        LOG.info("open to the network, without a password: put a proxy with TLS and accounts in front of it")
    if service.workers == 1:
        make_server(app, service.limits).run([bound])
        return
    del app
    with tempfile.TemporaryDirectory(prefix="fedmlh-serve-") as folder:
        _supervise(service, bound, Path(folder) / "counts")


def _supervise(service: Service, bound: socket, counts: Path) -> NoReturn:
    """Keep some processes at work on a socket, until an exception (Ctrl-C, SIGTERM) ends it; then have them stop."""
    spawn = multiprocessing.get_context("spawn")

    workers: list[SpawnProcess] = []

    def start() -> None:
        # A signal waits until the process is there: one that has begun halfway would be nobody's.
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
        try:
            workers.append(spawn.Process(target=_work, args=(service, bound, counts), daemon=True))
            workers[-1].start()
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)

    pause = _PAUSE
    try:
        for _ in range(service.workers):
            start()
        while True:
            began = time.monotonic()
            wait([worker.sentinel for worker in workers])
            # One that cannot start is not started again and again.
            pause = _PAUSE if time.monotonic() - began > _LONGEST_PAUSE else min(2 * pause, _LONGEST_PAUSE)
            time.sleep(pause)
            for worker in [worker for worker in workers if not worker.is_alive()]:
                LOG.error("a worker has ended (%s); another one begins", worker.exitcode)
                workers.remove(worker)
                start()
    finally:
        begun = [worker for worker in workers if worker.pid is not None]
        for worker in begun:
            worker.terminate()
        until = time.monotonic() + service.limits.stop_seconds + _PATIENCE
        for worker in begun:
            worker.join(max(0.0, until - time.monotonic()))
            worker.kill()


def _work(service: Service, bound: socket, counts: Path) -> None:
    """Serve as one of several processes, for as long as the first one lives."""
    with contextlib.suppress(KeyboardInterrupt):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
        keep_quiet()
        share_arenas()
        try:
            app = make_service(service, counts)
        except UserError as error:
            LOG.error("a worker cannot start: %s", error)
            sys.exit(2)
        server = make_server(app, service.limits)

        def stop_with_parent() -> None:
            parent = multiprocessing.parent_process()
            if parent is not None:
                parent.join()
            server.should_exit = True

        threading.Thread(target=stop_with_parent, daemon=True).start()
        server.run([bound])
