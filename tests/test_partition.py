"""Which client owns which points: the rule of each partition, and the division of a run built on it."""

import dataclasses

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from fedmlh.config import Config
from fedmlh.data.dataset import Dataset, Labels, Split
from fedmlh.data.division import divide
from fedmlh.data.partition import fit_partition
from fedmlh.errors import UserError
from fedmlh.planning.choices import settle_clients

PARTITIONS = ["paper-code", "paper-text", "iid", "dirichlet", "folder"]
TRUE_PARTITIONS = ["iid", "dirichlet", "folder"]
N, P, K = 503, 40, 6


def make_split(seed=0, n=N, p=P, sites=K):
    """Make points whose one feature is their number, label frequencies from 40 % to none, and some bare points."""
    rng = np.random.default_rng(seed)
    frequency = 0.4 / np.arange(1, p + 1)
    Y = rng.random((n, p)) < rng.permutation(frequency)
    Y[rng.random(n) < 0.1] = False
    Y[:, 7] = False
    X = csr_matrix(np.arange(1, n + 1, dtype=np.float32)[:, None])
    return Split(X, csr_matrix(Y.astype(np.float32)), sites=rng.permutation(np.arange(n) % sites))


def one_label_each(p):
    """Make thirty points that carry labels 0, 1, …, p - 1, 0, … in turn."""
    Y = np.eye(p, dtype=np.float32)[np.arange(30) % p]
    return Split(csr_matrix(np.ones((30, 1), np.float32)), csr_matrix(Y))


def who(split):
    """Return the numbers of a split's points, as make_split wrote them."""
    return split.X.toarray()[:, 0].astype(int) - 1


def held_out(division):
    """Return the clients' parts of the validation part, as splits."""
    return {client: division.validation.take(rows) for client, rows in division.held_out.items()}


def assign(name, split, num_clients=K, seed=0, other=None, **options):
    """Return the rows of each client: the rule is fitted on `split` and applied to it, or to `other`."""
    rng = np.random.default_rng(seed)
    config = Config(partition=name, num_clients=num_clients, clients_per_round=1, **options)
    rule = fit_partition(config, split, rng)
    return rule(split if other is None else other, rng)


def top_labels(split, count):
    """Return the most frequent labels, the lower number first where counts tie."""
    counts = split.Y.toarray().sum(axis=0)
    return sorted(range(len(counts)), key=lambda label: (-counts[label], label))[:count]


@pytest.mark.parametrize("name", PARTITIONS)
def test_rows_are_sorted_valid_and_unique_inside_a_client(name):
    clients = assign(name, make_split())
    assert len(clients) == K
    for rows in clients:
        assert (np.diff(rows) > 0).all()
        assert rows.min() >= 0
        assert rows.max() < N


