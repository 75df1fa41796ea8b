"""What a model proposes, label by label and point by point: scikit-learn's figures, and plain counts for the rest."""

import csv
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from sklearn.metrics import f1_score, precision_recall_fscore_support

from command_line import call, invoke
from fedmlh import Dataset, Model, load
from fedmlh.comparison.comparison import compare
from fedmlh.comparison.labels_and_examples import show_labels_and_examples
from fedmlh.data.originals import Original, pick_originals
from fedmlh.data.source import open_dataset
from fedmlh.engines.run import run
from fedmlh.errors import UserError
from fedmlh.evaluation.calibration import NUM_BINS, Curve, Scale
from fedmlh.evaluation.label_figures import LEAST_POINTS, LabelFigures
from fedmlh.evaluation.proposals import DEPTH, SHOWN, Gatherer, Proposals, Rule
from fedmlh.runs.folder import EXAMPLES, RunFolder
from pages import ROOT
from tiny import TINY

#: Probabilities from 0.02 to 0.98 for scores from 0 to 1.
CURVE = Curve(
    Scale("plain", tuple(np.linspace(0, 1, NUM_BINS + 1).tolist())),
    99,
    (100,) * NUM_BINS,
    tuple(np.linspace(1, 99, NUM_BINS).astype(int).tolist()),
)
WORDS = "olive wheat milk goat ray light press oil rye bread cheese virgin price law fish quota".split()


@st.composite
def ranked(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray, Rule]:
    """Draw rankings of up to 130 labels with their scores, true labels, and a rule."""
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    n, p = draw(st.integers(1, 12)), draw(st.sampled_from([2, 7, 130]))
    scores = -np.sort(-rng.random((n, p)), axis=1).astype(np.float32)
    labels = np.argsort(rng.random((n, p)), axis=1)
    labels[rng.random((n, p)).cumsum(1) > draw(st.sampled_from([1.5, 60, 999]))] = -1  # pairs that are excluded
    truth = rng.random((n, p)) < draw(st.sampled_from([0.0, 0.05, 0.5]))
    rule = Rule(draw(st.sampled_from([1, 3, DEPTH])), draw(st.sampled_from([None, 0.0, 0.5, 0.9])))
    return labels, scores, truth, rule


def gather(labels: np.ndarray, scores: np.ndarray, truth: np.ndarray, rule: Rule, batches: int = 2) -> Proposals:
    gatherer = Gatherer(rule, CURVE, truth.shape[1])
    for rows in np.array_split(np.arange(len(labels)), batches):
        gatherer.add(labels[rows], scores[rows], csr_matrix(truth[rows].astype(np.float32)))
    return gatherer.proposals()


def propose_plainly(labels: np.ndarray, scores: np.ndarray, truth: np.ndarray, rule: Rule) -> np.ndarray:
    proposed = np.zeros(truth.shape, int)
    for row, own in enumerate(labels):
        for place, label in enumerate(own[: rule.top]):
            chance = CURVE.apply(scores[row, place : place + 1])[0]
            if label >= 0 and (rule.threshold is None or chance >= rule.threshold):
                proposed[row, label] = 1
    return proposed


@settings(max_examples=80, deadline=None)
@given(ranked())
def test_figures_of_labels_and_averages_are_scikit_learns(
    case: tuple[np.ndarray, np.ndarray, np.ndarray, Rule],
) -> None:
    truth = case[2]
    expected, Y = propose_plainly(*case), truth.astype(int)
    proposals = gather(*case)
    assert np.array_equal(proposals.chosen.toarray(), expected)
    figures = LabelFigures.of(proposals, np.arange(truth.shape[1]))
    theirs = precision_recall_fscore_support(Y, expected, average=None, zero_division=0)
    for mine, other in zip((figures.precision, figures.recall, figures.f1, figures.test_points), theirs, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-12)
    assert figures.proposed.tolist() == expected.sum(0).tolist()
    found, there = proposals.summarize(), Y.any(0)
    assert found["micro_f1"] == pytest.approx(f1_score(Y, expected, average="micro", zero_division=0))
    assert found["per_document_f1"] == pytest.approx(f1_score(Y, expected, average="samples", zero_division=0))
    macro = f1_score(Y, expected, average="macro", zero_division=0, labels=np.flatnonzero(there)) if there.any() else 0
    assert found["macro_f1"] == pytest.approx(macro)


