"""Answers in JSON, and what went wrong as a problem document (RFC 9457) with one sentence for the user."""

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from fedmlh.errors import UserError

#: Seconds after which a client that was turned away should try again.
LATER: Mapping[str, str] = {"Retry-After": "1"}
#: For an answer that leaves a body unread: what follows on the connection would be the rest of it.
CLOSE: Mapping[str, str] = {"Connection": "close"}


class Problem(Exception):
    """A request that is answered with a status and a sentence."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, headers


def answer_json(content: Any, status: int = 200) -> Response:
    """Return an answer in JSON."""
    return Response(_encode(content), status, media_type="application/json")


def answer_problem(problem: Problem) -> Response:
    """Return the problem as an answer, in the form that clients of Annif read as well."""
    about = {
        "type": "about:blank",
        "title": HTTPStatus(problem.status).phrase,
        "status": problem.status,
        "detail": problem.detail,
    }
    headers = None if problem.headers is None else dict(problem.headers)
    return Response(_encode(about), problem.status, headers, media_type="application/problem+json")


async def on_problem(request: Request, error: Exception) -> Response:
    """Answer what was raised while a request was answered."""
    if isinstance(error, UserError):
        return answer_problem(Problem(400, str(error)))
    if isinstance(error, HTTPException):
        sentences = {404: "there is no such page", 405: f"{request.method} is not possible here"}
        return answer_problem(Problem(error.status_code, sentences.get(error.status_code, error.detail), error.headers))
    assert isinstance(error, Problem)
    return answer_problem(error)


def _encode(content: Any) -> bytes:
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
