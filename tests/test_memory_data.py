"""Data from memory: every usual form gives the same data set, and every mistake has a sentence of its own."""

import numpy as np
import pytest
from scipy import sparse

from fedmlh import Dataset, UserError
from fedmlh.data.readers.formats import load
from fedmlh.data.text import TextFeatures

RNG = np.random.default_rng(0)
DENSE = (RNG.random((40, 7)) * (RNG.random((40, 7)) < 0.5)).astype(np.float32)
MATRIX = (RNG.random((40, 5)) < 0.4).astype(np.int64)
MATRIX[0] = 1  # every label has a point
LISTS = [np.flatnonzero(row).tolist() for row in MATRIX]


class Frame:
    """What a data frame shows of itself."""

    def __init__(self, values, columns):
        self.values, self.columns = values, columns

    def to_numpy(self):
        return self.values


FEATURES = {
    "float32": DENSE,
    "float64": DENSE.astype(np.float64),
    "rows": DENSE.tolist(),
    "csr_matrix": sparse.csr_matrix(DENSE),
    "csr_array": sparse.csr_array(DENSE.astype(np.float64)),
    "coo, columns out of order": sparse.coo_matrix(sparse.csc_matrix(DENSE)),
    "frame": Frame(DENSE, [f"f{n}" for n in range(7)]),
}
LABELS = {
    "matrix": MATRIX,
    "bool": MATRIX.astype(bool),
    "sparse": sparse.csr_array(MATRIX),
    "lists": LISTS,
    "sets": [set(own) for own in LISTS],
    "arrays": [np.array(own, np.int64) for own in LISTS],
    "array of lists": np.array([*map(tuple, LISTS), None], object)[:-1],
}


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("labels", LABELS)
def test_all_forms_give_one_data_set(features, labels):
    expected = Dataset.from_arrays(DENSE, MATRIX)
    assert Dataset.from_arrays(FEATURES[features], LABELS[labels]).fingerprint == expected.fingerprint


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nothing_of_the_caller_is_changed(dtype):
    """Neither values nor the order of columns, which the data set sorts for itself."""
    X = sparse.csr_matrix((np.array([1, 2, 3, 0], dtype), [2, 1, 1, 0], [0, 3, 4]), shape=(2, 3))
    Y = sparse.csr_matrix((np.ones(3, dtype), [1, 0, 1], [0, 2, 3]), shape=(2, 2))
    before = [part.copy() for part in (X, Y)]
    data = Dataset.from_arrays(X, Y, test=0.5)
    assert sorted(data.train.X.sum(axis=1).A1.tolist() + data.test.X.sum(axis=1).A1.tolist()) == [0, 6]
    for part, same in zip((X, Y), before, strict=True):
        for name in ("data", "indices", "indptr"):
            np.testing.assert_array_equal(getattr(part, name), getattr(same, name))


def test_points_and_labels_stay_together():
    data = Dataset.from_arrays(DENSE, MATRIX, test=0.25)
    assert (len(data.train), len(data.test)) == (30, 10)
    seen = np.vstack([part.X.toarray() for part in (data.train, data.test)])
    labels = np.vstack([part.Y.toarray() for part in (data.train, data.test)])
    order = [int(np.flatnonzero((row == DENSE).all(axis=1))[0]) for row in seen]
    assert sorted(order) == list(range(40))
    np.testing.assert_array_equal(labels, MATRIX[order])


