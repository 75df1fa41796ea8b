"""The paper's lemmas and theorems against simulation, exact enumeration, and examples where their wording slips."""

import math
from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from fedmlh.errors import UserError
from fedmlh.hashing.labels import LabelMap, make_label_map
from fedmlh.hashing.theory import (
    client_divergence,
    colliding_pairs,
    collision_probability,
    expected_positives,
    fitted_rate,
    kl_divergence,
    lemma1_bound,
    lemma2_bound,
    observed_positives,
    simulate_theorem1,
    smallest_buckets,
    theorem1_bound,
    typical_positives,
)


def draw_labels(rng, n, p, mean):
    """Draw points with about `mean` of p labels, the first labels far more frequent than the last."""
    weights = 1 / np.arange(1, p + 1)
    return csr_matrix((rng.random((n, p)) < np.minimum(1, mean * weights / weights.sum())).astype(np.float32))


def hash_uniformly(rng, p, R, B):
    return LabelMap(rng.integers(0, B, (R, p)), B)


def one_label_each(labels, p):
    """Draw points with one label each."""
    return csr_matrix((np.ones(len(labels), np.float32), (np.arange(len(labels)), labels)), shape=(len(labels), p))


class TestLemma1:
    def test_the_exact_expectation_is_the_mean_over_all_hash_functions(self):
        """Every one of the B^p functions, not a sample of them."""
        B, Y = (
            3,
            csr_matrix(np.array([[1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0], [0, 1, 0, 1]], np.float32)),
        )
        tables = np.array(list(product(range(B), repeat=4)))
        np.testing.assert_allclose(
            observed_positives(Y, LabelMap(tables, B)).mean(axis=0), expected_positives(Y, B), rtol=1e-12
        )

    @pytest.mark.parametrize(("family", "mean"), [("murmur3", 5), ("murmur3", 1), ("universal", 1)])
    def test_the_product_s_hash_families_meet_it_too(self, family, mean):
        """A 2-universal family only has to where no point carries two labels: it promises nothing about three."""
        rng, p = np.random.default_rng(1), 120
        Y = draw_labels(rng, 400, p, mean) if mean > 1 else one_label_each(rng.integers(0, p, 400), p)
        observed = observed_positives(Y, make_label_map(family, p, tuple(range(1500)), 20))
        expected = expected_positives(Y, 20)
        sigma = observed.std(axis=0) / math.sqrt(len(observed))
        assert (abs(observed.mean(axis=0) - expected) < 4.5 * sigma).all()
        assert (expected - np.bincount(Y.indices, minlength=p) > 20 * sigma).all()

    @settings(deadline=None)
    @given(st.lists(st.integers(0, 30), min_size=1, max_size=80), st.integers(1, 40))
    def test_with_one_label_a_point_the_printed_bound_holds(self, labels, B):
        Y = one_label_each(labels, 31)
        counts = np.bincount(Y.indices, minlength=31)
        exact = expected_positives(Y, B)
        np.testing.assert_allclose(exact, counts + (len(labels) - counts) / B)
        assert (lemma1_bound(counts, B) <= exact + 1e-9).all()

    def test_with_several_labels_a_point_the_printed_bound_is_none(self):
        """One point with three labels: its bucket has one positive, whatever the hash; the bound says more."""
        Y = csr_matrix(np.ones((1, 3), np.float32))
        assert expected_positives(Y, 10).tolist() == [1, 1, 1]
        assert (lemma1_bound(np.ones(3), 10) > 1.1).all()

    def test_the_printed_formula(self):
        np.testing.assert_allclose(lemma1_bound(np.array([5, 0, 15]), 4), [5 + 15 / 4 - 20 / 16, 5 - 1.25, 15 + 0.0])

    def test_one_bucket_holds_every_point_that_has_a_label(self):
        Y = csr_matrix(np.array([[1, 1, 0], [0, 0, 0], [0, 1, 0]], np.float32))
        assert expected_positives(Y, 1).tolist() == [2, 2, 2]

    def test_totals_are_enough_where_all_points_and_labels_are_alike(self):
        p, m = 60, 4
        columns = (m * np.arange(2 * p)[:, None] + np.arange(m)) % p  # every label equally often
        Y = csr_matrix((np.ones(columns.size, np.float32), columns.ravel(), m * np.arange(2 * p + 1)), (2 * p, p))
        np.testing.assert_allclose(expected_positives(Y, 7), typical_positives(2 * p, 2 * p * m, p, 7))