@settings(max_examples=60, deadline=None)
@given(ranked())
def test_ranks_and_confusions_are_what_their_definition_says(
    case: tuple[np.ndarray, np.ndarray, np.ndarray, Rule],
) -> None:
    labels, truth, proposed = case[0], case[2], propose_plainly(*case)
    figures = LabelFigures.of(gather(*case), np.zeros(truth.shape[1], int))
    for label in range(truth.shape[1]):
        points = np.flatnonzero(truth[:, label])
        ranks = []
        for row in points:
            places = np.flatnonzero(labels[row, :DEPTH] == label)
            ranks.append(places[0] + 1 if len(places) else DEPTH + 1)
        np.testing.assert_allclose(figures.average_rank[label], np.mean(ranks) if len(points) else np.nan)
        wrong = (proposed[points] * ~truth[points]).sum(0) if len(points) else np.zeros(1)
        assert figures.confused_times[label] == wrong.max()
        assert figures.confused_with[label] == (np.argmax(wrong) if wrong.max() else -1)


@settings(max_examples=40, deadline=None)
@given(ranked())
def test_misses_are_the_points_that_differ_the_worst_first(
    case: tuple[np.ndarray, np.ndarray, np.ndarray, Rule],
) -> None:
    proposals, proposed, truth = gather(*case), propose_plainly(*case), case[2]
    rows = proposals.list_misses().tolist()
    differences = (proposed != truth).sum(1)
    assert sorted(rows) == np.flatnonzero(differences).tolist()
    f1 = [f1_score(truth[row].astype(int), proposed[row], zero_division=0) for row in rows]
    order = list(zip(f1, -differences[rows], rows, strict=True))
    assert all(a[0] < b[0] + 1e-12 for a, b in pairwise(order))
    assert all(a[1:] < b[1:] for a, b in pairwise(order) if a[0] == b[0])
    for row in range(len(truth)):
        assert proposals.list_true(row) == np.flatnonzero(truth[row]).tolist()
        shown = proposals.list_ranked(row)
        kept = [label for label in case[0][row].tolist()[:DEPTH] if label >= 0]
        assert [label for label, *_ in shown] == kept[: len(shown)]
        assert len(shown) >= min(SHOWN, len([label for label in case[0][row][:SHOWN] if label >= 0]))
        assert [label for label, *_, is_proposed in shown if is_proposed] == [
            label for label in kept if proposed[row, label]
        ]


def test_the_worst_and_the_best_labels_have_enough_points_and_none_is_both() -> None:
    rng = np.random.default_rng(0)
    for p, most in ((60, 20), (7, 20), (1, 20), (0, 20)):
        test = rng.integers(0, 3 * LEAST_POINTS, p)
        found = rng.integers(0, test + 1)
        rest = (np.zeros(p), np.full(p, -1), np.zeros(p, int))
        figures = LabelFigures(np.ones(p, int), test, found + rng.integers(0, 3, p), found, *rest)
        worst, best = figures.pick(most)
        enough = set(np.flatnonzero(test >= LEAST_POINTS).tolist())
        assert len({*worst, *best}) == len(worst) + len(best) == min(len(enough), 2 * most)
        assert {*worst, *best} <= enough
        assert figures.f1[worst].tolist() == sorted(figures.f1[list(enough)])[: len(worst)]
        assert figures.f1[best].tolist() == sorted(figures.f1[list(enough)], reverse=True)[: len(best)]


