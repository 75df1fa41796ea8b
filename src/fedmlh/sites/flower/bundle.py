"""The app as Flower carries it: only names of code that is installed everywhere."""

import hashlib

from flwr.cli.build import build_fab_from_files
from flwr.supercore.fab import Fab

_PROJECT = b"""\
[project]
name = "fedmlh"
version = "1.0.0"
description = "Federated extreme classification"
license = "MIT"
dependencies = []

[tool.flwr.app]
publisher = "fedmlh"

[tool.flwr.app.components]
serverapp = "fedmlh.sites.flower.server:app"
clientapp = "fedmlh.sites.flower.client:app"

[tool.flwr.app.config]
"""


def make_bundle() -> Fab:
    """Return the app, with the same bytes on every machine, so that a site can tell it from any other app."""
    content, _ = build_fab_from_files({"pyproject.toml": _PROJECT})
    return Fab(hashlib.sha256(content).hexdigest(), content, {})
