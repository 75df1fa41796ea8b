"""Annif's interface, version 1, so that clients that libraries have can ask our models.

https://annif.org: the same addresses, fields and statuses; learning and language detection answer that they are off.
"""

import math
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fedmlh.serving.predictor import Model
from fedmlh.web.ask import read_form, read_json, take_list, take_share, take_text, take_whole
from fedmlh.web.native import find_project
from fedmlh.web.problem import Problem, answer_json
from fedmlh.web.project import BATCH, MOST_LABELS, Project, Question

_LARGEST = 2**31 - 1
#: Annif's clients drop scores of 0.
_LOWEST = 1e-6


def make_routes(projects: Mapping[str, Project], language: str) -> list[Route]:
    """Return the routes below /v1."""

    async def show_api(_: Request) -> Response:
        return answer_json({"title": "fedmlh, by Annif's REST API", "version": version("fedmlh")})

    async def list_vocabs(_: Request) -> Response:
        return answer_json({"vocabs": [_describe_vocab(project, language) for project in projects.values()]})

    async def list_projects(_: Request) -> Response:
        return answer_json({"projects": [_describe(project, language) for project in projects.values()]})

    async def show_project(request: Request) -> Response:
        return answer_json(_describe(find_project(projects, request), language))

    async def suggest(request: Request) -> Response:
        project = find_project(projects, request)
        form = await read_form(request)
        if "text" not in form:
            raise Problem(400, "the form has no field text")
        (results,) = await _suggest(project, [form["text"]], form)
        return answer_json({"results": results})

    async def suggest_batch(request: Request) -> Response:
        project = find_project(projects, request)
        said = await read_json(request)
        documents = take_list(said.get("documents") if isinstance(said, dict) else None, "documents", BATCH)
        for document in documents:
            if not isinstance(document, dict):
                raise Problem(400, "each of the documents should be a JSON object")
            if document.get("document_id") is not None:
                take_text(document["document_id"], "document_id")
        texts = [take_text(document.get("text"), "text of each of the documents") for document in documents]
        results = await _suggest(project, texts, request.query_params)
        pairs = zip(results, documents, strict=True)
        return answer_json([{"results": some, "document_id": about.get("document_id")} for some, about in pairs])

    async def learn(request: Request) -> Response:
        find_project(projects, request)
        raise Problem(403, "a served model does not learn: train again, and replace its folder")

    async def detect_language(_: Request) -> Response:
        raise Problem(501, "this server does not detect languages")

    return [
        Route("/v1/", show_api),
        Route("/v1/vocabs", list_vocabs),
        Route("/v1/projects", list_projects),
        Route("/v1/projects/{project_id}", show_project),
        Route("/v1/projects/{project_id}/suggest", suggest, methods=["POST"]),
        Route("/v1/projects/{project_id}/suggest-batch", suggest_batch, methods=["POST"]),
        Route("/v1/projects/{project_id}/learn", learn, methods=["POST"]),
        Route("/v1/detect-language", detect_language, methods=["POST"]),
    ]


async def _suggest(project: Project, texts: list[str], said: Mapping[str, str]) -> list[list[dict[str, Any]]]:
    """Return suggestions for each text; `limit` beyond what is served is that, as "at most" allows."""
    limit = take_whole(said.get("limit", "10"), "limit", 0, _LARGEST)
    threshold = take_share(said.get("threshold", "0"), "threshold")
    if not limit:
        return [[] for _ in texts]
    model, labels = await project.ask(Question(texts, min(limit, MOST_LABELS)))
    return [
        [suggestion for label in some if (suggestion := _write(model, label))["score"] >= threshold] for some in labels
    ]


def _write(model: Model, label: Mapping[str, Any]) -> dict[str, Any]:
    return {"uri": label["key"], "label": label["name"], "notation": None, "score": find_score(model, label)}


def find_score(model: Model, label: Mapping[str, Any]) -> float:
    """Return a score above 0 and at most 1: the probability, or what keeps the order where the model has none."""
    if label["probability"] is not None:
        return float(label["probability"])
    score, config = label["score"], model.bundle.task.config
    if model.bundle.terms is None and config.decoding == "log-probs":
        chance = math.exp(min(score, 0.0))
    elif model.bundle.terms is None and config.decoding == "probs":
        chance = score
    else:
        chance = 0.5 + math.atan(score) / math.pi
    return min(1.0, max(_LOWEST, chance))


def _describe(project: Project, language: str) -> dict[str, Any]:
    name = project.id if project.model.bundle.curve is not None else f"{project.id} (scores are no probabilities)"
    return {
        "project_id": project.id,
        "name": name,
        "language": language,
        "backend": {"backend_id": "fedmlh"},
        "vocab": _describe_vocab(project, language),
        "vocab_language": language,
        "is_trained": True,
        "modification_time": project.modified.isoformat(),
    }


def _describe_vocab(project: Project, language: str) -> dict[str, Any]:
    size = len(project.model.bundle.labels)
    return {"vocab_id": project.id, "languages": [language], "size": size, "loaded": True}
