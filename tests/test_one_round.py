"""One round: points as whole numbers, sums that do not depend on who held which point, and the linear model of them."""

import dataclasses
import hashlib
import json
import math
import shutil
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix, triu, vstack
from sklearn.linear_model import Ridge

from command_line import call
from fedmlh import Config, Model, run, tensors
from fedmlh.data.division import divide
from fedmlh.data.readers.formats import load
from fedmlh.data.source import open_dataset
from fedmlh.engines.local import live_in_process
from fedmlh.engines.replay import read_log, replay
from fedmlh.errors import UserError
from fedmlh.federated.messages import Rejected
from fedmlh.federated.task import Seeds, Task
from fedmlh.hashing.families import murmur3
from fedmlh.hashing.features import SIGN_SEED
from fedmlh.model.ranking import Decoder
from fedmlh.oneround import budget, choose, solve
from fedmlh.oneround.budget import agree_on_terms, choose_slots
from fedmlh.oneround.choose import POWERS, RIDGES, Choice, Chooser, Problem
from fedmlh.oneround.exchange import Respondent, spread
from fedmlh.oneround.linear import Linear, compress
from fedmlh.oneround.points import NOWHERE, Slots, add_one, most_square, round_points
from fedmlh.oneround.solve import RESIDUAL, NotPositive, Solver, System
from fedmlh.oneround.sums import Adder, Sums, check_room
from fedmlh.oneround.terms import Counts, Terms
from fedmlh.oneround.wire import decode_sums, encode_sums
from fedmlh.runs.folder import RunFolder
from fedmlh.runs.journal import Journal

CPU = torch.device("cpu")
#: What draws the slots of shared features.
SEEDS = Seeds(1, (), (7,))


def draw_points(seed, num_points, num_features):
    """Draw points as texts have them: few frequent features, many rare ones."""
    rng = np.random.default_rng(seed)
    often = np.minimum(0.8, 4 / np.arange(1, num_features + 1))
    X = (rng.random((num_points, num_features)) < often) * rng.exponential(1, (num_points, num_features))
    return csr_matrix(X.astype(np.float32))


def draw_labels(seed, num_points, num_labels, most=1):
    rng = np.random.default_rng(seed)
    often = np.minimum(0.5, 2 / np.arange(1, num_labels + 1))
    return csr_matrix((rng.random((num_points, num_labels)) < often) * rng.integers(1, most + 1, num_labels))


def draw_sums(seed=0, num_points=80, num_features=60, num_labels=25, bits=5, limit=0, most=1):
    X = draw_points(seed, num_points, num_features)
    slots = Slots.fit(Counts.of(X).frequencies, num_points, limit, 7, weigh=False)
    return Sums.of(round_points(slots.apply(X), bits), draw_labels(seed + 1, num_points, num_labels, most))


def same(one, two):
    """Say whether two matrices are the same arrays, not only the same numbers."""
    parts = [(getattr(one, name), getattr(two, name)) for name in ("indptr", "indices", "data")]
    return one.shape == two.shape and all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in parts)


def same_sums(one, two):
    return one.points == two.points and same(one.gram, two.gram) and same(one.cross, two.cross)


# Points.


def plain_slots(frequencies, num_points, limit, seed, weigh):
    """Return place, sign and weight of each feature that occurs, in plain Python."""
    falling = sorted((-count, feature) for feature, count in enumerate(frequencies) if count)
    count = len(falling) if limit == 0 else min(limit, len(falling))
    own = count if count == len(falling) else count * 3 // 4
    found = {}
    for rank, (negative, feature) in enumerate(falling):
        place, sign = rank, 1
        if rank >= own:
            key = np.array([feature])
            place = own + int(murmur3(key, seed, count - own)[0])
            sign = -1 if murmur3(key, seed ^ SIGN_SEED, 2)[0] else 1
        weight = round((1 + math.log((1 + num_points) / (1 - negative))) * 1024) / 1024 if weigh else 1
        found[feature] = place, sign, weight
    return found, count


def plain_point(row, slots):
    """Return a point of length 1 in slots, from a list of feature and value."""
    summed = {}
    for feature, value in row:
        if feature in slots:
            place, sign, weight = slots[feature]
            summed[place] = summed.get(place, 0.0) + value * sign * weight
    squares = 0.0
    for place in sorted(summed):
        squares += summed[place] * summed[place]
    return {place: value / math.sqrt(squares) for place, value in summed.items() if value}


@pytest.mark.parametrize("weigh", [False, True])
@pytest.mark.parametrize("limit", [0, 1, 2, 16, 39, 1000])
def test_slots_are_what_twenty_plain_lines_say(limit, weigh):
    X = draw_points(3, 50, 60)
    frequencies = Counts.of(X[:30]).frequencies  # so that some features never occurred
    assert np.count_nonzero(frequencies[Counts.of(X).frequencies > 0] == 0) > 0
    expected, count = plain_slots(frequencies.tolist(), 30, limit, 7, weigh)
    slots = Slots.fit(frequencies, 30, limit, 7, weigh=weigh)
    assert slots.count == count
    for feature in range(60):
        place, sign, weight = expected.get(feature, (NOWHERE, 1, slots.weights[feature]))
        assert (slots.places[feature], slots.signs[feature], slots.weights[feature]) == (place, sign, weight)
    points = slots.apply(X)
    for row in range(50):
        point = plain_point(zip(X[row].indices.tolist(), X[row].data.tolist(), strict=True), expected)
        assert dict(zip(points[row].indices.tolist(), points[row].data.tolist(), strict=True)) == point
        for bits in (4, 12):
            rounded = {place + 1: round(value * 2**bits) for place, value in point.items()}
            found = round_points(points[row], bits)
            assert dict(zip(found.indices.tolist(), found.data.tolist(), strict=True)) == {0: 2**bits} | {
                place: level for place, level in rounded.items() if level
            }


def test_frequent_features_own_a_slot_and_the_others_share_with_signs():
    frequencies = np.array([5, 0, 9, 1, 1, 1, 1, 1, 1, 2, 1, 1])
    slots = Slots.fit(frequencies, 10, 8, 3, weigh=False)
    assert slots.places[[2, 0, 9]].tolist() == [0, 1, 2]
    assert slots.places[1] == NOWHERE
    owners = [feature for feature in range(12) if 0 <= slots.places[feature] < 6]
    shared = [feature for feature in range(12) if slots.places[feature] >= 6]
    assert len(set(slots.places[owners])) == len(owners) == 6
    assert (slots.signs[owners] == 1).all()
    assert set(slots.places[shared]) == {6, 7}
    assert len(shared) == 5
    many = Slots.fit(np.ones(400, np.int64), 10, 100, 3, weigh=False)
    assert {-1, 1} == set(many.signs[many.places >= 75].tolist())


