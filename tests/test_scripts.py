"""Scripts that no quick test runs still find what they import of the package."""

import ast
import importlib
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted(path for folder in ("benchmarks", "experiments") for path in (ROOT / folder).glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_a_script_imports_is_there(script: Path) -> None:
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "fedmlh":
            try:
                module = importlib.import_module(str(node.module))
            except ModuleNotFoundError as missing:
                if str(missing.name).startswith("fedmlh"):
                    raise
                continue  # an extra is not installed
            for name in (alias.name for alias in node.names):
                known = hasattr(module, name) or importlib.util.find_spec(f"{node.module}.{name}")
                assert known, f"{node.module} has no {name}"
