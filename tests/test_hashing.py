"""Hash families, label and feature maps and Count Sketch: published vectors, brute force and their properties."""

import unicodedata
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from fedmlh.config import Config
from fedmlh.errors import UserError
from fedmlh.federated.task import Task
from fedmlh.hashing.count_sketch import CountSketch
from fedmlh.hashing.families import canonical, murmur3, universal
from fedmlh.hashing.features import make_feature_map
from fedmlh.hashing.labels import make_label_map

WHOLE = 2**32  # a number of buckets that leaves the hash as it is
FAMILIES = {"murmur3": murmur3, "universal": universal}

#: (bytes, seed, MurmurHash3_x86_32): the vectors that implementations of the function pass around.
VECTORS = [
    (b"", 0, 0x00000000),
    (b"", 1, 0x514E28B7),
    (b"", 0xFFFFFFFF, 0x81F16F39),
    (b"\xff\xff\xff\xff", 0, 0x76293B50),
    (b"\x21\x43\x65\x87", 0, 0xF55B516B),
    (b"\x21\x43\x65\x87", 0x5082EDEE, 0x2362F9DE),
    (b"\x21\x43\x65", 0, 0x7E4A8634),
    (b"\x21\x43", 0, 0xA0F7B07A),
    (b"\x21", 0, 0x72661CF4),
    (b"\x00\x00\x00\x00", 0, 0x2362F9DE),
    (b"\x00\x00\x00", 0, 0x85F0B427),
    (b"\x00\x00", 0, 0x30F4C306),
    (b"\x00", 0, 0x514E28B7),
    (b"a", 0x9747B28C, 0x7FA09EA6),
    (b"aa", 0x9747B28C, 0x5D211726),
    (b"aaa", 0x9747B28C, 0x283E0130),
    (b"aaaa", 0x9747B28C, 0x5A97808A),
    (b"abcd", 0x9747B28C, 0xF0478627),
    (b"Hello, world!", 0x9747B28C, 0x24884CBA),
    ("ππππππππ".encode(), 0x9747B28C, 0xD58063C1),
    (b"The quick brown fox jumps over the lazy dog", 0x9747B28C, 0x2FA826CD),
]


def murmur3_32(data, seed):
    """Return MurmurHash3_x86_32, in plain Python."""
    mask, h, length = 0xFFFFFFFF, seed, len(data)

    def rotate(x, by):
        return (x << by | x >> (32 - by)) & mask

    def mix(k):
        return rotate(k * 0xCC9E2D51 & mask, 15) * 0x1B873593 & mask

    whole = length - length % 4
    for i in range(0, whole, 4):
        h = rotate(h ^ mix(int.from_bytes(data[i : i + 4], "little")), 13) * 5 + 0xE6546B64 & mask
    h ^= mix(int.from_bytes(data[whole:], "little"))
    h ^= length
    h = (h ^ h >> 16) * 0x85EBCA6B & mask
    h = (h ^ h >> 13) * 0xC2B2AE35 & mask
    return h ^ h >> 16


def draw_sparse(rng, shape, density=0.3):
    return csr_matrix(rng.normal(size=shape) * (rng.random(shape) < density), dtype=np.float32)


def draw_labels(rng, n, p, density=0.2):
    return csr_matrix((rng.random((n, p)) < density).astype(np.float32))


def frozen(X):
    """Return the matrix made of read-only arrays, so that any write into it fails, and copies to compare with."""
    parts = (X.data, X.indices, X.indptr)
    for part in parts:
        part.flags.writeable = False
    return X, [part.copy() for part in parts]


