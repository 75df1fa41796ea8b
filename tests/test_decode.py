"""Exact top-k: scores with many ties against a full sort, and the ranker built on it."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from fedmlh.model import ranking
from fedmlh.model.ranking import Decoder, Ranker, decode, label_scores, top_labels
from fedmlh.model.stack import Stack


def brute_force(scores, k):
    """Sort every row by score, then by label id.  # [n, p] -> labels [n, k], scores [n, k]"""
    labels = np.stack([np.lexsort((np.arange(len(row)), -row))[:k] for row in scores])
    return labels, np.take_along_axis(scores, labels, axis=1)


def assert_equal(found, expected):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_array_equal(a, b)


class TestTopLabels:
    @settings(deadline=None, max_examples=80)
    @given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 60), st.integers(1, 70), st.integers(1, 6))
    def test_ties_go_to_the_lower_id(self, seed, n, p, k, distinct):
        """From rows in which all labels tie to rows where few do; k may exceed the number of labels."""
        scores = np.random.default_rng(seed).integers(-distinct, distinct, (n, p)).astype(np.float32)
        labels, values = top_labels(torch.from_numpy(scores), k)
        assert labels.shape == values.shape == (n, min(k, p))
        assert_equal((labels, values), brute_force(scores, k))

    def test_ties_across_the_last_place_of_a_wide_row(self):
        """Wide enough that topk does not sort: there it picks among equals by position in its own heap."""
        rng = np.random.default_rng(0)
        scores = rng.integers(0, 3, (20, 5000)).astype(np.float32)
        scores[:5] = 0
        scores[5, 4990:] = 7
        found = top_labels(torch.from_numpy(scores), 100)
        assert_equal(found, brute_force(scores, 100))
        naive = torch.from_numpy(scores).topk(100, dim=1).indices.numpy()
        assert (naive != found[0]).any(), "the case should be one in which topk alone is wrong"

    def test_negative_zero_ties_with_zero_and_infinities_rank_last(self):
        scores = np.array([[0.0, -0.0, -np.inf, -0.0, 0.0, -np.inf]], np.float32)
        labels, _ = top_labels(torch.from_numpy(scores), 6)
        assert labels.tolist() == [[0, 1, 3, 4, 2, 5]]

    def test_scores_are_left_as_they_were(self):
        scores = torch.from_numpy(np.random.default_rng(1).integers(0, 2, (5, 9)).astype(np.float32))
        before = scores.clone()
        top_labels(scores, 3)
        assert torch.equal(scores, before)


class TestDecode:
    @settings(deadline=None, max_examples=60)
    @given(
        st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 8), st.integers(1, 9), st.integers(1, 40), st.data()
    )
    def test_it_is_the_full_sort_of_mean_scores(self, seed, R, n, B, p, data):
        k = data.draw(st.integers(1, p + 3))
        rng = np.random.default_rng(seed)
        bucket_scores = rng.integers(-4, 4, (R, n, B)).astype(np.float32) * R  # means are whole, so ties are exact
        buckets = rng.integers(0, B, (R, p))
        scores = np.zeros((n, p), np.float32)
        for i, label in np.ndindex(n, p):
            scores[i, label] = sum(bucket_scores[r, i, buckets[r, label]] for r in range(R)) / R
        given_scores = torch.from_numpy(bucket_scores)
        before = given_scores.clone()
        assert_equal(decode(given_scores, torch.from_numpy(buckets), k), brute_force(scores, k))
        assert torch.equal(given_scores, before)

    def test_the_identity_map_ranks_the_outputs_themselves(self):
        logits = torch.from_numpy(np.random.default_rng(2).integers(0, 5, (1, 7, 30)).astype(np.float32))
        found = decode(logits, torch.arange(30)[None], 4)
        assert_equal(found, brute_force(logits[0].numpy(), 4))
        assert torch.equal(label_scores(logits, torch.arange(30)[None]), logits[0])

    def test_a_label_whose_buckets_all_light_up_is_found(self):
        """One label per point and tables in which no two labels share all buckets: the label comes back."""
        rng = np.random.default_rng(3)
        R, B, p = 4, 10, 60
        buckets = rng.integers(0, B, (R, p))
        assert len(np.unique(buckets, axis=1).T) == p
        truth = np.arange(p)
        one_hot = np.zeros((R, p, B), np.float32)
        for r in range(R):
            one_hot[r, truth, buckets[r]] = 1
        labels, values = decode(torch.from_numpy(one_hot), torch.from_numpy(buckets), 1)
        assert labels[:, 0].tolist() == truth.tolist()
        assert (values == 1).all()


