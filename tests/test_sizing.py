"""Chosen sizes stay within the budget, suit any data, and are the same for everyone who sees the same sizes."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedmlh import Dataset
from fedmlh.config import Config
from fedmlh.data.source import open_dataset
from fedmlh.engines.run import run
from fedmlh.errors import UserError
from fedmlh.federated.task import Task
from fedmlh.sizing import RULE, Shape, choose_networks, choose_sizes, find_least, fit_width, parse_size

RECOMMENDED = Config.load("recommended").replace(training="rounds", num_clients=10, clients_per_round=4)
#: Features, labels, points and labels per point of the sets that the rules were fitted on.
SETS = {
    "Bibtex": Shape(1836, 159, 4880, 2.4),
    "Delicious": Shape(500, 983, 12920, 19.0),
    "Debtags": Shape(10084, 565, 23859, 3.7),
    "EurLex": Shape(6865, 4072, 17028, 6.4),
    "WordNet": Shape(38182, 8821, 65144, 5.0),
    "CiteULike": Shape(20000, 46227, 20755, 11.2),
    "TIBKAT": Shape(47995, 21264, 36354, 2.7),
}
shapes = st.builds(
    Shape,
    st.integers(1, 10**6),
    st.integers(2, 10**6),
    st.none() | st.integers(1, 10**7),
    st.none() | st.floats(0, 50),
)


@settings(deadline=None, max_examples=200)
@example(Shape(1, 2), 50.0, "fedavg", "murmur3", "per-table")  # a layer of millions, and a step of 0
@example(Shape(1, 2), 1e6, "fedmlh", "murmur3", "none")
@given(
    shapes,
    st.sampled_from([0.0, 1e-6, 0.5, 1.6, 50.0]),
    st.sampled_from(["fedmlh", "fedavg"]),
    st.sampled_from(["murmur3", "identity"]),
    st.sampled_from(["per-table", "shared", "none"]),
)
def test_whatever_the_data_the_model_keeps_to_the_budget(shape, budget, algorithm, label_map, feature_map):
    config = RECOMMENDED.replace(budget_mib=budget, label_map=label_map, feature_map=feature_map)
    config = config.replace(algorithm=algorithm)
    try:
        chosen, reasons = choose_sizes(config, shape)
    except UserError as error:
        budget = float(re.search(r"allow at least ([\d,.]+) MiB", str(error))[1].replace(",", ""))
        chosen, reasons = choose_sizes(config.replace(budget_mib=budget), shape)
    stack = Task(chosen, shape.features, shape.labels).stack
    assert 4 * stack.num_parameters <= (budget * 2**20 or RULE.budget(shape))
    assert 8 <= stack.hidden[0] <= 4096
    assert chosen.sizes == "given"
    assert len(reasons) >= 2
    assert stack.num_inputs <= shape.features
    assert (chosen.feature_map == "none") == (stack.num_inputs == shape.features)
    assert chosen.learning_rate == pytest.approx(RULE.rate / stack.hidden[0] ** 0.5, rel=0.01)
    assert RULE.least_decay <= chosen.learning_rate_decay <= 1
    assert 0 <= chosen.loss_tau <= 1
    told = {"learning_rate": 0.007, "learning_rate_decay": 0.97, "loss_tau": 0.3}
    kept, _ = choose_sizes(config.replace(budget_mib=budget, **told), shape)
    assert kept == chosen.replace(**told)


@pytest.mark.parametrize("shape", SETS.values(), ids=SETS)
def test_the_budget_is_used_up_to_the_width(shape):
    chosen, _ = choose_sizes(RECOMMENDED.replace(budget_mib=10.0), shape)
    stack = Task(chosen, shape.features, shape.labels).stack
    wider = Task(chosen.replace(hidden_sizes=(stack.hidden[0] + 1,)), shape.features, shape.labels).stack
    assert 4 * stack.num_parameters + 1024 <= 10 * 2**20 < 4 * wider.num_parameters + 1024


@pytest.mark.parametrize("shape", SETS.values(), ids=SETS)
def test_a_little_more_budget_changes_the_sizes_a_little(shape):
    """No cliffs: beside the steps of whole tables, nothing jumps."""
    budgets = [0.6 * 1.03**step for step in range(170)]  # to 89 MiB
    chosen = [choose_sizes(RECOMMENDED.replace(budget_mib=budget), shape)[0] for budget in budgets]
    for small, large in pairwise(chosen):
        assert small.num_tables <= large.num_tables <= 1.13 * small.num_tables
        for name in ("num_buckets", "feature_dim", "learning_rate", "learning_rate_decay"):
            assert getattr(large, name) == pytest.approx(getattr(small, name), rel=0.08)
        assert large.hidden_sizes[0] == pytest.approx(small.hidden_sizes[0], rel=0.15, abs=1)
        assert large.loss_tau == pytest.approx(small.loss_tau, abs=0.05)
        assert large.label_map == small.label_map


@settings(deadline=None, max_examples=50)
@given(st.sampled_from(list(SETS.values())), st.sampled_from(["features", "labels", "points", "positives"]))
def test_a_little_more_data_changes_the_sizes_a_little(shape, name):
    more = replace(shape, **{name: type(getattr(shape, name))(1.03 * getattr(shape, name))})
    one, two = (choose_sizes(RECOMMENDED, data)[0] for data in (shape, more))
    assert two.num_tables == pytest.approx(one.num_tables, rel=0.13)
    for field in ("num_buckets", "feature_dim", "learning_rate", "learning_rate_decay"):
        assert getattr(two, field) == pytest.approx(getattr(one, field), rel=0.08)
    assert two.loss_tau == pytest.approx(one.loss_tau, abs=0.05)


def test_more_features_and_labels_get_a_larger_budget_within_bounds():
    budgets = {name: RULE.budget(shape) / 2**20 for name, shape in SETS.items()}
    assert budgets["Bibtex"] == budgets["Delicious"] == 4
    assert budgets["Bibtex"] < budgets["Debtags"] < budgets["EurLex"] < budgets["WordNet"]
    assert budgets["WordNet"] == budgets["CiteULike"] == budgets["TIBKAT"] == 48


def test_words_that_one_text_has_ask_for_no_larger_budget():
    words = replace(SETS["EurLex"], features=2**18)
    assert RULE.budget(words) == RULE.budget(replace(words, repeated=2**18)) == RULE.most_budget
    assert RULE.budget(replace(words, repeated=6865)) == RULE.budget(SETS["EurLex"])
    assert RULE.budget(replace(words, repeated=0)) == RULE.least_budget
    texts = [f"{'oil' if number % 2 else 'fish'} word{number}" for number in range(40)]
    data = Dataset.from_texts(texts, [["a"]] * 40, test=0.25)
    assert Shape.of(data.train).repeated == 2  # of oil, fish, 30 words and 30 pairs
    assert Shape.of(data.train).features == 2**18


def test_few_labels_get_an_output_each_unless_sites_know_them_by_name():
    few = Shape(500, 40, 1000, 2.0)
    chosen, reasons = choose_sizes(RECOMMENDED, few)
    assert chosen.label_map == "identity"
    assert any("output per label" in reason for reason in reasons)
    named, reasons = choose_sizes(RECOMMENDED.replace(label_key="name"), few)
    assert named.label_map == "murmur3"
    assert any("sites know labels by name" in reason for reason in reasons)


def test_dense_labels_are_not_weighed_down_and_rare_ones_are():
    taus = {name: choose_sizes(RECOMMENDED, shape)[0].loss_tau for name, shape in SETS.items()}
    assert taus["Delicious"] <= 0.05
    assert sorted(taus, key=taus.get)[-1] == "TIBKAT"
    for shape in (*SETS.values(), replace(SETS["Delicious"], positives=200.0)):
        chosen, reasons = choose_sizes(RECOMMENDED, shape)
        (told,) = (line for line in reasons if line.startswith("loss_tau (τ)"))
        assert told.startswith(f"loss_tau (τ) {chosen.loss_tau:g}: ")
        assert told.endswith("so rare outputs " + ("get more weight" if chosen.loss_tau else "need no more weight"))


def test_the_step_falls_by_half_in_as_many_steps_however_long_rounds_are():
    shape = SETS["EurLex"]
    decays = [choose_sizes(RECOMMENDED, replace(shape, points=n))[0].learning_rate_decay for n in (2000, 20_000, 10**6)]
    assert decays[0] > decays[1] > decays[2] == RULE.least_decay
    assert decays[0] ** 10 == pytest.approx(decays[1], rel=0.05)


@settings(deadline=None, max_examples=50)
@given(shapes)
def test_networks_beside_a_linear_model_follow_from_the_settled_config_alone(shape):
    """Sites know the agreement, not the points of others."""
    once = Config.load("one-round").replace(correct=5, num_clients=10, clients_per_round=4)
    settled, reasons = choose_sizes(once, shape)
    assert any(reason.startswith("networks beside it") for reason in reasons)
    networks = choose_networks(settled, shape.features, shape.labels)
    alone, _ = choose_sizes(
        RECOMMENDED.replace(name="one-round", budget_mib=settled.budget_mib, rounds=5, correct=0), shape
    )
    assert networks == alone
    assert settled.budget_mib * 2**20 <= max(2**20, RULE.budget(shape) / 4)


@given(st.integers(0, 10**6), st.integers(1, 10**9))
def test_the_least_that_fits_is_found(low, more):
    least = find_least(lambda size: size >= low + more, low)
    assert low + more <= least <= low + more + 256


@given(st.integers(1, 10**6), st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 4))
def test_fit_width_is_the_widest_that_fits(numbers, inputs, outputs, depth):
    def size(width):
        return inputs * width + width + (depth - 1) * (width * width + width) + outputs * width + outputs

    width = fit_width(numbers, inputs, outputs, depth)
    assert width <= 0 or size(width) <= numbers
    assert size(max(width, 0) + 1) > numbers


def test_given_sizes_are_left_alone():
    config = Config.load("eurlex-4k")
    assert choose_sizes(config, SETS["EurLex"]) == (config, [])
    with pytest.raises(UserError, match="set sizes=auto"):
        config.replace(budget_mib=2.0)
    with pytest.raises(UserError, match="with sizes 'auto' only, -1, which means one that suits the data"):
        config.replace(loss_tau=-1.0)


def test_a_run_says_what_it_chose_and_resumes_with_it(tmp_path):
    config = RECOMMENDED.replace(
        synthetic_points=300, synthetic_features=80, synthetic_labels=100, num_clients=4, clients_per_round=2, rounds=1
    )
    told = []
    run(config, open_dataset(config), tmp_path / "run", tell=told.append)
    assert any("tables of" in line for line in told)
    stored = Config.load(tmp_path / "run" / "config.toml")
    assert stored.sizes == "given"
    assert stored.num_tables == 32
    run(config.replace(rounds=2), open_dataset(config), tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2MiB", 2 << 20),
        ("500KiB", 500 << 10),
        ("0.15GiB", int(0.15 * 2**30)),
        ("1.61 mib", 1_688_207),
        (" 300 ", 300),
        ("300B", 300),
        ("0.3MiB", 314_572),
        ("999999999999999.999999999", 999_999_999_999_999),
    ],
)
def test_sizes_are_read_as_people_write_them(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "2MB", "MiB", "-1MiB", "1e3KiB", "2 MiB each", "nan", "٣MiB", "9" * 5000])
def test_what_is_no_size_is_refused_in_a_sentence(text):
    with pytest.raises(UserError, match="say for example 2MiB"):
        parse_size(text)
