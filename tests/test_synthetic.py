"""The built-in data set is held against real extreme data, statistic by statistic."""

from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix, load_npz, triu
from sklearn.preprocessing import normalize

from fedmlh.data.dataset import Dataset
from fedmlh.data.synthetic import synthesize
from fedmlh.errors import UserError

REAL_DATA = Path(__file__).parents[2] / "shared" / "data"

#: The real sets and their training points, test points, features, labels: what a user would ask `synthesize` for.
SHAPES = {
    "EurLex-EuroVoc-titles-4K": (17_028, 4_257, 6_865, 4_072),
    "CiteULike-T-46K": (20_755, 5_189, 20_000, 46_227),
    "TIBKAT-GND-en-21K": (36_354, 5_851, 47_995, 21_264),
}

#: Facts: `measure` on the training part of each real set, in the order of SHAPES (test_real_statistics_hold computes
#: them again), then the factor within which a synthetic set of that shape has to come. The factors state
#: what the generator reaches, with a margin for the seed. They are wide where the real sets differ in what a shape does
#: not say: CiteULike has no stop words, EU titles are written by formula.
STATISTICS = {
    "top label": (0.0924, 0.0761, 0.0166, 2),
    "label at 1 %": (0.0246, 0.00328, 0.00154, 1.5),
    "label at 10 %": (0.00335, 0.000337, 0.000248, 1.75),
    "labels of 1 point": (0.198, 0.607, 0.494, 1.4),
    "labels of <= 5 points": (0.498, 0.876, 0.839, 1.2),
    "positives below 1 %": (0.56, 0.796, 0.979, 1.3),
    "positives below 0.1 %": (0.132, 0.448, 0.704, 1.4),
    "labels per point": (6.45, 11.2, 2.74, 1.05),
    "labels spread": (0.322, 1.05, 0.64, 2.2),
    "labels 90 %": (9, 22, 5, 1.4),
    "words per point": (26.1, 18.9, 87.5, 1.05),
    "words spread": (0.297, 0.563, 0.611, 2),
    "words 90 %": (36, 31, 151, 1.4),
    "top word": (1, 0.0846, 0.477, 5),
    "word at 1 %": (0.051, 0.0118, 0.033, 1.4),
    "word at 10 %": (0.0037, 0.00202, 0.00256, 2.5),
    "words of <= 5 points": (0.522, 0.519, 0.399, 1.25),
    "pairs seen again": (0.816, 0.399, 0.295, 1.5),
    "lift": (8.72, 6.91, 25.3, 2.5),
    "labels in common": (2.11, 2.55, 1.2, 1.4),
    "cosine": (0.0898, 0.00488, 0.0154, 5),
    "cosine, common label": (0.224, 0.0627, 0.12, 3.5),
    "cosine, rare label": (0.334, 0.118, 0.175, 4),
}


