"""A model is asked with numpy alone, and says what the model that was trained says."""

import itertools
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from sklearn.utils import murmurhash3_32

from drawn_models import (
    BASE,
    DECODINGS,
    FEATURE_MAPS,
    FORMS,
    LABEL_MAPS,
    LOSSES,
    TEXTS,
    D,
    P,
    calibrate,
    draw_points,
    kinds,
    make_bundle,
    make_config,
)
from fedmlh.config import Config
from fedmlh.data.text import TextFeatures
from fedmlh.errors import UserError
from fedmlh.hashing.murmur import hash_integers, hash_strings
from fedmlh.hashing.rows import Rows
from fedmlh.runs.model_folder import Bundle
from fedmlh.runs.model_tools import make_tools
from fedmlh.serving.predictor import Model
from fedmlh.serving.ranking import rank_labels
from fedmlh.serving.scores import LinearScorer, NetworkScorer, Part


def by_torch(bundle: Bundle, X: csr_matrix) -> np.ndarray:
    """Return the score of each point for each label, as runs compute it.  # [n, p]"""
    features, ranker, model = make_tools(bundle, "cpu")
    found = np.full((X.shape[0], P), np.nan)
    for rows, labels, scores in ranker.rank(model, features.apply(X), P):
        np.put_along_axis(found[rows], labels, scores, axis=1)
    return found


def assert_agree(bundle: Bundle, X: csr_matrix, asked: object, k: int) -> None:
    """Compare each proposed label's score with its score in torch, and the order where scores differ by more than 1e-5.

    Equal scores are in the order of numbers.
    """
    expected, found = by_torch(bundle, X), list(Model(bundle).rank(asked, k))
    assert len(found) == len(expected)
    for (labels, scores), theirs in zip(found, expected, strict=True):
        assert len(set(labels.tolist())) == k
        np.testing.assert_allclose(scores, theirs[labels], rtol=1e-5, atol=1e-5)
        slack = 1e-5 * max(1, np.abs(theirs).max())
        rest = np.delete(theirs, labels)
        assert (np.diff(theirs[labels]) <= slack).all()
        assert rest.max(initial=-np.inf) <= theirs[labels[-1]] + slack
        tied = np.flatnonzero(np.diff(scores) == 0)
        assert (labels[tied] < labels[tied + 1]).all()


def ask(config: Config, form: str, seed: int, k: int, **more: object) -> None:
    """Make a model and compare what it says with what it says in torch."""
    text = FORMS[form]
    bundle = make_bundle(config, seed, d=D if text is None else text.num_features, text=text, **more)
    asked = draw_points(seed % 1000) if text is None else TEXTS
    assert_agree(bundle, asked if text is None else text.transform(TEXTS), asked, k)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("label_map", LABEL_MAPS)
def test_every_kind_of_network_says_what_it_says_in_torch(label_map: str, form: str) -> None:
    """Go through all label maps, feature maps, decodings and texts; the other settings take turns."""
    names = ("loss", "feature_signed", "hidden_sizes", "num_tables", "normalize")
    values = itertools.product(LOSSES, [True, False], [(), (5,), (6, 4)], [3, 1], [False, True])
    others = itertools.islice(itertools.cycle(values), 18 * (len(label_map) + len(form)), None)
    for seed, (feature_map, decoding) in enumerate([*itertools.product(FEATURE_MAPS, DECODINGS)] * 2):
        kind = {"label_map": label_map, "feature_map": feature_map, "decoding": decoding}
        ask(make_config(kind, **dict(zip(names, next(others), strict=True))), form, seed, 7)


@settings(deadline=None, max_examples=40)
@given(kinds, st.sampled_from([*FORMS]), st.integers(0, 2**31), st.integers(1, P))
def test_networks_say_what_they_say_in_torch(kind: dict[str, object], form: str, seed: int, k: int) -> None:
    ask(make_config(kind), form, seed, k)


@settings(deadline=None, max_examples=40)
@given(kinds, st.none() | kinds, st.booleans(), st.booleans(), st.sampled_from([*FORMS]), st.integers(0, 2**31))
def test_a_model_of_one_round_says_what_it_says_in_torch(
    kind: dict[str, object], networks: dict[str, object] | None, shared: bool, weigh: bool, form: str, seed: int
) -> None:
    """Compare linear models over any label map, with slots of their own or shared, and any networks beside them."""
    beside = False if networks is None else make_config(networks, seed=9)
    config = make_config(kind, training="one-round", correct=0)
    ask(config, form, seed, 1 + seed % P, beside=beside, limit=10 if shared else 0, weigh=weigh)


