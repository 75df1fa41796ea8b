"""Scores become probabilities by one rising curve, which is as right as the held-out points can tell."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from sklearn.isotonic import IsotonicRegression

from fedmlh.data.source import open_dataset
from fedmlh.engines.run import run
from fedmlh.errors import UserError
from fedmlh.evaluation.calibration import BEST, NUM_BINS, Curve, Scale, calibrate, find_error
from fedmlh.runs.model_folder import load_bundle
from fedmlh.serving.predictor import Model
from tiny import TINY

P = 40


def draw(seed: int, n: int, form: str = "plain") -> tuple[np.ndarray, np.ndarray, csr_matrix]:
    """Ranked labels of points, scores, and labels that are true with a probability that the score alone decides."""
    rng = np.random.default_rng(seed)
    scores = -np.sort(-rng.normal(0, 2, (n, P)), axis=1)
    labels = np.argsort(rng.random((n, P)), axis=1)
    true = rng.random((n, P)) < 1 / (1 + np.exp(-(1.5 * scores - 2)))
    rows, places = np.nonzero(true)
    Y = csr_matrix((np.ones(len(rows), np.float32), (rows, labels[rows, places])), shape=(n, P))
    chances = 1 / (1 + np.exp(-scores))
    return labels, {"plain": scores, "probs": chances, "log-probs": np.log(chances)}[form], Y


@pytest.mark.parametrize("form", ["plain", "probs", "log-probs"])
def test_probabilities_are_those_that_made_the_labels(form: str) -> None:
    labels, scores, Y = draw(0, 4000, form)
    curve, figures = calibrate(form, labels, scores, Y, {"all": np.ones(P, bool), "none": np.zeros(P, bool)})
    assert curve is not None
    plain = draw(1, 500)[1]
    asked = draw(1, 500, form)[1]
    truth = 1 / (1 + np.exp(-(1.5 * plain - 2)))
    assert np.abs(curve.apply(asked) - truth).max() < 0.12
    assert np.abs(curve.apply(asked) - truth).mean() < 0.01
    assert figures["calibration"]["points"] == 2000
    assert figures["calibration"]["error"] < 0.03
    assert figures["calibration"]["error_by_count"].keys() == {"all"}
    assert figures["calibration"]["error_by_count"]["all"] == figures["calibration"]["error"]


counted = st.lists(
    st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda pair: (max(pair), min(pair))),
    min_size=NUM_BINS,
    max_size=NUM_BINS,
)


@settings(deadline=None)
@given(counted, st.floats(-20, 20), st.floats(0.01, 20))
def test_a_higher_score_has_a_higher_probability_above_0_and_at_most_1(
    numbers: list[tuple[int, int]], low: float, width: float
) -> None:
    counts, hits = zip(*numbers, strict=True)
    edges = tuple((low + width * np.arange(NUM_BINS + 1) / NUM_BINS).tolist())
    curve = Curve(Scale("plain", edges), 9, counts, hits)
    chances = curve.apply(np.linspace(low, low + width, 100))
    assert (np.diff(chances) > 0).all()
    assert 0 < chances.min() <= chances.max() <= 1
    outside = curve.apply(np.array([-1e30, low - 1, low + width + 1, 1e30]))
    assert (np.diff(outside) >= 0).all()
    assert 0 < outside.min() <= outside.max() <= 1
    assert Curve.from_json(json.loads(json.dumps(curve.to_json()))) == curve
    full = np.flatnonzero(counts)
    if len(full) > 1:
        shares = (np.array(hits)[full] + 0.5) / (np.array(counts)[full] + 1)
        expected = IsotonicRegression().fit_transform(full, shares, sample_weight=np.array(counts)[full] + 1)
        middles = low + width * (full + 0.5) / NUM_BINS
        np.testing.assert_allclose(curve.apply(middles), expected, atol=2e-3)


def test_counts_of_sites_add_up_to_those_of_all_points() -> None:
    labels, scores, Y = draw(3, 300)
    scale = Scale.fit("plain", scores)
    parts = [Curve.count(scale, labels[some], scores[some], Y[some]) for some in (slice(0, 100), slice(100, 300))]
    whole = Curve.count(scale, labels, scores, Y)
    assert parts[0] + parts[1] == whole
    assert sum(whole.counts) == 300 * P
    assert sum(whole.hits) == Y.nnz


def test_the_error_is_the_mean_gap_between_probability_and_share() -> None:
    chances = np.repeat([0.2, 0.8], 150)
    hits = np.concatenate([np.arange(150) % 5 == 0, np.arange(150) % 2 == 0])  # 20 % and 50 %
    assert find_error(chances, hits) == pytest.approx(0.15, abs=0.01)
    assert find_error(chances, np.concatenate([np.arange(150) % 5 == 0, np.arange(150) % 5 > 0])) < 0.01


@settings(deadline=None)
@given(st.sampled_from([0.0, 1.0, -3.5]), st.integers(1, 5))
def test_scores_that_are_all_alike_have_bins_too(score: float, columns: int) -> None:
    scale = Scale.fit("plain", np.full((10, columns), score))
    assert len(scale.edges) == NUM_BINS + 1
    assert (np.diff(scale.edges) > 0).all()


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([-1e12, -3.0, 0.0, 0.1, 0.25, 0.5, 1.0, 7.5, 1e12]), min_size=1, max_size=6),
    st.integers(1, 8),
)
def test_bins_are_as_many_and_rise_whatever_scores_are_equal(few: list[float], columns: int) -> None:
    scores = -np.sort(-np.resize(np.array(few), (4, columns)), axis=1)
    edges = np.array(Scale.fit("plain", scores).edges)
    assert len(edges) == NUM_BINS + 1
    assert (np.diff(edges) > 0).all()


def test_points_with_few_labels_left_have_bins_of_the_scores_that_they_have() -> None:
    labels, scores, Y = draw(5, 60)
    short = np.where(np.arange(P) < 20, scores, -np.inf), np.where(np.arange(P) < 20, labels, -1)
    curve, _ = calibrate("plain", short[1], short[0], Y, {})
    assert curve is not None
    assert Curve.from_json(json.loads(json.dumps(curve.to_json()))) == curve
    assert sum(curve.counts) == 60 * 20


def test_of_few_points_all_are_fitted_on_and_none_judges() -> None:
    assert calibrate("plain", *draw(0, 0), {}) == (None, {})
    for count, fitted in ((1, 1), (99, 99), (100, 50)):
        curve, figures = calibrate("plain", *draw(0, count), {})
        assert curve is not None
        assert curve.points == fitted
        assert bool(figures) == (fitted != count)


@pytest.mark.parametrize("training", ["rounds", "one-round"])
def test_a_run_seals_its_curve_in_the_model_folder_which_changes_neither_order_nor_scores(
    tmp_path: Path, training: str
) -> None:
    config = TINY.replace(rounds=2, validation_fraction=0.5)
    if training == "one-round":
        config = config.replace(training="one-round", correct=0)
    data = open_dataset(config)
    ended = run(config, data, tmp_path / "run", progress=False)
    curve = load_bundle(ended.folder / "model").curve
    assert curve is not None
    assert sum(curve.counts) == curve.points * min(BEST, data.num_labels)
    assert 0 <= ended.summary["calibration"]["error"] <= 1
    proposals = Model.load(ended.folder).examine(data).proposals
    assert ended.summary["proposals"] == proposals.summarize()
    assert "probability" in proposals.summarize()["rule"]
    with_curve = Model.load(ended.folder).predict(data.test.X[:20], 6)
    without = Model(replace(load_bundle(ended.folder / "model"), curve=None)).predict(data.test.X[:20], 6)
    assert [[{**label, "probability": None} for label in point] for point in with_curve] == without
    for predicted in with_curve:
        chances = [label["probability"] for label in predicted]
        assert all(0 < chance <= 1 for chance in chances)
        assert chances == sorted(chances, reverse=True)
        assert np.allclose(chances, curve.apply(np.array([label["score"] for label in predicted])))


def test_without_held_out_points_scores_have_no_probability(tmp_path: Path) -> None:
    config = TINY.replace(rounds=1, selection="paper")
    data = open_dataset(config)
    ended = run(config, data, tmp_path / "run", progress=False)
    assert "calibration" not in ended.summary
    assert {label["probability"] for label in Model.load(ended.folder).predict(data.test.X[:1])[0]} == {None}


def test_a_curve_that_no_model_has_is_refused() -> None:
    edges = tuple(map(float, range(NUM_BINS + 1)))
    good = Curve(Scale("plain", edges), 9, (2,) * NUM_BINS, (1,) * NUM_BINS).to_json()
    for wrong in (
        {"form": "other"},
        {"edges": edges[:-1]},
        {"edges": [*edges[:-1], float("nan")]},
        {"edges": edges[::-1]},
        {"counts": [0] * NUM_BINS},
        {"counts": [2] * 3},
        {"hits": [-1] * NUM_BINS},
        {"hits": [0.5] * NUM_BINS},
        {"points": "9"},
    ):
        with pytest.raises(ValueError, match=r"curve that no model has|more true labels"):
            Curve.from_json(good | wrong)
    with pytest.raises((KeyError, UserError)):
        Curve.from_json({})