@pytest.mark.parametrize("name", PARTITIONS)
def test_the_same_seed_gives_the_same_clients_and_another_seed_others(name):
    split = make_split()
    one, same, other = (assign(name, split, seed=seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    moved = any(not np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    assert moved == (name != "folder")


@pytest.mark.parametrize("name", TRUE_PARTITIONS)
@pytest.mark.parametrize("num_clients", [1, 2, K, 50])
def test_every_point_is_at_exactly_one_client(name, num_clients):
    clients = assign(name, make_split(sites=num_clients), num_clients)
    np.testing.assert_array_equal(np.sort(np.concatenate(clients)), np.arange(N))


class TestPaperCode:
    @pytest.mark.parametrize("num_clients", [1, 3, K, 20])
    def test_every_client_has_exactly_its_share(self, num_clients):
        clients = assign("paper-code", make_split(), num_clients)
        assert [len(rows) for rows in clients] == [N // num_clients] * num_clients

    @pytest.mark.parametrize("seed", range(3))
    def test_client_k_has_the_k_th_label_as_far_as_it_goes(self, seed):
        split = make_split(seed)
        dense, share = split.Y.toarray(), N // K
        filled = []
        for label, rows in zip(top_labels(split, K), assign("paper-code", split, seed=seed), strict=True):
            own = set(np.flatnonzero(dense[:, label]))
            filled.append(len(own) < share)
            if len(own) <= share:
                assert own <= set(rows)
            else:
                assert set(rows) <= own
        assert len(set(filled)) == 2, "the case should have labels with too many points and with too few"

    def test_what_is_cut_or_filled_up_is_drawn_from_all_there_is(self):
        """Over many seeds every point of a large label is taken at times, and every other point fills up at times."""
        split = make_split()
        dense, labels = split.Y.toarray(), top_labels(split, K)
        seen = [set() for _ in range(K)]
        for seed in range(60):
            for client, rows in enumerate(assign("paper-code", split, seed=seed)):
                seen[client] |= set(rows)
        assert seen[0] == set(np.flatnonzero(dense[:, labels[0]]))
        assert seen[-1] == set(range(N))

    def test_a_label_a_client_is_needed(self):
        with pytest.raises(UserError, match=r"10 clients .* more than the 4 labels"):
            assign("paper-code", one_label_each(4), 10)


class TestPaperText:
    @pytest.mark.parametrize("threshold", [0.01, 0.1])
    @pytest.mark.parametrize("seed", range(3))
    def test_all_points_of_a_frequent_label_are_at_one_client(self, seed, threshold):
        split = make_split(seed)
        dense = split.Y.toarray()
        clients = assign("paper-text", split, seed=seed, frequent_threshold=threshold)
        frequent = [label for label in range(P) if dense[:, label].sum() >= threshold * N]
        assert 0 < len(frequent) < P
        owners = []
        for label in frequent:
            own = set(np.flatnonzero(dense[:, label]))
            owners.append({k for k, rows in enumerate(clients) if own <= set(rows)})
            assert owners[-1]
        # A point is only where one of its frequent labels is, and a bare one at exactly one client.
        count = np.bincount(np.concatenate(clients), minlength=N)
        assert count.min() == 1
        bare = dense[:, frequent].sum(axis=1) == 0
        assert bare.any()
        assert (count[bare] == 1).all()
        assert (count <= np.maximum(1, dense[:, frequent].sum(axis=1))).all()
        assert count.max() > 1
        for k, rows in enumerate(clients):
            mine = [label for label, owner in zip(frequent, owners, strict=True) if k in owner]
            assert (dense[np.ix_(rows, mine)].any(axis=1) | bare[rows]).all()

    def test_bare_points_are_spread_evenly(self):
        split = make_split()
        clients = assign("paper-text", split, frequent_threshold=1.0)
        sizes = [len(rows) for rows in clients]
        assert sum(sizes) == N
        assert max(sizes) - min(sizes) <= 1

    def test_a_label_at_the_threshold_is_frequent(self):
        """At least 1 %: 5 of 500 points."""
        Y = np.zeros((500, 3), np.float32)
        Y[:5, 0], Y[5:9, 1] = 1, 1
        split = Split(csr_matrix(np.ones((500, 1), np.float32)), csr_matrix(Y))
        together = {0: 0, 1: 0}
        for seed in range(30):
            homes = np.empty(500, int)
            for k, rows in enumerate(assign("paper-text", split, seed=seed)):
                homes[rows] = k
            together[0] += len(set(homes[:5])) == 1
            together[1] += len(set(homes[5:9])) == 1
        assert together[0] == 30
        assert together[1] < 5


class TestIid:
    @pytest.mark.parametrize("num_clients", [1, K, 50, N, N + 5])
    def test_sizes_differ_by_one_at_most(self, num_clients):
        sizes = [len(rows) for rows in assign("iid", make_split(), num_clients)]
        assert max(sizes) - min(sizes) <= 1
        assert sum(sizes) == N

    def test_points_are_shuffled(self):
        (first, *_) = assign("iid", make_split())
        assert first.max() > N - N // K


class TestDirichlet:
    @staticmethod
    def skew(alpha, seed):
        """Return how far the clients' shares of the leading labels' points are from equal, averaged over labels."""
        split = make_split(seed)
        dense, counts = split.Y.toarray(), split.Y.toarray().sum(axis=0)
        clients = assign("dirichlet", split, seed=seed, dirichlet_alpha=alpha)
        homes = np.empty(N, int)
        for k, rows in enumerate(clients):
            homes[rows] = k
        label = int(np.argmax(counts))
        share = np.bincount(homes[dense[:, label] > 0], minlength=K) / counts[label]
        return share.max()

    def test_a_smaller_alpha_is_more_skewed(self):
        """The largest share of the most frequent label: about 1 for alpha → 0, about 1/K for a large one."""
        small, middle, large = (np.mean([self.skew(a, s) for s in range(12)]) for a in (0.01, 0.5, 1000.0))
        assert small > 0.9
        assert small > middle + 0.1 > large + 0.2
        assert large < 1.6 / K

    def test_a_point_follows_its_most_frequent_label(self):
        """With alpha so small that a label has one home, the leading label decides where a point goes."""
        split = make_split(1)
        dense, counts = split.Y.toarray(), split.Y.toarray().sum(axis=0)
        homes = np.empty(N, int)
        for k, rows in enumerate(assign("dirichlet", split, dirichlet_alpha=0.001)):
            homes[rows] = k
        leading = np.array([max(np.flatnonzero(y), key=lambda j: (counts[j], -j), default=-1) for y in dense])
        astray = 0
        for label in set(leading) - {-1}:
            own = homes[leading == label]
            astray += len(own) - np.bincount(own).max()
        assert astray <= 0.02 * N
        assert len(set(homes[leading == -1])) > 1


class TestFolder:
    def test_each_site_is_its_own_client(self):
        split = make_split()
        for site, rows in enumerate(assign("folder", split)):
            np.testing.assert_array_equal(rows, np.flatnonzero(split.sites == site))

    def test_sites_must_be_there_and_be_as_many_as_clients(self):
        config = Config(num_clients=4, num_buckets=10, partition="folder")
        with pytest.raises(UserError, match="site folders"):
            divide(dataclasses.replace(make_split(), sites=None), config)
        with pytest.raises(UserError, match="has 6 sites: set num_clients=0 and clients_per_round=0"):
            divide(make_split(), config)

    def test_what_the_sentence_says_to_set_suits_the_data(self):
        """Clients and clients per round that follow from the folders."""
        split, config = make_split(), Config(num_clients=4, num_buckets=10, partition="folder")
        data = Dataset("sites", split, split, Labels.numbered(split.Y.shape[1]))
        settled, _ = settle_clients(config.replace(num_clients=0, clients_per_round=0), data)
        assert len(divide(split, settled).shards) == settled.num_clients == 6

    def test_a_site_all_of_whose_points_are_held_out_just_has_no_shard(self):
        """Its one point is in the validation part; the other sites train on."""
        split = make_split(sites=K - 1)
        config = Config(num_clients=K, num_buckets=10, partition="folder")
        lonely = who(divide(split, config.replace(num_clients=K - 1)).validation)[0]
        sites = split.sites.copy()
        sites[lonely] = K - 1
        division = divide(dataclasses.replace(split, sites=sites), config)
        assert sorted(division.shards) == list(range(K - 1))
        assert who(division.validation)[division.held_out[K - 1]].tolist() == [lonely]


class TestDivision:
    @staticmethod
    def config(**changes):
        return Config(num_clients=K, num_buckets=10).replace(**changes)

    @pytest.mark.parametrize("partition", PARTITIONS)
    def test_validation_is_drawn_first_and_reaches_no_client(self, partition):
        division = divide(make_split(), self.config(partition=partition))
        validation = set(who(division.validation))
        assert len(validation) == len(division.validation) == round(0.1 * N)
        trained = {int(i) for shard in division.shards.values() for i in who(shard)}
        assert not validation & trained
        if partition != "paper-code":
            assert validation | trained == set(range(N))

    def test_the_validation_part_does_not_depend_on_the_partition(self):
        parts = [who(divide(make_split(), self.config(partition=name)).validation) for name in PARTITIONS]
        assert all(np.array_equal(part, parts[0]) for part in parts)
        other = who(divide(make_split(), self.config(seed=1)).validation)
        assert not np.array_equal(other, parts[0])

    @pytest.mark.parametrize("partition", PARTITIONS)
    def test_a_pooled_run_trains_on_just_what_the_clients_have(self, partition):
        spread = divide(make_split(), self.config(partition=partition))
        pooled = divide(make_split(), self.config(partition=partition, pooled=True, clients_per_round=1))
        assert list(pooled.shards) == [0]
        theirs = {int(i) for shard in spread.shards.values() for i in who(shard)}
        assert sorted(who(pooled.shards[0])) == sorted(theirs)
        assert np.array_equal(who(pooled.validation), who(spread.validation))

    @pytest.mark.parametrize("partition", PARTITIONS)
    def test_both_algorithms_get_the_same_division(self, partition):
        """… whatever else of the config differs that has nothing to do with dividing."""
        one = divide(make_split(), self.config(partition=partition, algorithm="fedmlh"))
        two = divide(
            make_split(),
            self.config(partition=partition, algorithm="fedavg", num_tables=2, rounds=3, clients_per_round=2),
        )
        for a, b in ((one.shards, two.shards), (held_out(one), held_out(two))):
            assert a.keys() == b.keys()
            assert all(np.array_equal(who(a[k]), who(b[k])) for k in a)

    @pytest.mark.parametrize("partition", PARTITIONS)
    def test_a_shard_keeps_the_labels_and_sites_of_its_points(self, partition):
        split = make_split()
        for shard in divide(split, self.config(partition=partition)).shards.values():
            rows = who(shard)
            assert (split.Y[rows] != shard.Y).nnz == 0
            np.testing.assert_array_equal(shard.sites, split.sites[rows])

    @pytest.mark.parametrize("partition", TRUE_PARTITIONS)
    def test_held_out_points_are_divided_as_well(self, partition):
        division = divide(make_split(), self.config(partition=partition))
        parts = np.concatenate([who(part) for part in held_out(division).values()])
        assert sorted(parts) == sorted(who(division.validation))

    def test_held_out_points_follow_the_rule_of_the_training_points(self):
        """A frequent label's held-out points are at the very client that has its training points."""
        config = self.config(partition="paper-text", validation_fraction=0.3)
        division = divide(make_split(), config)
        fit = np.concatenate([shard.Y.toarray() for shard in division.shards.values()])
        rows = np.concatenate([who(shard) for shard in division.shards.values()])
        _, once = np.unique(rows, return_index=True)
        counts, size = fit[once].sum(axis=0), len(once)
        checked, parts = 0, held_out(division)
        for label in np.flatnonzero(counts >= 0.01 * size):
            complete = [k for k, s in division.shards.items() if s.Y[:, [label]].sum() == counts[label]]
            total = division.validation.Y[:, [label]].sum()
            assert any(k in parts and parts[k].Y[:, [label]].sum() == total for k in complete)
            checked += total > 0
        assert checked > 10

    def test_held_out_points_of_paper_code_carry_the_clients_label(self):
        split = make_split()
        division = divide(split, self.config(validation_fraction=0.3))
        fit = split.take(np.setdiff1d(np.arange(N), who(division.validation)))
        share, counts = len(division.validation) // K, division.validation.Y.toarray().sum(axis=0)
        for k, label in enumerate(top_labels(fit, K)):
            assert len(held_out(division)[k]) == share
            assert held_out(division)[k].Y[:, [label]].sum() == min(share, counts[label])

    def test_the_rule_is_fitted_on_training_points_only(self):
        """Applied to points in which other labels lead, it still goes by the labels it was fitted on."""
        train, other = one_label_each(6), one_label_each(6)
        Y = train.Y.toarray()
        Y[:20] = np.eye(6)[3]
        train = Split(train.X, csr_matrix(Y, dtype=np.float32))
        assert top_labels(train, 1) == [3]
        (rows,) = assign("paper-code", train, 1, other=other)
        assert len(rows) == 30
        rows, _ = assign("paper-code", train, 2, other=other)
        assert set(np.flatnonzero(other.Y.toarray()[:, 3])) <= set(rows)

    def test_the_papers_selection_holds_nothing_out(self):
        division = divide(make_split(), self.config(selection="paper", partition="iid"))
        assert len(division.validation) == 0
        assert division.held_out == {}
        assert sum(len(shard) for shard in division.shards.values()) == N

    @pytest.mark.parametrize("partition", PARTITIONS)
    @pytest.mark.parametrize("selection", ["validation", "paper"])
    def test_no_points_is_the_users_error(self, partition, selection):
        with pytest.raises(UserError):
            divide(make_split().take(np.arange(0)), self.config(partition=partition, selection=selection))

    def test_a_validation_part_that_leaves_nothing_is_refused(self):
        with pytest.raises(UserError, match="validation_fraction"):
            divide(make_split(n=20), self.config(partition="iid", validation_fraction=0.01))

    def test_clients_without_points_do_not_exist_and_too_few_clients_are_refused(self):
        few = make_split(n=8)
        with pytest.raises(UserError, match="only 3 of 6 clients"):
            divide(few.take(np.arange(3)), self.config(partition="iid", selection="paper"))
        division = divide(few.take(np.arange(4)), self.config(partition="iid", selection="paper"))
        assert len(division.shards) == 4
        assert all(len(shard) for shard in division.shards.values())


@pytest.mark.parametrize(("points", "fraction", "size"), [(4, 0.1, "larger"), (4, 0.9, "smaller")])
def test_too_few_points_to_hold_some_out_say_which_fraction_helps(points, fraction, size):
    few = make_split().take(np.arange(points))
    config = Config(num_clients=2, clients_per_round=1, partition="iid", validation_fraction=fraction)
    with pytest.raises(UserError, match=f"give more points, or a {size} validation_fraction such as 0.5"):
        divide(few, config)
    assert len(divide(few, config.replace(validation_fraction=0.5)).validation) == points // 2
