"""The pages about one round and privacy show the figures that were measured."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RESULTS = "experiments/results"
TABLES = [
    ["one_round", "--table", f"{RESULTS}/one-round.json", "--central", f"{RESULTS}/central-plt.json"],
    ["held_out_sums", "--table", f"{RESULTS}/held-out-sums.json"],
]


@pytest.mark.parametrize("arguments", TABLES, ids=" ".join)
def test_the_tables_are_the_measured_ones(arguments: list[str]) -> None:
    command = [sys.executable, f"experiments/{arguments[0]}.py", *arguments[1:]]
    table = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    assert table in (ROOT / "docs" / "one-round.md").read_text()


def test_the_page_about_privacy_repeats_what_was_measured() -> None:
    privacy = (ROOT / "docs" / "privacy.md").read_text()
    shares = [
        share
        for name in ("open-statistics", "open-statistics-held-out")
        for share in json.loads((ROOT / RESULTS / f"{name}.json").read_text())["clients"].values()
    ]
    assert len(shares) == 3
    for share in shares:
        assert f"{100 * share['mean']:.0f} %" in privacy