class TestMurmur3:
    @pytest.mark.parametrize(("data", "seed", "expected"), VECTORS)
    def test_the_plain_python_one_gives_the_published_vectors(self, data, seed, expected):
        assert murmur3_32(data, seed) == expected

    @pytest.mark.parametrize(("data", "seed", "expected"), [v for v in VECTORS if max(v[0], default=0) < 128])
    def test_published_vectors_of_strings(self, data, seed, expected):
        assert murmur3([data.decode()], seed, WHOLE).tolist() == [expected]

    @pytest.mark.parametrize(("data", "seed", "expected"), [v for v in VECTORS if len(v[0]) == 4])
    def test_published_vectors_of_integers_as_four_little_endian_bytes(self, data, seed, expected):
        key = np.array([int.from_bytes(data, "little", signed=True)])
        assert murmur3(key, seed, WHOLE).tolist() == [expected]

    @settings(deadline=None)
    @given(st.lists(st.text(max_size=20), max_size=5), st.integers(0, 2**32 - 1), st.integers(1, 10_000))
    def test_strings_hash_as_utf8_modulo_buckets(self, keys, seed, num_buckets):
        keys = [key.encode("utf-8", "ignore").decode() for key in keys]
        expected = [murmur3_32(key.encode(), seed) % num_buckets for key in keys]
        assert murmur3(keys, seed, num_buckets).tolist() == expected

    @settings(deadline=None)
    @given(st.lists(st.integers(0, 2**31 - 1), max_size=20), st.integers(0, 2**32 - 1), st.integers(1, 10_000))
    def test_integers_hash_as_four_bytes_unsigned_modulo_buckets(self, keys, seed, num_buckets):
        expected = [murmur3_32(key.to_bytes(4, "little"), seed) % num_buckets for key in keys]
        assert murmur3(np.array(keys, np.int64), seed, num_buckets).tolist() == expected

    def test_the_modulo_is_unsigned(self):
        """A signed hash gives another bucket for every key whose top bit is set, whenever B does not divide 2^32."""
        keys, B = np.arange(1000), 7
        raw = murmur3(keys, 0, WHOLE)
        signed = np.where(raw >= 2**31, raw - 2**32, raw) % B
        assert (raw % B == murmur3(keys, 0, B)).all()
        assert (signed[raw >= 2**31] != murmur3(keys, 0, B)[raw >= 2**31]).all()


class TestFamilies:
    @pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
    @pytest.mark.parametrize("B", [8, 13])
    def test_two_keys_collide_with_probability_about_one_in_b(self, family, B):
        """2-universal: at most 1/B for any pair, also for neighbours and multiples of B; here within 5 sigma of it."""
        keys, seeds = np.array([0, 1, 2, 3, B, 2 * B, 64 * B, 65 * B, 10**6, 10**6 + B]), 3000
        tables = np.stack([family(keys, seed, B) for seed in range(seeds)])  # [seeds, keys]
        sigma = np.sqrt((1 / B) * (1 - 1 / B) / seeds)
        rates = [np.mean(tables[:, x] == tables[:, y]) for x, y in combinations(range(len(keys)), 2)]
        assert max(rates) < 1 / B + 5 * sigma
        assert abs(np.mean(rates) - 1 / B) < 2 * sigma

    @pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
    def test_a_table_fills_its_buckets_evenly_and_tables_are_independent(self, family):
        p, B = 20_000, 10
        first, second = family(np.arange(p), 0, B), family(np.arange(p), 1, B)
        joint = np.bincount(first * B + second, minlength=B * B)
        expected = p / B**2
        # χ² with 99 degrees of freedom: above 176 once in a million.
        assert ((joint - expected) ** 2 / expected).sum() < 176
        assert first.min() == 0
        assert first.max() == B - 1

    @pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
    def test_a_key_hashes_alike_in_any_company(self, family):
        rng = np.random.default_rng(0)
        for keys in (np.arange(50), [f"label {i}" for i in range(50)]):
            order = rng.permutation(50)
            shuffled = keys[order] if isinstance(keys, np.ndarray) else [keys[i] for i in order]
            np.testing.assert_array_equal(family(shuffled, 5, 11), family(keys, 5, 11)[order])

    def test_universal_is_exact_where_64_bits_overflow(self):
        """a·x + b needs more than 64 bits: recover a and b from the map itself, then check every key."""
        prime, keys = 2**61 - 1, np.array([0, 1, 2, 3, 2**31 - 1, 2**62, 2**63 - 1])
        for seed in range(20):
            values = [int(v) for v in universal(keys, seed, prime)]
            b, a = values[0], (values[1] - values[0]) % prime
            assert a > 0
            assert values == [(a * int(x) + b) % prime for x in keys]

    def test_universal_maps_distinct_names_apart(self):
        assert len(set(universal([f"name {i}" for i in range(5000)], 0, 2**61 - 1).tolist())) == 5000