def test_rules_are_said_in_words_and_wrong_ones_are_refused() -> None:
    assert str(Rule.of(CURVE, 5)) == "labels with a probability of at least 0.5, at most 100"
    assert str(Rule.of(CURVE, 5, 0.25, 3)) == "labels with a probability of at least 0.25, at most 3"
    assert str(Rule.of(None, 5)) == "the first 5 labels"
    assert str(Rule.of(None, 5, top=1)) == "the first 1 label"
    with pytest.raises(UserError, match="no probabilities"):
        Rule.of(None, 5, 0.5)
    with pytest.raises(UserError, match="from 1 to 100"):
        Rule.of(CURVE, 5, None, 101)
    with pytest.raises(UserError, match="between 0 and 1"):
        Rule.of(CURVE, 5, 1.5)


def write_data(folder: Path, n: int = 240, seed: int = 0) -> Path:
    """Write texts whose labels are some of their words; the test part also has what pages must not take for markup."""
    rng, folder_names = np.random.default_rng(seed), {"trn": n, "tst": n // 2}
    folder.mkdir(parents=True)
    for part, count in folder_names.items():
        lines = []
        for number in range(count):
            words = rng.choice(WORDS, 4, replace=False).tolist()
            text = " ".join(words) + (" <b>&amp;\x1b[31m" if part == "tst" else "")
            lines.append({"id": f"{part}{number}", "text": text, "labels": words[:2]})
        (folder / f"{part}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "labels.txt").write_text("".join(f"{word}\t<i>{word}</i>\n" for word in sorted(WORDS)))
    return folder


CONFIG = TINY.replace(training="one-round", label_map="identity", validation_fraction=0.4, text_dim=512)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("labels")
    config = CONFIG.replace(data=str(write_data(folder / "data")))
    run(config, load(config.data, text_dim=512), folder / "run", progress=False)
    return folder


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ([], "labels with a probability of at least 0.5, at most 100"),
        (["--threshold", "0.2"], "labels with a probability of at least 0.2, at most 100"),
        (["--threshold", "0", "--top", "2"], "labels with a probability of at least 0, at most 2"),
    ],
)
def test_eval_writes_figures_and_misses_of_what_predict_proposes(
    finished: Path, tmp_path: Path, options: list[str], rule: str
) -> None:
    files = {"labels": tmp_path / "labels.csv", "misses": tmp_path / "misses.jsonl", "csv": tmp_path / "misses.csv"}
    asked = ["--per-label", files["labels"], "--misses"]
    code, out, said = invoke("eval", finished / "run", "--json", *options, *asked, files["misses"])
    assert code == 0, said
    assert call("eval", finished / "run", *options, "--misses", files["csv"]) == 0

    lines = [json.loads(line) for line in (finished / "data/tst.jsonl").read_text().splitlines()]
    asked_of = {name: float(value) for name, value in zip(options[::2], options[1::2], strict=True)}
    threshold, top = asked_of.get("--threshold", 0.5), int(asked_of.get("--top", 16))
    predicted = Model.load(finished / "run").predict([line["text"] for line in lines], top, threshold)
    keys = sorted(WORDS)
    Y = np.array([[key in line["labels"] for key in keys] for line in lines]).astype(int)
    P = np.array([[key in {label["key"] for label in own} for key in keys] for own in predicted]).astype(int)
    assert P.sum() > 10

    assert json.loads(out)["proposals"] == pytest.approx(
        {
            "rule": rule,
            "micro_f1": f1_score(Y, P, average="micro", zero_division=0),
            "macro_f1": f1_score(Y, P, average="macro", zero_division=0),
            "per_document_f1": f1_score(Y, P, average="samples", zero_division=0),
        }
    )
    rows = read_csv(files["labels"])
    assert [row["key"] for row in rows] == keys
    assert {row["name"] for row in rows} == {f"<i>{word}</i>" for word in WORDS}
    figures = precision_recall_fscore_support(Y, P, average=None, zero_division=0)
    for column, expected in zip(("precision", "recall", "f1", "test_points"), figures, strict=True):
        np.testing.assert_allclose([float(row[column]) for row in rows], expected)
    assert [int(row[f"proposed ({rule})"]) for row in rows] == P.sum(0).tolist()
    assert sum(int(row["training_points"]) for row in rows) == 2 * 240

    misses = [json.loads(line) for line in files["misses"].read_text().splitlines()]
    assert sorted(miss["point"] for miss in misses) == np.flatnonzero((Y != P).any(1)).tolist()
    assert [miss["f1"] for miss in misses] == sorted(miss["f1"] for miss in misses)
    for miss in misses:
        line, own = lines[miss["point"]], predicted[miss["point"]]
        assert (miss["id"], miss["text"]) == (line["id"], line["text"])
        assert sorted(label["key"] for label in miss["given"]) == sorted(line["labels"])
        assert [label["key"] for label in miss["proposed"]] == [label["key"] for label in own]
        assert [label["probability"] for label in miss["proposed"]] == pytest.approx(
            [label["probability"] for label in own], abs=1e-4
        )
    table = read_csv(files["csv"])
    assert [(int(row["point"]), row["id"], row["text"]) for row in table] == [
        (miss["point"], miss["id"], miss["text"]) for miss in misses
    ]
    for row, miss in zip(table, misses, strict=True):
        assert row["given"] == "; ".join(label["name"] for label in miss["given"])
        shown = [f"{label['name']} ({label['probability']:.3f})" for label in miss["proposed"]]
        assert row[f"proposed ({rule})"] == "; ".join(shown)


