"""A web application of this product: routes, within the limits and rules that hold for all of them."""

from collections.abc import Callable, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

from fedmlh.errors import UserError
from fedmlh.web.headers import Guard
from fedmlh.web.limits import Bodies, Limits
from fedmlh.web.problem import Problem, on_problem


def make_app(
    routes: Sequence[Route],
    *,
    names: Sequence[str] | None,
    origins: Sequence[str] = (),
    limits: Limits | None = None,
    outer: Sequence[Middleware] = (),
    lifespan: Callable[[Starlette], Any] | None = None,
) -> Starlette:
    """Return an application that answers to these host names (None: any), and to pages of these origins."""
    cross = [Middleware(CORSMiddleware, allow_origins=list(origins), allow_methods=["GET", "POST"])] if origins else []
    app = Starlette(
        routes=list(routes),
        middleware=[
            *outer,
            Middleware(Guard, names=names, origins=origins),
            *cross,
            Middleware(Bodies, limits=limits or Limits()),
        ],
        exception_handlers=dict.fromkeys((Problem, UserError, HTTPException), on_problem),
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # an answer would name whatever host the request names
    return app