class TestLabelMaps:
    def test_paper_seeds_number_the_tables(self):
        task = Task(Config(num_tables=3, num_buckets=7, label_seeds="paper"), 10, 30)
        table = task.label_map(task.draw_seeds(), [str(i) for i in range(30)])
        expected = [[murmur3_32(label.to_bytes(4, "little"), r) % 7 for label in range(30)] for r in range(3)]
        assert table.buckets.tolist() == expected
        assert (table.num_tables, table.num_buckets) == (3, 7)

    @pytest.mark.parametrize("family", FAMILIES)
    def test_names_hash_alike_in_any_order_of_the_catalogue(self, family):
        names = ["café", "Αθήνα", "tea", "東京", "x" * 40, "7"]
        order = [3, 0, 5, 1, 4, 2]
        table = make_label_map(family, tuple(names), (1, 2), 5)
        other = make_label_map(family, tuple(names[i] for i in order), (1, 2), 5)
        np.testing.assert_array_equal(other.buckets, table.buckets[:, order])

    @pytest.mark.parametrize("family", FAMILIES)
    def test_a_name_may_be_written_in_any_equivalent_form(self, family):
        seeds = tuple(range(20))
        table = make_label_map(family, ("café", unicodedata.normalize("NFD", "café"), " café\t\n"), seeds, 1000)
        assert (table.buckets == table.buckets[:, :1]).all()
        other = make_label_map(family, ("cafe", "Café", "caf é"), seeds, 1000)
        assert (other.buckets != table.buckets).any(axis=0).all()

    def test_the_canonical_form_keeps_what_only_looks_alike(self):
        for name in ("①", "ﬁn", "x²", "Straße", "a  b"):
            assert canonical(name) == name

    @settings(deadline=None)
    @given(st.text(max_size=30))
    def test_the_canonical_form_is_nfc_stripped_and_final(self, name):
        form = canonical(name)
        assert form == canonical(form)
        assert form == form.strip()
        assert unicodedata.is_normalized("NFC", form)
        assert canonical(unicodedata.normalize("NFD", name)) == form
        assert canonical(f"\n {name}\t") == form

    def test_a_name_that_looks_like_a_number_is_hashed_as_text(self):
        task = Task(Config(num_tables=2, num_buckets=20, label_seeds="paper", label_key="name"), 10, 30)
        keys = [str(i) for i in range(30)]
        expected = [[murmur3_32(key.encode(), r) % 20 for key in keys] for r in range(2)]
        assert task.label_map(task.draw_seeds(), keys).buckets.tolist() == expected

    @pytest.mark.parametrize("family", ["murmur3", "universal", "identity"])
    def test_union_is_the_brute_force_one_and_touches_nothing(self, family):
        rng = np.random.default_rng(1)
        Y, before = frozen(draw_labels(rng, 25, 40))
        dense = Y.toarray()
        table = make_label_map(family, 40, (3, 4, 5), 6)
        merged = table.union(Y)
        B = 40 if family == "identity" else 6
        assert len(merged) == 3
        for buckets, z in zip(table.buckets, merged, strict=True):
            expected = np.zeros((25, B))
            for n, label in np.argwhere(dense):
                expected[n, buckets[label]] = 1
            np.testing.assert_array_equal(z.toarray(), expected)
            assert z.has_canonical_format
            assert not np.shares_memory(z.indptr, Y.indptr)
        assert family == "identity" or merged[0].nnz < Y.nnz  # something did collide
        for part, kept in zip((Y.data, Y.indices, Y.indptr), before, strict=True):
            np.testing.assert_array_equal(part, kept)

    def test_the_identity_map_gives_every_label_its_own_bucket(self):
        Y = draw_labels(np.random.default_rng(0), 9, 12)
        table = make_label_map("identity", 12, (5,), 3)
        (same,) = table.union(Y)
        assert table.num_buckets == 12
        assert (same != Y).nnz == 0