def test_a_run_keeps_what_its_page_shows_of_labels_and_points(finished: Path, tmp_path: Path) -> None:
    folder = RunFolder(finished / "run")
    summary, kept = folder.read_summary(), folder.read_examples()
    assert kept is not None
    examined = Model.load(finished / "run").examine(load(finished / "data", text_dim=512))
    assert summary["proposals"] == examined.proposals.summarize()
    assert len(kept["worst"]) + len(kept["best"]) == len(WORDS)
    assert max(label["f1"] for label in kept["worst"]) <= min(label["f1"] for label in kept["best"])
    lines = [json.loads(line) for line in (finished / "data/tst.jsonl").read_text().splitlines()]
    assert len(kept["examples"]) == 8
    for example in kept["examples"]:
        line = lines[example["point"]]
        assert (example["id"], example["text"]) == (line["id"], line["text"])
        assert sorted(example["true"]) == sorted(f"<i>{label}</i>" for label in line["labels"])
        assert {label["name"] for label in example["labels"] if label["true"]} <= set(example["true"])
    (finished / "data").rename(finished / "elsewhere")  # a page needs no data
    try:
        assert call("report", finished / "run", "--out", tmp_path / "r.html") == 0
    finally:
        (finished / "elsewhere").rename(finished / "data")
    page = (tmp_path / "r.html").read_text()
    assert "<h2>Labels</h2>" in page
    assert "<i>" not in page
    assert "\x1b" not in page
    assert page.count(r"&lt;b&gt;&amp;amp;\x1b[31m</blockquote>") == 8
    assert all(page.count(f"&lt;i&gt;{word}&lt;/i&gt;</td>") >= 1 for word in WORDS)