def test_compiled_code_ranks_very_many_labels_as_numpy_does() -> None:
    """Rank 60,000 labels with numba and, since another part has no scores but 0, without."""
    rng = np.random.default_rng(3)
    buckets, scores = rng.integers(0, 300, (3, 60_000)), rng.normal(size=(3, 4, 300)).astype(np.float32)
    scores[:, 3] = 0  # all tie
    nothing = Part(NetworkScorer.__new__(NetworkScorer), np.zeros((1, 60_000), np.int64), 1, 0.0)
    part = replace(nothing, buckets=buckets, num_buckets=300, weight=1.0)
    for k in (1, 5, 100):
        mine = rank_labels([part], [scores], k)
        theirs = rank_labels([part, nothing], [scores, np.zeros((1, 4, 1), np.float32)], k)
        for one, other in zip(mine, theirs, strict=True):
            assert np.array_equal(one, other)


def test_dense_and_sparse_points_of_any_kind_are_one() -> None:
    model, X = Model(make_bundle(BASE, 3)), draw_points(3)
    expected = model.predict(X)
    for other in (X.toarray(), X.tocoo(), X.tocsc(), X.astype(np.float64), X.toarray().astype(np.float64)):
        assert model.predict(other) == expected
    for alone, (together, *_) in zip(model.predict(X.toarray()[0])[0], [expected[0]], strict=False):
        assert (alone["key"], alone["score"]) == (together["key"], pytest.approx(together["score"], abs=1e-5))
    assert model.predict(np.zeros((0, D))) == []


@given(st.lists(st.text(max_size=300)), st.integers(0, 2**32 - 1))
def test_strings_are_hashed_as_others_hash_them(keys: list[str], seed: int) -> None:
    expected = [murmurhash3_32(key.encode(), seed=seed, positive=True) for key in keys]
    assert hash_strings(keys, seed).tolist() == expected


@given(st.lists(st.integers(-(2**31), 2**31 - 1)), st.integers(0, 2**32 - 1))
def test_numbers_are_hashed_as_others_hash_them(keys: list[int], seed: int) -> None:
    expected = [murmurhash3_32(key, seed=seed, positive=True) for key in keys]
    assert hash_integers(np.array(keys, np.int64), seed).tolist() == expected


@given(st.integers(0, 5), st.integers(1, 9), st.data())
def test_cells_add_up_as_in_a_dense_matrix(count: int, width: int, data: st.DataObject) -> None:
    size = data.draw(st.integers(0, 30)) if count else 0
    owners, columns = (
        np.array(data.draw(st.lists(st.integers(0, most - 1), min_size=size, max_size=size)), np.int64)
        for most in (max(count, 1), width)
    )
    values = np.array(data.draw(st.lists(st.integers(-3, 3), min_size=size, max_size=size)), np.float64)
    dense = np.zeros((count, width))
    np.add.at(dense, (owners, columns), values)
    rows = Rows.gather(owners, columns, values, (count, width))
    again = csr_matrix((rows.values, rows.columns, rows.starts), shape=(count, width))
    assert again.has_canonical_format
    assert np.array_equal(again.toarray(), dense)
    assert (rows.values != 0).all()
    parts = [rows.take(begin, begin + 1) for begin in range(count)]
    joined = Rows.join([Rows.empty(0, width), *parts])
    assert np.array_equal(joined.columns, rows.columns)
    assert np.array_equal(joined.starts, rows.starts)
    lengths = np.linalg.norm(dense, axis=1)
    scaled = rows.scaled_to_one()
    found = csr_matrix((scaled.values, scaled.columns, scaled.starts), shape=(count, width)).toarray()
    np.testing.assert_allclose(found, dense / np.where(lengths > 0, lengths, 1)[:, None], atol=1e-6)


ASK = """
import json, sys
import fedmlh
found = fedmlh.Model.load(sys.argv[1]).predict(["a cat", "two dogs"], 3)
heavy = {name.split(".")[0] for name in sys.modules} & {"torch", "scipy", "sklearn", "numba", "matplotlib", "typer"}
print(json.dumps([found, sorted(heavy)]))
"""


