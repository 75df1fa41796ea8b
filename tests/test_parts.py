"""Parts from outside: they train, resume and predict by their names, and another part of the same name is refused."""

import importlib
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix
from torch.nn import functional

from command_line import call_apart
from fedmlh import parts
from fedmlh.config import Config
from fedmlh.data.source import open_dataset
from fedmlh.engines.run import run
from fedmlh.errors import UserError
from fedmlh.evaluation.own import AddedMetrics
from fedmlh.federated.task import Task
from fedmlh.model.local_training import HashedShard, train_shard
from fedmlh.model.losses import Loss, binary_cross_entropy
from fedmlh.model.recipe import Recipe
from fedmlh.model.stack import Stack
from once import VARIANTS
from tiny import TINY

EXAMPLE = Path(__file__).parent / "examples" / "own_parts.py"
OWN = [
    "--set",
    "loss=focal",
    "--set",
    "partition=label-skew",
    "--set",
    "aggregation=median",
    "--set",
    "metrics=coverage",
]
SMALL = [*("--set", "synthetic_points=300"), *("--set", "synthetic_labels=60"), *("--set", "num_buckets=20")]


@pytest.mark.parametrize("kind", parts.OWN)
def test_every_own_part_registers_itself_where_the_registry_says(kind):
    for name, home in parts.OWN[kind].items():
        importlib.import_module(home)
        assert parts.find(kind, name) is parts._parts[kind, name]
    assert {name for of, name in parts._parts if of == kind} == set(parts.OWN[kind])


def test_a_run_with_own_parts_resumes_replays_evaluates_and_predicts(tmp_path):
    out, given = tmp_path / "run", ["--parts", EXAMPLE]
    first = call_apart("run", "demo", *given, *OWN, *SMALL, "--rounds", 2, "--out", out)
    assert first.returncode == 0, first.stderr
    assert first.stderr.count("no compiled loop") == 1
    again = call_apart("run", "demo", *given, *OWN, *SMALL, "--rounds", 3, "--out", out, "--resume")
    assert again.returncode == 0, again.stderr
    assert "same model to the bit" in call_apart("replay", out, *given).stdout
    assert "coverage" in call_apart("eval", out, *given).stdout
    points = tmp_path / "points.svm"
    points.write_text("0:1 7:0.5\n")
    assert '"labels"' in call_apart("predict", out, *given, "--input", points).stdout
    page = call_apart("report", out, *given, "--out", tmp_path / "page.html").stdout
    assert "coverage@5" in page
    assert "coverage@5" in (tmp_path / "page.html").read_text()
    assert ",coverage,5,0." in (tmp_path / "page-comparison.csv").read_text()
    summary = json.loads((out / "summary.json").read_text())
    assert summary["validation"]["coverage"].keys() == summary["coverage"].keys() == {"1", "3", "5"}
    assert 0 < summary["coverage"]["1"] < summary["coverage"]["5"] <= 1
    without = call_apart("eval", out)
    assert without.returncode == 2
    assert "load that file first (fedmlh.load_parts, --parts)" in without.stderr
    assert "Traceback" not in without.stderr


def test_the_examples_of_the_document_work(tmp_path):
    text = (Path(__file__).parents[1] / "docs" / "parts.md").read_text()
    examples = [block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "import" in block]
    assert len(examples) == len(parts.OPEN)
    (tmp_path / "examples.py").write_text("\n\n".join(examples))
    parts.load_parts(tmp_path / "examples.py")
    rng = np.random.default_rng(0)
    for name, points in (("train.csv", 60), ("test.csv", 20)):
        np.savetxt(tmp_path / name, np.c_[rng.integers(0, 10, points), rng.random((points, 4))], delimiter=",")
    chosen = {"loss": "hinge", "partition": "halves", "aggregation": "largest", "metrics": "hits", "data_format": "csv"}
    assert {part["name"] for part in Config(**chosen).foreign} == set(chosen.values())
    config = TINY.replace(**chosen, data=str(tmp_path), num_clients=2, clients_per_round=2, rounds=1, num_buckets=5)
    summary = run(config, open_dataset(config), tmp_path / "run").summary
    assert summary["hits"]["1"] == summary["precision"]["1"]  # each point has one label
    assert summary["hits"]["3"] == summary["recall"]["3"]
    AddedMetrics(("hits",), (1, 3), 10).check({"hits": {"points": [4], "hits": [2, 3]}})


