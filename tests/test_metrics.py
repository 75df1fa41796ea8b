"""Metrics against plain Python over sets, against napkinXC, and against the properties they should have."""

import json
import math
from itertools import pairwise

import napkinxc.metrics as napkinxc
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from fedmlh.errors import UserError
from fedmlh.evaluation.metrics import (
    GROUPS,
    METRICS,
    Metrics,
    add_sums,
    frequent_labels,
    inverse_propensities,
    summarize_sums,
)

KS = (1, 3, 5)
# Sums are kept in units of 2^-40: half a unit a point, and as much for a weight, is all that can differ.
CLOSE = {"rel": 1e-11, "abs": 2e-12}


def make_labels(truth, p):
    indptr = np.cumsum([0, *(len(labels) for labels in truth)])
    indices = np.array([label for labels in truth for label in sorted(labels)], dtype=np.int32)
    return csr_matrix((np.ones(len(indices), dtype=np.float32), indices, indptr), shape=(len(truth), p))


def draw_case(seed, n=40, p=23, most=8, least=0):
    """Draw rankings (some short, padded with -1), true label sets of `least` to `most`, groups, weights."""
    rng = np.random.default_rng(seed)
    truth = [set(rng.choice(p, size=rng.integers(least, most + 1), replace=False).tolist()) for _ in range(n)]
    top = np.argsort(rng.random((n, p)), axis=1)[:, : max(KS) + 1]
    for row, labels in zip(top, truth, strict=True):  # Half of the points start with true labels.
        if rng.random() < 0.5:
            best = [*labels, *(label for label in row.tolist() if label not in labels)]
            row[:] = best[: len(row)]
    if p <= max(KS):
        top = np.pad(top, ((0, 0), (0, max(KS) + 1 - p)), constant_values=-1)
    lengths = rng.integers(0, top.shape[1] + 1, size=n)
    top[np.arange(top.shape[1]) >= np.where(rng.random(n) < 0.3, lengths, top.shape[1])[:, None]] = -1
    return top, truth, rng.random(p) < 0.4, 1 + 9 * rng.random(p)


def evaluate(top, truth, frequent, weights, ks=KS):
    metrics = Metrics(ks, frequent, weights)
    metrics.add(top, make_labels(truth, len(frequent)))
    return metrics.values()


def evaluate_plainly(top, truth, frequent, weights, ks=KS):
    """Return the metrics by their definitions, point by point, with sets."""
    values = {}
    for suffix, members in (
        ("", set(range(len(frequent)))),
        ("_frequent", set(np.flatnonzero(frequent).tolist())),
        ("_infrequent", set(np.flatnonzero(~frequent).tolist())),
    ):
        for k in ks:
            sums = dict.fromkeys(METRICS, 0.0)
            best = 0.0
            for row, y in zip(top.tolist(), truth, strict=True):
                best += sum(sorted((weights[label] for label in y), reverse=True)[:k])
                if not y:
                    continue
                hits = set(row[:k]) & y & members
                ideal = sum(1 / math.log2(i + 1) for i in range(1, min(k, len(y)) + 1))
                sums["precision"] += len(hits) / k
                sums["precision_paper"] += len(hits) / min(len(y), k)
                sums["recall"] += len(hits) / len(y)
                sums["ndcg"] += sum(1 / math.log2(row.index(label) + 2) for label in hits) / ideal
                sums["psp"] += sum(weights[label] for label in hits)
            for metric in METRICS:
                over = (best or 1.0) if metric == "psp" else len(truth)
                values.setdefault(metric + suffix, {})[str(k)] = sums[metric] / over
    return values


def assert_close(values, expected):
    assert values.keys() == expected.keys()
    for name in values:
        assert values[name] == pytest.approx(expected[name], **CLOSE), name


@pytest.mark.parametrize("p", [1, 4, 23])
@pytest.mark.parametrize("seed", range(20))
def test_metrics_are_what_their_definitions_say(seed, p):
    case = draw_case(seed, p=p, most=min(p, 8))
    assert_close(evaluate(*case), evaluate_plainly(*case))


