"""The page about threats names tests that exist, for every attack, and the figures that were measured."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "threats.md").read_text()


def read_tests() -> dict[str, bool]:
    """Return every test of an attack, and whether it is a slow one."""
    found = {}
    for path in (ROOT / "tests").glob("test_attacks_*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_attack_"):
                found[node.name] = any("slow" in ast.unparse(mark) for mark in node.decorator_list)
    return found


def test_every_attack_has_tests_that_exist_and_run_when_the_page_says() -> None:
    tests = read_tests()
    rows = dict(re.findall(r"^\| (\d+) \| (.*)$", PAGE, re.MULTILINE))
    assert list(map(int, rows)) == list(range(1, 24))
    for number, row in rows.items():
        named = re.findall(r"`(test_attack_\w+)`(†?)", row)
        assert named, number
        for name, dagger in named:
            assert name in tests, name
            assert (dagger == "†") == tests[name], name
            assert f"{int(number):02d}" in name


def test_no_attack_is_expected_to_succeed() -> None:
    for path in (ROOT / "tests").glob("test_attacks_*.py"):
        assert "xfail" not in path.read_text(), path.name


def test_the_table_of_hostile_sums_is_the_measured_one() -> None:
    command = [sys.executable, "experiments/hostile_sums.py", "--table", "experiments/results/hostile-sums.json"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip() in PAGE


@pytest.mark.parametrize("result", ["poison", "poison-wordnet", "poison-debtags", "poison-citeulike"])
def test_the_tables_of_poisoned_runs_are_the_measured_ones(result: str) -> None:
    command = [sys.executable, "experiments/poison.py", "--table", f"experiments/results/{result}.json"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip() in PAGE
