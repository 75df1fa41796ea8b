"""Comparisons of any number of methods: names, sweeps, intervals, tables, and what a run keeps for them."""

import csv
import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.sparse import csr_matrix

from command_line import TINY, call
from fedmlh.comparison.comparison import compare
from fedmlh.comparison.differences import over_points, over_seeds
from fedmlh.comparison.methods import gather
from fedmlh.comparison.plots import draw_curves
from fedmlh.comparison.settings import list_differing
from fedmlh.config import Config
from fedmlh.evaluation.label_recall import BINS, LabelRecall
from fedmlh.evaluation.point_hits import PointHits
from fedmlh.runs.folder import RunFolder
from fedmlh.sizing import Shape, choose_sizes

SMALL = [*TINY, "--set", "num_tables=2"]
POINTS = "test_points.safetensors"


def write_once(folder: Path) -> Path:
    """Write a set-up of one round with sizes that are given."""
    (folder / "once.toml").write_text('name = "one-round"\ntraining = "one-round"\n')
    return folder / "once.toml"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compare three methods, one of them of one round, with two seeds."""
    out = tmp_path_factory.mktemp("comparison") / "c"
    once = write_once(out.parent)
    assert call("compare", "demo", once, "eurlex-4k", "--rounds", 2, "--seeds", 2, *SMALL, "--out", out) == 0
    return out


def read_csv(path: Path) -> list[dict[str, str]]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def compare_folder(out: Path, names: list[str]) -> Any:
    return compare([RunFolder(out / f"{name}-seed{seed}") for name in names for seed in (0, 1)])


# Intervals.


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-1, 1), min_size=2, max_size=8).filter(lambda drawn: np.std(drawn) > 1e-3))
def test_the_interval_over_seeds_is_students(drawn: list[float]) -> None:
    expected = stats.ttest_1samp(drawn, 0).confidence_interval(0.95)
    assert over_seeds(drawn) == pytest.approx((expected.low, expected.high), rel=1e-9, abs=1e-12)


def test_one_seed_has_no_interval() -> None:
    assert over_seeds([0.1]) is None
    assert over_seeds([0.1, 0.1]) == pytest.approx((0.1, 0.1))


@pytest.mark.parametrize("seed", range(3))
def test_the_interval_over_points_is_that_of_scipys_bootstrap(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ours, theirs = (rng.integers(0, 4, 400) / 3 for _ in range(2))
    best = rng.random(400) + 0.5

    def drawn(*columns: np.ndarray, statistic: Any) -> tuple[float, float]:
        options = {"paired": True, "vectorized": False, "method": "percentile", "n_resamples": 2000}
        found = stats.bootstrap(columns, statistic, rng=np.random.default_rng(9), **options)
        return found.confidence_interval.low, found.confidence_interval.high

    gains = np.stack([ours - theirs, ours - theirs], axis=1)
    mean, ratio = over_points(gains, np.stack([np.ones(400), best], axis=1))
    width = mean[1] - mean[0]
    assert mean == pytest.approx(drawn(ours, theirs, statistic=lambda a, b: np.mean(a - b)), abs=0.05 * width)
    expected = drawn(ours, theirs, best, statistic=lambda a, b, c: np.sum(a - b) / np.sum(c))
    assert ratio == pytest.approx(expected, abs=0.05 * (ratio[1] - ratio[0]))


def test_the_bootstrap_is_repeatable_in_blocks_and_bears_points_without_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    gains, bests = np.random.default_rng(0).random((50, 3)), np.ones((50, 3))
    whole = np.array(over_points(gains, bests))
    monkeypatch.setattr("fedmlh.comparison.differences._BLOCK", 700)
    assert np.array(over_points(gains, bests)) == pytest.approx(whole)
    assert np.array(over_points(gains, bests, seed=1)) != pytest.approx(whole)
    assert over_points(np.zeros((4, 1)), np.zeros((4, 1))) == [(0.0, 0.0)]


# What is measured: against plain sums over dense matrices.


@st.composite
def ranked(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw rankings of 3 of p labels (−1 where there is none), true labels as a dense matrix, and training counts."""
    n, p = draw(st.integers(1, 7)), draw(st.integers(1, 6))
    top = np.full((n, 3), -1)
    for row in top:
        chosen = draw(st.permutations(range(p)))[: draw(st.integers(0, 3))]
        row[: len(chosen)] = chosen
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    counts = np.array(draw(st.lists(st.sampled_from([0, 1, 5, 6, 20, 21, 100, 101, 9999]), min_size=p, max_size=p)))
    return top, rng.random((n, p)) < 0.5, counts