def test_the_cluster_gives_the_same_bits(tmp_path):
    pytest.importorskip("ray")
    weights = []
    for engine in ("local", "ray"):
        out = tmp_path / engine
        ended = call_apart(
            "run", "demo", "--parts", EXAMPLE, *OWN, *SMALL, "--rounds", 2, "--engine", engine, "--out", out
        )
        assert ended.returncode == 0, ended.stderr
        weights.append((out / "model" / "weights.safetensors").read_bytes())
    assert weights[0] == weights[1]


def test_real_sites_train_with_them_and_add_up_the_metric(tmp_path):
    pytest.importorskip("flwr")
    out, sites = tmp_path / "federation", ["--sites", 2, "--out", tmp_path / "federation"]
    ended = call_apart("federation", "rehearse", "demo", "--parts", EXAMPLE, *OWN, *SMALL, "--rounds", 1, *sites)
    assert ended.returncode == 0, ended.stderr
    assert "the same model to the bit" in ended.stdout
    assert "no compiled loop" in (out / "server" / "superlink.log").read_text()
    summary = json.loads((out / "run" / "summary.json").read_text())
    (one, other), together = (row["coverage"]["5"] for row in summary["clients"]), summary["coverage_at_sites"]["5"]
    assert max(one, other) <= together <= one + other
    assert together > 0


def test_another_part_of_the_same_name_is_refused(tmp_path):
    parts.load_parts(EXAMPLE)
    written = Config(loss="focal").to_toml()
    assert Config.from_toml(written, "here").loss == "focal"
    other = tmp_path / "own_parts.py"
    other.write_text(EXAMPLE.read_text() + "# changed\n")
    parts.load_parts(other)
    with pytest.raises(UserError, match=r"not the one of own_parts\.py that was used before"):
        Config.from_toml(written, "here")


def test_the_agreement_tells_parts_of_the_same_name_apart(tmp_path):
    prints = []
    for text in ("", "# changed\n"):
        file = tmp_path / "own_parts.py"
        file.write_text(EXAMPLE.read_text() + text)
        parts.load_parts(file)
        prints.append(Task(Config(loss="focal"), 50, 1000).fingerprint)
    assert len(set(prints)) == 2


def test_a_loss_without_a_compiled_loop_trains_as_it_says():
    """And not as the loss that the compiled loop takes for any other."""
    parts.load_parts(EXAMPLE)
    parts.register("loss", "plain bce", Loss(binary_cross_entropy, functional.logsigmoid))
    rng = np.random.default_rng(0)
    stack = Stack(2, 20, (5,), 8)
    shard = HashedShard(
        (csr_matrix(rng.random((30, 20)).astype(np.float32)),),
        tuple(csr_matrix((rng.random((30, 8)) < 0.2).astype(np.float32)) for _ in range(2)),
    )
    start, orders = stack.initial(0), np.arange(30)[None]
    ends = {
        loss: train_shard(stack, start, shard, Recipe(loss, "sgd", 0.5, 1, 10), orders)[0]
        for loss in ("bce", "plain bce", "focal")
    }
    torch.testing.assert_close(ends["plain bce"], ends["bce"], rtol=0, atol=2e-6)
    assert (ends["focal"] - ends["bce"]).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import fedmlh\nfedmlh.register('loss', 'bce', 1)\n", "one of fedmlh's own"),
        ("import fedmlh\nfedmlh.register('codec', 'mine', 1)\n", "no kind of part 'codec'"),
        ("def (:\n", "cannot be executed"),
        ("import fedmlh\n\nfedmlh.nothing\n", "line 3: AttributeError"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_a_sentence(tmp_path, text, said):
    file = tmp_path / "bad.py"
    file.write_text(text)
    ended = call_apart("run", "demo", "--parts", file, "--out", tmp_path / "run")
    assert ended.returncode == 2
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "run").exists()