class TestLemma2:
    @given(st.integers(1, 10**7), st.integers(1, 40), st.sampled_from([0.5, 0.3, 0.1, 0.01, 1e-6]))
    def test_smallest_buckets_is_the_smallest_that_meets_the_lemma(self, p, R, delta):
        B, limit = smallest_buckets(p, R, delta), Fraction(str(delta))
        assert Fraction(math.comb(p, 2), B**R) <= limit
        assert B == 1 or Fraction(math.comb(p, 2), (B - 1) ** R) > limit

    def test_a_boundary_is_met_exactly(self):
        assert smallest_buckets(4, 1, 0.3) == 20  # 6 pairs, 6/20 = 0.3
        assert smallest_buckets(25, 2, 0.3) == 32  # 300 pairs, √1000

    def test_the_probability_is_that_of_the_birthday_problem(self):
        assert collision_probability(23, 1, 365) == pytest.approx(0.5072972343)
        assert collision_probability(3, 2, 2) == pytest.approx(1 - (3 / 4) * (2 / 4))
        assert collision_probability(5, 2, 2) == 1  # five labels, four cells
        assert collision_probability(1, 1, 1) == 0

    @pytest.mark.parametrize(("p", "R", "B"), [(40, 2, 25), (100, 3, 20), (60, 1, 900), (30, 4, 4)])
    def test_simulated_maps_collide_as_often(self, p, R, B):
        rng, trials = np.random.default_rng(0), 2000
        pairs = [colliding_pairs(hash_uniformly(rng, p, R, B)) for _ in range(trials)]
        probability = collision_probability(p, R, B)
        assert 0.1 < probability < 0.95
        sigma = math.sqrt(probability * (1 - probability) / trials)
        assert abs(np.mean(np.array(pairs) > 0) - probability) < 4 * sigma
        assert abs(np.mean(pairs) - lemma2_bound(p, R, B)) < 4 * np.std(pairs) / math.sqrt(trials)

    def test_murmur3_keeps_to_lemma_2(self):
        """At the B that δ = 0.2 asks for, few of many maps have a collision."""
        p, R, delta, maps = 300, 3, 0.2, 400
        B = smallest_buckets(p, R, delta)
        bad = sum(
            colliding_pairs(make_label_map("murmur3", p, tuple(range(R * i, R * i + R)), B)) > 0 for i in range(maps)
        )
        sigma = math.sqrt(maps * delta * (1 - delta))
        assert abs(bad - maps * collision_probability(p, R, B)) < 4 * sigma
        assert bad < maps * delta + 4 * sigma

    def test_a_balanced_map_collides_less(self):
        rng, p, B = np.random.default_rng(0), 120, 20
        uniform = np.mean([colliding_pairs(hash_uniformly(rng, p, 2, B)) for _ in range(300)])
        balanced = np.mean([colliding_pairs(make_label_map("balanced", p, (i, i + 999), B)) for i in range(300)])
        assert balanced < 0.9 * uniform

    @given(st.integers(1, 3000), st.integers(1, 6), st.integers(1, 3000))
    def test_the_bound_bounds_and_the_ways_to_compute_agree(self, p, R, B):
        exact, cells = collision_probability(p, R, B), B**R
        assert 0 <= exact <= min(1, lemma2_bound(p, R, B)) * (1 + 1e-12)
        # Term by term with no cancellation: 1 − Π(1 − x) grows by (what is left) · x.
        seen = 0.0
        for i in range(min(p, cells + 1)):
            seen += (1 - seen) * (i / cells)
        assert exact == pytest.approx(seen, rel=1e-8)

    def test_huge_numbers_neither_overflow_nor_take_memory(self):
        assert collision_probability(10**15, 1024, 10**9) == 0
        assert collision_probability(10**15, 1, 10**9) == 1
        assert lemma2_bound(10**200, 1, 1) == math.inf
        assert lemma2_bound(312_330, *np.array([8, 5000])) == lemma2_bound(312_330, 8, 5000) < 1e-18
        assert smallest_buckets(*np.array([10**9, 1]), 1e-6) > 2**63
        assert collision_probability(10**9, 3, 10**7) == pytest.approx(5e-4, rel=1e-3)

    def test_colliding_pairs_counts_pairs(self):
        table = LabelMap(np.array([[0, 0, 0, 1, 1, 2], [5, 5, 5, 3, 4, 5]]), 6)
        assert colliding_pairs(table) == 3


