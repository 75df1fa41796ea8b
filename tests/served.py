"""A server of models as clients see it, in a thread of the test, and the description that its answers are held to."""

import http.client
import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import jsonschema
from starlette.types import ASGIApp

from fedmlh.web.limits import Limits
from fedmlh.web.listen import bind, make_server
from fedmlh.web.service import Service, make_service
from waiting import wait_for

DESCRIPTION = json.loads((Path(__file__).parents[1] / "src/fedmlh/web/openapi.json").read_text("utf-8"))


@dataclass(frozen=True)
class Reply:
    """What a server answers."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def detail(self) -> str:
        """The sentence of a problem."""
        assert self.headers["content-type"] == "application/problem+json", self
        assert self.json["status"] == self.status
        return str(self.json["detail"])


@dataclass
class Client:
    """Asks a server over one connection, and holds what it answers to the description of the interface."""

    port: int
    #: Whether the connection stays open for the next question.
    keeps: bool = True
    _kept: http.client.HTTPConnection | None = field(default=None, repr=False)

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Reply:
        connection = self._kept or http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        self._kept = connection if self.keeps else None
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            reply = Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        except (OSError, http.client.HTTPException):
            connection.close()
            self._kept = None
            raise
        if not self.keeps:
            connection.close()
        check_described(method, urlsplit(path).path, reply)
        return reply

    @property
    def apart(self) -> "Client":
        """A client that opens a connection for each question."""
        return Client(self.port, keeps=False)

    def get(self, path: str) -> Reply:
        return self.ask("GET", path)

    def post(self, path: str, said: Any) -> Reply:
        """Send JSON."""
        return self.ask("POST", path, json.dumps(said), {"Content-Type": "application/json"})

    def post_form(self, path: str, **fields: Any) -> Reply:
        return self.ask("POST", path, urlencode(fields), {"Content-Type": "application/x-www-form-urlencoded"})

    def predict(self, project: str, **said: Any) -> Reply:
        return self.post(f"/api/projects/{project}/predict", said)

    def suggest(self, project: str, **said: Any) -> Reply:
        return self.post_form(f"/v1/projects/{project}/suggest", **said)

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()
        self._kept = None


@contextmanager
def serve(folders: dict[str, Path], limits: Limits | None = None, **settings: Any) -> Iterator[Client]:
    """Serve models in a thread of this process."""
    service = Service(tuple(folders.items()), "127.0.0.1", limits=limits or Limits(), **settings)
    with answering(make_service(service), service.limits) as port:
        client = Client(port)
        try:
            yield client
        finally:
            client.close()


@contextmanager
def answering(app: ASGIApp, limits: Limits) -> Iterator[int]:
    """Let an application answer in a thread of this process; give its port."""
    bound = bind("127.0.0.1", 0)
    server = make_server(app, limits)
    thread = threading.Thread(target=server.run, args=([bound],))
    thread.start()
    try:
        wait_for(lambda: server.started)
        yield bound.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


def exchange(port: int, said: bytes, seconds: float = 30) -> bytes:
    """Send bytes over a connection of their own; return all that comes until the server ends it, or says no more."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as connection:
        found = b""
        try:
            connection.sendall(said)
            connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(1 << 16):
                found += piece
        except OSError:  # also that a connection which the server has ended cannot be shut down
            pass
        return found


def check_described(method: str, path: str, reply: Reply) -> None:
    """Hold an answer to the description of the interface; what is not described says so in a problem document."""
    operation = _find(path).get(method.lower())
    if method == "OPTIONS":
        return
    if operation is None:
        assert path in ("/", "/file") or reply.status in (404, 405, 413, 408, 421, 400), (method, path, reply.status)
        return
    assert str(reply.status) in operation["responses"], (method, path, reply)
    described = operation["responses"][str(reply.status)]
    if "$ref" in described:
        described = DESCRIPTION["components"]["responses"][described["$ref"].rpartition("/")[2]]
    kind = reply.headers["content-type"].partition(";")[0]
    assert kind in described["content"], (method, path, kind)
    schema = described["content"][kind]["schema"]
    if kind.endswith("json"):
        _make_validator(json.dumps(schema)).validate(reply.json)


@cache
def _make_validator(schema: str) -> Any:
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    whole = {**json.loads(schema), "components": DESCRIPTION["components"]}
    return jsonschema.Draft202012Validator(whole, format_checker=checker)


def _find(path: str) -> dict[str, Any]:
    for template, operations in DESCRIPTION["paths"].items():
        if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", template), path):
            return operations
    return {}