def measure(X: csr_matrix, Y: csr_matrix) -> dict[str, float]:
    """Return what makes data extreme, as numbers that can be compared between two sets of one shape."""
    n, d = X.shape
    Y = Y.astype(np.float32)
    points = np.sort(np.bincount(Y.indices, minlength=Y.shape[1]))[::-1]
    documents = np.sort(np.bincount(X.indices, minlength=d))[::-1]
    labels_of, words_of = np.diff(Y.indptr), np.diff(X.indptr)
    again, lift = measure_pairs(Y)
    rng = np.random.default_rng(0)
    friends = draw_friends(Y, 2, n, rng)
    return {
        # Labels: shares of points that have the label of a rank, and of positives that rarer labels carry.
        "top label": points[0] / n,
        "label at 1 %": points[len(points) // 100] / n,
        "label at 10 %": points[len(points) // 10] / n,
        "labels of 1 point": (points <= 1).mean(),
        "labels of <= 5 points": (points <= 5).mean(),
        "positives below 1 %": points[points < 0.01 * n].sum() / points.sum(),
        "positives below 0.1 %": points[points < 0.001 * n].sum() / points.sum(),
        # Lengths: mean, standard deviation over mean, 90 % quantile.
        "labels per point": labels_of.mean(),
        "labels spread": labels_of.std() / labels_of.mean(),
        "labels 90 %": np.quantile(labels_of, 0.9),
        "words per point": words_of.mean(),
        "words spread": words_of.std() / words_of.mean(),
        "words 90 %": np.quantile(words_of, 0.9),
        # Words: shares of points that have the word of a rank.
        "top word": documents[0] / n,
        "word at 1 %": documents[d // 100] / n,
        "word at 10 %": documents[d // 10] / n,
        "words of <= 5 points": (documents <= 5).mean(),
        # Labels go together: see measure_pairs; labels that two points with a common label have in common.
        "pairs seen again": again,
        "lift": lift,
        "labels in common": Y[friends[0]].multiply(Y[friends[1]]).sum() / len(friends[0]),
        # Words tell of labels: cosine of two points, any two or two with a common (rare) label.
        "cosine": mean_cosine(X, rng.integers(n, size=(2, 10_000))),
        "cosine, common label": mean_cosine(X, friends),
        "cosine, rare label": mean_cosine(X, draw_friends(Y, 2, 5, rng)),
    }


def measure_pairs(Y: csr_matrix) -> tuple[float, float]:
    """Return the share of a point's label pairs that another point has too, and the median lift of frequent labels."""
    together = triu(Y.T @ Y, k=1)
    points = np.bincount(Y.indices, minlength=Y.shape[1])
    first, second = points[together.row], points[together.col]
    # Lift: how many times more often than chance; among labels with >= 20 points, where chance can be told.
    frequent = np.minimum(first, second) >= 20
    lift = (together.data * Y.shape[0] / (first.astype(float) * second))[frequent]
    order = np.argsort(lift)
    mass = np.cumsum(together.data[frequent][order], dtype=float)
    median = lift[order][np.searchsorted(mass, mass[-1] / 2)]
    return together.data[together.data > 1].sum() / together.data.sum(), float(median)


def draw_friends(Y: csr_matrix, fewest: int, most: int, rng: np.random.Generator) -> np.ndarray:
    """Draw pairs of different points with a common label; labels are drawn by their points, within these bounds."""
    by_label = Y.tocsc()
    points = np.diff(by_label.indptr)
    weights = np.where((points >= fewest) & (points <= most), points, 0)
    label = rng.choice(len(points), size=10_000, p=weights / weights.sum())
    one = rng.integers(points[label])
    other = (one + rng.integers(1, points[label])) % points[label]
    return by_label.indices[by_label.indptr[label] + np.stack([one, other])]


def mean_cosine(X: csr_matrix, pairs: np.ndarray) -> float:
    unit = normalize(X)
    return float(unit[pairs[0]].multiply(unit[pairs[1]]).sum() / len(pairs[0]))


@pytest.fixture(scope="module")
def demo() -> Dataset:
    return synthesize()


def precision(scores: np.ndarray, Y: csr_matrix) -> float:
    """Return P@1 of scores [n, p]."""
    return float(Y[np.arange(Y.shape[0]), scores.argmax(axis=1)].mean())


@pytest.mark.parametrize("name", SHAPES)
def test_real_statistics_hold(name: str) -> None:
    if not (REAL_DATA / name).is_dir():
        pytest.skip(f"the real set is not at {REAL_DATA / name}")
    X, Y = (load_npz(REAL_DATA / name / f"{part}.trn.npz").tocsr() for part in "XY")
    assert (X.shape[0], *X.shape[1:], *Y.shape[1:]) == SHAPES[name][:1] + SHAPES[name][2:]
    column = list(SHAPES).index(name)
    stated = {statistic: row[column] for statistic, row in STATISTICS.items()}
    assert measure(X, Y) == pytest.approx(stated, rel=0.01)


@pytest.mark.parametrize("name", SHAPES)
def test_synthetic_set_of_a_real_shape_has_its_statistics(name: str) -> None:
    num_points, num_test, num_features, num_labels = SHAPES[name]
    column = list(SHAPES).index(name)
    data = synthesize(
        num_points=num_points,
        num_test=num_test,
        num_features=num_features,
        num_labels=num_labels,
        labels_per_point=STATISTICS["labels per point"][column],
        words_per_point=STATISTICS["words per point"][column],
    )
    found = measure(data.train.X, data.train.Y)
    assert found.keys() == STATISTICS.keys()
    too_far = {
        statistic: f"{found[statistic]:.3g}, real {row[column]:.3g}, factor {row[-1]} allowed"
        for statistic, row in STATISTICS.items()
        if not 1 / row[-1] <= found[statistic] / row[column] <= row[-1]
    }
    assert not too_far
    # As in each real set: points with a common label are alike, with a rare one even more.
    assert 3 * found["cosine"] < found["cosine, common label"] < found["cosine, rare label"]


def test_same_seed_same_bytes(demo: Dataset) -> None:
    again = synthesize()
    assert again.labels == demo.labels
    for one, other in ((demo.train, again.train), (demo.test, again.test)):
        for a, b in ((one.X, other.X), (one.Y, other.Y)):
            assert a.data.tobytes() == b.data.tobytes()
            assert a.indices.tobytes() == b.indices.tobytes()
            assert a.indptr.tobytes() == b.indptr.tobytes()


def test_seed_changes_the_data(demo: Dataset) -> None:
    other = synthesize(seed=1)
    assert other.labels.names != demo.labels.names
    assert (other.train.Y != demo.train.Y).nnz > demo.train.Y.nnz
    assert (other.train.X != demo.train.X).nnz > demo.train.X.nnz


@pytest.mark.parametrize(
    ("num_points", "num_test", "num_features", "num_labels", "labels_per_point", "words_per_point"),
    [
        (300, 70, 400, 250, 3, 8),
        (1000, 1, 50, 10, 1, 5),
        (40, 40, 1000, 80, 4, 200),
        (1, 1, 1, 1, 1, 1),
        (10, 10, 30, 10, 5, 20),
    ],
)
def test_sizes_are_exact_and_rows_sound(
    num_points: int, num_test: int, num_features: int, num_labels: int, labels_per_point: float, words_per_point: float
) -> None:
    data = synthesize(
        num_points=num_points,
        num_test=num_test,
        num_features=num_features,
        num_labels=num_labels,
        labels_per_point=labels_per_point,
        words_per_point=words_per_point,
        seed=3,
    )
    for split, count in ((data.train, num_points), (data.test, num_test)):
        assert split.X.shape == (count, num_features)
        assert split.Y.shape == (count, num_labels)
        for matrix in (split.X, split.Y):
            matrix.check_format(full_check=True)
            assert matrix.dtype == np.float32
            # A copy has no flags that somebody could have set wrongly.
            assert csr_matrix((matrix.data, matrix.indices, matrix.indptr)).has_canonical_format
            assert np.diff(matrix.indptr).min() >= 1
        np.testing.assert_allclose(split.X.multiply(split.X).sum(axis=1), 1, rtol=1e-5)
        assert (split.X.data > 0).all()
        assert (split.Y.data == 1).all()
    assert np.bincount(data.train.Y.indices, minlength=num_labels).min() >= 1


def test_names_tell_the_topic(demo: Dataset) -> None:
    assert len(set(demo.labels.keys)) == len(set(demo.labels.names)) == demo.num_labels
    topics = np.array([int(name.removeprefix("topic ").split(" / ")[0]) for name in demo.labels.names])
    assert demo.labels.names[345] == f"topic {topics[345]} / label 345"
    # Labels of a point share their topic far more often than chance would have it.
    by_topic = demo.train.Y @ csr_matrix((np.ones(len(topics)), (np.arange(len(topics)), topics)))
    points = np.diff(demo.train.Y.indptr)
    same = (by_topic.power(2).sum() - points.sum()) / (points.astype(float) ** 2 - points).sum()
    chance = (np.square(by_topic.sum(axis=0) / points.sum())).sum()
    assert same > 4 * chance


def test_words_tell_the_labels_but_not_all(demo: Dataset) -> None:
    X, Y = demo.train.X, demo.train.Y
    similar = (demo.test.X @ X.T).toarray()
    similar[similar < np.sort(similar, axis=1)[:, -10:-9]] = 0
    neighbours = precision(similar**2 @ Y, demo.test.Y)
    frequent = precision(np.tile(np.bincount(Y.indices), (len(demo.test), 1)), demo.test.Y)
    assert frequent < 0.2
    assert 4 * frequent < neighbours
    assert 0.5 < neighbours < 0.8


def test_words_tell_rare_labels_too(demo: Dataset) -> None:
    rare = np.flatnonzero(np.bincount(demo.train.Y.indices, minlength=demo.num_labels) <= 5)
    truth = demo.test.Y[:, rare]
    centroids = normalize(demo.train.Y[:, rare].T @ demo.train.X)
    shown = np.diff(truth.indptr) > 0
    scores = (demo.test.X @ centroids.T).toarray()[shown]
    found = np.argsort(-scores, axis=1)[:, :5]
    hits = np.take_along_axis(truth[shown].toarray(), found, axis=1).sum()
    recall, chance = hits / truth.sum(), 5 / len(rare)
    assert 10 * chance < recall < 0.6


@pytest.mark.parametrize(
    ("sizes", "problem"),
    [
        ({"num_test": 0}, "at least one"),
        ({"labels_per_point": 0.5}, "labels per point"),
        ({"labels_per_point": float("nan")}, "labels per point"),
        ({"num_features": 10}, "words per point"),
        ({"num_points": 100}, "more points or fewer labels"),
    ],
)
def test_impossible_sizes_are_refused(sizes: dict[str, float], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        synthesize(**sizes)  # type: ignore[arg-type]