def test_a_metric_cannot_take_the_name_of_a_figure(tmp_path):
    rounds = run(TINY.replace(rounds=1, local_baseline=True), open_dataset(TINY), tmp_path / "rounds", progress=False)
    config = VARIANTS["corrected"]
    once = run(config, open_dataset(config), tmp_path / "once", progress=False)
    kept = json.loads((Path(__file__).parent / "golden/folders/federation/run/summary.json").read_text())
    for summary in (rounds.summary, once.summary, kept):
        figures = {*summary, *(name for row in summary.get("clients", []) for name in row)}
        assert figures > {"precision", "seed"}
        for name in figures:
            with pytest.raises(UserError, match=f"the metric '{name}' has the name of a figure in summary.json"):
                parts.register("metric", name, object)


def test_a_name_that_is_not_registered_is_refused_with_the_nearest():
    with pytest.raises(UserError, match=r"partition is 'dirichle': choose one of .*did you mean 'dirichlet'"):
        Config(partition="dirichle")
    with pytest.raises(UserError, match="choose one of"):
        Config(loss=["bce"])


# Whether a function is a partition shows when it is called.
@pytest.mark.parametrize(
    ("kind", "part"),
    [(kind, part) for kind in parts.OPEN for part in (3, int, "bce", ...) if kind != "partition" or part is not int],
)
def test_what_cannot_be_a_part_is_refused_where_it_is_registered(kind, part):
    with pytest.raises(UserError, match=rf"the {kind} 'odd' must be a .* \(docs/parts\.md\)"):
        parts.register(kind, "odd", part)
    assert "odd" not in parts.list_names(kind)


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        ("partition", "lambda *_: None", r"'odd' must return a function \(split, rng\)"),
        ("partition", "int", "the partition 'odd' failed .*TypeError"),
        ("partition", "lambda *_: lambda *_: None", "the partition 'odd' failed .*TypeError"),
        ("partition", "lambda *_: lambda *_: [[0.5]]", "'odd' must return an array of row numbers for each client"),
        ("partition", "lambda *_: lambda *_: [[10**6]]", "'odd' must return an array of row numbers for each client"),
        ("aggregation", "Odd", r"the aggregation 'odd' failed \(odd\.py, line 5\): ZeroDivisionError"),
        (
            "aggregation",
            "type('Empty', (Odd,), {'add': Odd.merge})",
            r"result\(\) of the aggregation 'odd' must return",
        ),
    ],
)
def test_a_part_that_fails_in_a_run_is_named(kind, body, said, tmp_path):
    (tmp_path / "odd.py").write_text(
        "import fedmlh\nclass Odd:\n    streams, result = True, lambda self: None\n    def __init__(self, *_): ...\n"
        "    def add(self, *_): 1 / 0\n    def merge(self, *_): ...\n"
        f"fedmlh.register({kind!r}, 'odd', {body})\n"
    )
    try:
        parts.load_parts(tmp_path / "odd.py")
        config = TINY.replace(**{kind: "odd"})
        with pytest.raises(UserError, match=said):
            run(config, open_dataset(config), tmp_path / "run", progress=False)
    finally:
        parts._parts.pop((kind, "odd"), None)
        parts._foreign.pop((kind, "odd"), None)


def test_an_unknown_name_of_an_open_kind_says_how_to_add_one():
    with pytest.raises(UserError, match=r"or register your own \(--parts, docs/parts\.md\)"):
        Config(loss="focused")
    with pytest.raises(UserError) as closed:
        Config(server_optimizer="odd")
    assert "register" not in str(closed.value)