@settings(max_examples=60, deadline=None)
@given(data=st.data(), p=st.integers(1, 7), n=st.integers(1, 6), ks=st.permutations([1, 2, 3, 4]))
def test_metrics_are_what_their_definitions_say_on_tiny_inputs(data, p, n, ks):
    truth = [data.draw(st.sets(st.integers(0, p - 1))) for _ in range(n)]
    top = np.full((n, 4), -1)
    for row in top:
        chosen = data.draw(st.permutations(range(p)))[: data.draw(st.integers(0, 4))]
        row[: len(chosen)] = chosen
    frequent = np.array(data.draw(st.lists(st.booleans(), min_size=p, max_size=p)))
    weights = np.array(data.draw(st.lists(st.sampled_from([1.0, 1.5, 7.25]), min_size=p, max_size=p)))
    assert_close(evaluate(top, truth, frequent, weights, ks), evaluate_plainly(top, truth, frequent, weights, ks))


@pytest.mark.parametrize("seed", range(10))
def test_frequent_and_infrequent_add_up(seed):
    values = evaluate(*draw_case(seed))
    assert set(values) == {*METRICS, *(f"{metric}_{group}" for metric in METRICS for group in GROUPS)}
    for metric in METRICS:
        for k in map(str, KS):
            parts = sum(values[f"{metric}_{group}"][k] for group in GROUPS)
            assert parts == pytest.approx(values[metric][k], rel=1e-15)


@pytest.mark.parametrize("seed", range(5))
def test_batches_and_sites_in_any_order_change_no_bit(seed):
    top, truth, frequent, weights = draw_case(seed, n=60)
    rng = np.random.default_rng(seed)
    once = Metrics(KS, frequent, weights)
    once.add(top, make_labels(truth, len(frequent)))

    order = rng.permutation(60)
    cuts = np.sort(rng.integers(0, 61, size=4))  # Some batches may be empty.
    sites = []
    for start, stop in pairwise([0, *cuts.tolist(), 60]):
        site = Metrics(KS, frequent, weights)
        rows = order[start:stop]
        for part in np.array_split(rows, 2):
            site.add(top[part], make_labels([truth[row] for row in part], len(frequent)))
        sites.append(site)

    merged = Metrics(KS, frequent, weights)
    for site in reversed(sites):
        merged.merge(site)
    assert merged.values() == once.values()

    total = sites[0].sums()
    for site in sites[1:]:
        total = add_sums(total, json.loads(json.dumps(site.sums())))
    assert total == once.sums()
    assert summarize_sums(total) == once.values()


@pytest.mark.parametrize("seed", range(5))
def test_label_ids_are_only_names(seed):
    top, truth, frequent, weights = draw_case(seed)
    renamed = np.random.default_rng(seed).permutation(len(frequent))  # [p] old id -> new id
    new_frequent, new_weights = np.empty_like(frequent), np.empty_like(weights)
    new_frequent[renamed], new_weights[renamed] = frequent, weights
    new_top = np.where(top < 0, -1, renamed[top])
    new_truth = [{int(renamed[label]) for label in labels} for labels in truth]
    assert evaluate(new_top, new_truth, new_frequent, new_weights) == evaluate(top, truth, frequent, weights)


def test_perfect_predictions_score_one():
    rng = np.random.default_rng(0)
    p, weights = 20, 1 + rng.random(20)
    truth = [set(rng.choice(p, size=rng.integers(1, 9), replace=False).tolist()) for _ in range(50)]
    top = np.full((50, 8), -1)
    for row, labels in zip(top, truth, strict=True):
        row[: len(labels)] = sorted(labels, key=lambda label: -weights[label])
    values = evaluate(top, truth, rng.random(p) < 0.5, weights, ks=(1, 3, 5, 8))
    for metric in ("precision_paper", "ndcg", "psp"):
        assert values[metric] == pytest.approx(dict.fromkeys(values[metric], 1.0), **CLOSE)
    assert values["recall"]["8"] == pytest.approx(1.0, **CLOSE)
    mean_size = sum(map(len, truth)) / 50
    assert values["precision"]["8"] == pytest.approx(mean_size / 8, **CLOSE)


