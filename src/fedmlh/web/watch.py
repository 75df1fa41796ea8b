"""A server on this machine that shows a run as it works; it reads the run's folder, and writes nothing."""

import secrets
import threading
import time
from pathlib import Path
from socket import socket

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from fedmlh.errors import UserError
from fedmlh.lock import is_held
from fedmlh.runs.chronicle import Chronicle, Follower
from fedmlh.web.app import make_app
from fedmlh.web.limits import Limits
from fedmlh.web.listen import make_server
from fedmlh.web.watch_page import View, read_page, render

HOST = "127.0.0.1"
#: A page of another name that leads here is refused: its scripts could read the answer.
_NAMES = (HOST, "localhost")


class Watcher:
    """Looks into a run folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._follower = Follower(folder)
        self._turn = threading.Lock()

    def look(self) -> View:
        """Return what is known of the run now."""
        chronicle, problem = Chronicle(), ""
        try:
            chronicle = self._follower.read()
        except UserError as error:
            problem = str(error)
        has_summary = (self.folder / "summary.json").is_file()
        return View(str(self.folder), chronicle, is_held(self.folder), time.time(), problem, has_summary)

    def show(self) -> str:
        """Return the page as it is now."""
        with self._turn:  # two browsers may ask at a time
            return render(self.look())


def make_key() -> str:
    """Return the part of the address that other accounts of this machine do not know."""
    return secrets.token_urlsafe(16)


def make_watch_app(folder: Path, key: str) -> Starlette:
    """Return the application that shows a run folder to whoever knows the key."""
    watcher, (_, policy) = Watcher(folder), read_page()

    def show(request: Request) -> Response:
        return HTMLResponse(watcher.show(), headers={"content-security-policy": policy})

    return make_app([Route(f"/{key}/", show)], names=_NAMES)


def find_run(folder: Path) -> Path:
    """Return the run folder that a user means, which need not be there yet."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: name the folder of a run")
    if (folder / "comparison.json").is_file():
        raise UserError(f"{folder} is the folder of a comparison: name one of the runs in it")
    if (folder / "public").is_dir() and (folder / "server").is_dir():
        return folder / "run"  # of a federation
    return folder


def run_watch(folder: Path, bound: socket, key: str) -> None:
    """Show a run folder until the process is told to stop."""
    make_server(make_watch_app(folder, key), Limits()).run([bound])