def test_runs_of_before_have_a_page_without_labels_and_damage_is_refused_by_name(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (kept,) = compare([RunFolder(ROOT / "tests/golden/folders/finished-run")]).methods[0].runs
    assert show_labels_and_examples([kept]) == ""
    path = finished / "run" / EXAMPLES
    whole = path.read_text()
    content = json.loads(whole)
    for damage in (
        "[]",
        whole[:-9],
        json.dumps(content | {"worst": [{**content["worst"][0], "name": 3}]}),
        json.dumps(content | {"best": [{**content["best"][0], "f1": "<script>"}]}),
        json.dumps(content | {"examples": [{**content["examples"][0], "text": ["a"]}]}),
        json.dumps(content | {"least_points": "<b>"}),
    ):
        path.write_text(damage)
        with pytest.raises(UserError, match=f"{EXAMPLES} is damaged"):
            RunFolder(finished / "run").read_examples()
    assert call("report", finished / "run", "--out", tmp_path / "r.html") == 2
    assert f"{EXAMPLES} is damaged" in capsys.readouterr().err
    assert not (tmp_path / "r.html").exists()
    path.write_text(whole)


def test_texts_that_are_gone_or_others_are_not_shown(finished: Path, tmp_path: Path) -> None:
    data = write_data(tmp_path / "data")
    dataset = load(data)
    assert pick_originals(dataset, [3, 5])[5].id == "tst5"
    lines = (data / "tst.jsonl").read_text().splitlines()
    (data / "tst.jsonl").write_text("\n".join([*lines[:5], '{"text": "other words", "labels": []}', *lines[6:]]))
    assert list(pick_originals(dataset, [3, 5])) == [3]
    (data / "tst.jsonl").write_text("no JSON")
    assert pick_originals(dataset, [3, 5]) == {}
    (data / "tst.jsonl").unlink()
    assert pick_originals(dataset, [3, 5]) == {}
    assert pick_originals(load(finished / "data"), []) == {}


def test_texts_from_memory_and_from_folders_of_sites_are_found_again(tmp_path: Path) -> None:
    texts, labels = [f"{word} oil" for word in WORDS], [[word] for word in WORDS]
    for test in (0.5, (["rye \ud800", "no word"], [["rye"], []])):
        dataset = Dataset.from_texts(texts, labels, test=test)
        found = pick_originals(dataset, range(len(dataset.test)))
        assert len(found) == len(dataset.test)
        for row, (own, text) in found.items():
            assert own is None
            if test == 0.5:
                assert (dataset.text.transform([text]) != dataset.test.X[row]).nnz == 0
    assert found[0] == Original(None, "rye \\ud800")
    assert pick_originals(Dataset.from_arrays(np.eye(9), np.eye(9)), [0]) == {}
    for seed, site in enumerate(("north", "south")):
        write_data(tmp_path / "sites" / site, 20, seed)
    dataset = load(tmp_path / "sites")
    found = pick_originals(dataset, range(20))
    assert [found[row].id for row in range(20)] == [f"tst{number}" for number in (*range(10), *range(10))]
    assert found[0].text != found[10].text


def test_points_that_are_no_texts_are_named_by_number(tmp_path: Path) -> None:
    config = TINY.replace(rounds=1, selection="paper")
    run(config, open_dataset(config), tmp_path / "run", progress=False)
    assert call("eval", tmp_path / "run", "--misses", tmp_path / "m.csv", "--per-label", tmp_path / "l.csv") == 0
    rows = read_csv(tmp_path / "m.csv")
    assert list(rows[0]) == ["point", "f1", "given", "proposed (the first 3 labels)"]
    assert all(len(row["proposed (the first 3 labels)"].split("; ")) == 3 for row in rows)
    kept = RunFolder(tmp_path / "run").read_examples()
    assert kept is not None
    assert {(example["id"], example["text"]) for example in kept["examples"]} == {(None, None)}
    assert {label["probability"] for example in kept["examples"] for label in example["labels"]} == {None}
    code, _, said = invoke("eval", tmp_path / "run", "--threshold", "0.5")
    assert code == 2
    assert "no probabilities" in said


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--per-label", "{out}/l.txt"], "should end in .csv"),
        (["--misses", "{out}/m.txt"], "should end in .csv or .jsonl"),
        (["--misses", "{out}/no/m.csv"], "is not a folder"),
        (["--misses", "{data}/tst.jsonl"], "lies in the data folder"),
        (["--misses", "{out}/a.csv", "--per-label", "{out}/a.csv"], "name the same file"),
        (["--top", "0"], ""),
        (["--threshold", "1.5"], ""),
    ],
)
def test_files_and_options_that_cannot_be_are_refused_before_any_work(
    finished: Path, tmp_path: Path, options: list[str], sentence: str
) -> None:
    filled: list[Any] = [option.format(out=tmp_path, data=finished / "data") for option in options]
    before = (finished / "data/tst.jsonl").read_bytes()
    code, _, said = invoke("eval", finished / "run", *filled)
    assert code == 2
    assert sentence in said
    assert list(tmp_path.iterdir()) == []
    assert (finished / "data/tst.jsonl").read_bytes() == before
