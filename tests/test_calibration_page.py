"""The page about probabilities shows the errors that were measured, and they are small."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = "experiments/results/calibration.json"


def test_the_table_is_the_measured_one() -> None:
    command = [sys.executable, "experiments/calibration.py", "--table", RESULTS]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    assert shown in (ROOT / "docs" / "calibration.md").read_text()
    assert len(shown.splitlines()) > 6


def test_probabilities_are_at_most_5_points_off_on_held_out_points() -> None:
    rows = json.loads((ROOT / RESULTS).read_text())
    assert {row["data"] for row in rows} == {"EurLex-EuroVoc-titles-4K", "WordNet-hypernyms-9K", "Debtags-600"}
    assert max(row["calibration"]["error"] for row in rows) <= 0.05
