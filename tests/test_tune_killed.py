"""A search that is killed loses no trial that has ended, trains none twice, and ends as if nothing had happened."""

import csv
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fedmlh.data.readers.convert import write
from fedmlh.data.synthetic import synthesize

TRIALS = 10
#: What is killed, and at which call of it.
MOMENTS = {
    "while values are drawn": ("draw", 20),
    "between a checkpoint and its report": ("report", 14),
    "between a report and its verdict": ("prune", 13),
    "between the figures of a trial and its end": ("tell", 4),
    "between the end of a trial and the tidying up": ("tidy", 3),
    "in the middle of a line of the journal": ("line", 60),
}
QUICK = [pytest.param(name, marks=[] if "report and" in name else pytest.mark.slow) for name in MOMENTS]


def tune(data: Path, out: Path, moment: str = "", *options: str) -> int:
    """Run a search in a process of its own; return how it ended."""
    command = [sys.executable, __file__, moment, str(data), str(out), *options]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


def read_trials(out: Path) -> list[dict[str, str]]:
    with open(out / "trials.csv", newline="") as file:
        return [{name: cell for name, cell in row.items() if name != "seconds"} for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killed") / "data"
    write(synthesize(num_points=240, num_features=60, num_labels=100, seed=1), folder, "npz")
    return folder


@pytest.fixture(scope="module")
def unbroken(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a search that nothing disturbed."""
    out = tmp_path_factory.mktemp("unbroken") / "out"
    assert tune(data, out) == 0
    # The verdict before which a search is killed below: three of each trial before, and the only one of the last.
    assert [row["rounds"] for row in read_trials(out) if row["trial"].startswith("rounds")] == list("444041")
    return out


@pytest.mark.parametrize("moment", QUICK)
def test_a_killed_search_continues_as_if_nothing_had_happened(
    data: Path, unbroken: Path, tmp_path: Path, moment: str
) -> None:
    out = tmp_path / "out"
    assert tune(data, out, moment) == -signal.SIGKILL
    before = _count_ends(out)
    assert tune(data, out, "", "--resume") == 0
    assert read_trials(out) == read_trials(unbroken)
    assert (out / "best.toml").read_bytes() == (unbroken / "best.toml").read_bytes()
    ends = _count_ends(out)
    assert len(ends) == len(read_trials(unbroken))
    assert set(ends.values()) == {1}
    assert before.items() <= ends.items()


def _count_ends(out: Path) -> Counter[int]:
    """Return how often each trial was told to have ended, by its number in the journal."""
    ends: Counter[int] = Counter()
    for line in (out / "journal.log").read_bytes().splitlines():
        try:
            entry = json.loads(line)
        except ValueError:  # cut off by the kill
            continue
        if entry["op_code"] == SET_STATE and entry["state"] != RUNNING:
            ends[entry["trial_id"]] += 1
    return ends


#: Optuna's numbers of an operation and a state.
SET_STATE, RUNNING = 6, 0


def _arm(name: str, call: int) -> None:
    """Make this process kill itself at a call of what a moment is named after."""
    import optuna
    from optuna.storages.journal import JournalFileBackend

    from fedmlh.tuning.search import Search

    owner, attribute = {
        "draw": (optuna.Trial, "_suggest"),
        "report": (optuna.Trial, "report"),
        "prune": (optuna.Trial, "should_prune"),
        "tell": (optuna.Study, "tell"),
        "tidy": (Search, "_tidy"),
        "line": (JournalFileBackend, "append_logs"),
    }[name]
    original, calls = getattr(owner, attribute), iter(range(1, 10**6))

    def strike(self: Any, *arguments: Any, **options: Any) -> Any:
        if next(calls) == call:
            if name == "line":
                with open(self._file_path, "ab") as file:
                    file.write(b'{"op_code":5,"worker_')
            os.kill(os.getpid(), signal.SIGKILL)
        return original(self, *arguments, **options)

    setattr(owner, attribute, strike)


if __name__ == "__main__":
    from fedmlh import cli

    moment, folder, target, *rest = sys.argv[1:]
    if moment:
        _arm(*MOMENTS[moment])
    quick = f"--trials {TRIALS} --rounds 4 --clients 3 --budget 60KiB --device cpu".split()
    sys.argv = ["fedmlh", "tune", folder, "--out", target, *quick, *rest]
    cli.main()