class TestSeeds:
    def draw(self, p=30, **changes):
        return Task(Config(num_buckets=20).replace(**changes), 10, p).draw_seeds()

    def test_drawn_seeds_follow_from_the_run_seed_alone(self):
        assert self.draw(seed=5) == self.draw(seed=5)
        assert self.draw(seed=5) == self.draw(seed=5, num_clients=7, learning_rate=1.0)
        assert self.draw(seed=5).labels != self.draw(seed=6).labels
        assert self.draw(seed=5).features != self.draw(seed=6).features
        assert self.draw(seed=5).run == 5

    def test_there_is_one_a_table_and_one_a_feature_map(self):
        drawn = self.draw(num_tables=6, feature_map="per-table")
        assert len(set(drawn.labels)) == 6
        assert len(set(drawn.features)) == 6
        assert not set(drawn.labels) & set(drawn.features)
        assert len(self.draw(feature_map="shared").features) == 1
        assert self.draw(feature_map="none").features == ()
        assert self.draw(seed=1, num_tables=3).labels == self.draw(seed=1, num_tables=6).labels[:3]

    def test_both_algorithms_see_the_same_features(self):
        """Else a comparison would also compare two draws of the feature hash."""
        for how in ("drawn", "paper", (9, 8, 7, 6)):
            one = self.draw(algorithm="fedavg", feature_map="per-table", feature_seeds=how)
            assert one.features == self.draw(feature_map="per-table", feature_seeds=how).features[:1]

    def test_given_and_paper_seeds_are_used_as_they_are(self):
        given_seeds = self.draw(label_seeds=(4, 2**32 - 1, 0, 9), feature_seeds=(77,))
        assert (given_seeds.labels, given_seeds.features) == ((4, 2**32 - 1, 0, 9), (77,))
        paper = self.draw(label_seeds="paper", feature_seeds="paper", feature_map="per-table")
        assert (paper.labels, paper.features) == ((0, 1, 2, 3), (101, 102, 103, 104))

    @pytest.mark.parametrize("seeds", [(1, 2, 3), (1, 2, 3, -1), (1, 2, 3, 2**32), "random"])
    def test_too_few_or_impossible_seeds_are_refused(self, seeds):
        with pytest.raises(UserError, match="label_seeds"):
            self.draw(label_seeds=seeds)


