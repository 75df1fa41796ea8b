"""Experiments change nothing of the product, and know what was measured before."""

import ast
import importlib
import shutil
from pathlib import Path
from typing import Any

import pytest

from fedmlh.runs.jobs import Job

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "experiments" / "results"
SCRIPTS = sorted((ROOT / "experiments").rglob("*.py"))


def list_patches(tree: ast.AST) -> list[str]:
    """Return what changes modules or classes of others: mocks, and assignments to attributes of what is imported."""
    imported, found = set[str](), []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = {alias.asname or alias.name.partition(".")[0] for alias in node.names}
            imported |= names
            if names & {"mock", "pytest"} or "mock" in (getattr(node, "module", "") or ""):
                found.append(ast.unparse(node))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("setattr", "delattr"):
            found.append(ast.unparse(node))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
            base = node.value
            while isinstance(base, ast.Attribute):
                base = base.value
            if isinstance(base, ast.Name) and base.id in imported:
                found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_experiments_patch_nothing(path: Path):
    assert list_patches(ast.parse(path.read_text())) == []


@pytest.mark.parametrize(
    "source",
    [
        "from fedmlh.federated.client import Client\nClient.reply = print",
        "from unittest import mock",
        "import pytest",
        "import fedmlh.oneround.wire\nfedmlh.oneround.wire._check_claim = print",
        "import fedmlh\nsetattr(fedmlh, 'run', print)",
    ],
)
def test_a_patch_would_be_seen(source: str):
    assert len(list_patches(ast.parse(source))) == 1


def import_script(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(ROOT / "experiments")
    return importlib.import_module(name)


@pytest.mark.parametrize("stage", ["sets", "alone", "tuned", "grid", "many", "parts", "changes"])
def test_what_evidence_has_measured_is_not_measured_again(stage: str, monkeypatch: pytest.MonkeyPatch):
    evidence = import_script("evidence", monkeypatch)
    kept = evidence.Rows(RESULTS / "evidence" / f"{stage}.jsonl")
    folders = sorted({f"some/folder/{row['job'][0]}" for row in kept.rows})
    seeds = 1 + max(row["job"][3] for row in kept.rows)
    found = [row for job in evidence.list_jobs(stage, folders, seeds, "cpu") if (row := kept.find(job))]
    assert len(found) == len(kept.rows)
    assert sorted(row["job"] for row in found) == sorted(row["job"] for row in kept.rows)


RUN = {"data": "Bibtex", "variant": "K 10, iid", "seed": 0}


@pytest.mark.parametrize(
    ("script", "known", "new"),
    [
        ("one_round", RUN, {**RUN, "seed": 7}),
        ("held_out_sums", {"data": "Bibtex", "way": "default"}, {"data": "other", "way": "default"}),
    ],
)
def test_results_by_data_set_are_found_and_added_to(
    script: str, known: dict[str, Any], new: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    module, path = import_script(script, monkeypatch), tmp_path / "result.json"
    shutil.copy(RESULTS / f"{script.replace('_', '-')}.json", path)
    earlier = module.Sets(path).find(Job(known, print))
    assert earlier
    assert module.Sets(path).find(Job(new, print)) is None
    module.Sets(path).keep(Job(new, print), {"ridge": 2.5})
    assert module.Sets(path).find(Job(new, print))["ridge"] == 2.5
    assert module.Sets(path).find(Job(known, print)) == earlier


@pytest.mark.parametrize("suffix", ["json", "jsonl"])
def test_rows_are_found_by_their_keys_and_added_to_a_file(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    script, path = import_script("script", monkeypatch), tmp_path / f"rows.{suffix}"
    one, other = (Job({"method": ("tables", tables), "seed": 0}, print) for tables in (4, 8))
    script.Rows(path).keep(one, {"sizes": (1, 2)})
    before = path.read_text()
    rows = script.Rows(path)
    assert rows.find(one) == {"method": ["tables", 4], "seed": 0, "sizes": [1, 2]}
    assert rows.find(other) is None
    rows.keep(other, {"sizes": ()})
    assert script.Rows(path).rows == rows.rows == [rows.find(one), rows.find(other)]
    assert path.read_text().startswith(before.rstrip("]\n"))