def test_texts_become_what_files_of_them_become(tmp_path):
    texts, labels = (
        ["olive oil prices", "fish quotas", "olive trees", "fish oil"],
        [["oil"], ["fish"], ["tree"], ["oil"]],
    )
    for name, rows in (("train", slice(0, 3)), ("test", slice(3, 4))):
        lines = [f'{{"text": "{t}", "labels": ["{own[0]}"]}}' for t, own in zip(texts[rows], labels[rows], strict=True)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    made = Dataset.from_texts(texts[:3], labels[:3], test=(texts[3:], labels[3:]))
    assert made.fingerprint == load(tmp_path).fingerprint


def test_tfidf_is_fitted_on_the_training_texts_alone():
    texts = [f"shared word{n} word{n}" for n in range(20)]
    data = Dataset.from_texts(texts, [n % 2 for n in range(20)], text_features="tfidf")
    assert data.text is not None
    train = data.text.transform(texts).toarray()
    assert set(data.text.vocabulary) == {"shared"}
    assert data.text == TextFeatures.fit_tfidf(texts[:16])  # all share one word
    assert train.shape == (20, 1)


def test_sites_own_their_points():
    owners = ["north" if n % 3 else "south" for n in range(40)]
    data = Dataset.from_arrays(DENSE, MATRIX, sites=owners)
    assert data.site_names == ("north", "south")
    for part in (data.train, data.test):
        for row, site in zip(part.X.toarray(), part.sites, strict=True):
            at = int(np.flatnonzero((row == DENSE).all(axis=1))[0])
            assert data.site_names[site] == owners[at]


def test_labels_of_a_given_test_part_keep_their_columns():
    data = Dataset.from_arrays(DENSE, [["b"], ["a"]] * 20, test=(DENSE[:2], [["a", "never seen"], []]))
    assert data.labels.names == ("a", "b")
    np.testing.assert_array_equal(data.test.Y.toarray(), [[1, 0], [0, 0]])


def test_a_frame_of_labels_names_them():
    assert Dataset.from_arrays(DENSE, Frame(MATRIX, list("vwxyz"))).labels.names == tuple("vwxyz")


BAD = DENSE.astype(np.float64)


def spoil(value):
    spoiled = BAD.copy()
    spoiled[3, 2] = value
    return spoiled


@pytest.mark.parametrize(
    ("X", "Y", "more", "sentence"),
    [
        (spoil(np.nan), MATRIX, {}, "NaN in row 3, column 2"),
        (spoil(1e39), MATRIX, {}, "cannot hold in row 3, column 2"),
        (DENSE[0], MATRIX, {}, r"shape \(7,\)"),
        (DENSE[:, None], MATRIX, {}, r"shape \(40, 1, 7\)"),
        ([[1, 2], [1]], [0, 1], {}, "rows of different lengths"),
        (DENSE.astype(complex), MATRIX, {}, "complex"),
        (np.array([["a"], ["b"]]), [0, 1], {}, "from_texts"),
        (["a", "b"], [0, 1], {}, r"shape \(2,\).*from_texts"),
        (np.empty((3, 0)), [0, 1, 1], {}, "0 features"),
        (DENSE, MATRIX[:5], {}, "40 points but labels for 5"),
        (DENSE, MATRIX * 2, {}, "has 2 in row 0"),
        (DENSE, MATRIX.astype(str), {}, "must hold 0 and 1"),
        (DENSE, [[]] * 40, {}, "no point has a label"),
        (DENSE, [["a"], "b", *[["a"]] * 38], {}, "entry 1 is 'b'"),
        (DENSE, [["a", 1]] * 40, {}, "texts and others numbers"),
        (DENSE, [[None]] * 40, {}, "must be a text or a number"),
        (DENSE, [[np.nan]] * 40, {}, "NaN"),
        (DENSE, [[1, "1"]] * 40, {}, "texts and others numbers"),
        (DENSE, MATRIX, {"test": 0}, "share between 0 and 1"),
        (DENSE, MATRIX, {"test": 0.999}, "nothing to train on"),
        (DENSE, MATRIX, {"test": (DENSE,)}, "points, labels"),
        (DENSE, MATRIX, {"test": (DENSE[:, :3], MATRIX)}, "7 features, X of test 3"),
        (DENSE, MATRIX, {"test": (DENSE, MATRIX[:, :3])}, "3 columns, that of training 5"),
        (DENSE, MATRIX, {"sites": ["a"]}, "has 1 entry for 40 points"),
    ],
)
def test_each_mistake_has_its_own_sentence(X, Y, more, sentence):
    with pytest.raises(UserError, match=sentence):
        Dataset.from_arrays(X, Y, **more)


@pytest.mark.parametrize(
    ("texts", "sentence"), [("one text", "put it in a list"), (["a", None], "entry 1 is None"), ([b"a"], "not a text")]
)
def test_each_mistake_in_texts_has_its_own_sentence(texts, sentence):
    with pytest.raises(UserError, match=sentence):
        Dataset.from_texts(texts, [0, 1])


def test_what_python_shows_of_data_is_one_line():
    data = Dataset.from_texts(["some words"] * 20, [[f"label {n}"] for n in range(20)], sites=[0, 1] * 10)
    assert repr(data) == ("<Dataset 'memory': 16 training and 4 test points, 262,144 features, 20 labels, 2 sites>")
    for part in (data.train, data.labels, data.text):
        assert "\n" not in repr(part)
        assert len(repr(part)) < 120
