"""The page of evidence and the README show the figures that were measured."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RESULTS = "experiments/results"


def test_the_tables_are_the_measured_ones() -> None:
    command = [sys.executable, "experiments/evidence_tables.py"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    page, readme = ((ROOT / name).read_text() for name in ("docs/evidence.md", "README.md"))
    titles, tables = shown.split("## ")[1:], {}
    for entry in titles:
        title, _, table = entry.strip().partition("\n\n")
        assert f"## {title}\n" in page
        assert table + "\n" in page
        tables[title] = table
    assert len(tables) > 10
    assert tables["In short"] in readme


@pytest.mark.parametrize(
    "arguments",
    [
        ["raw_texts", "--table", f"{RESULTS}/raw-texts.json", "--central", f"{RESULTS}/central-texts.json"],
        ["single_words", "--table", f"{RESULTS}/single-words.json"],
    ],
    ids=" ".join,
)
def test_the_tables_about_raw_texts_are_the_measured_ones(arguments: list[str]) -> None:
    command = [sys.executable, f"experiments/{arguments[0]}.py", *arguments[1:]]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    assert shown in (ROOT / "docs/evidence.md").read_text()
    assert len(shown.splitlines()) > 4