@pytest.mark.parametrize("training", ["rounds", "one-round"])
def test_asking_a_model_imports_nothing_that_trains(tmp_path: Path, training: str) -> None:
    text = TextFeatures.hashing(50)
    more = {"correct": 0} if training == "one-round" else {}
    model = Model(make_bundle(BASE.replace(training=training, **more), 5, d=50, text=text, beside=bool(more)))
    model.save(tmp_path / "model")
    said = subprocess.run([sys.executable, "-c", ASK, tmp_path / "model"], capture_output=True, text=True, check=True)
    found, heavy = json.loads(said.stdout)
    assert heavy == []
    assert found == model.predict(["a cat", "two dogs"], 3)


def test_a_stored_model_is_the_same_to_the_bit(tmp_path: Path) -> None:
    for number, config in enumerate([BASE, BASE.replace(training="one-round", correct=0)]):
        bundle = make_bundle(config, 8, beside=number == 1)
        Model(bundle).save(tmp_path / str(number))
        again = Model.load(tmp_path / str(number)).bundle
        mine, theirs = (make_tools(each, "cpu")[2] for each in (bundle, again))
        if number == 0:
            assert torch.equal(mine, theirs)
        else:
            assert torch.equal(mine.networks, theirs.networks)
            assert mine.linear.encode() == theirs.linear.encode()


@pytest.mark.parametrize("kind", [{}, {"training": "one-round", "correct": 0}, {"label_map": "identity"}])
def test_what_a_word_adds_is_what_the_score_loses_without_it(kind: dict[str, object]) -> None:
    text = TextFeatures.hashing(50)
    bundle = make_bundle(BASE.replace(**kind), 5, d=50, text=text, beside="training" in kind)
    model, asked = Model(bundle), "the cat sat on the mat"
    (explained,) = model.explain([asked], 3)
    assert [
        {name: label[name] for name in ("key", "name", "score", "probability")} for label in explained
    ] == model.predict([asked], 3)[0]
    without = {word: " ".join(w for w in asked.split() if w != word) for word in set(asked.split())}
    for label in explained:
        assert {reason["word"] for reason in label["words"]} == set(without)
        sizes = [abs(reason["adds"]) for reason in label["words"]]
        assert sizes == sorted(sizes, reverse=True)
        for reason in label["words"]:
            (rest,) = model.predict([without[reason["word"]]], P)
            score = next(other["score"] for other in rest if other["key"] == label["key"])
            assert reason["adds"] == pytest.approx(label["score"] - score, abs=1e-5)


