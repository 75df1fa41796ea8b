"""A plan stays within its budget and Lemma 2, does no worse than the paper, and says what a run will report."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix, triu

from command_line import call
from fedmlh import Dataset, run, sizing
from fedmlh.config import Config
from fedmlh.data.readers.convert import write
from fedmlh.data.readers.formats import load
from fedmlh.data.synthetic import synthesize
from fedmlh.errors import UserError
from fedmlh.federated.task import Task
from fedmlh.hashing.theory import collision_probability, typical_positives
from fedmlh.oneround import budget, solve
from fedmlh.oneround.forecast import Occurrences, estimate_sums
from fedmlh.oneround.terms import Counts
from fedmlh.planning.plan import make_plan, plan_one_round, weigh
from fedmlh.sizing import Shape, choose_sizes

#: Those of the data that `data synth` makes below.
TOTALS = "--labels 60 --points 400 --positives 1200 --features 300"
PAPER = ("eurlex-4k", "wiki10-31k", "amazontitles-131k", "wikiseealsotitles-320k")


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
    made = json.loads(capsys.readouterr().out)
    chosen = made["chosen"]
    assert call("data", "synth", tmp_path / "DIR", "--points", 400, "--features", 300, "--labels", 60) == 0
    command = shlex.split(made["command"].replace("DIR", str(tmp_path / "DIR")))
    assert call(*command[1:], "--out", tmp_path / "run", "--set", "local_epochs=1") == 0
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    records = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert chosen["num_parameters"] == summary["num_parameters"]
    assert chosen["model_bytes"] == summary["model_bytes"] <= 60 << 10
    # Digits of a loss, a client_id and its last round: a few bytes per message, whatever the size of the model.
    slack = 3 * 10
    assert len(records) == 4
    # Four bits per value; deflating saves many of them where little data reaches few features.
    for record in records[1:]:
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


def test_the_table_shows_smaller_and_larger_models_and_marks_the_one_to_take(capsys):
    assert call("plan", "--labels", 3993, "--points", 15539, "--positives", 80000, "--budget", "1.61MiB") == 0
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    plan = make_plan(3993, num_points=15539, num_positives=80000, budget=1_688_207)
    assert len(plan.candidates) == 5
    rows = [line.lstrip("→ ").split() for line in lines[1 : 1 + len(plan.candidates)]]
    assert [(int(row[0]), int(row[1])) for row in rows] == [
        (candidate.config.num_tables, candidate.config.num_buckets) for candidate in plan.candidates
    ]
    (taken,) = [line.split() for line in lines if line.startswith("→")]
    assert taken[1:5] == ["8", "506", "1,263", "29"]
    assert taken[-1] == f"{typical_positives(15539, 80000, 3993, 506):.1f}"
    assert [float(row[-1]) for row in (rows[0], rows[1], rows[3], rows[4])] == sorted(
        round(candidate.gain, 1) for candidate in plan.candidates if candidate is not plan.chosen
    )
    assert "points of P@k with half of it" in shown
    assert lines[-2:] == [plan.command, "give --features and --nonzeros, or --data, to see what one round costs"]
    assert max(map(len, lines[: 1 + len(rows)])) <= 80


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 10**6), st.none() | st.integers(1, 10**6), st.none() | st.integers(1, 1 << 28))
def test_every_candidate_keeps_to_its_budget(labels, features, budget):
    try:
        plan = make_plan(labels, num_features=features, budget=budget)
    except UserError as error:
        found = re.search(r"allow at least ([\d,.]+) MiB", str(error))
        enough = int(float(found[1].replace(",", "")) * 2**20)
        plan = make_plan(labels, num_features=features, budget=enough)
    assert plan.chosen in plan.candidates
    assert plan.chosen.model_bytes <= plan.budget
    sizes = [candidate.model_bytes for candidate in plan.candidates]
    assert sizes == sorted(sizes)
    assert max(sizes) <= 4 * plan.budget
    for candidate in plan.candidates:
        config = candidate.config
        assert candidate.model_bytes == 4 * Task(config, features or 20_000, labels).stack.num_parameters
        assert config.hidden_sizes[0] >= 8
        assert config.num_buckets <= labels


@settings(deadline=None, max_examples=60)
@example(10**6, 63, 2.0)  # hardly enough for this many labels
@given(st.integers(100, 10**6), st.integers(1, 10**6), st.sampled_from([0.0, 2.0, 50.0]))
def test_it_takes_what_recommended_would_choose_by_itself(labels, features, budget):
    recommended = Config.load("recommended").replace(training="rounds", num_clients=10, clients_per_round=4)
    chosen, _ = choose_sizes(recommended.replace(budget_mib=budget), Shape(features, labels))
    plan = make_plan(labels, num_features=features, budget=int(budget * 2**20) or None)
    assert plan.chosen.config == chosen


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--labels 1", "num_labels is 1: it must be from 2"),
        ("--labels 9999999999", "num_labels is 9,999,999,999"),
        ("--labels 100 --budget 2MB", "'2MB' is not a size"),
        ("--labels 100 --budget 0", "budget is 0"),
        ("--labels 100 --budget 999999GiB", "budget is 1,073,740,750,258,176"),
        ("--labels 100000 --budget 2KiB", "allow at least"),
        ("--labels 100 --features 0", "num_features is 0"),
        ("--labels 100 --points 5", "give both or neither"),
        ("--labels 100 --positives 5", "give both or neither"),
        ("--labels 100 --points 5 --positives 501", "num_positives is 501: it must be from 0 to 500"),
        ("--labels 100 --points 0 --positives 5", "num_points is 0"),
        ("--labels 100 --rounds 0", "rounds is 0"),
        ("--labels 100 --clients-per-round 0", "clients_per_round is 0"),
        ("--labels 100 --clients 0", "num_clients is 0"),
        ("--labels 100 --clients 3 --clients-per-round 4", "there are only 3 clients"),
        ("--points 5 --positives 5", "give --labels, or name a data folder with --data"),
        ("--labels 100 --data somewhere", "--labels follows from --data"),
        ("--nonzeros 100 --data somewhere", "--nonzeros follows from --data"),
        ("--data somewhere", "somewhere: there is no such folder"),
        ("--data . --format word", "there is no reader 'word'"),
        (f"{TOTALS} --nonzeros 0", "nonzeros is 0: it must be above 0"),
        (f"{TOTALS} --nonzeros nan", "nonzeros is nan"),
        (f"{TOTALS} --nonzeros 300.5", "at most the 300 features"),
        (f"{TOTALS} --nonzeros 9 --clients 361", "there are only 360 points to train on"),
        (f"{TOTALS.replace('300', '10000001')} --nonzeros 9", "at most 10,000,000 features and labels: say --data"),
        (f"{TOTALS.replace('400', str(2**50))} --nonzeros 9", "could overflow a sum"),
    ],
)
def test_what_cannot_be_planned_is_said_in_a_sentence(arguments, sentence, capsys):
    assert call("plan", *arguments.split()) == 2
    shown = capsys.readouterr()
    assert sentence in shown.err
    assert shown.err.count("\n") == 1
    assert not shown.out


# One round.


def plan_once(capsys, *arguments):
    assert call("plan", *arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)["one_round"]


def as_it_is(monkeypatch):
    pass


def in_buckets(monkeypatch):
    monkeypatch.setattr(sizing, "MOST_OUTPUTS", 100)
    monkeypatch.setattr(sizing, "_MOST_BUCKETS", 400)


def shared_slots(monkeypatch):
    monkeypatch.setattr(budget, "MOST_PAIRS", 50_000)


@pytest.mark.parametrize("change", [as_it_is, in_buckets, shared_slots])
@pytest.mark.parametrize("clients", [3, 12])
def test_a_run_of_one_round_has_the_sizes_of_the_plan_and_costs_about_as_much(
    tmp_path, capsys, monkeypatch, clients, change
):
    change(monkeypatch)
    folder = tmp_path / "my data"
    assert call("data", "synth", folder, "--points", 2000, "--features", 1500, "--labels", 300) == 0
    capsys.readouterr()
    plan = plan_once(capsys, "--data", folder, "--clients", clients)
    assert plan["num_clients"] == clients
    assert (
        call(*shlex.split(plan["command"])[1:], "--out", tmp_path / "run", "--set", "ridge=1", "--device", "cpu") == 0
    )
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    weights = summary["kept"]["of"]
    assert (plan["slots"] < plan["num_features"]) == (change is shared_slots)
    assert plan["slots"] == summary["slots"]
    assert (plan["num_tables"], plan["num_outputs"]) == ((8, 50) if change is in_buckets else (1, 300))
    assert weights == (plan["slots"] + 1) * plan["num_tables"] * plan["num_outputs"]
    assert 0.9 * plan["model_bytes"] < summary["model_bytes"] <= plan["model_bytes"]
    assert plan["delivered"] == summary["delivered"]["what"] == "sums"
    for name, counted in (
        ("bytes_up", summary["bytes_up"]),
        ("bytes_up_client", summary["bytes_up"] / clients),
        ("bytes_down", summary["bytes_down"]),
        ("sums_bytes", summary["delivered"]["sums_bytes"]),
    ):
        assert counted / 1.5 < plan[name] < 1.5 * counted, name
    capsys.readouterr()
    train = load(folder).train
    totals = [*("--labels", 300, "--points", 2000, "--positives", train.Y.nnz, "--features", 1500)]
    rough = plan_once(capsys, *totals, "--nonzeros", train.X.nnz / 2000, "--clients", clients)
    assert rough["command"] == plan["command"].replace(shlex.quote(str(folder)), "DIR")
    for name in ("bytes_up", "bytes_down"):
        assert summary[name] / 2.5 < rough[name] < 2.5 * summary[name], name


@pytest.mark.parametrize("share", [1.0, 0.1])
@pytest.mark.parametrize("lengths", [[12], [2, 2, 2, 42]])
def test_pairs_are_foreseen_also_where_few_points_have_most_features(lengths, share):
    rng, weights = np.random.default_rng(0), 1.0 / np.arange(5, 605)
    rows = [rng.choice(600, lengths[n % len(lengths)], replace=False, p=weights / weights.sum()) for n in range(2000)]
    starts = np.cumsum([0, *map(len, rows)])
    X = csr_matrix((np.ones(starts[-1], np.float32), np.concatenate(rows), starts), shape=(2000, 600))
    own = X[: int(2000 * share)]
    pairs = triu(own.T @ own, k=1).nnz
    _, foreseen = estimate_sums(Occurrences.count(X, X[:, :5], Counts.of(X)), 600, share, 5)
    assert 0.85 < foreseen / pairs < 1.15


def test_the_better_part_of_sums_and_model_is_sent_and_few_weights_make_a_small_model(tmp_path, capsys):
    sizes = ["--labels", 2, "--points", 2000, "--positives", 2000, "--features", 2000, "--nonzeros", 100]
    plan = plan_once(capsys, *sizes)
    assert plan["delivered"] == "model"
    assert plan["model_bytes"] < plan["sums_bytes"]
    assert 10 * plan["model_bytes"] < plan["bytes_down"] < 10 * plan["sums_bytes"]


def show_mib(size):
    return f"{size / 2**20:,.2f}" if size < 100 * 2**20 else f"{size / 2**20:,.0f}"


@pytest.mark.parametrize(
    "arguments",
    [
        f"{TOTALS} --nonzeros 12.5",
        f"{TOTALS} --nonzeros 12.5 --clients 2",
        "--labels 1000000 --points 1000000 --positives 5000000 --features 300000 --nonzeros 60 --clients 1000",
    ],
)
def test_the_terminal_shows_of_one_round_what_json_holds(arguments, capsys):
    values = plan_once(capsys, *arguments.split())
    assert call("plan", *arguments.split()) == 0
    lines = capsys.readouterr().out.splitlines()
    (at,) = [number for number, line in enumerate(lines) if line.startswith("one round: slots")]
    tables, outputs = values["num_tables"], f"{values['num_outputs']:,}"
    ways = ("bytes_up", "bytes_down")
    sizes = [values["model_bytes"], values["bytes_up_client"], *(values[name] for name in ways)]
    sizes += [sum(values[name] for name in ways), values["solution_bytes"]]
    shown = [f"{values['slots']:,}", *([f"{tables}", "×"] if tables > 1 else []), outputs, *map(show_mib, sizes)]
    assert lines[at + 1].split() == shown
    assert max(map(len, lines[at : at + 4])) <= 80
    assert lines[-1] == values["command"]
    assert lines[-4:-1] == values["reasons"]
    assert f"each of {values['num_clients']:,} clients" in " ".join(lines)
    assert ("rare ones share" in values["reasons"][0]) == (values["slots"] < values["num_features"])
    assert values["reasons"][-1] == f"solved by {values['solution']}"


@pytest.mark.parametrize(("most", "told"), [(10, "rare ones share"), (60, "occur in one")])
def test_of_raw_words_the_slots_of_the_run_are_foreseen(tmp_path, monkeypatch, most, told):
    rng = np.random.default_rng(0)
    words = [f"word{number}" for number in range(40)]
    texts = [f"{' '.join(rng.choice(words, 3))} single{number}" for number in range(150)]
    data = Dataset.from_texts(texts, [[text.split()[0]] for text in texts], test=0.2)
    monkeypatch.setattr(budget, "MOST_SLOTS", most)
    found = plan_one_round(Occurrences.of(data), data.num_features, data.num_labels)
    done = run(Config.load("one-round").replace(device="cpu"), data, tmp_path / "run", progress=False)
    assert found.slots == done.summary["slots"] <= most
    assert found.left_out >= 120  # the single words, and most pairs
    assert told in found.reasons[0]
    assert 0.5 < found.bytes_up / done.summary["bytes_up"] < 2


def test_it_says_what_is_missing_to_plan_one_round(capsys):
    sizes = TOTALS.split()
    assert plan_once(capsys, "--labels", 60) is plan_once(capsys, *sizes) is None
    assert call("plan", "--labels", 60) == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        "give --points, --positives, --features and --nonzeros, or --data, to see what one round costs"
    )
    assert call("plan", *sizes) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "give --nonzeros, or --data, to see what one round costs"


def test_a_machine_without_memory_is_told_so(capsys, monkeypatch):
    monkeypatch.setattr(solve, "available_memory", lambda device: 2**20)
    plan = plan_once(capsys, *TOTALS.split(), "--nonzeros", 9)
    assert plan["solution"] == "conjugate gradients"
    assert "set a smaller feature_slots" in plan["reasons"][-1] == plan["problem"]


@pytest.mark.parametrize("kind", ["npz", "xmc", "svmlight", "text", "sites"])
def test_a_plan_does_not_open_the_test_part(tmp_path, capsys, kind):
    data = synthesize(num_points=120, num_features=50, num_labels=20, seed=1)
    folders = [tmp_path / "data"] if kind != "sites" else [tmp_path / "data" / name for name in "ab"]
    for folder in folders:
        if kind == "text":
            folder.mkdir(parents=True)
            rows = [{"text": f"word{i % 7} word{i % 5}", "labels": [f"{i % 9}", f"{i % 4}"]} for i in range(60)]
            for name in ("trn", "tst"):
                (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
        else:
            write(data, folder, "svmlight" if kind == "sites" else kind)
    before = plan_once(capsys, "--data", tmp_path / "data")
    train = load(tmp_path / "data").train
    found = load(tmp_path / "data", training_only=True).train
    assert (found.X != train.X).nnz == (found.Y != train.Y).nnz == 0
    spoiled = [path for path in (tmp_path / "data").rglob("*") if "tst" in path.name or "test" in path.name]
    assert len(spoiled) == {"npz": 2, "sites": 2}.get(kind, 1)
    for path in spoiled:
        path.write_bytes(b"\xff nothing that anybody could read")
    with pytest.raises(UserError):
        load(tmp_path / "data")
    assert plan_once(capsys, "--data", tmp_path / "data") == before


def test_the_page_shows_what_the_command_prints(capsys):
    page = (Path(__file__).parents[1] / "docs/theory.md").read_text("utf-8")
    command, *shown = page.partition("$ fedmlh plan ")[2].partition("```")[0].splitlines()
    assert call("plan", *command.split()) == 0
    printed = capsys.readouterr().out.splitlines()
    assert len(shown) > 3
    assert [line for line in shown if line.strip() != "…" and line.rstrip() not in map(str.rstrip, printed)] == []
