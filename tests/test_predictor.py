"""A model is asked with numpy alone, and says what the model that was trained says."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from scipy.sparse import random as random_sparse
from sklearn.utils import murmurhash3_32

from drawn_models import BASE, D, P, calibrate, make_bundle
from fedmlh.config import Config
from fedmlh.data.text import TextFeatures
from fedmlh.errors import UserError
from fedmlh.hashing.murmur import hash_integers, hash_strings
from fedmlh.hashing.rows import Rows
from fedmlh.runs.model_folder import Bundle
from fedmlh.runs.model_tools import make_tools
from fedmlh.serving.predictor import Model

N = 12
TEXTS = [
    "The cat sat on the mat",
    "a dog chased the cat",
    "",
    "Tokyo 2020: 東京 games",
    "the THE mat!",
    "no such words qq",
]


def points(seed: int, d: int = D) -> csr_matrix:
    X = csr_matrix(random_sparse(N, d, 0.2, format="csr", random_state=seed), dtype=np.float32)
    X.data *= np.random.default_rng(seed).choice([-1, 1, 3], len(X.data)).astype(np.float32)
    return X


def by_torch(bundle: Bundle, X: csr_matrix, k: int) -> tuple[np.ndarray, np.ndarray]:
    features, ranker, model = make_tools(bundle, "cpu")
    ranked = list(ranker.rank(model, features.apply(X), k))
    return np.concatenate([labels for _, labels, _ in ranked]), np.concatenate([scores for *_, scores in ranked])


def assert_agree(bundle: Bundle, X: csr_matrix, asked: object, k: int) -> None:
    """Compare scores, and labels where scores are not closer than rounding."""
    labels, scores = by_torch(bundle, X, k)
    found = list(Model(bundle).rank(asked, k))
    assert len(found) == len(labels)
    for (mine, values), theirs, expected in zip(found, labels, scores, strict=True):
        np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-5)
        close = np.abs(np.diff(expected)) < 1e-5
        unsure = np.append(close, False) | np.insert(close, 0, False)
        unsure[-1] = True  # the next label may be as close
        assert (mine == theirs)[~unsure].all()


kinds = st.fixed_dictionaries(
    {
        "label_map": st.sampled_from(["murmur3", "universal", "balanced", "identity"]),
        "label_key": st.sampled_from(["id", "name"]),
        "decoding": st.sampled_from(["log-probs", "logits", "probs"]),
        "loss": st.sampled_from(["bce", "softmax", "balanced-bce", "balanced-softmax"]),
        "feature_map": st.sampled_from(["none", "shared", "per-table"]),
        "feature_signed": st.booleans(),
        "normalize": st.booleans(),
        "hidden_sizes": st.sampled_from([(), (5,), (6, 4)]),
    }
)


def make_config(kind: dict[str, object]) -> Config:
    if kind["label_map"] in ("balanced", "identity"):
        kind = {**kind, "label_key": "id"}
    return BASE.replace(**kind)


@settings(deadline=None, max_examples=60)
@given(kinds, st.integers(0, 2**31), st.integers(1, P + 3))
def test_networks_say_what_they_say_in_torch(kind: dict[str, object], seed: int, k: int) -> None:
    bundle, X = make_bundle(make_config(kind), seed), points(seed % 1000)
    assert_agree(bundle, X, X, min(k, P))


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from([{}, {"label_map": "identity"}, {"label_key": "name"}, {"label_map": "balanced"}]),
    st.booleans(),
    st.integers(0, 2**31),
    st.integers(1, P),
)
def test_a_model_of_one_round_says_what_it_says_in_torch(kind: dict[str, str], beside: bool, seed: int, k: int) -> None:
    bundle = make_bundle(BASE.replace(training="one-round", correct=0, **kind), seed, beside=beside)
    X = points(seed % 1000)
    assert_agree(bundle, X, X, k)


@pytest.mark.parametrize("training", ["rounds", "one-round"])
@pytest.mark.parametrize("features", [TextFeatures.hashing(50), TextFeatures.fit_tfidf(TEXTS)])
def test_texts_are_read_as_in_training(features: TextFeatures, training: str) -> None:
    more = {"correct": 0} if training == "one-round" else {}
    bundle = make_bundle(BASE.replace(training=training, **more), 5, d=features.num_features, text=features)
    assert_agree(bundle, features.transform(TEXTS), TEXTS, 4)


def test_dense_and_sparse_points_of_any_kind_are_one() -> None:
    model, X = Model(make_bundle(BASE, 3)), points(3)
    expected = model.predict(X)
    for other in (X.toarray(), X.tocoo(), X.tocsc(), X.astype(np.float64), X.toarray().astype(np.float64)):
        assert model.predict(other) == expected
    assert model.predict(X.toarray()[0]) == expected[:1]
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


def test_tables_say_how_they_voted_and_which_labels_share_a_bucket() -> None:
    bundle = make_bundle(BASE, 4)
    model, X = Model(bundle), points(4)
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
    model, X = Model(make_bundle(BASE, 6)), points(6)
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
    refused = call_without_training("run", "demo", "--out", tmp_path / "run")
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert "torch is not installed" in refused.stderr or "scipy is not installed" in refused.stderr
    assert not (tmp_path / "run").exists()


def test_a_text_without_known_words_has_no_label() -> None:
    hashed = Model(make_bundle(BASE, 5, d=50, text=TextFeatures.hashing(50)))
    assert hashed.predict(["", "a cat"], 2)[0] == []
    assert len(hashed.predict(["", "a cat"], 2)[1]) == 2
    once = Model(make_bundle(BASE.replace(training="one-round", correct=0), 5, d=50, text=TextFeatures.hashing(50)))
    frequencies = once.bundle.terms.counts.frequencies
    words = [f"word{n}" for n in range(99)]
    rows = once.read(words)
    for word, column, labels in zip(words, rows.columns, once.predict(words, 2), strict=True):
        assert (labels == []) == (frequencies[column] == 0), word
    assert {label["probability"] for label in hashed.predict(["a cat"])[0]} == {None}


def test_labels_below_the_threshold_are_left_out_and_scores_without_a_curve_take_none() -> None:
    bundle, X = make_bundle(BASE.replace(decoding="logits"), 2), points(2)
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