class TestTheorem2:
    @given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 50)), min_size=1, max_size=20))
    def test_kl_is_the_textbook_s(self, pairs):
        a, b = (np.array(side, float) for side in zip(*pairs, strict=True))
        if not a.sum():
            return
        p, q = a / a.sum(), b / b.sum()
        expected = sum(x * math.log(x / y) for x, y in zip(p, q, strict=True) if x > 0)
        assert kl_divergence(a, b) == pytest.approx(expected, abs=1e-12)
        assert 0 <= kl_divergence(b, 0.1 * b) < 1e-12

    def test_kl_is_infinite_on_disjoint_supports_which_real_clients_have(self):
        assert kl_divergence(np.array([1, 1, 0]), np.array([0, 1, 1])) == math.inf
        Y = [one_label_each(labels, 4) for labels in ([0, 1], [2, 3])]
        assert client_divergence(*Y, hash_uniformly(np.random.default_rng(0), 4, 1, 2), smoothing=0).labels == math.inf

    @settings(deadline=None)
    @given(st.integers(0, 2**32), st.integers(1, 12), st.floats(0.1, 5))
    def test_hashing_never_drives_sums_apart(self, seed, B, smoothing):
        rng = np.random.default_rng(seed)
        Y_a, Y_b = draw_labels(rng, 40, 25, 3), draw_labels(rng, 30, 25, 5)[:, ::-1]
        found = client_divergence(Y_a, csr_matrix(Y_b), hash_uniformly(rng, 25, 3, B), smoothing)
        assert (found.sums <= found.labels + 1e-12).all()
        assert found.sums.shape == found.unions.shape == (3,)

    def test_it_is_strictly_less_in_general_and_less_with_fewer_buckets(self):
        """Modulo 8 merges buckets of modulo 16, and so on down: each map is a coarser one of the map before."""
        rng = np.random.default_rng(0)
        Y_a, Y_b = one_label_each(rng.integers(0, 64, 300), 64), one_label_each(rng.integers(0, 32, 300), 64)
        draws = rng.integers(0, 16, (5, 64))
        found = [client_divergence(Y_a, Y_b, LabelMap(draws % B, B)) for B in (16, 8, 4, 2, 1)]
        assert (found[0].sums < 0.8 * found[0].labels).all()
        for finer, coarser in pairwise(found):
            assert (coarser.sums <= finer.sums).all()
            assert coarser.sums.mean() < finer.sums.mean()
        np.testing.assert_allclose(found[-1].sums, 0, atol=1e-12)

    def test_the_strict_sign_is_a_slip(self):
        """Labels 0 and 1 are each half as frequent on b: merging them loses nothing."""
        Y_a, Y_b = one_label_each([0, 0, 1, 1, 2, 2], 3), one_label_each([0, 1, 2, 2, 2, 2], 3)
        found = client_divergence(Y_a, Y_b, LabelMap(np.array([[0, 0, 1]]), 2), smoothing=0)
        assert found.labels > 0.1
        assert found.sums[0] == pytest.approx(found.labels)

    def test_with_one_label_a_point_unions_are_sums(self):
        rng = np.random.default_rng(0)
        Y = [one_label_each(rng.integers(0, 30, 50), 30) for _ in range(2)]
        found = client_divergence(*Y, hash_uniformly(rng, 30, 4, 6))
        np.testing.assert_allclose(found.unions, found.sums)

    def test_with_several_labels_a_point_unions_may_drive_clients_apart(self):
        """Equal counts of every label; but on a two of them always come together, so that their bucket has half."""
        together = csr_matrix(np.array([[1, 1, 0]] * 10 + [[0, 0, 1]] * 10, np.float32))
        apart = one_label_each([0] * 10 + [1] * 10 + [2] * 10, 3)
        found = client_divergence(together, apart, LabelMap(np.array([[0, 0, 1]]), 2))
        assert found.labels == found.sums[0] == 0
        assert found.unions[0] > 0.02

    def test_a_client_without_positives_is_refused(self):
        with pytest.raises(UserError, match="without positives"):
            kl_divergence(np.zeros(3), np.ones(3))