class TestFeatureMaps:
    @pytest.mark.parametrize("signed", [False, True])
    def test_hashing_is_a_matrix_product_and_touches_nothing(self, signed):
        """X·M with one ±1 in each row of M; without signs, M is the published hash itself."""
        rng = np.random.default_rng(2)
        X, before = frozen(draw_sparse(rng, (15, 50)))
        maps = make_feature_map(50, 8, (101, 7), signed=signed, normalize=False)
        eye = csr_matrix(np.eye(50, dtype=np.float32))
        for seed, M, hashed in zip((101, 7), maps.apply(eye), maps.apply(X), strict=True):
            M = M.toarray().astype(np.float64)
            expected = np.zeros((50, 8))
            expected[np.arange(50), [murmur3_32(j.to_bytes(4, "little"), seed) % 8 for j in range(50)]] = 1
            np.testing.assert_array_equal(np.abs(M), expected)
            assert (M.sum() < 40) == signed
            np.testing.assert_allclose(hashed.toarray(), X.toarray().astype(np.float64) @ M, atol=1e-6)
            assert hashed.has_canonical_format
            assert hashed.dtype == np.float32
        for part, kept in zip((X.data, X.indices, X.indptr), before, strict=True):
            np.testing.assert_array_equal(part, kept)

    def test_signed_hashing_keeps_inner_products_in_the_mean(self):
        """Unbiased over seeds within 4 standard errors, where sums without signs are far off for positive features."""
        rng = np.random.default_rng(3)
        X = csr_matrix(np.abs(draw_sparse(rng, (2, 60), 0.6).toarray()))
        true = float(X[0].multiply(X[1]).sum())
        seeds = tuple(range(1500))
        for signed in (True, False):
            hashed = make_feature_map(60, 16, seeds, signed=signed, normalize=False).apply(X)
            inner = np.array([float((h[0] @ h[1].T).sum()) for h in hashed])
            error = inner.std() / np.sqrt(len(seeds))
            assert (abs(inner.mean() - true) < 4 * error) == signed

    def test_signs_do_not_depend_on_buckets(self):
        maps = make_feature_map(4000, 2, (0,), signed=True, normalize=False)
        (M,) = maps.apply(csr_matrix(np.eye(4000, dtype=np.float32)))
        dense = M.toarray()
        cells = [np.sum(dense[:, b] == s) for b in (0, 1) for s in (1, -1)]
        assert max(cells) < 1000 + 5 * np.sqrt(4000 * 0.25 * 0.75)
        assert sum(cells) == 4000

    @pytest.mark.parametrize("seeds", [(), (1,), (1, 2)])
    @pytest.mark.parametrize("signed", [False, True])
    def test_normalised_rows_have_length_one_and_keep_their_direction(self, seeds, signed):
        rng = np.random.default_rng(4)
        X = draw_sparse(rng, (12, 30)).toarray()
        X[[0, 5]] = 0
        X[3] *= 1e4
        X, before = frozen(csr_matrix(X))
        plain = make_feature_map(30, 9, seeds, signed=signed, normalize=False).apply(X)
        unit = make_feature_map(30, 9, seeds, signed=signed, normalize=True).apply(X)
        for p, u in zip(plain, unit, strict=True):
            length = np.linalg.norm(p.toarray().astype(np.float64), axis=1, keepdims=True)
            np.testing.assert_allclose(u.toarray() * length, p.toarray(), rtol=1e-5)
            np.testing.assert_allclose(np.linalg.norm(u.toarray(), axis=1), (length[:, 0] > 0), atol=1e-6)
            assert u.dtype == np.float32
        assert plain[0][0].nnz == plain[0][5].nnz == 0
        for part, kept in zip((X.data, X.indices, X.indptr), before, strict=True):
            np.testing.assert_array_equal(part, kept)

    def test_no_seeds_leave_features_as_they_are_in_a_copy(self):
        X = draw_sparse(np.random.default_rng(5), (6, 10))
        maps = make_feature_map(10, 3, (), signed=True, normalize=False)
        (same,) = maps.apply(X)
        assert maps.dim == 10
        assert (same != X).nnz == 0
        assert not np.shares_memory(same.data, X.data)

    def test_features_that_cancel_leave_no_stored_zero(self):
        M = make_feature_map(200, 4, (0,), signed=True, normalize=False)
        (eye,) = M.apply(csr_matrix(np.eye(200, dtype=np.float32)))
        dense = eye.toarray()
        i, j = next((i, j) for i, j in combinations(range(200), 2) if (dense[i] == -dense[j]).all())
        (hashed,) = M.apply(csr_matrix((np.ones(2, np.float32), [i, j], [0, 2]), shape=(1, 200)))
        assert hashed.nnz == 0


