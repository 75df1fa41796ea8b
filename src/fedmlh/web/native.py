"""The interface of our own: labels of texts or features, with probabilities and reasons."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fedmlh.web.ask import read_json, take_list, take_object, take_share, take_text, take_whole
from fedmlh.web.problem import Problem, answer_json
from fedmlh.web.project import BATCH, MOST_EXPLAINED, MOST_LABELS, Features, Project, Question

_FIELDS = ("texts", "features", "top", "threshold", "why")
_LARGEST = 2**31 - 1


def make_routes(projects: Mapping[str, Project]) -> list[Route]:
    """Return the routes below /api."""

    def find(request: Request) -> Project:
        return find_project(projects, request)

    async def list_projects(_: Request) -> Response:
        return answer_json({"projects": [describe(project) for project in projects.values()]})

    async def show_project(request: Request) -> Response:
        return answer_json(describe(find(request)))

    async def list_labels(request: Request) -> Response:
        labels, asked = find(request).model.bundle.labels, request.query_params
        begin = take_whole(asked.get("offset", "0"), "offset", 0, _LARGEST)
        most = take_whole(asked.get("limit", "100"), "limit", 1, MOST_LABELS)
        pairs = zip(labels.keys[begin : begin + most], labels.names[begin : begin + most], strict=True)
        return answer_json({"size": len(labels), "labels": [{"key": key, "name": name} for key, name in pairs]})

    async def predict(request: Request) -> Response:
        project = find(request)
        question = read_question(await read_json(request))
        answer = await project.ask(question)
        return answer_json({"results": answer.labels})

    return [
        Route("/api/projects", list_projects),
        Route("/api/projects/{project_id}", show_project),
        Route("/api/projects/{project_id}/labels", list_labels),
        Route("/api/projects/{project_id}/predict", predict, methods=["POST"]),
    ]


def find_project(projects: Mapping[str, Project], request: Request) -> Project:
    """Return the project that an address names."""
    found = projects.get(request.path_params["project_id"])
    if found is None:
        raise Problem(404, f"there is no such project; there are {', '.join(projects)}")
    return found


def describe(project: Project) -> dict[str, Any]:
    """Return what a client should know of a project."""
    model = project.model
    task = model.bundle.task
    return {
        "id": project.id,
        "method": task.config.method,
        "points": "features" if model.bundle.text is None else "texts",
        "features": task.num_features,
        "labels": task.num_labels,
        "has_probabilities": model.bundle.curve is not None,
        "score_meaning": model.score_meaning,
        "probability_meaning": model.probability_meaning,
        "modified": project.modified.isoformat(),
    }


def read_question(said: Any) -> Question:
    """Return the question of a body."""
    fields = take_object(said, "the body", _FIELDS)
    if ("texts" in fields) == ("features" in fields):
        raise Problem(400, "the body should have either texts or features")
    why = fields.get("why", False)
    if not isinstance(why, bool):
        raise Problem(400, "why should be true or false")
    points: Any
    if "texts" in fields:
        points = [take_text(text, "each of the texts") for text in take_list(fields["texts"], "texts", BATCH)]
    else:
        points = [_take_features(point) for point in take_list(fields["features"], "features", BATCH)]
    top = take_whole(fields.get("top", 5), "top with why" if why else "top", 1, MOST_EXPLAINED if why else MOST_LABELS)
    return Question(points, top, take_share(fields.get("threshold", 0.0), "threshold"), why)


def _take_features(point: Any) -> Features:
    fields = take_object(point, "each of the features", ("columns", "values"))
    columns, values = (take_list(fields.get(name), f"{name} of features", _LARGEST) for name in ("columns", "values"))
    if len(columns) != len(values):
        raise Problem(400, f"a point has {len(columns):,} columns and {len(values):,} values")
    if not all(type(column) is int and 0 <= column <= _LARGEST for column in columns):
        raise Problem(400, "columns of features should be whole numbers from 0")
    if not all(type(value) in (int, float) and abs(value) <= 1e300 for value in values):
        raise Problem(400, "values of features should be numbers")
    return columns, [float(value) for value in values]
