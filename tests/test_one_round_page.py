"""The page about one round and the README show the figures that were measured."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RESULTS = "experiments/results"
_ONE_ROUND = ["one_round", "--table", f"{RESULTS}/one-round.json", "--central", f"{RESULTS}/central-plt.json"]
TABLES = [
    _ONE_ROUND,
    [*_ONE_ROUND, "--corrected"],
    ["equal_bytes", "--table", f"{RESULTS}/equal-bytes.json"],
    ["held_out_sums", "--table", f"{RESULTS}/held-out-sums.json"],
]


@pytest.mark.parametrize("arguments", TABLES, ids=" ".join)
def test_the_tables_are_the_measured_ones(arguments: list[str]) -> None:
    command = [sys.executable, f"experiments/{arguments[0]}.py", *arguments[1:]]
    table = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    assert table in (ROOT / "docs" / "one-round.md").read_text()


def test_the_readme_repeats_the_page() -> None:
    page = (ROOT / "docs" / "one-round.md").read_text()
    readme = (ROOT / "README.md").read_text().replace("**", "")
    for name in ("one round", "rounds of FedMLH, equal bytes", "rounds of FedAvg, equal bytes"):
        cells = re.search(rf"^\| {name} \| (.*?) \| [^|]* \|$", page, re.MULTILINE)
        assert cells is not None
        assert cells[1] in readme
    alone = json.loads((ROOT / RESULTS / "central-plt.json").read_text())["EurLex-EuroVoc-titles-4K"]
    cells = [f"{100 * value['mean']:.1f} ± {100 * value['sd']:.1f}" for value in alone["alone"]["precision"].values()]
    assert " | ".join(cells) in readme
    assert " | ".join(f"{100 * value:.1f}" for value in alone["precision"].values()) in readme
    privacy = (ROOT / "docs" / "privacy.md").read_text()
    shares = [
        share
        for name in ("open-statistics", "open-statistics-held-out")
        for share in json.loads((ROOT / RESULTS / f"{name}.json").read_text())["clients"].values()
    ]
    assert len(shares) == 3
    for share in shares:
        assert f"{100 * share['mean']:.0f} %" in privacy