class TestCountSketch:
    def test_it_is_exact_where_nothing_collides(self):
        sketch = CountSketch(3, 40_000, np.random.default_rng(0))
        assert all(len(set(buckets.tolist())) == 12 for buckets, _ in sketch._places(0, 12))
        values = np.random.default_rng(0).normal(size=12)
        sketch.insert(values)
        np.testing.assert_allclose(sketch.retrieve(12), values, rtol=1e-12)

    @settings(deadline=None)
    @given(st.lists(st.lists(st.integers(-1000, 1000), min_size=20, max_size=20), min_size=1, max_size=4))
    def test_insertions_add_up(self, vectors):
        one, many = CountSketch(3, 5, np.random.default_rng(2)), CountSketch(3, 5, np.random.default_rng(2))
        for vector in vectors:
            many.insert(np.array(vector))
        one.insert(np.sum(vectors, axis=0))
        np.testing.assert_array_equal(one.cells, many.cells)
        assert one.cells.shape == (3, 5)

    @pytest.mark.parametrize("num_tables", [1, 4, 5])
    def test_retrieval_is_the_brute_force_one(self, num_tables):
        sketch = CountSketch(num_tables, 7, np.random.default_rng(1))
        hashes = list(sketch._places(0, 50))
        assert {sign for _, signs in hashes for sign in signs.tolist()} == {-1, 1}
        assert {bucket for buckets, _ in hashes for bucket in buckets.tolist()} == set(range(7))
        values = np.random.default_rng(1).normal(size=50)
        sketch.insert(values)
        found = sketch.retrieve(50)
        for i in range(50):
            held = [s[i] * sum(s[l] * values[l] for l in range(50) if h[l] == h[i]) for h, s in hashes]  # noqa: E741
            assert found[i] == pytest.approx(sum(held) / num_tables, abs=1e-12)

    @pytest.mark.parametrize("num_buckets", [1, 7, 4096, 10**6])
    def test_a_hash_function_is_multiply_shift_on_64_bits(self, num_buckets):
        """Written down once more: from the lower 32 of the upper 33 bits the bucket, from the highest the sign."""
        sketch = CountSketch(3, num_buckets, np.random.default_rng(1))
        drawn = np.random.default_rng(1).integers(0, 2**64, (3, 2), np.uint64).tolist()
        for (factor, summand), (buckets, signs) in zip(drawn, sketch._places(1000, 50), strict=True):
            mixed = [(key * factor + summand) % 2**64 for key in range(1000, 1050)]
            assert buckets.tolist() == [(bits >> 31) % 2**32 * num_buckets >> 32 for bits in mixed]
            assert signs.tolist() == [1 - 2 * (bits >> 63) for bits in mixed]

    def test_the_estimate_is_unbiased_over_seeds(self):
        values = np.random.default_rng(2).normal(size=30) + 1
        estimates = []
        for seed in range(800):
            sketch = CountSketch(2, 6, np.random.default_rng(seed))
            sketch.insert(values)
            estimates.append(sketch.retrieve(30))
        error = np.std(estimates, axis=0) / np.sqrt(len(estimates))
        assert (np.abs(np.mean(estimates, axis=0) - values) < 4.5 * error).all()

    def test_heavy_hitters_are_found(self):
        source = np.random.default_rng(3)
        values = source.normal(size=3000)
        heavy = source.choice(3000, 15, replace=False)
        values[heavy] += np.where(source.random(15) < 0.5, 60, -60)
        sketch = CountSketch(7, 300, np.random.default_rng(0))
        sketch.insert(values)
        estimate = sketch.retrieve(3000)
        assert set(np.argsort(-np.abs(estimate))[:15]) == set(heavy)
        np.testing.assert_allclose(estimate[heavy], values[heavy], atol=15)

    def test_sketches_of_different_seeds_share_no_table(self):
        sketches = [CountSketch(3, 50, np.random.default_rng(seed)) for seed in range(20)]
        tables = [tuple(buckets.tolist()) for sketch in sketches for buckets, _ in sketch._places(0, 100)]
        assert len(set(tables)) == 60