def test_the_rarer_a_word_the_more_it_counts():
    slots = Slots.fit(np.array([1, 10, 1000]), 1000, 0, 1, weigh=True)
    assert slots.weights.tolist() == [
        round((1 + math.log(1001 / (1 + count))) * 1024) / 1024 for count in (1, 10, 1000)
    ]
    assert slots.weights[0] > slots.weights[1] > slots.weights[2] == 1


@settings(max_examples=40, deadline=None)
@given(st.permutations(range(40)), st.integers(0, 40), st.sampled_from([0, 10, 25]))
def test_a_point_is_the_same_numbers_in_any_batch(order, cut, limit):
    X = draw_points(5, 40, 60)
    slots = Slots.fit(Counts.of(X).frequencies, 40, limit, 7, weigh=True)
    whole = slots.apply(X)
    lengths = np.sqrt(np.asarray(whole.multiply(whole).sum(axis=1)).ravel())
    assert np.allclose(lengths[np.diff(whole.indptr) > 0], 1, rtol=1e-14)
    parts = vstack([slots.apply(X[order[:cut]]), slots.apply(X[order[cut:]])], "csr")
    assert np.array_equal(parts.toarray(), whole[order].toarray())


@pytest.mark.parametrize("bits", range(4, 13))
def test_the_squares_of_a_point_have_a_bound_that_is_nearly_reached(bits):
    most = 4 ** (bits + 1)
    assert most_square(bits) == most
    # As many equal features as possible, each a little more than half a step: all are rounded up.
    one = csr_matrix(np.full((1, min(most, 2**20) - 1), 1.0))
    many = Slots.fit(np.ones(one.shape[1], np.int64), 1, 0, 1, weigh=False).apply(one)
    for points in (many, Slots.fit(np.ones(60, np.int64), 1, 0, 1, weigh=False).apply(draw_points(bits, 200, 60))):
        rounded = round_points(points, bits)[:, 1:]
        squares = np.asarray(rounded.multiply(rounded).sum(axis=1)).ravel()
        assert squares.max() <= most
        assert np.diff(rounded.indptr).max() <= most
    if most <= 2**20:
        assert round_points(many, bits)[:, 1:].sum() == most - 1


def test_a_point_without_a_known_feature_is_the_one_in_front():
    slots = Slots.fit(np.array([0, 3]), 3, 0, 1, weigh=True)
    X = csr_matrix(np.array([[5.0, 0], [0, 0], [1, 2]], np.float32))
    assert round_points(slots.apply(X), 5).toarray().tolist() == [[32, 0], [32, 0], [32, 32]]
    nowhere = Slots.fit(np.zeros(2, np.int64), 3, 0, 1, weigh=True)
    assert nowhere.count == 0
    assert round_points(nowhere.apply(X), 5).toarray().tolist() == [[32]] * 3


def test_the_number_of_slots_is_none_where_all_features_have_room():
    assert choose_slots(np.array([3, 0, 1]), 3, 10) == 0
    assert choose_slots(np.zeros(5, np.int64), 3, 10) == 0
    # 4,000 features in every point: 8 million pairs have room; 16,000 would be 128 million.
    assert choose_slots(np.full(4_000, 100), 100, 10) == 0
    slots = choose_slots(np.full(16_000, 100), 100, 10)
    assert 7_400 < slots < 7_500
    assert choose_slots(np.ones(16_000, np.int64), 10**6, 2**16) <= 2**28 // 2**16


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(0, 31), st.booleans())
def test_words_of_a_single_point_have_no_slot_where_words_outnumber_the_slots(frequencies, most, raw):
    counts = Counts(9, np.array(frequencies))
    terms = agree_on_terms(counts, 10, most, weigh=raw)
    slots = terms.slots(SEEDS)
    occurring, repeated = (sum(often >= least for often in frequencies) for least in (1, 2))
    crowded = 0 < most < occurring
    places = {number: place for number, place in enumerate(slots.places.tolist()) if place != NOWHERE}
    single = {number for number, often in enumerate(frequencies) if often == 1}
    assert single.isdisjoint(places) if crowded and raw else single <= set(places)
    assert set(places) | single >= {number for number, often in enumerate(frequencies) if often}
    assert slots.count == min(most or occurring, repeated if crowded and raw else occurring)


def test_slots_are_chosen_again_once_single_words_are_gone(monkeypatch):
    monkeypatch.setattr(budget, "MOST_PAIRS", 3000)
    counts = Counts(1000, np.append(np.full(60, 200), np.ones(3000, np.int64)))
    few, many = (agree_on_terms(counts, 10, 0, weigh=raw).slots(SEEDS).count for raw in (False, True))
    assert few < 1000
    assert many == 60


def test_no_run_takes_more_slots_than_it_can_solve_for_in_minutes(monkeypatch):
    monkeypatch.setattr(budget, "MOST_SLOTS", 40)
    # With the words of single points there is room for few slots; without them, for all 60 of the others.
    monkeypatch.setattr(budget, "MOST_PAIRS", 3000)
    counts = Counts(1000, np.append(np.full(60, 200), np.ones(3000, np.int64)))
    for raw in (False, True):
        assert agree_on_terms(counts, 10, 0, weigh=raw).slots(SEEDS).count <= 40
        assert agree_on_terms(counts, 10, 50, weigh=raw).slots(SEEDS).count == 50


# Sums.


