"""docs/model-format.md says all that a predictor in another language needs: one that knows nothing else agrees."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import HashingVectorizer

from drawn_models import FORMS, LABEL_MAPS, TEXTS, D, draw_points, make_bundle, make_config
from fedmlh.data.text import TextFeatures
from fedmlh.entropy.vectors import encode_sparse
from fedmlh.hashing.features import make_feature_map
from fedmlh.hashing.labels import make_label_map
from fedmlh.runs.model_folder import Bundle
from fedmlh.serving.predictor import Model
from plain_predictor import Predictor, decode_sparse, find_feature, find_words, map_labels, murmur3
from vectors.write import draw_curve

VECTORS = Path(__file__).parent / "vectors"


def read(name: str) -> Any:
    return json.loads((VECTORS / f"{name}.json").read_text("utf-8"))


def assert_same(model: Model, plain: Predictor, asked: Any, k: int) -> None:
    """Compare labels, scores and probabilities; labels whose scores are closer than 1e-5 may change places."""
    texts = isinstance(asked[0], str)
    points = asked if texts else [dict(zip(row.indices.tolist(), row.data.tolist(), strict=True)) for row in asked]
    numbers = {key: number for number, key in enumerate(plain.keys)}
    for labels, point in zip(model.predict(asked, k), points, strict=True):
        expected = plain.predict(point, len(numbers))
        by_label = {number: (score, chance) for number, score, chance in expected}
        assert len(labels) == min(k, len(expected))
        for label, (_, score, chance) in zip(labels, expected, strict=False):
            assert label["score"] == pytest.approx(score, rel=1e-5, abs=1e-5)
            own_score, own_chance = by_label[numbers[label["key"]]]
            assert label["score"] == pytest.approx(own_score, rel=1e-5, abs=1e-5)
            assert (chance is None) == (label["probability"] is None)
            assert chance is None or label["probability"] == pytest.approx(own_chance, abs=1e-5)


def make_all() -> dict[str, Bundle]:
    """Make models that together have everything the page speaks of, by name."""
    made: dict[str, Bundle] = {}
    for form, (place, label_map) in product(FORMS, enumerate(LABEL_MAPS)):
        text = FORMS[form]
        d = D if text is None else text.num_features
        kind = {
            "label_map": label_map,
            "label_key": ("id", "name")[place % 2],
            "decoding": ("logits", "log-probs", "probs")[place % 3],
            "loss": ("bce", "softmax", "balanced-bce", "balanced-softmax")[(place + len(form)) % 4],
            "feature_map": ("per-table", "shared", "none")[place % 3],
            "feature_signed": place % 2 == 0,
            "normalize": place % 3 > 0,
            "hidden_sizes": ((5,), (6, 4), ())[(place + len(form)) % 3],
        }
        networks = make_config(kind)
        made[f"networks, {form}, {label_map}"] = make_bundle(networks, place, d=d, text=text)
        linear = make_config(kind, training="one-round", correct=0)
        for beside in (False, make_config({**kind, "label_map": "murmur3"}, seed=9)):
            name = f"one round{', networks beside' if beside else ''}, {form}, {label_map}"
            more = {"beside": beside, "limit": (10, 0)[place % 2], "weigh": place % 3 > 0}
            made[name] = draw_curve(make_bundle(linear, place, d=d, text=text, **more), ("plain", "probs")[place % 2])
    return made


MODELS = make_all()


@pytest.mark.parametrize("name", MODELS)
def test_a_predictor_from_the_page_alone_agrees(tmp_path: Path, name: str) -> None:
    bundle = MODELS[name]
    Model(bundle).save(tmp_path / "model")
    asked = TEXTS if bundle.text is not None else draw_points(7)[:3]
    assert_same(Model.load(tmp_path / "model"), Predictor(tmp_path / "model"), asked, 9)


@settings(deadline=None)
@given(st.text(max_size=60))
def test_words_and_features_of_any_text(text: str) -> None:
    rows, dim = FORMS["hashing"].read([text]), FORMS["hashing"].num_features
    assert set(rows.columns.tolist()) == {find_feature(word, dim) for word in find_words(text)}


@settings(deadline=None)
@given(st.lists(st.sampled_from([0, 0, 0, 1, 2, 7, 40, 10**6]), max_size=300))
def test_vectors_are_decoded_as_the_page_says(values: list[int]) -> None:
    assert decode_sparse(encode_sparse(np.array(values, np.int64)), len(values)) == values


# The vectors.


def test_hashes_are_those_of_the_vectors() -> None:
    for case in read("hashing")["murmur3"]:
        assert murmur3(case["key"], case["seed"]) == case["hash"]
    for case in read("hashing")["label_maps"]:
        labels = case["labels"] if isinstance(case["labels"], int) else tuple(case["labels"])
        asked = range(labels) if isinstance(labels, int) else labels
        assert map_labels(case["family"], asked, case["seed"], case["buckets"]) == case["map"]
        assert (
            make_label_map(case["family"], labels, (case["seed"],), case["buckets"]).buckets[0].tolist() == case["map"]
        )


def test_feature_maps_are_those_of_the_vectors() -> None:
    for case in read("hashing")["feature_maps"]:
        columns, values = zip(*case["point"], strict=True)
        X = csr_matrix((np.array(values, np.float32), columns, [0, len(columns)]), shape=(1, case["features"]))
        about = {"signed": case["signed"], "normalize": case["normalize"]}
        (row,) = make_feature_map(case["features"], case["dim"], (case["seed"],), **about).apply(X)
        assert row.indices.tolist() == [column for column, _ in case["hashed"]]
        np.testing.assert_allclose(row.data, [value for _, value in case["hashed"]], rtol=1e-6)


def test_texts_become_the_features_of_the_vectors() -> None:
    for case in read("text"):
        assert find_words(case["text"]) == case["words"]
        for about in case["features"]:
            rows = TextFeatures.from_json(about["how"]).read([case["text"]])
            assert rows.columns.tolist() == [column for column, _ in about["row"]]
            np.testing.assert_allclose(rows.values, [value for _, value in about["row"]], rtol=1e-6)


@pytest.mark.parametrize("name", ["networks", "one-round"])
def test_models_of_the_vectors_say_what_they_said(name: str) -> None:
    folder = VECTORS / f"model-{name}"
    model, plain = Model.load(folder), Predictor(folder)
    cases = read(f"model-{name}")
    assert_same(model, plain, [case["text"] for case in cases], 5)
    for case in cases:
        (labels,) = model.predict([case["text"]], 5)
        assert [label["key"] for label in labels] == [label["key"] for label in case["labels"]]
        for label, expected in zip(labels, case["labels"], strict=True):
            assert label["score"] == pytest.approx(expected["score"], rel=1e-5, abs=1e-5)
            assert label["probability"] == pytest.approx(expected["probability"], abs=1e-5)


def test_scikit_learn_hashes_the_text_of_the_vectors_alike() -> None:
    """Among them is a word whose hash is -2^31, which has no absolute value in 32 bits."""
    cases = [(case, about) for case in read("text") for about in case["features"] if about["how"]["kind"] == "hashing"]
    assert any(murmur3(word, 0) == 2**31 for case, _ in cases for word in case["words"])
    for case, about in cases:
        vectorizer = HashingVectorizer(
            n_features=about["how"]["dim"], token_pattern=r"[^\W_]{2,}", ngram_range=(1, 2), alternate_sign=False
        )
        row = vectorizer.transform([case["text"]])
        row.sort_indices()
        assert row.indices.tolist() == [column for column, _ in about["row"]]
        np.testing.assert_allclose(row.data, [value for _, value in about["row"]], rtol=1e-6)
