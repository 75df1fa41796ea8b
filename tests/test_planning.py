"""A plan keeps to its budget and to Lemma 2, does no worse than the paper, and says what a run will report."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedmlh import cli
from fedmlh.config import Config
from fedmlh.errors import UserError
from fedmlh.federated.task import Task
from fedmlh.hashing.theory import collision_probability, lemma2_bound, typical_positives
from fedmlh.planning import make_plan, weigh
from fedmlh.sizing import choose_sizes, suggest_buckets

PAPER = ("eurlex-4k", "wiki10-31k", "amazontitles-131k", "wikiseealsotitles-320k")


def call(*arguments: object) -> int:
    """The exit code of a command, run in this process."""
    argv, sys.argv = sys.argv, ["fedmlh", *map(str, arguments)]
    try:
        cli.main()
    except SystemExit as stop:
        return int(stop.code or 0)
    finally:
        sys.argv = argv
    return 0


@pytest.mark.parametrize("knows_features", [True, False])
@pytest.mark.parametrize("name", PAPER)
def test_the_proposal_is_no_worse_than_the_paper_at_no_more_bytes(name, knows_features):
    paper = Config.load(name)
    p, d = paper.synthetic_labels, paper.synthetic_features
    model = 4 * Task(paper, d, p).stack.num_parameters
    plan = make_plan(p, budget=model, num_features=d if knows_features else None, clients_per_round=4)
    own = collision_probability(p, paper.num_tables, paper.num_buckets)
    assert plan.chosen.collision_probability <= own < 0.01
    assert plan.chosen.model_bytes <= model
    # What the paper's models weigh without any header.
    assert max(plan.chosen.bytes_up, plan.chosen.bytes_down) <= 4 * model


@pytest.mark.parametrize(("name", "printed"), [(PAPER[0], "1.61MiB"), (PAPER[1], "49.62MiB")])
def test_the_same_with_sizes_as_the_paper_prints_them(name, printed, capsys):
    paper = Config.load(name)
    assert call("plan", "--labels", paper.synthetic_labels, "--budget", printed, "--json") == 0
    chosen = json.loads(capsys.readouterr().out)["chosen"]
    own = collision_probability(paper.synthetic_labels, paper.num_tables, paper.num_buckets)
    assert chosen["collision_probability"] <= own
    assert chosen["model_bytes"] <= 4 * Task(paper, 1, paper.synthetic_labels).stack.num_parameters


def test_a_run_reports_the_figures_of_the_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--labels", 60, "--points", 400, "--positives", 1200, "--features", 300]
    assert call("plan", *sizes, "--budget", "60KiB", "--clients-per-round", 3, "--rounds", 4, "--json") == 0
    chosen = json.loads(capsys.readouterr().out)["chosen"]
    assert call("data", "synth", tmp_path / "DIR", "--points", 400, "--features", 300, "--labels", 60) == 0
    command = shlex.split(chosen["command"].replace("DIR", str(tmp_path / "DIR")))
    assert call(*command[1:], "--out", tmp_path / "run", "--set", "local_epochs=1") == 0
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    records = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert chosen["num_parameters"] == summary["num_parameters"]
    assert chosen["model_bytes"] == summary["model_bytes"] <= 60 << 10
    # Digits of a loss, a client's number and its last round: a few bytes a message, whatever the model weighs.
    slack = 3 * 10
    assert len(records) == 4
    for record in records[1:]:  # four bits a value; deflating saves many of them where little data reaches few features
        assert 0.25 * chosen["bytes_up"] <= record["bytes_up"] <= chosen["bytes_up"] + slack
    total = summary["bytes_up"] + summary["bytes_down"]
    assert 0.25 * chosen["bytes_total"] <= total <= chosen["bytes_total"] + 4 * 2 * slack
    # Without codecs to the byte, but for those digits.
    whole = ["--set", "update_codec=fp32", "--set", "broadcast_codec=fp32"]
    assert call(*command[1:], *whole, "--out", tmp_path / "whole", "--set", "local_epochs=1") == 0
    config = Config.load(tmp_path / "whole/config.toml")
    costs = weigh(config, 60, 300, 400, 1200)
    last = [json.loads(line) for line in (tmp_path / "whole/metrics.jsonl").read_text().splitlines()][-1]
    assert abs(last["bytes_up"] - costs.bytes_up) <= slack
    assert abs(last["bytes_down"] - costs.bytes_down) <= slack


def test_the_table_shows_every_candidate_and_marks_the_one_to_take(capsys):
    assert call("plan", "--labels", 3993, "--points", 15539, "--positives", 80000, "--budget", "1.61MiB") == 0
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    plan = make_plan(3993, num_points=15539, num_positives=80000, budget=1_688_207)
    rows = [line.lstrip("→ ").split() for line in lines[1 : 1 + len(plan.candidates)]]
    assert [(int(row[0]), int(row[1])) for row in rows] == [
        (candidate.config.num_tables, candidate.config.num_buckets) for candidate in plan.candidates
    ]
    (taken,) = [line.split() for line in lines if line.startswith("→")]
    assert taken[1:5] == ["8", "379", "710", "48"]
    assert taken[-1] == f"{typical_positives(15539, 80000, 3993, 379):.1f}"
    assert "Lemma 2 asks for 13" in shown
    assert lines[-1] == plan.chosen.command
    assert max(map(len, lines[: 1 + len(rows)])) <= 80


@settings(deadline=None, max_examples=60)
@given(
    st.integers(2, 10**6),
    st.none() | st.integers(1, 10**6),
    st.none() | st.integers(1, 1 << 28),
    st.sampled_from([0.5, 0.01, 1e-9, 1e-30]),
)
def test_every_candidate_keeps_to_the_budget_and_to_lemma_2(labels, features, budget, delta):
    try:
        plan = make_plan(labels, num_features=features, budget=budget, delta=delta)
    except UserError as error:
        if "allow a larger delta" in str(error):
            return
        found = re.search(r"allow at least ([\d,.]+) MiB", str(error))
        enough = int(float(found[1].replace(",", "")) * 2**20)
        plan = make_plan(labels, num_features=features, budget=enough, delta=delta)
    assert plan.chosen in plan.candidates
    for candidate in plan.candidates:
        config = candidate.config
        assert candidate.model_bytes == 4 * Task(config, features or config.feature_dim, labels).stack.num_parameters
        assert candidate.model_bytes <= plan.budget
        assert lemma2_bound(labels, config.num_tables, config.num_buckets) <= delta * (1 + 1e-12)
        assert config.hidden_sizes[0] >= 8
        assert config.num_buckets <= labels


@settings(deadline=None, max_examples=60)
@example(10**6, 63, 2.0)  # hardly enough for so many labels
@given(st.integers(100, 10**6), st.integers(1, 10**6), st.sampled_from([0.0, 2.0, 50.0]))
def test_it_takes_what_recommended_would_choose_by_itself(labels, features, budget):
    recommended = Config.load("recommended").replace(budget_mib=budget)
    chosen, _ = choose_sizes(recommended, features, labels)
    plan = make_plan(labels, num_features=features, budget=int(budget * 2**20) or None)
    assert plan.chosen.config == chosen


def test_a_strict_delta_asks_for_more_buckets_and_says_so():
    plan = make_plan(100, delta=1e-12)
    assert plan.chosen.config.num_tables == 8
    assert plan.chosen.config.num_buckets == 92 > suggest_buckets(100, plan.budget)
    assert any("what Lemma 2 asks for" in reason for reason in plan.reasons)
    assert make_plan(10, delta=1e-12).chosen.config.num_tables == 16  # eight tables would need more buckets than labels


def test_a_small_budget_gets_fewer_tables_and_says_so():
    plan = make_plan(10_000, budget=60_000)
    assert (plan.chosen.config.num_tables, plan.chosen.config.num_buckets) == (4, 300)
    assert any("no room for the rule's 8" in reason for reason in plan.reasons)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--labels 1", "num_labels is 1: it must be from 2"),
        ("--labels 9999999999", "num_labels is 9,999,999,999"),
        ("--labels 100 --budget 2MB", "'2MB' is not a size"),
        ("--labels 100 --budget 0", "budget is 0"),
        ("--labels 100 --budget 999999GiB", "budget is 1,073,740,750,258,176"),
        ("--labels 100000 --budget 2KiB", "allow at least 0.14 MiB"),
        ("--labels 100 --delta 2", "delta is 2.0"),
        ("--labels 100 --delta nan", "delta is nan"),
        ("--labels 3 --delta 1e-30", "allow a larger delta"),
        ("--labels 100 --features 0", "num_features is 0"),
        ("--labels 100 --points 5", "give both or neither"),
        ("--labels 100 --positives 5", "give both or neither"),
        ("--labels 100 --points 5 --positives 501", "num_positives is 501: it must be from 0 to 500"),
        ("--labels 100 --points 0 --positives 5", "num_points is 0"),
        ("--labels 100 --rounds 0", "rounds is 0"),
        ("--labels 100 --clients-per-round 0", "clients_per_round is 0"),
    ],
)
def test_what_cannot_be_planned_is_said_in_a_sentence(arguments, sentence, capsys):
    assert call("plan", *arguments.split()) == 2
    shown = capsys.readouterr()
    assert sentence in shown.err
    assert shown.err.count("\n") == 1
    assert not shown.out


def test_the_page_shows_what_the_command_prints(capsys):
    page = (Path(__file__).parents[1] / "docs/theory.md").read_text("utf-8")
    command, *shown = page.partition("$ fedmlh plan ")[2].partition("```")[0].splitlines()
    assert call("plan", *command.split()) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(shown) > 3
    assert [line for line in shown if line.strip() != "…" and line.rstrip() not in map(str.rstrip, printed)] == []