def test_sums_are_the_products_of_whole_numbers():
    X = round_points(Slots.fit(np.ones(30, np.int64), 1, 0, 1, weigh=False).apply(draw_points(1, 50, 30)), 6)
    Y = draw_labels(2, 50, 12, most=3)
    sums, dense = Sums.of(X, Y), X.toarray().astype(object)
    assert np.array_equal(sums.gram.toarray(), np.triu((dense.T @ dense).astype(np.int64)))
    assert np.array_equal(sums.cross.toarray(), dense.T @ Y.toarray().astype(object))
    assert np.array_equal(sums.counts(6), Y.toarray().sum(axis=0))
    assert np.array_equal(sums.diagonal, (dense**2).sum(axis=0)[1:])
    assert np.array_equal(sums.totals, 64 * dense.sum(axis=0)[1:])


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=40, max_size=40), st.permutations(range(7)), st.data())
def test_sums_are_the_same_bits_however_points_are_divided(owners, order, data):
    X, Y = draw_points(8, 40, 30), draw_labels(9, 40, 12)
    rounded = round_points(Slots.fit(Counts.of(X).frequencies, 40, 20, 7, weigh=False).apply(X), 5)
    whole, owners = Sums.of(rounded, Y), np.array(owners)
    parts = [Sums.of(rounded[owners == owner], Y[owners == owner]) for owner in order]
    adder, plain = Adder(whole.num_slots, 12), Sums.empty(whole.num_slots, 12)
    elsewhere = [Adder(whole.num_slots, 12) for _ in range(2)]
    for place, part in enumerate(parts):
        adder.add(part)
        elsewhere[place % 3 % 2].add(part)
        plain = part + plain
    assert same_sums(adder.result(), whole)
    assert same_sums(plain, whole)
    elsewhere[0].merge(elsewhere[1])
    assert same_sums(elsewhere[0].result(), whole)
    gone = data.draw(st.integers(0, 6))
    left = owners != order[gone]
    assert same_sums(whole - parts[gone], Sums.of(rounded[left], Y[left]))
    assert same_sums(whole - parts[gone] + parts[gone], whole)


def test_products_that_cancel_out_leave_no_trace():
    X, Y = csr_matrix(np.array([[16, 1, 1], [16, 1, -1], [16, -2, 0]])), csr_matrix(np.array([[1], [1], [1]]))
    whole = Sums.of(X, Y)
    assert whole.gram.toarray().tolist() == [[768, 0, 0], [0, 6, 0], [0, 0, 2]]
    assert (whole.gram.nnz, whole.cross.nnz) == (3, 1)
    parts = [Sums.of(X[[row]], Y[[row]]) for row in range(3)]
    assert same_sums(parts[0] + parts[1] + parts[2], whole)


def test_nothing_added_is_the_sums_of_no_points():
    assert same_sums(Adder(4, 3).result(), Sums.of(csr_matrix((0, 5), dtype=np.int64), csr_matrix((0, 3))))


def test_so_many_points_that_a_sum_could_overflow_are_refused():
    check_room(2**62 // most_square(12) - 1, 12)
    with pytest.raises(UserError, match="use fewer bits"):
        check_room(2**62 // most_square(12), 12)


# Bytes.


def decoded(payload, sums, bits, most=1):
    return decode_sums(memoryview(payload), sums.points, sums.num_slots, sums.cross.shape[1], bits, most)


def assert_returns(sums, bits, most=1):
    payload = encode_sums(sums, bits)
    assert same_sums(decoded(payload, sums, bits, most), sums)
    assert encode_sums(sums, bits) == payload
    return payload


@pytest.mark.parametrize("bits", range(4, 13))
@pytest.mark.parametrize("limit", [0, 12])  # shared slots have both signs
def test_sums_come_back_exactly(bits, limit):
    sums = draw_sums(bits, bits=bits, limit=limit)
    assert (sums.gram.data < 0).any() == bool(limit)
    assert_returns(sums, bits)


def test_sums_of_dense_and_signed_points_come_back_exactly():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 20))
    points = csr_matrix(X / np.linalg.norm(X, axis=1, keepdims=True))
    assert_returns(Sums.of(round_points(points, 9), csr_matrix(np.ones((30, 7), np.int64))), 9)
    assert_returns(Sums.of(round_points(points, 4), draw_labels(1, 30, 7, most=5)), 4, most=5)


def test_sums_of_few_points_come_back_exactly():
    for num_points in (1, 2):
        assert_returns(draw_sums(4, num_points), 5)
    X, Y = draw_points(4, 1, 60), draw_labels(5, 1, 9)
    slots = Slots.fit(Counts.of(X).frequencies, 1, 0, 7, weigh=False)
    alike = Sums.of(round_points(slots.apply(X[[0] * 50]), 5), Y[[0] * 50])
    assert_returns(alike, 5)
    assert_returns(Sums.empty(60, 25), 5)
    assert_returns(Sums.empty(0, 1), 5)
    featureless = csr_matrix(np.full((3, 1), 32))
    assert_returns(Sums.of(featureless, draw_labels(1, 3, 9)), 5)
    assert_returns(Sums.of(round_points(slots.apply(X), 5), csr_matrix((1, 9), dtype=np.int64)), 5)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(-3, 3), min_size=5, max_size=5), max_size=6),
    st.lists(st.lists(st.integers(0, 2), min_size=4, max_size=4), min_size=6, max_size=6),
)
def test_any_small_sums_come_back_exactly(points, labels):
    X = add_one(csr_matrix(np.array(points, np.int64).reshape(-1, 5)), 16)
    assert_returns(
        Sums.of(csr_matrix(X, dtype=np.int64), csr_matrix(np.array(labels[: len(points)]).reshape(-1, 4))), 4, 2
    )


def test_the_bytes_of_sums_never_change():
    """Made without any rounding or drawing, so that they are the same on every machine."""
    row, column = np.arange(200)[:, None], np.arange(50)[None, :]
    levels = np.where((row * row + 7 * column * row + column) % (3 + column) == 0, (row + column) % 9 - 3, 0)
    labels = np.where((row * 5 + column[:, :20] ** 2) % (2 + column[:, :20]) == 0, 1, 0)
    X = csr_matrix(add_one(csr_matrix(levels), 32), dtype=np.int64)
    payload = assert_returns(Sums.of(X, csr_matrix(labels)), 5)
    assert hashlib.sha256(payload).hexdigest() == "3dca40c6b0f0412dde09708069e68ae2a6978a4559d6e19e2c3cc21a42c50666"


def test_sums_are_far_smaller_than_their_arrays_compressed():
    sums = draw_sums(2, 500, 300, 100)
    raw = b"".join(
        array.tobytes()
        for matrix in (sums.gram, sums.cross)
        for array in (matrix.data, matrix.indices.astype(np.int32), matrix.indptr.astype(np.int32))
    )
    assert len(encode_sums(sums, 5)) < 0.6 * len(zlib.compress(raw, 9))