def test_points_without_labels_count_as_zero():
    everyone = np.ones(4, dtype=bool)
    top = np.array([[0], [1]])
    values = evaluate(top, [{0}, set()], everyone, np.ones(4), ks=(1,))
    assert {metric: values[metric]["1"] for metric in METRICS} == {
        "precision": 0.5,
        "precision_paper": 0.5,
        "recall": 0.5,
        "ndcg": 0.5,
        "psp": 1.0,  # A ratio of sums, to which a point without labels adds 0 on both sides.
    }
    nothing = evaluate(top, [set(), set()], everyone, np.ones(4), ks=(1,))
    assert all(value == 0 for by_k in nothing.values() for value in by_k.values())


# napkinXC 0.7 treats points without labels as we do (value 0, counted in the mean), and its psp with
# normalize=True is a ratio of sums over the whole set, as ours is. It has no psp where no point has a label
# (0 / 0), reads stored zeros of a CSR matrix as labels, and has no min(|y|, k) precision: these are left to
# the reference above.
@pytest.mark.parametrize("least", [0, 1])
@pytest.mark.parametrize("seed", range(10))
def test_metrics_agree_with_napkinxc(seed, least):
    top, truth, frequent, weights = draw_case(seed, n=60, least=least)
    values = evaluate(top, truth, frequent, weights)
    Y, ranking = make_labels(truth, len(frequent)), top.tolist()
    for metric, theirs in {
        "precision": napkinxc.precision_at_k(Y, ranking, k=5),
        "recall": napkinxc.recall_at_k(Y, ranking, k=5),
        "ndcg": napkinxc.ndcg_at_k(Y, ranking, k=5),
        "psp": napkinxc.psprecision_at_k(Y, ranking, weights, k=5),
    }.items():
        assert values[metric] == pytest.approx({str(k): theirs[k - 1] for k in KS}, **CLOSE), metric


@pytest.mark.parametrize(("a", "b"), [(0.55, 1.5), (0.5, 0.4), (0.6, 2.6)])
@pytest.mark.parametrize("n", [3, 50, 700])
def test_inverse_propensities_agree_with_napkinxc(n, a, b):
    _, truth, _, _ = draw_case(n, n=n)
    Y = make_labels(truth, 30)  # The last labels occur in no point.
    counts = np.bincount(Y.indices, minlength=30)
    ours = inverse_propensities(counts, n, a, b)
    # float64: on float32 counts, as float32 matrices give, napkinXC computes in float32.
    np.testing.assert_allclose(ours, napkinxc.Jain_et_al_inverse_propensity(Y.astype(float), a, b), rtol=1e-13)
    assert np.all(np.diff(ours[np.argsort(counts, kind="stable")]) <= 0)


@pytest.mark.parametrize("n", [1, 2])
def test_inverse_propensities_of_a_tiny_set_are_not_below_one(n):
    assert np.all(inverse_propensities(np.array([0, 1]), n) == 1)


@pytest.mark.parametrize("function", [inverse_propensities, frequent_labels])
def test_counts_without_points_are_refused(function):
    with pytest.raises(UserError, match="there are none"):
        function(np.zeros(3), 0)


