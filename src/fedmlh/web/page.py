"""The page at `/`."""

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fedmlh.web.project import Project


def make_routes(projects: Mapping[str, Project]) -> list[Route]:
    """Return the route of the page."""

    async def show(_: Request) -> Response:
        return Response(", ".join(projects), media_type="text/plain")

    return [Route("/", show)]
