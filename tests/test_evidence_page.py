"""The page of evidence and the README show the figures that were measured."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


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