def test_a_label_on_exactly_the_threshold_is_frequent():
    for percent in range(1, 100):
        for n in (100, 700, 12_300):
            counts = np.array([percent * n // 100 - 1, percent * n // 100])
            assert frequent_labels(counts, n, percent / 100).tolist() == [False, True], (percent, n)
    assert frequent_labels(np.array([6, 7]), 700).tolist() == [False, True]  # One in a hundred, unless told.


def test_stored_zeros_duplicates_and_unsorted_rows_are_read_as_what_they_mean():
    tidy = make_labels([{1, 4}, {0}], 6)
    data, indices, indptr = np.array([1, 0, 1, 1, 1]), np.array([4, 2, 1, 4, 0]), np.array([0, 4, 5])
    untidy = csr_matrix((data, indices, indptr), shape=(2, 6))
    top = np.array([[4, 2, 1], [5, 0, 3]])
    results = []
    for Y in (tidy, untidy):
        metrics = Metrics((1, 3), np.arange(6) < 3, np.arange(1.0, 7.0))
        metrics.add(top, Y)
        results.append(metrics.values())
    assert results[0] == results[1]
    assert untidy.nnz == 5  # The caller's matrix is left alone.


def test_sums_given_out_are_a_copy():
    metrics = Metrics((1,), np.ones(3, dtype=bool), np.ones(3))
    metrics.sums()["k"][0] = metrics.sums()["points"][0] = 7
    assert (metrics.sums()["k"], metrics.sums()["points"]) == ([1], [0])


def test_sums_beyond_64_bits_stay_exact():
    heavy = np.full(3, 100_000.0)
    metrics, n = Metrics((1,), np.ones(3, dtype=bool), heavy), 2_000
    for _ in range(3):
        metrics.add(np.zeros((n, 1), dtype=int), make_labels([{0}] * n, 3))
    assert metrics.sums()["psp_best"] == [3 * n * 100_000 * 2**40]
    assert metrics.values()["psp"] == {"1": 1.0}


@pytest.mark.parametrize(
    ("top", "said"),
    [
        (np.array([[0, 1]]), "3 or more"),
        (np.array([[0.0, 1.0, 2.0]]), "float64"),
        (np.array([[0, 1, 2], [0, 1, 2]]), "each of 1 points"),
        (np.array([[0, 1, 9]]), "4 labels"),
        (np.array([[0, 1, -2]]), "4 labels"),
        (np.array([[2, 1, 2]]), "twice"),
    ],
)
def test_predictions_that_cannot_be_are_refused(top, said):
    metrics = Metrics((1, 3), np.ones(4, dtype=bool), np.ones(4))
    with pytest.raises(ValueError, match=said):
        metrics.add(top, make_labels([{0}], 4))
    assert metrics.sums()["points"] == [0]


def test_metrics_for_other_labels_are_refused():
    metrics = Metrics((1,), np.ones(4, dtype=bool), np.ones(4))
    with pytest.raises(ValueError, match="5 columns"):
        metrics.add(np.array([[0]]), make_labels([{0}], 5))
    with pytest.raises(ValueError, match="differ in frequent"):
        metrics.merge(Metrics((1,), np.zeros(4, dtype=bool), np.ones(4)))


@pytest.mark.parametrize("ks", [(), (0,), (1, 1)])
def test_bad_ks_are_refused(ks):
    with pytest.raises(UserError, match="at least 1"):
        Metrics(ks, np.ones(4, dtype=bool), np.ones(4))


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf, 1e7])
def test_bad_propensities_are_refused(weight):
    with pytest.raises(ValueError, match="finite"):
        Metrics((1,), np.ones(4, dtype=bool), np.array([1, 1, 1, weight]))


def test_foreign_sums_that_do_not_fit_are_refused():
    mine = Metrics((1, 3), np.ones(4, dtype=bool), np.ones(4)).sums()
    for change, said in (
        ({"k": [1, 5]}, "k = "),
        ({"recall_frequent": [0]}, "each k"),
        ({"recall_frequent": [0, 0.5]}, "not an integer"),
        ({"recall_frequent": [0, -1]}, "not an integer"),
        ({"recal": [0, 0]}, "recal"),
    ):
        with pytest.raises(UserError, match=said):
            add_sums(mine, mine | change)
    with pytest.raises(UserError, match="no points"):
        summarize_sums(mine)