def test_counts_and_terms_come_back():
    X = draw_points(2, 30, 60)
    counts = Counts.of(X)
    assert counts.frequencies.tolist() == (X.toarray() != 0).sum(axis=0).tolist()
    again = Counts.decode(memoryview(counts.encode()), 60)
    assert again.points == 30
    assert np.array_equal(again.frequencies, counts.frequencies)
    halves = Counts.of(X[:11]) + Counts.of(X[11:])
    assert halves.points == 30
    assert np.array_equal(halves.frequencies, counts.frequencies)
    for terms in (Terms(counts, 0, weigh=True), Terms(counts, 2**17, weigh=False)):
        found = Terms.decode(memoryview(terms.encode()), 60)
        assert (found.limit, found.weigh, found.counts.points) == (terms.limit, terms.weigh, 30)
        assert np.array_equal(found.counts.frequencies, counts.frequencies)


# The linear solution.

#: Names of the ways, and whether they factorise, in double precision.
WAYS = {"double": (True, True), "single": (True, False), "conjugate": (False, False)}


@pytest.fixture
def take(monkeypatch):
    """Have solvers take a way, which the choice by size would not take for sums so small."""

    def take(way):
        direct, double = WAYS[way]
        monkeypatch.setattr(solve, "_MOST_DOUBLE", 10**9 if double else 0)
        monkeypatch.setattr(solve, "is_direct", lambda *_: direct)
        monkeypatch.setattr(solve, "_HEAD", 15)  # so that conjugate gradients have something left to do

    return take


def times(sums, copies):
    """Return the sums of many copies of the points."""
    return Sums(copies * sums.points, sums.gram * copies, sums.cross * copies)