COVARIANCE = np.array([[2.0, 0.6, 0.0], [0.6, 1.0, -0.3], [0.0, -0.3, 0.5]])


class TestTheorem1:
    def test_normal_embeddings_meet_the_bound(self):
        """The sample mean attains it; the sample covariance misses it by n/(n − 1)."""
        n, trials = 12, 40_000
        found, bound = simulate_theorem1(COVARIANCE, n, trials, np.random.default_rng(0)), theorem1_bound(COVARIANCE, n)
        np.testing.assert_allclose(found.mean, bound.mean, rtol=0.04)
        np.testing.assert_allclose(found.covariance, bound.covariance * n / (n - 1), rtol=0.06)
        np.testing.assert_allclose(bound.mean, np.diag(COVARIANCE) / n)

    def test_errors_fall_as_one_over_the_positives(self):
        counts = np.array([4, 16, 64, 256])
        found = [simulate_theorem1(COVARIANCE, n, 2000, np.random.default_rng(n)) for n in counts]
        assert fitted_rate(counts, np.array([errors.mean.mean() for errors in found])) == pytest.approx(-1, abs=0.05)
        # n − 1, since the sample covariance spends one positive on the mean.
        spreads = np.array([errors.covariance.mean() for errors in found])
        assert fitted_rate(counts - 1, spreads) == pytest.approx(-1, abs=0.05)

    @given(st.floats(-3, 3), st.floats(0.1, 10))
    def test_the_fitted_rate_is_the_exponent(self, exponent, scale):
        counts = np.array([1, 10, 50, 1000])
        assert fitted_rate(counts, scale * counts**exponent) == pytest.approx(exponent, abs=1e-9)

    def test_a_biased_estimate_is_outside_the_theorem(self):
        """Half the sample mean has a quarter of its variance: with a true mean of 0 it beats the bound."""
        n, rng = 5, np.random.default_rng(0)
        halved = rng.normal(size=(4000, n)).mean(axis=1) / 2
        assert (halved**2).mean() < theorem1_bound(np.eye(1), n).mean[0] / 3


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: smallest_buckets(10, 2, 0.0), "delta is 0.0"),
        (lambda: smallest_buckets(10, 2, math.nan), "delta is nan"),
        (lambda: smallest_buckets(10, 0, 0.1), "num_tables is 0"),
        (lambda: collision_probability(0, 1, 5), "num_labels is 0"),
        (lambda: lemma1_bound(np.ones(3), 0), "num_buckets is 0"),
        (lambda: expected_positives(csr_matrix((2, 3)), -1), "num_buckets is -1"),
        (lambda: theorem1_bound(np.eye(2), 0), "num_positives is 0"),
        (lambda: simulate_theorem1(np.eye(2), 1, 10, np.random.default_rng(0)), "needs at least 2"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(call, sentence):
    with pytest.raises(UserError, match=sentence):
        call()
