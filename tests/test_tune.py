"""A search of settings: it begins with the defaults, stays within limits, never reads the test part, and repeats."""

import csv
import json
import re
import sys
from pathlib import Path

import pytest

import fedmlh
from command_line import call
from fedmlh.config import Config
from fedmlh.data.readers.convert import write
from fedmlh.data.readers.formats import load
from fedmlh.data.synthetic import synthesize
from fedmlh.errors import UserError
from fedmlh.planning.choices import settle
from fedmlh.tuning.goal import Goal, Wish
from fedmlh.tuning.results import find_front
from fedmlh.tuning.search import FINISHED, Row
from fedmlh.tuning.space import HASHED, IDENTITY, draw

QUICK = ("--rounds", 3, "--clients", 3, "--budget", "60KiB", "--device", "cpu")


def read_trials(out: Path) -> list[dict[str, str]]:
    """Return the rows of trials.csv without the seconds."""
    with open(out / "trials.csv", newline="") as file:
        return [{name: cell for name, cell in row.items() if name != "seconds"} for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small data set whose test part nobody can read."""
    folder = tmp_path_factory.mktemp("tune") / "data"
    write(synthesize(num_points=240, num_features=60, num_labels=100, seed=1), folder, "npz")
    for name in ("X.tst.npz", "Y.tst.npz"):
        (folder / name).write_bytes(b"\xff nothing that anybody could read")
    return folder


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the same data set with a test part."""
    folder = tmp_path_factory.mktemp("whole") / "data"
    write(synthesize(num_points=240, num_features=60, num_labels=100, seed=1), folder, "npz")
    return folder


@pytest.fixture(scope="module")
def found(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a search, made without a readable test part."""
    out = tmp_path_factory.mktemp("found") / "out"
    with pytest.raises(UserError):
        load(data)
    assert call("tune", data, "--out", out, "--trials", 14, *QUICK) == 0
    return out


@pytest.mark.parametrize("labels", ["both", "identity", "hashed"])
def test_usual_values_stand_for_what_the_preset_takes(whole: Path, labels: str) -> None:
    dataset = load(whole)
    rounds, once = Goal.of(Wish(labels=labels, budget=60_000), dataset, str(whole)).sides
    for side in (rounds, once):
        assert side.build(draw(side, lambda knob: knob.usual)) == side.start
    preset = Config.load("recommended").replace(data=str(whole), name="tuned", budget_mib=60_000 / 2**20)
    algorithm = "fedavg" if labels == "identity" else "fedmlh"
    assert rounds.start == settle(preset.replace(training="rounds", correct=0, algorithm=algorithm), dataset)[0]
    if labels != "hashed":
        assert once.start == settle(preset.replace(training="one-round"), dataset)[0]


def test_the_first_trials_are_the_defaults(found: Path, whole: Path, tmp_path: Path) -> None:
    trials = {row["trial"]: row for row in read_trials(found)}
    common = ("--data", whole, "--set", "num_clients=3", "--set", f"budget_mib={60 / 1024}", "--device", "cpu")
    once = ("--set", "correct=3")
    assert call("run", "recommended", *common, "--set", "training=rounds", "--rounds", 3, "--out", tmp_path / "a") == 0
    assert call("run", "recommended", *common, *once, "--out", tmp_path / "b") == 0  # which chooses one round
    for trial, run in (("rounds-000", "a"), ("one-round-000", "b")):
        summary = json.loads((tmp_path / run / "summary.json").read_text())
        for k, value in summary["validation"]["precision"].items():
            assert float(trials[trial][f"precision_at_{k}"]) == value
        assert int(trials[trial]["bytes_up"]) == summary["bytes_up"]
        assert int(trials[trial]["bytes_down"]) == summary["bytes_down"]


def test_the_best_config_runs_and_scores_as_its_trial_did(found: Path, whole: Path, tmp_path: Path) -> None:
    finished = [row for row in read_trials(found) if row["state"] == FINISHED]
    best = max(finished, key=lambda row: float(row["mean_precision"]))
    config = Config.load(found / "best.toml")
    assert config.sizes == "given"
    assert call("run", found / "best.toml", "--data", whole, "--out", tmp_path / "run") == 0
    validation = json.loads((tmp_path / "run/summary.json").read_text())["validation"]["precision"]
    assert {k: float(best[f"precision_at_{k}"]) for k in validation} == validation


def test_there_are_as_many_trials_as_asked_for(found: Path) -> None:
    trials = read_trials(found)
    # Both sides and both kinds of labels are there, or the other tests say little.
    kinds = {
        (row["training"], row["label_map"] == "identity", row["num_tables"] == "1") for row in trials if row["training"]
    }
    assert len(kinds) == 4
    assert len([row for row in trials if not row["reason"]]) == 14
    assert not [path for path in (found / "trials").rglob("*") if path.name in ("checkpoint", "model", "summary.json")]


def test_no_settings_are_trained_twice(data: Path, tmp_path: Path) -> None:
    fixed = [part for name in ("ridge=1", "count_power=0.1", "feature_slots=40") for part in ("--set", name)]
    once = ("--training", "one-round", "--labels", "identity", "--trials", 3)
    assert call("tune", data, "--out", tmp_path / "out", *once, *fixed, *QUICK) == 0
    trials = read_trials(tmp_path / "out")
    first, *_ = trained = [row for row in trials if row["state"] == FINISHED]
    assert [row["correct"] for row in trained] == ["3", "0"]  # there is nothing else to choose
    assert {row["ridge"] for row in trials} == {"1.0"}
    again = [row for row in trials if row["state"] == "repeated"]
    assert len(again) == len(trials) - 2 == 28
    for row in again:
        same = first if row["correct"] == "3" else trained[1]
        assert row["reason"] == f"the same as {same['trial']}"
        assert row["mean_precision"] == same["mean_precision"]
    assert {path.name for path in (tmp_path / "out/trials").iterdir()} == {row["trial"] for row in trained}


def test_the_same_seed_gives_the_same_trials(data: Path, tmp_path: Path) -> None:
    for name, seed in (("a", 5), ("b", 5), ("c", 6)):
        assert call("tune", data, "--out", tmp_path / name, "--trials", 6, "--seed", seed, *QUICK) == 0
    assert read_trials(tmp_path / "a") == read_trials(tmp_path / "b") != read_trials(tmp_path / "c")
    assert (tmp_path / "a/best.toml").read_bytes() == (tmp_path / "b/best.toml").read_bytes()


def test_more_trials_later_are_the_same_as_all_at_once(found: Path, data: Path, tmp_path: Path) -> None:
    assert call("tune", data, "--out", tmp_path / "out", "--trials", 5, *QUICK) == 0
    assert call("tune", data, "--out", tmp_path / "out", "--trials", 14, *QUICK, "--resume") == 0
    assert read_trials(tmp_path / "out") == read_trials(found)
    before = (tmp_path / "out/journal.log").read_bytes()
    assert call("tune", data, "--out", tmp_path / "out", "--trials", 14, *QUICK, "--resume") == 0
    assert read_trials(tmp_path / "out") == read_trials(found)
    assert (tmp_path / "out/journal.log").read_bytes().startswith(before)


def test_limits_hold_for_every_finished_trial(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limit, budget = 60_000, 180 << 10
    quick = ("--trials", 8, *QUICK, "--budget", budget, "--set", "local_epochs=1")
    assert (
        call("tune", data, "--out", tmp_path / "out", *quick, "--training", "one-round", "--bytes-per-round", 2000) == 2
    )
    assert "the first trial of one-round costs more than --bytes-per-round: a round would" in capsys.readouterr().err
    rounds = ("--training", "rounds", "--bytes-per-round", limit)
    assert call("tune", data, "--out", tmp_path / "out", *quick, *rounds) == 0
    trials = read_trials(tmp_path / "out")
    finished = [row for row in trials if row["state"] == FINISHED]
    assert len(finished) >= 2
    for row in finished:
        assert (int(row["bytes_up"]) + int(row["bytes_down"])) / int(row["rounds"]) <= limit
        assert row["local_epochs"] == "1"
    dataset = load(data, training_only=True)
    goal = Goal.of(Wish(training="rounds", budget=budget, bytes_per_round=limit, clients=3), dataset, str(data))
    assert goal.budget < budget
    sizes = (dataset.num_features, dataset.num_labels)
    for row in trials:
        if row["hidden_sizes"]:
            tables, outputs = int(row["num_tables"]), int(row["num_buckets"] or sizes[1])
            numbers = tables * ((int(row["feature_dim"]) + 1 + outputs) * int(row["hidden_sizes"]) + outputs)
            assert 4 * numbers <= goal.budget


def test_a_trial_that_measures_too_much_does_not_count(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What sizes do not tell is seen after the first round."""
    monkeypatch.setattr(Goal, "check", lambda goal, config: None)
    args = ("--trials", 4, *QUICK, "--training", "one-round", "--bytes-per-round", 100)
    assert call("tune", data, "--out", tmp_path / "out", *args) == 2
    assert {row["state"] for row in read_trials(tmp_path / "out")} == {"over the limit"}
    assert not (tmp_path / "out/best.toml").exists()


def test_hopeless_trials_are_stopped_early(found: Path) -> None:
    stopped = [row for row in read_trials(found) if row["state"] == "stopped early"]
    finished = [row for row in read_trials(found) if row["state"] == FINISHED and row["training"] == "rounds"]
    assert stopped
    assert all(int(row["rounds"]) < 3 for row in stopped)
    assert all(int(row["rounds"]) == 3 for row in finished)


def test_two_processes_train_what_one_does(data: Path, tmp_path: Path) -> None:
    # Two trials, the first of each side: what is tried does not depend on what ends first.
    assert call("tune", data, "--out", tmp_path / "one", "--trials", 2, *QUICK) == 0
    assert call("tune", data, "--out", tmp_path / "two", "--trials", 2, *QUICK, "--jobs", 2) == 0
    assert read_trials(tmp_path / "one") == read_trials(tmp_path / "two")


def test_time_that_is_over_leaves_a_trial_open(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fedmlh.tuning.search import Search

    rounds = iter(range(100))
    monkeypatch.setattr(Search, "is_time_over", property(lambda search: next(rounds) >= 14))
    args = ("tune", data, "--out", tmp_path / "out", "--training", "rounds", "--trials", 6, *QUICK)
    assert call(*args, "--minutes", 1) == 0
    cut = [row["trial"] for row in read_trials(tmp_path / "out") if row["state"] == "cut off"]
    assert len(cut) == 1
    monkeypatch.undo()
    monkeypatch.setenv("FEDMLH_CACHE", str(tmp_path / "cache"))
    assert call(*args, "--resume") == 0
    assert call(*args[:3], tmp_path / "whole", *args[4:]) == 0
    assert read_trials(tmp_path / "out") == read_trials(tmp_path / "whole")


def test_the_page_stands_alone(found: Path) -> None:
    page = (found / "tune.html").read_text()
    assert page.count("<svg") >= 2
    assert not re.search(r"(src|href)=|https?:", page)
    best = max(
        (row for row in read_trials(found) if row["state"] == FINISHED), key=lambda row: float(row["mean_precision"])
    )
    assert f"Best: trial {best['trial']}" in page


def test_the_front_holds_what_nothing_beats() -> None:
    figures = [(10, 0.3), (20, 0.2), (30, 0.5), (30, 0.4), (5, 0.1), (40, 0.5)]
    rows = [
        Row("rounds", number, FINISHED, {}, None, score, {"1": score}, 1, size, 0)
        for number, (size, score) in enumerate(figures)
    ]
    assert [(row.bytes_total, row.score) for row in find_front(rows)] == [(5, 0.1), (10, 0.3), (30, 0.5)]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--labels", "all"], "--labels is 'all': choose one of hashed, identity, both"),
        (["--training", "two"], "--training is 'two': choose one of rounds, one-round, both"),
        (["--budget", "2parsecs"], "'2parsecs' is not a size"),
        (["--budget", "100"], "allow at least"),
        (["--training", "rounds", "--bytes-per-round", "900"], "--bytes-per-round 0.01 MiB is too little for networks"),
        (["--set", "num_tables=3"], "tune decides num_tables itself, so it cannot be set: use --start instead"),
        (["--set", "test_every_round=true"], "tune judges trials only by the validation part of DATA"),
        (["--set", "validation_fraction=0"], "validation"),
        (["--set", "no_such=1"], "there is no setting 'no_such'"),
        (["--start", "nothing.toml"], "'nothing.toml' is neither a preset"),
        (
            ["--start", "eurlex-4k", "--training", "one-round"],
            "eurlex-4k trains in rounds, which --training leaves out",
        ),
        (["--clients", "5000"], "num_clients is 5,000"),
    ],
)
def test_refusals_say_what_to_do(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert call("tune", data, "--out", tmp_path / "out", *arguments, "--device", "cpu") == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert "Traceback" not in said
    assert not (tmp_path / "out/best.toml").exists()


def test_folders_that_are_taken_are_refused(
    found: Path, data: Path, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("tune", data, "--out", found, *QUICK) == 2
    assert "pass --resume to continue that search" in capsys.readouterr().err
    assert call("tune", data, "--out", found, *QUICK, "--resume", "--seed", 3) == 2
    assert "holds a search with rounds seed = 0, this one has 3" in capsys.readouterr().err
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").touch()
    assert call("tune", data, "--out", tmp_path / "other", *QUICK, "--resume") == 2
    assert "holds no search to resume" in capsys.readouterr().err
    with fedmlh.lock.hold(tmp_path / "held"):
        assert call("tune", data, "--out", tmp_path / "held", *QUICK) == 2
    assert "is in use by process" in capsys.readouterr().err
    assert call("tune", tmp_path / "nowhere", "--out", tmp_path / "new", *QUICK) == 2
    assert "there is no such folder" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_without_optuna_one_sentence_says_what_to_install(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert call("tune", data, "--out", tmp_path / "out") == 2
    assert (
        'tune needs Optuna, which is not installed: pip install -c constraints.txt ".[tune]"' in capsys.readouterr().err
    )
    assert not (tmp_path / "out").exists()


def test_a_start_of_given_sizes_is_the_first_trial(whole: Path, tmp_path: Path) -> None:
    dataset = load(whole)
    mine = Config(num_tables=3, num_buckets=20, feature_dim=30, hidden_sizes=(9, 7), learning_rate=0.01, num_clients=4)
    (tmp_path / "mine.toml").write_text(mine.to_toml())
    (side,) = Goal.of(Wish(training="rounds", start=str(tmp_path / "mine.toml")), dataset, str(whole)).sides
    assert side.start == mine.replace(data=str(whole), name="tuned")
    values = draw(side, lambda knob: knob.usual)
    assert (values["labels"], values["tables"]) == (HASHED, 3)
    with pytest.raises(UserError, match="hashed labels, which --labels leaves out"):
        Goal.of(Wish(training="rounds", labels=IDENTITY, start=str(tmp_path / "mine.toml")), dataset, str(whole))