@pytest.mark.parametrize("ridge", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("way", WAYS)
def test_scores_are_those_of_ridge_regression_on_the_pooled_points(take, way, ridge):
    take(way)
    X, Y, bits = draw_points(1, 150, 120), draw_labels(2, 150, 20), 5
    slots = Slots.fit(Counts.of(X).frequencies, 150, 90, 7, weigh=True)
    rounded = round_points(slots.apply(X), bits)
    adder = Adder(slots.count, 20)
    for owner in range(7):
        adder.add(Sums.of(rounded[owner::7], Y[owner::7]))
    problem = Problem.of(adder.result(), bits, None)
    solver = Solver(problem.system(ridge), 20, CPU)
    assert (solver.direct, solver.double) == WAYS[way]
    right = torch.from_numpy(problem.cross.toarray())
    solution = solver(right)
    points = rounded.toarray() / 2**bits
    central = Ridge(alpha=ridge, fit_intercept=False, solver="cholesky").fit(points, Y.toarray().astype(np.float64))
    assert np.abs(points @ solution.numpy() - central.predict(points)).max() < 1e-4
    assert np.abs(central.predict(points)).max() > 0.3
    left = problem.system(ridge).matrix @ solution.numpy() - right.numpy()
    assert (np.linalg.norm(left, axis=0) <= RESIDUAL * np.linalg.norm(right.numpy(), axis=0)).all()


@pytest.mark.parametrize("way", ["single", "conjugate"])
def test_corrections_make_the_residual_as_small_as_promised(take, monkeypatch, way):
    take(way)
    promised = 1e-9  # far beyond what single precision has
    monkeypatch.setattr(solve, "RESIDUAL", promised)
    sums = draw_sums(1, 60, 120)
    system, right = System.of(sums, 5, 1.0), torch.from_numpy(Problem.of(sums, 5, None).cross.toarray())
    bound = promised * right.norm(dim=0)
    rough, exact = (Solver(system, 25, CPU, exact=exact)(right) for exact in (False, True))
    assert (system.residual(right, rough).norm(dim=0) > bound).all()
    assert (system.residual(right, exact).norm(dim=0) <= bound).all()


def test_where_single_precision_is_too_coarse_double_precision_decides(take):
    take("single")
    sums = times(draw_sums(1, 60, 120), 10**8)
    system = System.of(sums, 5, 0.01)
    with pytest.raises(NotPositive):
        solve._factor(system.dense(torch.float32, CPU))
    right = torch.from_numpy(Problem.of(sums, 5, None).cross.toarray())
    for exact in (False, True):
        left = system.residual(right, Solver(system, 25, CPU, exact=exact)(right))
        assert (left.norm(dim=0) <= RESIDUAL * right.norm(dim=0)).all()


def make_indefinite(sums, bits):
    """Turn three rare slots into ones that agree in pairs and cannot all agree: each pair alone is possible."""
    gram = (sums.gram + triu(sums.gram, 1).T).tolil()
    for slot in (-1, -2, -3):
        gram[slot, 1:] = gram[1:, slot] = 0
    square = 40 * 4**bits
    for one, two in ((-1, -2), (-2, -3), (-1, -3)):
        gram[one, one] = gram[two, two] = square
        gram[one, two] = gram[two, one] = square * (-1 if (one, two) == (-1, -3) else 1)
    return Sums(sums.points, csr_matrix(triu(gram, format="csr"), dtype=np.int64), sums.cross)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_sums_that_no_points_have_are_found_by_each_way(take, way, exact):
    take(way)
    honest = draw_sums(1, 150, 60)
    sums = make_indefinite(honest, 5)
    right = torch.from_numpy(Problem.of(honest, 5, None).cross.toarray())
    right[-3:] += 1
    Solver(System.of(honest, 5, 1.0), 25, CPU, exact=exact)(right)
    with pytest.raises(NotPositive):
        Solver(System.of(sums, 5, 1.0), 25, CPU, exact=exact)(right)


def test_a_system_is_corrected_for_the_columns_that_need_it(take, monkeypatch):
    take("single")
    monkeypatch.setattr(solve, "RESIDUAL", 1e-9)
    sums = draw_sums(1, 60, 120)
    system, right = System.of(sums, 5, 1.0), torch.from_numpy(Problem.of(sums, 5, None).cross.toarray())
    corrected, solver = [], Solver(system, 25, CPU)
    first = solver._inner

    def inner(columns):
        corrected.append(columns.shape[1])
        # The first ten columns come with an error that one correction does not remove.
        return first(columns) * torch.where(torch.arange(columns.shape[1]) < 10, 1.01, 1.0).double()

    solver._inner = inner
    assert (system.residual(right, solver(right)).norm(dim=0) <= 1e-9 * right.norm(dim=0)).all()
    assert corrected[:2] == [25, 25]  # single precision is too coarse for all
    assert set(corrected[2:]) == {10}


def test_buckets_hold_the_sum_of_their_labels():
    sums = draw_sums(1)
    task = Task(ONCE.replace(**HASHED), 60, 25)
    label_map = task.label_map(task.draw_seeds(), [str(label) for label in range(25)])
    found = Problem.of(sums, 5, spread(label_map)).cross.toarray()
    expected = np.zeros((sums.num_slots + 1, 3 * 11))
    for table in range(3):
        for label in range(25):
            expected[:, 11 * table + label_map.buckets[table, label]] += sums.cross.toarray()[:, label] / 32
    assert np.array_equal(found, expected)


# λ, the power of counts, and the weights that are kept.


def test_points_are_scored_from_the_left_as_from_the_right():
    X, Y = draw_points(1, 100, 60), draw_labels(2, 100, 20)
    slots = Slots.fit(Counts.of(X).frequencies, 100, 0, 7, weigh=False)
    problem = Problem.of(Sums.of(round_points(slots.apply(X[:80]), 8), Y[:80]), 8, None)
    held_out = add_one(slots.apply(X[80:]), 1.0)
    decoder = Decoder(torch.arange(20)[None], 20)
    chooser = Chooser(problem, held_out, None, decoder, 3, lambda labels: 0.0, CPU)
    solution = np.linalg.solve(problem.system(1.0).matrix.toarray(), problem.cross.toarray())
    scores = held_out @ solution
    solver = Solver(problem.system(1.0), 20, CPU, exact=False)
    assert np.abs(np.concatenate([part.numpy() for _, part in chooser.score(solver)]) - scores).max() < 1e-5
    counts = np.maximum(Y[:80].toarray().sum(axis=0), 1)
    for power in (0.0, 0.5):
        best = np.argsort(-scores / counts**power, axis=1, kind="stable")[:, :3]
        assert np.array_equal(chooser.try_ridge(1.0, (power,)).labels, best)
    # What the judge likes best is chosen, among all powers.
    seen = {power: chooser.try_ridge(1.0, (power,)).labels for power in (0.0, 0.5)}
    for liked in seen:
        judged = Chooser(
            problem, held_out, None, decoder, 3, lambda labels, want=seen[liked]: float((labels == want).mean()), CPU
        )
        assert judged.try_ridge(1.0, (0.0, 0.5)).power == liked


@pytest.mark.parametrize("peak", range(len(RIDGES)))
def test_the_climb_finds_the_top_of_any_hill(monkeypatch, peak):
    tried = []

    def try_ridge(self, ridge, powers):
        tried.append(ridge)
        return Choice(ridge, 0.0, -abs(math.log(ridge / RIDGES[peak])), np.zeros((1, 1)), torch.zeros(0))

    monkeypatch.setattr(Chooser, "try_ridge", try_ridge)
    problem = Problem(Sums.empty(3, 2), 5, csr_matrix((4, 2)), np.ones(2))
    chooser = Chooser(problem, None, None, None, 1, None, CPU)
    assert chooser.choose().ridge == RIDGES[peak]
    assert len(tried) == len(set(tried))
    assert chooser.choose((7.0,), (0.0,)).ridge == 7.0


def test_of_many_slots_the_most_frequent_choose_the_ridge(monkeypatch):
    X, Y = draw_points(1, 140, 60), draw_labels(2, 140, 20)
    slots = Slots.fit(Counts.of(X).frequencies, 140, 0, 7, weigh=False)
    points, held_out = round_points(slots.apply(X[:100]), 8), add_one(slots.apply(X[100:]), 1.0)
    tried = []

    def judge(labels):
        hits = float(np.take_along_axis(Y[100:].toarray(), labels, axis=1).mean())
        tried.append(hits)
        return hits

    def make(kept):
        problem = Problem.of(Sums.of(csr_matrix(points[:, : kept + 1]), Y[:100]), 8, None)
        X = csr_matrix(held_out[:, : kept + 1])
        return Chooser(problem, X, None, Decoder(torch.arange(20)[None], 20), 3, judge, CPU)

    few = make(20).choose()
    steps = len(tried)
    monkeypatch.setattr(choose, "MOST_CLIMBED", 20)
    found = make(slots.count).choose()
    assert found.ridge == few.ridge
    assert len(tried) == 2 * steps + len(POWERS)  # with all slots, the powers are tried for this λ alone
    expected = make(slots.count).try_ridge(few.ridge, POWERS)
    assert (found.power, found.score) == (expected.power, expected.score)
    assert torch.equal(found.scores, expected.scores)
    assert torch.equal(make(slots.count).choose((few.ridge,)).scores, expected.scores)


@pytest.mark.parametrize("most", [10**6, 700, 1])
def test_the_weights_that_matter_most_are_kept_in_eight_bits(most):
    rng = np.random.default_rng(3)
    weights = rng.normal(size=(31, 70)).astype(np.float32) * rng.exponential(1, (31, 1)).astype(np.float32)
    usage = rng.exponential(1, 31)
    blocks = iter(np.array_split(np.arange(70), 4))
    model = compress(lambda block: weights[:, block], blocks, usage, (70, most))
    assert model.sound
    assert len(model) == min(most, 31 * 70)
    dense, matters = model.weights.toarray(), np.abs(weights) * np.sqrt(usage)[:, None]
    kept = np.zeros((31, 70), bool)
    kept[np.repeat(np.arange(31), np.diff(model.starts)), model.columns] = True
    assert matters[kept].min() >= matters[~kept].max(initial=0) * (1 - 1e-6)
    assert (np.abs(dense - weights)[kept] <= (0.5001 * model.scales[:, None] * np.ones(70))[kept]).all()
    X = csr_matrix(rng.normal(size=(5, 31)).astype(np.float32))
    assert np.allclose(model.score(X).numpy(), X @ dense, atol=1e-5)


@pytest.mark.parametrize("cells", [1, 2, 5, 1 << 20])
def test_arrays_that_do_not_fit_each_other_are_no_model(cells, monkeypatch):
    monkeypatch.setattr(tensors, "_PART", 2 * cells)
    model = compress(lambda block: np.ones((3, len(block)), np.float32), iter([np.arange(4)]), np.ones(3), (4, 100))
    assert model.sound
    arrays = {name: getattr(model, name) for name in ("starts", "columns", "levels", "scales")}
    wrong = [
        {"starts": np.array([0, 4, 8], np.int64)},
        {"starts": np.array([0, 4, 8, 13], np.int64)},
        {"starts": np.array([0, 9, 8, 12], np.int64)},
        {"starts": np.array([0, 2**40, -(2**40), 12], np.int64)},
        {"starts": np.array(0, np.int64)},
        {"starts": arrays["starts"].astype(np.float64)},
        {"columns": arrays["columns"][:5]},
        {"columns": arrays["columns"][None]},
        {"columns": arrays["columns"] + np.uint16(1)},
        {"columns": arrays["columns"][::-1].copy()},
        {"columns": arrays["columns"].astype(np.uint32)},
        {"levels": arrays["levels"][:-1]},
        {"levels": arrays["levels"].astype(np.int16)},
        {"scales": np.full(3, np.nan, np.float32)},
        {"scales": -arrays["scales"]},
        {"scales": arrays["scales"].astype(np.float64)},
        {"scales": np.ones((3, 1), np.float32)},
    ]
    for change in wrong:
        assert not Linear(**{**arrays, **change}, num_outputs=4).sound, change


# Runs.

ONCE = Config.load("one-round").replace(
    device="cpu",
    synthetic_points=160,
    synthetic_features=80,
    synthetic_labels=30,
    num_clients=6,
    clients_per_round=1,
    top_k=(1, 3),
)
HASHED = {"sizes": "given", "label_map": "murmur3", "num_tables": 3, "num_buckets": 11}
NAMED = {**HASHED, "label_key": "name", "num_buckets": 25}


@pytest.fixture(scope="module")
def data():
    return open_dataset(ONCE)


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    return run(ONCE, data, tmp_path_factory.mktemp("once") / "run")


def weights_of(run_):
    return (run_.folder / "model" / "weights.safetensors").read_bytes()


@pytest.mark.parametrize("number", [1, 3, 10, 50])
@pytest.mark.parametrize("partition", [{"partition": "iid"}, {"partition": "dirichlet", "dirichlet_alpha": 0.05}])
def test_the_model_is_the_same_bytes_whoever_held_which_points(data, finished, tmp_path, number, partition):
    config = ONCE.replace(num_clients=number, **partition)
    shards = divide(data.train, config).shards
    assert sum(len(shard) for shard in shards.values()) == divide(data.train, config).total == 144
    again = run(config, data, tmp_path / "run", workers=1 + number % 3)
    assert weights_of(again) == weights_of(finished)
    assert {name: again.summary[name] for name in ("precision", "ridge", "count_power", "training_points")} == {
        name: finished.summary[name] for name in ("precision", "ridge", "count_power", "training_points")
    }


def test_hundreds_of_clients_of_one_or_two_points_give_the_model_of_three(tmp_path):
    config = ONCE.replace(synthetic_points=600, ridge=1.0, count_power=0.1, partition="iid")
    data = open_dataset(config)
    few, many = (run(config.replace(num_clients=number), data, tmp_path / f"{number}") for number in (3, 400))
    (record,) = (json.loads(line) for line in (many.folder / "metrics.jsonl").read_text().splitlines())
    assert record["clients"] == list(range(400))
    sizes = [len(shard) for shard in divide(data.train, config.replace(num_clients=400)).shards.values()]
    assert (sum(sizes), max(sizes)) == (540, 2)
    assert weights_of(many) == weights_of(few)


def test_other_points_give_another_model(data, finished, tmp_path):
    assert weights_of(run(ONCE.replace(seed=1), data, tmp_path / "run")) != weights_of(finished)


@pytest.mark.parametrize("labels", [{}, HASHED, NAMED])
def test_the_model_is_ridge_regression_on_all_points_with_the_settings_that_were_given(data, tmp_path, labels):
    """From the points of the data set to the weights in the file, by another library."""
    config = ONCE.replace(ridge=3.0, count_power=0.5, point_bits=8, **labels)
    ended = run(config, data, tmp_path / "run")
    assert (ended.summary["ridge"], ended.summary["count_power"]) == (3.0, 0.5)
    bundle = Model.load(ended.folder).bundle
    slots, found = bundle.terms.slots(bundle.seeds), bundle.weights
    assert bundle.terms.counts.points == 160
    assert ended.summary["slots"] == slots.count
    points = round_points(slots.apply(data.train.X), 8).toarray() / 256
    buckets = bundle.task.label_map(bundle.seeds, data.labels.keys).buckets
    outputs = np.zeros((160, found.num_outputs))
    for table, row in enumerate(buckets):
        for label, bucket in enumerate(row):
            outputs[:, table * bundle.task.num_outputs + bucket] += data.train.Y[:, [label]].toarray().ravel()
    central = Ridge(alpha=3.0, fit_intercept=False, solver="cholesky").fit(points, outputs).coef_.T
    central = central / np.maximum(outputs.sum(axis=0), 1) ** 0.5
    assert (np.abs(found.weights.toarray() - central) <= 0.501 * found.scales[:, None] + 1e-6).all()
    assert 0.501 * found.scales.max() < 0.01 < np.abs(central).max()
    # A label's score is the mean of its buckets.
    X = add_one(slots.apply(data.test.X[:20]), 1.0)
    scores = (X @ found.weights).toarray().reshape(20, len(buckets), -1)
    of_labels = np.mean([scores[:, table, row] for table, row in enumerate(buckets)], axis=0)
    for row, predicted in zip(of_labels, Model.load(ended.folder).predict(data.test.X[:20], k=30), strict=True):
        by_key = {label["key"]: label["score"] for label in predicted}
        assert np.allclose([by_key[key] for key in data.labels.keys], row, atol=1e-5)


@pytest.mark.parametrize("labels", [{}, HASHED, NAMED])
def test_a_model_folder_predicts_as_the_summary_says(data, tmp_path, labels):
    ended = run(ONCE.replace(**labels), data, tmp_path / "run")
    model = Model.load(ended.folder)
    assert {name: ended.summary[name] for name in model.evaluate(data)} == model.evaluate(data)
    first = [labels[0]["key"] for labels in model.predict(data.test.X, k=1)]
    hits = [data.test.Y[row, data.labels.keys.index(key)] for row, key in enumerate(first)]
    assert np.mean(hits) == pytest.approx(ended.summary["precision"]["1"])
    assert ended.summary["precision"]["1"] > (0.5 if labels is not HASHED else 0.25)
    assert "linear model" in model.score_meaning


def test_labels_by_name_are_hashed_by_clients_to_the_same_model(data, tmp_path):
    one, seven = (run(ONCE.replace(num_clients=number, **NAMED), data, tmp_path / f"{number}") for number in (1, 7))
    assert weights_of(one) == weights_of(seven)


def test_the_summary_has_what_that_of_any_run_has(data, finished, tmp_path):
    other = run(
        Config(
            device="cpu", partition="iid", rounds=1, num_tables=2, num_buckets=10, feature_dim=16, hidden_sizes=(8,),
            local_epochs=1, top_k=(1, 3),
        ),
        data,
        tmp_path / "other",
    )  # fmt: skip
    assert other.summary.keys() <= finished.summary.keys()
    assert finished.summary["training_points"] == other.summary["training_points"] == 144
    assert json.loads((finished.folder / "summary.json").read_text()).keys() >= finished.summary.keys()


def test_folders_of_runs_are_reported_side_by_side(data, finished, tmp_path, capsys):
    other = run(ONCE.replace(seed=1), data, tmp_path / "other")
    page = tmp_path / "report.html"
    assert call("report", finished.folder, other.folder, "--out", page) == 0
    assert "one-round" in capsys.readouterr().out
    assert page.read_text().count("one-round") >= 2


def test_a_small_model_leaves_weights_out_and_says_so(tmp_path):
    config = ONCE.replace(synthetic_labels=80, ridge=1.0, count_power=0.1)
    full, small = (
        run(config.replace(model_mib=mib), open_dataset(config), tmp_path / f"{mib}").summary for mib in (1.0, 0.01)
    )
    assert full["kept"]["weights"] == full["kept"]["of"] == (full["slots"] + 1) * 80
    assert small["kept"]["weights"] == small["num_parameters"] == int(0.01 * 2**20) // 3 < small["kept"]["of"]
    assert small["model_bytes"] < full["model_bytes"]
    for k in full["precision"]:  # what was lost, and what is left, are what there was before anything was left out
        exact = [summary["precision"][k] + summary["kept"]["precision_lost"][k] for summary in (full, small)]
        assert exact[0] == pytest.approx(exact[1])
    assert small["precision"] != full["precision"]


def test_replaying_the_log_gives_the_same_bytes(data, finished, tmp_path):
    again = replay(*read_log(RunFolder(finished.folder)), data, tmp_path / "again")
    assert weights_of(again) == weights_of(finished)


# Clients as the server sees them.


class Post:
    """An engine that notes what is asked and answered, and may change answers."""

    def __init__(self, change=lambda client, reply: [reply]):
        self.change = change
        #: Part and client of each request, bytes of all that was sent, and all answers.
        self.asked, self.sent, self.answered = [], [], []

    def __call__(self, population, workers):
        self.inner = live_in_process(population, workers)
        return self

    def __enter__(self):
        self.clients = self.inner.__enter__()
        return self

    def __exit__(self, *error):
        return self.inner.__exit__(*error)

    def exchange(self, clients, post):
        def ask(client):
            request = post(client)
            self.sent.append(len(request))
            if post.place[1] < 2:  # the third part is the result, for which nothing is asked
                self.asked.append((post.place[1], client))
            return request

        for client, reply in self.clients.exchange(clients, ask):
            for changed in self.change(client, reply):
                self.answered.append(changed)
                yield client, changed


def test_bytes_are_those_of_the_messages(data, tmp_path):
    engine = Post()
    ended = run(ONCE, data, tmp_path / "run", engine=engine, workers=4)
    assert sorted(engine.asked) == [(part, client) for part in (0, 1) for client in range(6)]
    assert ended.summary["bytes_up"] == sum(map(len, engine.answered))
    assert ended.summary["bytes_down"] == sum(engine.sent)
    delivered = ended.summary["delivered"]
    smallest = min(delivered["sums_bytes"], delivered["model_bytes"])
    assert delivered["what"] == ("sums" if smallest == delivered["sums_bytes"] else "model")
    assert all(0 < size - smallest < 1000 for size in sorted(engine.sent)[-6:])


def test_a_client_that_answers_twice_counts_once(data, finished, tmp_path):
    twice = run(ONCE, data, tmp_path / "run", engine=Post(lambda client, reply: [reply] * (1 + (client == 3))))
    assert weights_of(twice) == weights_of(finished)
    record = RunFolder(twice.folder).read_metrics()[0]
    assert [(entry["client"], entry["reason"]) for entry in record["refused"]] == [(3, "duplicate")] * 3


def test_clients_that_fail_are_left_out_and_named(data, finished, tmp_path):
    def change(client, reply):
        return [Rejected("client failed", "no power")] if client == 4 else [] if client == 2 else [reply]

    ended = run(ONCE, data, tmp_path / "run", engine=Post(change))
    record = RunFolder(ended.folder).read_metrics()[0]
    assert record["clients"] == [0, 1, 3, 5]
    assert {(entry["client"], entry["reason"]) for entry in record["refused"]} == {(4, "client failed"), (2, "late")}
    without = weights_of(ended)
    assert without != weights_of(finished)
    # They answer later: the run that is resumed asks them for sums under the terms of the others' counts.
    engine = Post()
    resumed = run(ONCE, data, ended.folder, engine=engine, resume=True)
    assert sorted(engine.asked) == [(1, 2), (1, 4)]
    assert resumed.summary["training_points"] == finished.summary["training_points"]
    assert weights_of(resumed) not in (weights_of(finished), without)
    with pytest.raises(UserError, match=r"fewer than quorum = 5 .*--resume"):
        run(ONCE.replace(quorum=5, clients_per_round=5), data, tmp_path / "few", engine=Post(change))


# Text.


@pytest.mark.parametrize("kind", ["hashing", "tfidf"])
def test_words_are_weighed_by_the_counts_of_all_clients_once(tmp_path, kind):
    rng = np.random.default_rng(0)
    words = ["oil", "fish", "rail", "law", "tax", "sea"]
    (tmp_path / "data").mkdir()
    for part in ("trn", "tst"):
        lines = []
        for _ in range(60):
            chosen = rng.choice(words, 2, replace=False).tolist()
            lines.append(json.dumps({"text": f"the {' '.join(chosen)}", "labels": chosen}) + "\n")
        (tmp_path / "data" / f"{part}.jsonl").write_text("".join(lines))
    data = load(tmp_path / "data", text_features=kind, text_dim=512)
    config = ONCE.replace(text_features=kind, text_dim=512, num_clients=5)
    model = Model.load(run(config, data, tmp_path / "run").folder)
    terms = model.bundle.terms
    assert np.array_equal(terms.counts.frequencies, np.bincount(data.train.X.indices, minlength=data.num_features))
    idf = np.log(61 / (1 + terms.counts.frequencies)) + 1
    expected = idf if kind == "hashing" else np.ones(data.num_features)  # which are weighed as they are read
    assert np.abs(terms.slots(model.bundle.seeds).weights - expected).max() <= 2**-11
    assert terms.weigh == (kind == "hashing")
    for text in ("the fish oil", "rail tax"):
        assert {label["name"] for label in model.predict([text], k=2)[0]} == set(text.split()) - {"the"}
    assert model.evaluate(data)["precision"]["1"] > 0.95


# Stopped and resumed.


def messages_of(path):
    """Return where the messages of a journal end, and whose they are."""
    ends, end = [], 0
    for client, message in Journal(path).read():
        end += 12 + len(message)
        ends.append((end, client))
    return ends


def stopped(finished, target):
    """Return a run in its state when the last message had come."""
    (target / "checkpoint").mkdir(parents=True)
    shutil.copy(finished.folder / "config.toml", target)
    for part in ("counts", "sums"):
        shutil.copy(finished.folder / "checkpoint" / f"{part}.bin", target / "checkpoint")
    return target


@pytest.mark.parametrize("seed", range(4))
def test_a_run_that_was_cut_off_anywhere_asks_those_that_are_missing(data, finished, tmp_path, seed):
    rng = np.random.default_rng(seed)
    out = stopped(finished, tmp_path / "run")
    missing = []
    for part, name in enumerate(("counts", "sums")):
        path = out / "checkpoint" / f"{name}.bin"
        ends = messages_of(path)
        assert sorted(client for _, client in ends) == list(range(6))
        cut = int(rng.integers(0, ends[-1][0] + 1)) if seed else ends[-1][0]
        garbage = rng.bytes(int(rng.integers(0, 200))) if seed % 2 else b""
        path.write_bytes(path.read_bytes()[:cut] + garbage)
        missing += [(part, client) for end, client in ends if end > cut]
    engine = Post()
    resumed = run(ONCE, data, out, engine=engine, resume=True)
    assert sorted(engine.asked) == sorted(missing)
    assert weights_of(resumed) == weights_of(finished)
    # All that is needed lies on disk now.
    engine = Post()
    shutil.rmtree(out / "model")
    assert weights_of(run(ONCE, data, out, engine=engine, resume=True)) == weights_of(finished)
    assert engine.asked == []


def test_a_message_that_was_damaged_is_asked_for_again(data, finished, tmp_path):
    out = stopped(finished, tmp_path / "run")
    hurt = []
    for part, name in enumerate(("counts", "sums")):
        path = out / "checkpoint" / f"{name}.bin"
        ends, content = messages_of(path), bytearray(path.read_bytes())
        content[ends[2 + part][0] - 40] ^= 1
        hurt.append((part, ends[2 + part][1]))
        path.write_bytes(content)
    engine = Post()
    resumed = run(ONCE, data, out, engine=engine, resume=True)
    assert engine.asked == hurt
    assert weights_of(resumed) == weights_of(finished)


def test_messages_of_another_run_are_not_taken(data, finished, tmp_path):
    """Journals of another seed, of other data, and of other bits, in the folder of this run."""
    others = {
        "seed": (ONCE.replace(seed=1), data),
        "data": (ONCE, dataclasses.replace(data, train=data.train.take(np.arange(160)[::-1]))),
        "bits": (ONCE.replace(point_bits=6), data),
    }
    for name, (config, points) in others.items():
        other = run(config, points, tmp_path / name / "other")
        out = stopped(finished, tmp_path / name / "run")
        for part in ("counts", "sums"):
            shutil.copy(other.folder / "checkpoint" / f"{part}.bin", out / "checkpoint")
        engine = Post()
        assert weights_of(run(ONCE, data, out, engine=engine, resume=True)) == weights_of(finished)
        assert len(engine.asked) == 12, name


def test_resume_with_another_setting_is_refused(data, finished, tmp_path):
    out = stopped(finished, tmp_path / "run")
    before = [(path, path.read_bytes()) for path in out.rglob("*.bin")]
    for change in ({"point_bits": 6}, {"ridge": 1.0}, {"model_mib": 1.0}, {"num_clients": 5}, {"feature_slots": 50}):
        with pytest.raises(UserError, match=f"holds a run with {next(iter(change))} = .*same settings"):
            run(ONCE.replace(**change), data, out, resume=True)
    assert before == [(path, path.read_bytes()) for path in out.rglob("*.bin")]


def test_a_journal_is_no_link(data, finished, tmp_path):
    out = stopped(finished, tmp_path / "run")
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (out / "checkpoint" / "sums.bin").unlink()
    (out / "checkpoint" / "sums.bin").symlink_to(victim)
    with pytest.raises(UserError, match="is a link"):
        run(ONCE, data, out, resume=True)
    assert victim.read_bytes() == b"precious"


def test_a_respondent_keeps_nothing_between_requests(data):
    task = Task(ONCE.replace(sizes="given", label_map="identity"), data.num_features, data.num_labels)
    client = Respondent(task, 0, data.train.X[:20], data.train.Y[:20], data.labels)
    terms = Terms(Counts.of(data.train.X), 0, weigh=False)
    seeds = task.draw_seeds()
    assert same_sums(client.sum(terms, seeds), client.sum(terms, seeds))
    halves = [
        Respondent(task, 0, data.train.X[rows], data.train.Y[rows], data.labels).sum(terms, seeds)
        for rows in (slice(0, 7), slice(7, 20))
    ]
    assert same_sums(halves[0] + halves[1], client.sum(terms, seeds))
