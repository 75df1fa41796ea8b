"""The page about the recipe shows the figures that were measured."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_candidates_on_the_page_are_the_measured_ones() -> None:
    command = [sys.executable, "experiments/networks.py", "--table", "experiments/results/networks/explored.jsonl"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    page = (ROOT / "docs" / "recipe.md").read_text().splitlines()
    start = page.index(shown[0])
    rows = page[start : page.index("", start)]
    assert len(rows) > 10
    assert set(rows) <= set(shown)