@pytest.mark.parametrize("kind", [{}, {"training": "one-round", "correct": 0}])
def test_reasons_take_some_points_at_a_time(kind: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores of a model with many buckets would fill the memory; the reasons are the same."""
    bundle = make_bundle(BASE.replace(**kind), 5, d=50, text=TextFeatures.hashing(50), beside="training" in kind)
    asked, sizes = [" ".join(f"word{n}" for n in range(20)), "", "cat"], []
    whole = list(Model(bundle).explain(asked, 3))
    for scorer in (NetworkScorer, LinearScorer):

        def score(self, features, score=scorer.score) -> np.ndarray:
            sizes.append(len(features[0]))
            return score(self, features)

        monkeypatch.setattr(scorer, "score", score)
    model = Model(bundle)
    most = 4 * sum(len(part.buckets) * part.num_buckets for part in model._parts)
    monkeypatch.setattr("fedmlh.serving.scores._SCORES_AT_ONCE", most)
    for mine, theirs in zip(model.explain(asked, 3), whole, strict=True):
        assert [label["key"] for label in mine] == [label["key"] for label in theirs]
        for one, other in zip(mine, theirs, strict=True):
            assert one["score"] == pytest.approx(other["score"], abs=1e-5)
            adds = {word["word"]: word["adds"] for word in one["words"]}
            assert adds == pytest.approx({word["word"]: word["adds"] for word in other["words"]}, abs=1e-5)
            for vote, same in zip(one["tables"], other["tables"], strict=True):
                assert vote == {**same, "score": pytest.approx(same["score"], abs=1e-5)}
    assert max(sizes) == 4


def test_tables_say_how_they_voted_and_which_labels_share_a_bucket() -> None:
    bundle = make_bundle(BASE, 4)
    model, X = Model(bundle), draw_points(4)
    buckets = bundle.task.label_map(bundle.seeds, bundle.labels.keys).buckets
    for explained in model.explain(X, 2):
        for label in explained:
            number = bundle.labels.keys.index(label["key"])
            assert label["score"] == pytest.approx(np.mean([vote["score"] for vote in label["tables"]]), abs=1e-6)
            for vote, table in zip(label["tables"], buckets, strict=True):
                assert vote["bucket"] == table[number]
                others = [bundle.labels.names[n] for n in np.flatnonzero(table == table[number]) if n != number]
                assert vote["shared_with"] == others[:5]
                assert vote["labels_in_bucket"] == len(others) + 1
                assert 1 <= vote["rank"] <= vote["buckets"] == BASE.num_buckets


def test_a_feature_that_is_left_out_takes_what_it_added() -> None:
    model, X = Model(make_bundle(BASE, 6)), draw_points(6)
    point = X[:1]
    ((best,),) = model.explain(point, 1)
    assert len(best["words"]) == point.nnz
    for reason in best["words"]:
        dense = point.toarray()
        dense[0, int(reason["word"])] = 0
        (rest,) = model.predict(dense, P)
        score = next(other["score"] for other in rest if other["key"] == best["key"])
        assert reason["adds"] == pytest.approx(best["score"] - score, abs=1e-5)


#: The command line where nothing is installed that trains.
WITHOUT_TRAINING = """
import sys
class Missing:
    def find_spec(self, name, *_):
        if name.split(".")[0] in ("torch", "scipy", "sklearn", "threadpoolctl", "numba", "matplotlib"):
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
sys.meta_path.insert(0, Missing())
from fedmlh.cli import main
sys.argv[0] = "fedmlh"
main()
"""


def call_without_training(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_TRAINING, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_predicting_needs_no_package_that_trains_and_training_says_what_is_missing(tmp_path: Path) -> None:
    bundle = make_bundle(
        BASE.replace(training="one-round", correct=0), 5, d=50, text=TextFeatures.hashing(50), beside=True
    )
    Model(bundle).save(tmp_path / "model")
    said = call_without_training("predict", tmp_path / "model", "--text", "two cats", "--why", "--top", 2)
    assert (said.returncode, said.stderr) == (0, "")
    assert [label["name"] in said.stdout for label in Model(bundle).predict(["two cats"], 2)[0]] == [True, True]
    assert "words: " in said.stdout
    (tmp_path / "a.csv").write_text("id,title\n1,two cats\n")
    asked = ("--input", tmp_path / "a.csv", "--column", "title", "--out", tmp_path / "out.csv", "--why")
    said = call_without_training("predict", tmp_path / "model", *asked)
    assert said.returncode == 0, said.stderr
    assert (tmp_path / "out.csv").read_text().startswith("id,title,labels,keys,scores,why\n1,two cats,name ")
    refused = call_without_training("run", "demo", "--out", tmp_path / "run")
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert "torch is not installed" in refused.stderr or "scipy is not installed" in refused.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "with networks"])
def test_a_text_without_known_words_has_no_label(beside: bool) -> None:
    hashed = Model(make_bundle(BASE, 5, d=50, text=TextFeatures.hashing(50)))
    assert hashed.predict(["", "a cat"], 2)[0] == []
    assert len(hashed.predict(["", "a cat"], 2)[1]) == 2
    linear = BASE.replace(training="one-round", correct=0)
    once = Model(make_bundle(linear, 5, d=50, text=TextFeatures.hashing(50), beside=beside))
    frequencies = once.bundle.terms.counts.frequencies
    words = [f"word{n}" for n in range(99)]
    rows = once.read(words)
    for word, column, labels in zip(words, rows.columns, once.predict(words, 2), strict=True):
        assert (labels == []) == (frequencies[column] == 0), word
    assert {label["probability"] for label in hashed.predict(["a cat"])[0]} == {None}


def test_labels_below_the_threshold_are_left_out_and_scores_without_a_curve_take_none() -> None:
    bundle, X = make_bundle(BASE.replace(decoding="logits"), 2), draw_points(2)
    with pytest.raises(UserError, match="no probabilities"):
        Model(bundle).predict(X, threshold=0.1)
    model = Model(calibrate(bundle))
    everything, some = model.predict(X, P), model.predict(X, P, threshold=0.5)
    assert some == [[label for label in labels if label["probability"] >= 0.5] for labels in everything]
    assert 0 < sum(map(len, some)) < sum(map(len, everything))
    explained = list(model.explain(X, 3, 0.5))
    assert [[label["key"] for label in labels] for labels in explained] == [
        [label["key"] for label in labels[:3]] for labels in some
    ]