KINDS = (
    "normal",
    "whole",
    "equal",
    "trained",
    "huge",
    "tiny",
    "mixed",
    "infinite",
    "mostly infinite",
    "one high bucket",
    "one low bucket",
    "zeros",
    "odd",
)


def draw_scores(kind, rng, R, n, B):
    """Draw bucket scores that are easy, tie, round, overflow or are missing.  # [R, n, B]"""
    x = rng.normal(size=(R, n, B))
    match kind:
        case "whole":
            x = np.round(x)
        case "equal":
            x = np.full_like(x, x.flat[0])
        case "trained":
            x = -np.logaddexp(0, 7 - 1.5 * x - 9 * (rng.random(x.shape) < 2 / B))
        case "huge":
            x *= 10.0 ** rng.integers(30, 39, (1, n, 1))
            x = np.clip(x, -3e38, 3e38)
        case "tiny":
            x *= 10.0 ** rng.integers(-45, -30, (1, n, 1))
        case "mixed":
            x *= 10.0 ** rng.uniform(-9, 9, x.shape)
        case "infinite":
            x[rng.random(x.shape) < 0.2] = -np.inf
        case "mostly infinite":
            x[rng.random(x.shape) < 0.9] = -np.inf
            x[:, ::3] = -np.inf
        case "one high bucket":
            x[:, :, 0] += 1e6
        case "one low bucket":
            x[:, :, 0] -= 1e30
        case "zeros":
            x = np.where(x > 0, 0.0, -0.0)
        case "odd":
            x[rng.integers(R, size=n // 3), rng.integers(n, size=n // 3), rng.integers(B, size=n // 3)] = np.inf
            x[0, 0, 0] = np.nan
    return torch.from_numpy(x.astype(np.float32))


def assert_same_bits(found, expected):
    """Check that both are equal and of equal type; 0.0 is not -0.0."""
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        np.testing.assert_array_equal(a.view(f"i{a.itemsize}"), b.view(f"i{b.itemsize}"))


class TestDecoder:
    """Every way to decode against the plain one, which the tests above hold against a full sort."""

    @pytest.fixture(autouse=True)
    def _small_shapes_take_the_fast_way_too(self, monkeypatch):
        pytest.importorskip("numba")
        monkeypatch.setattr(ranking, "_SMALL", 0)
        monkeypatch.setattr(ranking, "_SMALL_FOR_THREADS", 0)
        monkeypatch.setattr(ranking, "_LARGEST_SHARE", 1)

    @settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.integers(0, 2**32), st.sampled_from(KINDS), st.integers(1, 7), st.integers(1, 150), st.data())
    def test_all_ways_agree(self, seed, kind, R, n, data):
        rng = np.random.default_rng(seed)
        p = data.draw(st.integers(1, 700), "p")
        B = data.draw(st.integers(1, p) | st.integers(1, 40), "B")
        k = data.draw(st.integers(1, 12) | st.integers(1, p + 3), "k")
        scores, buckets = draw_scores(kind, rng, R, n, B), torch.from_numpy(rng.integers(0, B, (R, p)))
        before = scores.clone()
        found = Decoder(buckets, B)(scores, k)
        assert_same_bits(found, decode(scores, buckets, k))
        if kind not in ("odd", "huge"):
            assert_equal(found, brute_force(label_scores(scores, buckets).numpy(), k))
        assert torch.equal(scores.view(torch.int32), before.view(torch.int32))

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("R", [1, 3, 8])
    def test_many_labels(self, kind, R):
        """Draw enough for the filter, not the first threshold, to work: two blocks and a rest, uneven buckets."""
        rng = np.random.default_rng(R)
        n, B, p = 64 + 64 + 11, 130, 20_011
        buckets = torch.from_numpy((B * rng.random((R, p)) ** 2).astype(np.int64))
        scores = draw_scores(kind, rng, R, n, B)
        ready = Decoder(buckets, B)
        for k in (1, 5, 300):
            assert_same_bits(ready(scores, k), decode(scores, buckets, k))

    @pytest.mark.parametrize("kind", ["normal", "whole", "infinite", "odd"])
    @pytest.mark.parametrize("n", [1, 7, 8, 63, 64, 65, 71, 72, 300])
    def test_threads_and_neighbours_do_not_matter(self, kind, n):
        rng = np.random.default_rng(n)
        scores, buckets = draw_scores(kind, rng, 4, n, 60), torch.from_numpy(rng.integers(0, 60, (4, 3000)))
        ready, before = Decoder(buckets, 60), torch.get_num_threads()
        try:
            results = []
            for threads in (1, 2, 5):
                torch.set_num_threads(threads)
                results.append(ready(scores, 5))
        finally:
            torch.set_num_threads(before)
        for result in results:
            assert_same_bits(result, decode(scores, buckets, 5))
        for i in range(0, n, 40):
            assert_same_bits(ready(scores[:, i : i + 1], 5), [part[i : i + 1] for part in results[0]])

    @pytest.mark.parametrize("n", [3, 70])
    @pytest.mark.parametrize("kind", KINDS)
    def test_the_identity_map(self, kind, n):
        scores = draw_scores(kind, np.random.default_rng(n), 1, n, 5000)
        buckets = torch.arange(5000)[None]
        assert_same_bits(Decoder(buckets, 5000)(scores, 6), decode(scores, buckets, 6))

    def test_more_buckets_than_two_bytes_can_number(self):
        rng = np.random.default_rng(6)
        B = (1 << 16) + 5
        scores, buckets = draw_scores("trained", rng, 2, 66, B), torch.from_numpy(rng.integers(0, B, (2, 100_000)))
        assert_same_bits(Decoder(buckets, B)(scores, 5), decode(scores, buckets, 5))

    def test_most_labels_in_one_bucket_or_none_in_the_best(self):
        rng = np.random.default_rng(7)
        buckets = torch.from_numpy(np.where(rng.random((3, 4000)) < 0.95, 7, rng.integers(0, 9, (3, 4000))))
        scores = draw_scores("normal", rng, 3, 64, 50)
        assert_same_bits(Decoder(buckets, 50)(scores, 5), decode(scores, buckets, 5))

    def test_without_numba_the_plain_way_is_taken(self, monkeypatch):
        monkeypatch.setattr(ranking, "_kernels", lambda: None)
        monkeypatch.setattr(ranking, "_PLAIN_SCORES", 900)
        rng = np.random.default_rng(8)
        scores, buckets = draw_scores("whole", rng, 3, 20, 30), torch.from_numpy(rng.integers(0, 30, (3, 400)))
        assert_same_bits(Decoder(buckets, 30)(scores, 5), decode(scores, buckets, 5))

    @pytest.mark.parametrize("bucket", [-1, 30])
    def test_a_label_map_that_points_outside_is_refused(self, bucket):
        buckets = torch.zeros((3, 400), dtype=torch.int64)
        buckets[1, 17] = bucket
        with pytest.raises(IndexError):
            Decoder(buckets, 30)(torch.zeros(3, 64, 30), 5)

    def test_no_points(self):
        labels, values = Decoder(torch.zeros((3, 400), dtype=torch.int64), 30)(torch.zeros(3, 0, 30), 5)
        assert labels.shape == values.shape == (0, 5)


def make_case(n=30, R=3, B=8, p=50, d=12, seed=4, maps=1):
    rng = np.random.default_rng(seed)
    stack = Stack(R, d, (6,), B)
    features = tuple(csr_matrix(rng.normal(size=(n, d)).astype(np.float32)) for _ in range(maps))
    return stack, stack.initial(seed), features, torch.from_numpy(rng.integers(0, B, (R, p)))


def gather(ranker, model, features, k, excluded=None):
    """Join all batches: labels [n, k], scores [n, k]; rows must follow each other without a gap."""
    labels, scores, at = [], [], 0
    for rows, found, values in ranker.rank(model, features, k, excluded):
        assert rows.start == at
        assert len(found) == len(values) == rows.stop - rows.start
        at = rows.stop
        labels.append(found)
        scores.append(values)
    assert at == features[0].shape[0]
    return np.concatenate(labels), np.concatenate(scores)


class TestRanker:
    @pytest.fixture(autouse=True, params=["plain", "compiled"])
    def _both_ways(self, request, monkeypatch):
        if request.param == "compiled":
            pytest.importorskip("numba")
            monkeypatch.setattr(ranking, "_SMALL", 0)
            monkeypatch.setattr(ranking, "_LARGEST_SHARE", 1)

    def test_large_batches_are_whole_blocks(self):
        stack, model, features, buckets = make_case(n=1100)
        sizes = [len(labels) for _, labels, _ in Ranker(stack, buckets, "bce", "logits").rank(model, features, 5)]
        assert sizes == [1024, 76]
        assert Ranker(Stack(8, 12, (6,), 20_000), buckets, "bce", "logits")._batch_size() == 64
        assert Ranker(Stack(1, 12, (6,), 3_000_000), buckets, "bce", "logits")._batch_size() == 5

    @pytest.mark.parametrize("loss", ["bce", "softmax"])
    @pytest.mark.parametrize("decoding", ["log-probs", "logits"])
    @pytest.mark.parametrize("maps", [1, 3])
    def test_batches_do_not_change_the_ranking(self, loss, decoding, maps, monkeypatch):
        stack, model, features, buckets = make_case(maps=maps)
        ranker = Ranker(stack, buckets, loss, decoding)
        whole = gather(ranker, model, features, 5)
        for numbers_at_once in (1, 24 * 7, 24 * 29):
            monkeypatch.setattr(ranking, "_BATCH_NUMBERS", numbers_at_once)
            batches = sum(1 for _ in ranker.rank(model, features, 5))
            assert batches == -(-30 // max(1, numbers_at_once // 24))
            labels, values = gather(ranker, model, features, 5)
            np.testing.assert_array_equal(labels, whole[0])
            np.testing.assert_allclose(values, whole[1], rtol=1e-5, atol=1e-6)

    @pytest.mark.parametrize(
        ("loss", "decoding"),
        [("bce", "log-probs"), ("softmax", "log-probs"), ("bce", "logits"), ("bce", "probs"), ("softmax", "probs")],
    )
    def test_scores_are_means_of_what_the_decoding_says(self, loss, decoding):
        """From the weights, in float64."""
        stack, model, (x,), buckets = make_case()
        W1, b1, W2, b2 = (view.double().numpy() for view in stack.views(model))
        hidden = np.maximum(np.einsum("nd,rdh->rnh", x.toarray().astype(np.float64), W1) + b1[:, None], 0)
        s = np.einsum("rnh,rhb->rnb", hidden, W2) + b2[:, None]
        if decoding != "logits":
            s = 1 / (1 + np.exp(-s)) if loss == "bce" else np.exp(s) / np.exp(s).sum(axis=2, keepdims=True)
        if decoding == "log-probs":
            s = np.log(s)
        scores = np.mean([s[r][:, table] for r, table in enumerate(buckets.numpy())], axis=0)
        labels, values = gather(Ranker(stack, buckets, loss, decoding), model, (x,), 50)
        np.testing.assert_allclose(values, np.take_along_axis(scores, labels, axis=1), atol=1e-5)
        assert (np.sort(labels, axis=1) == np.arange(50)).all()
        assert (np.diff(values, axis=1) <= 0).all()

    def test_a_decoding_that_there_is_not_scores_nothing(self):
        stack, model, features, buckets = make_case()
        with pytest.raises(KeyError, match="odds"):
            Ranker(stack, buckets, "bce", "odds").score(model, features)

    @pytest.mark.parametrize("numbers_at_once", [1, 1 << 23])
    def test_excluded_pairs_are_dropped_and_the_rest_moves_up(self, numbers_at_once, monkeypatch):
        monkeypatch.setattr(ranking, "_BATCH_NUMBERS", numbers_at_once)
        stack, model, features, buckets = make_case()
        ranker = Ranker(stack, buckets, "bce", "log-probs")
        full, full_scores = gather(ranker, model, features, 50)
        rng = np.random.default_rng(5)
        excluded = rng.random((30, 50)) < 0.1
        excluded[0] = False
        excluded[1, full[1, :6]] = True  # the whole top of one point
        excluded[2] = True  # nothing is left
        excluded[3] = True
        excluded[3, full[3, [10, 20]]] = False  # fewer than k are left
        labels, values = gather(ranker, model, features, 5, csr_matrix(excluded.astype(np.float32)))
        assert labels.shape == (30, 5)
        for i in range(30):
            allowed = [j for j in range(50) if not excluded[i, full[i, j]]][:5]
            missing = 5 - len(allowed)
            assert labels[i].tolist() == full[i, allowed].tolist() + [-1] * missing
            np.testing.assert_allclose(values[i], np.append(full_scores[i, allowed], [-np.inf] * missing), rtol=1e-5)
        assert (labels[2] == -1).all()

    def test_an_empty_exclusion_changes_nothing(self):
        stack, model, features, buckets = make_case()
        ranker = Ranker(stack, buckets, "softmax", "log-probs")
        nothing = csr_matrix((30, 50), dtype=np.float32)
        assert_equal(gather(ranker, model, features, 5, nothing), gather(ranker, model, features, 5))

    def test_with_fewer_labels_than_k_the_rest_is_marked(self):
        stack, model, features, buckets = make_case(p=3)
        labels, values = gather(Ranker(stack, buckets, "bce", "logits"), model, features, 5)
        assert labels.shape == values.shape == (30, 5)
        assert (np.sort(labels[:, :3], axis=1) == [0, 1, 2]).all()
        assert (labels[:, 3:] == -1).all()
        assert np.isneginf(values[:, 3:]).all()
        assert np.isfinite(values[:, :3]).all()

    def test_no_points_give_no_batch(self):
        stack, model, _, buckets = make_case()
        empty = (csr_matrix((0, 12), dtype=np.float32),)
        assert list(Ranker(stack, buckets, "bce", "logits").rank(model, empty, 5)) == []
