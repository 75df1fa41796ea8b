"""Text features: the same text gives the same row, before and after a model is saved."""

import json
from typing import Any

import numpy as np
import pytest

from fedmlh.data.text import TextFeatures
from fedmlh.errors import UserError

TEXTS = ["The quick brown fox", "the QUICK brown dog, x", "a_b fox fox fox", "", "Größe 42 größe", "\ud800 quick"]


def assert_same(a: Any, b: Any) -> None:
    assert a.shape == b.shape
    for field in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(a, field), getattr(b, field))


def assert_canonical(X: Any) -> None:
    assert X.dtype == np.float32
    assert X.has_canonical_format
    assert (X.data != 0).all()


@pytest.mark.parametrize("features", [TextFeatures.hashing(64), TextFeatures.fit_tfidf(TEXTS)])
def test_rows_are_canonical_normed_and_independent_of_company(features: TextFeatures) -> None:
    X = features.transform(TEXTS)
    assert X.shape == (len(TEXTS), features.num_features)
    assert_canonical(X)
    norms = np.sqrt(X.multiply(X).sum(axis=1)).A1
    np.testing.assert_allclose(norms[norms > 0], 1, rtol=1e-6)
    assert norms[3] == 0
    for row, text in enumerate(TEXTS):
        assert_same(features.transform([text]), X[row])
    assert features.transform([]).shape == (0, features.num_features)


@pytest.mark.parametrize("features", [TextFeatures.hashing(1000), TextFeatures.fit_tfidf(TEXTS)])
def test_round_trip_through_json(features: TextFeatures) -> None:
    again = TextFeatures.from_json(json.loads(json.dumps(features.to_json())))
    assert again == features
    assert_same(again.transform(TEXTS), features.transform(TEXTS))


def test_words_have_two_letters_or_digits_and_pairs_count() -> None:
    features = TextFeatures.hashing(2**20)
    assert features.transform(["ab cd"]).nnz == 3
    assert features.transform(["a b c _ -"]).nnz == 0
    assert_same(features.transform(["AB, cd!"]), features.transform(["ab cd"]))
    assert features.transform(["ab_cd"]).nnz == 3


def test_tfidf_is_what_scikit_learn_fits() -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer

    features = TextFeatures.fit_tfidf(TEXTS)
    assert set(features.vocabulary) == {"the", "quick", "brown", "fox", "the quick", "quick brown"}
    reference = TfidfVectorizer(token_pattern=r"[^\W_]{2,}", ngram_range=(1, 2), min_df=2, dtype=np.float32)
    expected = reference.fit_transform(TEXTS)
    expected.sort_indices()
    assert_same(features.transform(TEXTS), expected)


def test_tfidf_needs_a_word_that_two_texts_share() -> None:
    for texts in (["one two", "three four"], ["", ""], []):
        with pytest.raises(UserError, match="use text_features 'hashing'"):
            TextFeatures.fit_tfidf(texts)


@pytest.mark.parametrize(
    "content",
    [
        None,
        [],
        {},
        {"kind": "bert"},
        {"kind": ["hashing"]},
        {"kind": "hashing"},
        {"kind": "hashing", "dim": 0},
        {"kind": "hashing", "dim": True},
        {"kind": "hashing", "dim": 2**31},
        {"kind": "hashing", "dim": 1.5},
        {"kind": "hashing", "dim": 8, "more": 1},
        {"kind": "tfidf", "vocabulary": ["a"], "idf": []},
        {"kind": "tfidf", "vocabulary": [], "idf": []},
        {"kind": "tfidf", "vocabulary": ["a", "a"], "idf": [1.0, 1.0]},
        {"kind": "tfidf", "vocabulary": ["a", 3], "idf": [1.0, 1.0]},
        {"kind": "tfidf", "vocabulary": ["a"], "idf": [float("nan")]},
        {"kind": "tfidf", "vocabulary": ["a"], "idf": [-1.0]},
        {"kind": "tfidf", "vocabulary": "a", "idf": [1.0]},
    ],
)
def test_a_foreign_description_is_refused(content: object) -> None:
    with pytest.raises(UserError, match=r"text (features|dimension)"):
        TextFeatures.from_json(content)