def find_plainly(top: np.ndarray, truth: np.ndarray, k: int) -> np.ndarray:  # -> [n, p] bool
    found = np.zeros(truth.shape, bool)
    for row, labels in enumerate(top[:, :k]):
        found[row, labels[labels >= 0]] = True
    return found & truth


@settings(max_examples=80, deadline=None)
@given(ranked())
def test_recall_by_label_is_what_its_definition_says(case: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    top, truth, counts = case
    recall = LabelRecall((1, 3), counts)
    cut = len(top) // 2
    for rows in (slice(0, cut), slice(cut, None)):  # batches add up
        recall.add(top[rows], csr_matrix(truth[rows].astype(np.float32)))
    values = recall.values()
    for k in (1, 3):
        found = find_plainly(top, truth, k)
        shares = [found[:, label].sum() / truth[:, label].sum() for label in np.flatnonzero(truth.any(axis=0))]
        assert values["recall_macro"][str(k)] == pytest.approx(np.mean(shares) if shares else 0)
    expected = {}
    for name, low, high in BINS:
        members = [label for label, count in enumerate(counts) if low <= count <= (high or math.inf)]
        if truth[:, members].any():
            expected[name] = find_plainly(top, truth, 3)[:, members].sum() / truth[:, members].sum()
    assert values["recall_by_count"] == pytest.approx(expected)
    assert list(values["recall_by_count"]) == [name for name, *_ in BINS if name in expected]


@settings(max_examples=80, deadline=None)
@given(ranked())
def test_hits_per_point_are_what_their_definition_says(case: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    top, truth, counts = case
    weights, cut = 1 + 1 / (1.0 + counts), len(top) // 2
    points = PointHits.of([top[:cut], top[cut:]], csr_matrix(truth.astype(np.float32)), (1, 3), weights)
    for column, k in enumerate((1, 3)):
        found = find_plainly(top, truth, k)
        assert points.hits[:, column].tolist() == found.sum(axis=1).tolist()
        assert points.psp_gain[:, column] == pytest.approx((found * weights).sum(axis=1))
        best = [sum(sorted(weights[own], reverse=True)[:k]) for own in truth]
        assert points.psp_best[:, column] == pytest.approx(np.array(best))
    again = PointHits.decode(points.encode())
    assert again.encode() == points.encode()
    assert again.is_paired_with(points)
    moved = csr_matrix(np.roll(truth, 1, axis=0).astype(np.float32))
    if not np.array_equal(np.roll(truth, 1, axis=0), truth):
        assert not PointHits.of([top], moved, (1, 3), weights).is_paired_with(points)


# A comparison, end to end.


def test_every_run_keeps_hits_that_give_its_own_figures(finished: Path) -> None:
    folders = sorted(path.parent for path in finished.glob("*/summary.json"))
    assert len(folders) == 6
    for folder in folders:
        summary, points = json.loads((folder / "summary.json").read_text()), RunFolder(folder).read_points()
        assert points is not None
        for column, k in enumerate(points.k.tolist()):
            assert points.hits[:, column].mean() / k == pytest.approx(summary["precision"][str(k)], abs=1e-11)
            gain, best = (part[:, column].sum(dtype=np.float64) for part in (points.psp_gain, points.psp_best))
            assert gain / best == pytest.approx(summary["psp"][str(k)], rel=1e-5)
        assert summary["recall_macro"].keys() == summary["precision"].keys()
        assert summary["recall_by_count"].keys() <= {name for name, *_ in BINS}
        assert 0 < summary["recall_macro"]["5"] <= 1


def test_tables_say_what_summaries_say_in_full_precision(finished: Path) -> None:
    rows = read_csv(finished / "comparison.csv")
    found = {(row["method"], int(row["seed"]), row["metric"], row["k"]): float(row["value"]) for row in rows}
    assert len(found) == len(rows)
    expected = {}
    for method in ("demo", "one-round", "eurlex-4k"):
        for seed in (0, 1):
            summary = json.loads((finished / f"{method}-seed{seed}" / "summary.json").read_text())
            for metric, value in summary.items():
                if metric == "recall_by_count":
                    expected |= {(method, seed, f"recall_{name}", "5"): x for name, x in value.items()}
                elif isinstance(value, dict) and value.keys() == summary["precision"].keys():
                    expected |= {(method, seed, metric, k): x for k, x in value.items()}
            for metric in ("best_round", "bytes_up", "bytes_down", "model_bytes", "seconds_per_round"):
                expected[method, seed, metric, ""] = summary[metric]
    assert {key: found[key] for key in expected} == expected
    assert [row["method"] for row in rows] == sorted(
        (row["method"] for row in rows), key=["demo", "one-round", "eurlex-4k"].index
    )


def test_curves_say_what_every_round_measured(finished: Path) -> None:
    rows = read_csv(finished / "curves.csv")
    expected = []
    for method in ("demo", "one-round", "eurlex-4k"):
        for seed in (0, 1):
            for line in (finished / f"{method}-seed{seed}" / "metrics.jsonl").read_text().splitlines():
                record = json.loads(line)
                values = record["validation"]["precision"]
                head = [method, str(seed), str(record["round"]), str(record["bytes_up"]), str(record["bytes_down"])]
                expected.append([*head, "validation", *(repr(values[k]) for k in ("1", "3", "5"))])
    assert [list(row.values()) for row in rows] == expected


def test_rounds_are_marked_at_whole_numbers(finished: Path) -> None:
    svg = draw_curves(gather([RunFolder(finished / "demo-seed0")]), "svg").decode()
    marks = re.findall(r"<!-- (\S+) -->", svg.partition("<!-- round -->")[0])
    assert marks
    assert all(mark.isdigit() for mark in marks)


def test_differences_are_paired_by_seed(finished: Path) -> None:
    rows = read_csv(finished / "differences.csv")
    assert len(rows) == 2 * 7
    runs = {path.parent.name: json.loads(path.read_text()) for path in finished.glob("*/summary.json")}
    for row in rows:
        drawn = []
        for seed in (0, 1):
            ours, theirs = runs[f"{row['method']}-seed{seed}"], runs[f"demo-seed{seed}"]
            metric = row["metric"].removesuffix("_mean")
            ks = [row["k"]] if row["k"] else ["1", "3", "5"]
            drawn.append(np.mean([ours[metric][k] - theirs[metric][k] for k in ks]))
        assert row["reference"] == "demo"
        assert float(row["difference"]) == pytest.approx(np.mean(drawn))
        bounds = over_seeds(drawn)
        assert (float(row["seeds_low"]), float(row["seeds_high"])) == pytest.approx(bounds)
        assert float(row["points_low"]) <= float(row["difference"]) <= float(row["points_high"])
        assert float(row["points_low"]) < float(row["points_high"])


def test_a_report_and_a_resumed_comparison_say_the_same(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "c"
    shutil.copytree(finished, out)
    before = {path.name: path.read_bytes() for path in out.glob("*.csv")}
    assert call("report", out, "--out", tmp_path / "r.html") == 0
    for name, content in before.items():
        assert (tmp_path / f"r-{name}").read_bytes() == content
    (out / "demo-seed1" / "summary.json").unlink()
    options = ["--rounds", 2, "--seeds", 2, *SMALL, "--out", out]
    assert call("compare", "demo", write_once(tmp_path), "eurlex-4k", *options) == 2
    assert call("compare", "demo", write_once(tmp_path), "eurlex-4k", *options, "--resume") == 0
    for name in ("differences.csv", "curves.csv"):
        assert (out / name).read_bytes() == before[name]


def test_runs_of_before_have_no_interval_over_points_and_a_note_says_why(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "c"
    shutil.copytree(finished, out)
    (out / "eurlex-4k-seed1" / POINTS).unlink()
    summary = json.loads((out / "eurlex-4k-seed1" / "summary.json").read_text())
    for metric in ("recall_macro", "recall_by_count"):
        del summary[metric]
    (out / "eurlex-4k-seed1" / "summary.json").write_text(json.dumps(summary))
    comparison = compare_folder(out, ["demo", "one-round", "eurlex-4k"])
    missing = {one.method for one in comparison.differences if one.over_points is None}
    assert missing == {"eurlex-4k"}
    assert all(one.over_seeds is not None for one in comparison.differences)
    assert sum(POINTS in note for note in comparison.notes) == 1
    (row,) = (row for row in comparison.figures if row.name == "macro recall@1, %")
    assert [cell == "–" for cell in row.cells] == [False, False, True]
    whole = compare_folder(finished, ["demo", "one-round", "eurlex-4k"])
    kept = [one for one in comparison.differences if one.method == "one-round"]
    assert kept == [one for one in whole.differences if one.method == "one-round"]


def test_points_of_other_data_are_not_paired(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "c"
    shutil.copytree(finished, out)
    path = out / "one-round-seed0" / POINTS
    points = PointHits.decode(path.read_bytes())
    order = np.random.default_rng(0).permutation(len(points))
    other = PointHits(points.k, points.labels[::-1], points.hits[order], points.psp_gain[order], points.psp_best)
    path.write_bytes(other.encode())
    comparison = compare_folder(out, ["demo", "one-round", "eurlex-4k"])
    assert {one.method for one in comparison.differences if one.over_points is None} == {"one-round"}


def test_a_damaged_file_of_points_is_refused_by_name(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "c" / "demo-seed0"
    shutil.copytree(finished, tmp_path / "c")
    points = RunFolder(run).read_points()
    assert points is not None
    sound = points.encode()
    worse = [
        *(sound[: len(sound) // 2], b"", sound[:8] + b"x" + sound[9:]),
        PointHits(points.k[:2], points.labels, points.hits, points.psp_gain, points.psp_best).encode(),
        PointHits(points.k, points.labels, points.hits + np.uint8(9), points.psp_gain, points.psp_best).encode(),
        PointHits(points.k, points.labels, points.hits, points.psp_gain * np.float32("nan"), points.psp_best).encode(),
        PointHits(points.k, points.labels[:5], points.hits, points.psp_gain, points.psp_best).encode(),
    ]
    for content in worse:
        (run / POINTS).write_bytes(content)
        assert call("report", tmp_path / "c", "--out", tmp_path / "r.html") == 2
        said = capsys.readouterr().err
        assert f"{POINTS} is damaged" in said
        assert len(said.splitlines()) == 1
    (run / POINTS).unlink()
    (run / POINTS).symlink_to(finished / "demo-seed0" / POINTS)
    assert call("report", tmp_path / "c", "--out", tmp_path / "r.html") == 2
    assert f"{POINTS} is a link" in capsys.readouterr().err
    assert not (tmp_path / "r.html").exists()


def test_a_damaged_plan_is_refused_by_name(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "c"
    shutil.copytree(finished, out)
    plan = json.loads((out / "comparison.json").read_text())
    lost, away = json.loads(json.dumps(plan)), json.loads(json.dumps(plan))
    del lost["methods"][0]["name"]
    away["methods"][0]["folder"] = "../elsewhere"
    for content in ("", "[]", "{", json.dumps(lost), json.dumps(away)):
        (out / "comparison.json").write_text(content)
        assert call("report", out, "--out", tmp_path / "r.html") == 2
        assert "comparison.json is damaged" in capsys.readouterr().err


# Names and sweeps.


def test_a_sweep_is_named_by_what_was_swept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text('loss = "softmax"\n')
    sweeps = ["--sweep", "partition=iid,dirichlet", "--sweep", "num_clients=5,8"]
    assert call("compare", "demo", mine, "--rounds", 1, *sweeps, *SMALL, "--out", tmp_path / "c") == 0
    combinations = [(name, way, k) for name in ("demo", "mine") for way in ("iid", "dirichlet") for k in (5, 8)]
    plan = json.loads((tmp_path / "c/comparison.json").read_text())
    names = [f"{name}, partition {way}, num_clients {k}" for name, way, k in combinations]
    assert [method["name"] for method in plan["methods"]] == names
    rows = read_csv(tmp_path / "c/comparison.csv")
    assert list(dict.fromkeys(row["method"] for row in rows)) == names
    for name, way, k in combinations:
        config = RunFolder(tmp_path / "c" / f"{name}-partition-{way}-num_clients-{k}-seed0").read_config()
        assert (config.partition, config.num_clients) == (way, k)
        assert config.synthetic_labels == 60  # of the first config, for all
    shown = capsys.readouterr().out
    assert "what differs" in shown
    assert (tmp_path / "c/report.html").read_text().count(names[-1]) >= 3
    differing = {
        row.name: row.cells
        for row in compare([RunFolder(p) for p in sorted((tmp_path / "c").glob("*-seed0"))]).settings
    }
    assert differing.keys() == {"partition", "num_clients", "learning_rate"}


def test_a_budget_that_was_swept_is_named_though_runs_keep_only_sizes(tmp_path: Path) -> None:
    sizes = without("num_buckets", "hidden_sizes", "feature_dim")
    out = tmp_path / "c"
    assert (
        call(
            "compare",
            "recommended",
            "--rounds",
            1,
            "--sweep",
            "budget_mib=0.2,0.5",
            *sizes,
            "--set",
            "training=rounds",
            "--out",
            out,
        )
        == 0
    )
    comparison = compare([RunFolder(out / f"recommended-budget_mib-{size}-seed0") for size in ("0.2", "0.5")])
    assert comparison.names == ["recommended, budget_mib 0.2", "recommended, budget_mib 0.5"]
    shown = {row.name: row.cells for row in comparison.settings}
    assert shown["budget_mib"] == ("0.2", "0.5")
    assert len(set(shown["num_tables"])) == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["demo", "--sweep", "seed=1,2"], "--seeds"),
        (["demo", "--sweep", "top_k=1,3"], "cannot be compared"),
        (["demo", "--sweep", "validation_fraction=0.1,0.2"], "cannot be compared"),
        (["demo", "--sweep", "data=a,b"], "cannot be compared"),
        (["demo", "--sweep", "num_tables"], "--sweep num_tables: write name=value"),
        (["demo", "--sweep", "num_tables=2,"], "write name=value"),
        (["demo", "--sweep", "num_tables=2,2"], "named twice"),
        (["demo", "--sweep", "num_tables=2,3", "--sweep", "num-tables=4"], "give it once"),
        (["demo", "--sweep", "rounds=2,3"], "rounds is swept, and given a second time"),
        (["demo", "--sweep", "num_bucket=2,3"], "did you mean 'num_buckets'"),
        (["demo", "--sweep", "num_clients=2,10"], "demo, num_clients 2: clients_per_round is 4"),
        (["demo", "--sweep", "quorum=1,5"], "demo, quorum 5: quorum is 5, more than"),
        (
            ["demo", "--sweep", "num_clients=10,2000"],
            "demo, num_clients 2000: num_clients is 2,000, but there are only",
        ),
        (["demo", "--sweep", "partition=iid,folder"], "demo, partition folder: "),
        (["demo", "--sweep", "loss=bce,hinge"], "demo, loss hinge: loss is 'hinge': choose one of"),
        (["demo", "demo"], "two of the configs are named demo"),
        (["demo", "--set", "training=one-round"], "second config beside one-round"),
        (["demo", "--set", "correct=3"], "correct has no effect in rounds"),
        (["demo", "--sweep", "correct=0,3"], "correct has no effect in rounds"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert call("compare", *arguments, "--rounds", 1, *TINY, "--out", tmp_path / "c") == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "c").exists() or not any((tmp_path / "c").iterdir())


def without(*names: str) -> list[str]:
    """Return the small sizes but for these settings."""
    pairs = zip(TINY[::2], TINY[1::2], strict=True)
    return [part for pair in pairs if pair[1].split("=")[0] not in names for part in pair]


def test_sizes_that_the_data_does_not_allow_are_refused_before_anything_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "c"
    for preset, sweep, sentence in (
        ("demo", "num_buckets=20,70", "demo, num_buckets 70: num_buckets is 70, more than the 60 labels"),
        ("recommended", "budget_mib=1,0.001", "recommended, budget_mib 0.001: budget_mib leaves a hidden layer of 0"),
    ):
        sizes = without("num_buckets", "hidden_sizes", "feature_dim")
        assert call("compare", preset, "--sweep", sweep, *sizes, "--out", out) == 2
        assert sentence in capsys.readouterr().err
        assert not out.exists() or not any(out.iterdir())


def test_lists_and_false_can_be_swept(tmp_path: Path) -> None:
    out, mine = tmp_path / "c", tmp_path / "mine.toml"
    mine.write_text("normalize = true\n")
    sweeps = ["--sweep", "hidden_sizes=[8,8],16", "--sweep", "normalize=true,false"]
    sizes = without("hidden_sizes")
    assert call("compare", mine, "--rounds", 1, *sweeps, *sizes, "--out", out) == 0
    plan = json.loads((out / "comparison.json").read_text())
    assert [method["name"] for method in plan["methods"]] == [
        f"mine, hidden_sizes {width}, normalize {way}" for width in ("8, 8", "16") for way in ("true", "false")
    ]
    found = [RunFolder(out / f"{method['folder']}-seed0").read_config() for method in plan["methods"]]
    assert [(config.hidden_sizes, config.normalize) for config in found] == [
        (width, way) for width in ((8, 8), (16,)) for way in (True, False)
    ]


def test_a_budget_is_shown_of_runs_that_still_have_it() -> None:
    """A run in rounds keeps only the sizes that followed from its budget."""
    base = Config(name="a", sizes="auto", learning_rate=0.0, budget_mib=1.0)
    settled = [choose_sizes(base.replace(training=way), Shape(300, 60, 400, 5.0))[0] for way in ("one-round", "rounds")]
    assert dict(list_differing(settled))["budget_mib"] == ["1", "–"]
    assert "budget_mib" not in dict(list_differing([settled[1], settled[1].replace(loss="softmax")]))
    assert dict(list_differing([base, base.replace(budget_mib=2.0)]))["budget_mib"] == ["1", "2"]


def test_correct_may_be_set_only_if_a_method_uses_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        call("compare", "demo", "--sweep", "training=rounds,one-round", "--set", "correct=0", "--data", tmp_path) == 2
    )
    assert "no data set recognised" in capsys.readouterr().err
    for command in (["compare", "recommended"], ["run", "demo"], ["run", "recommended", "--algorithm", "fedavg"]):
        assert call(*command, "--set", "correct=3", "--data", tmp_path) == 2
        assert "correct has no effect in rounds" in capsys.readouterr().err


def test_settings_without_effect_are_not_what_differs() -> None:
    base = Config(name="a")
    fedavg, once = base.replace(algorithm="fedavg"), base.replace(training="one-round", loss="softmax")
    shown = dict(list_differing([base, base.replace(num_tables=8, label_map="universal"), fedavg]))
    assert shown["num_tables"] == ["4", "8", "1"]
    assert shown["num_buckets"] == ["250", "250", "–"]
    assert shown["label_map"] == ["murmur3", "universal", "identity"]
    assert "loss" not in dict(list_differing([base, once]))
    assert dict(list_differing([base.replace(loss="softmax"), once]))["loss"] == ["softmax", "–"]
    assert not dict(list_differing([base, base.replace(name="b", seed=4)]))


def test_runs_of_one_name_are_told_apart_in_few_words(tmp_path: Path) -> None:
    many = ["num_buckets=30", "loss=softmax", "batch_size=50"]
    for place, changes in enumerate([[], ["num_buckets=30"], many]):
        more = [part for change in changes for part in ("--set", change)]
        assert (
            call("run", "demo", "--rounds", 1, *TINY, "--set", "loss=bce", *more, "--out", tmp_path / f"r{place}") == 0
        )
    runs = [RunFolder(tmp_path / f"r{place}") for place in range(3)]
    assert compare(runs[:1]).names == ["demo"]
    assert compare(runs[:2]).names == ["demo, num_buckets 20", "demo, num_buckets 30"]
    assert compare(runs).names == ["demo, r0", "demo, r1", "demo, r2"]


def test_fedavg_alone_has_nothing_to_stand_beside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("compare", "demo", "--set", "algorithm=fedavg", "--out", tmp_path / "c") == 2
    assert "demo is FedAvg, which has no tables for FedMLH: name a second config" in capsys.readouterr().err
    assert not (tmp_path / "c").exists()


def test_a_swept_setting_may_be_named_by_its_section(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("compare", "demo", "--sweep", "server.momentum=0.5,0.9", "--sweep", "server_momentum=1,0") == 2
    assert "server_momentum is swept, and given a second time" in capsys.readouterr().err
    swept = ["--sweep", "algorithm=fedmlh,fedavg", "--sweep", "evaluation.top_k=1,3"]
    assert call("compare", "demo", *swept, "--out", tmp_path / "c") == 2
    assert "methods that differ in top_k cannot be compared" in capsys.readouterr().err
