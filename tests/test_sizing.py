"""Chosen sizes keep to the budget, suit any data, and are the same for everyone who sees the same sizes."""

import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedmlh.config import Config
from fedmlh.data.source import open_dataset
from fedmlh.engines.simulation import run
from fedmlh.errors import UserError
from fedmlh.federated.task import Task
from fedmlh.sizing import (
    NARROWEST,
    choose_sizes,
    fit_network,
    fit_width,
    least_budget,
    numbers_within,
    parse_size,
    suggest_buckets,
    suggest_tables,
)

RECOMMENDED = Config.load("recommended")


@settings(deadline=None, max_examples=200)
@example(1, 2, 50.0, "fedavg", "murmur3", "per-table")  # a layer of millions, and a step of 0
@example(1, 2, 1e6, "fedmlh", "murmur3", "none")
@given(
    st.integers(1, 10**6),
    st.integers(2, 10**6),
    st.sampled_from([0.0, 1e-6, 0.5, 1.6, 50.0]),
    st.sampled_from(["fedmlh", "fedavg"]),
    st.sampled_from(["murmur3", "identity"]),
    st.sampled_from(["per-table", "shared", "none"]),
)
def test_whatever_the_data_the_model_keeps_to_the_budget(features, labels, budget, algorithm, label_map, feature_map):
    maps = {"label_map": label_map, "feature_map": feature_map}
    config = RECOMMENDED.replace(budget_mib=budget, algorithm=algorithm, **maps)
    try:
        chosen, reasons = choose_sizes(config, features, labels)
    except UserError as error:
        budget = float(re.search(r"allow at least ([\d,.]+) MiB", str(error))[1].replace(",", ""))
        chosen, reasons = choose_sizes(config.replace(budget_mib=budget), features, labels)
    stack = Task(chosen, features, labels).stack
    allowed = budget * 2**20 or min(48 << 20, max(1 << 20, 400 * labels))
    assert 4 * stack.num_parameters <= allowed
    assert 8 <= stack.hidden[0] <= 4096
    assert chosen.sizes == "given"
    assert len(reasons) >= 2
    assert stack.num_inputs <= features
    assert (chosen.feature_map == "none") == (stack.num_inputs == features)
    if algorithm == "fedavg":  # whose one table needs at least an input a label
        assert stack.num_inputs >= min(features, labels)
    assert chosen.learning_rate == pytest.approx(0.07 / stack.hidden[0] ** 0.5, abs=1e-4)
    kept, _ = choose_sizes(config.replace(budget_mib=budget, learning_rate=0.007), features, labels)
    assert kept == chosen.replace(learning_rate=0.007)


def test_the_budget_is_used_up_to_the_width():
    for features, labels in ((6865, 4072), (20000, 46227), (47995, 21264)):
        chosen, _ = choose_sizes(RECOMMENDED.replace(budget_mib=10.0), features, labels)
        stack = Task(chosen, features, labels).stack
        wider = Task(chosen.replace(hidden_sizes=(stack.hidden[0] + 1,)), features, labels).stack
        assert 4 * stack.num_parameters + 1024 <= 10 * 2**20 < 4 * wider.num_parameters + 1024


def test_many_small_tables_and_buckets_that_grow_with_the_root_of_the_labels():
    assert [suggest_tables(budget) for budget in (1, (8 << 20) - 1, 8 << 20, 1 << 40)] == [8, 8, 16, 16]
    counts = (2, 31, 32, 40, 100, 2500, 10**6)
    assert [suggest_buckets(labels, 8 << 20) for labels in counts] == [2, 31, 32, 32, 40, 200, 4000]
    assert [suggest_buckets(labels, (8 << 20) - 1) for labels in counts] == [2, 31, 32, 38, 60, 300, 6000]


def test_small_models_start_rare_and_keep_their_step_unless_they_are_told_otherwise():
    for budget, start in ((7.9, ("rare", 1.0)), (8.0, ("random", 0.95))):
        chosen, reasons = choose_sizes(RECOMMENDED.replace(budget_mib=budget), 5000, 4000)
        assert (chosen.output_bias, chosen.learning_rate_decay) == start
        assert any(f"output_bias {start[0]}, learning_rate_decay {start[1]}" in reason for reason in reasons)
        told = RECOMMENDED.replace(budget_mib=budget, output_bias="random", learning_rate_decay=0.9)
        kept, reasons = choose_sizes(told, 5000, 4000)
        assert kept == chosen.replace(output_bias="random", learning_rate_decay=0.9)
        assert not any("output_bias" in reason for reason in reasons)
    for open_yet in ({"output_bias": "auto"}, {"learning_rate_decay": 0.0}):
        with pytest.raises(UserError, match="sizes 'auto' only"):
            Config(**open_yet)
    with pytest.raises(UserError, match=r"at least 0\.001"):
        RECOMMENDED.replace(learning_rate_decay=1e-9)


@given(st.integers(10**5, 8 * 10**7), st.integers(2, 300))
def test_the_hidden_layer_grows_slower_than_the_budget_and_the_inputs_take_the_rest(numbers, outputs):
    inputs, width = fit_network(numbers, 10**9, outputs)
    assert width == round(0.07 * numbers**0.6) <= 4096
    assert (inputs + 1 + outputs) * width + outputs <= numbers < (inputs + 2 + outputs) * width + outputs


@given(st.integers(1, 32), st.integers(1, 5000), st.integers(1, 5000))
def test_the_least_that_is_asked_for_is_just_enough(tables, inputs, outputs):
    least = least_budget(tables, inputs, outputs)
    assert fit_width(numbers_within(least, tables), inputs, outputs) == NARROWEST
    assert fit_width(numbers_within(least - 1, tables), inputs, outputs) < NARROWEST


@given(st.integers(1, 10**6), st.integers(1, 5000), st.integers(1, 5000), st.integers(1, 4))
def test_fit_width_is_the_widest_that_fits(numbers, inputs, outputs, depth):
    def size(width):
        return inputs * width + width + (depth - 1) * (width * width + width) + outputs * width + outputs

    width = fit_width(numbers, inputs, outputs, depth)
    assert width <= 0 or size(width) <= numbers
    assert size(max(width, 0) + 1) > numbers


def test_given_sizes_are_left_alone():
    config = Config.load("eurlex-4k")
    assert choose_sizes(config, 5000, 4000) == (config, [])
    with pytest.raises(UserError, match="set sizes=auto"):
        config.replace(budget_mib=2.0)


def test_a_run_says_what_it_chose_and_resumes_with_it(tmp_path):
    config = RECOMMENDED.replace(
        synthetic_points=300, synthetic_features=80, synthetic_labels=60, num_clients=4, clients_per_round=2, rounds=1
    )
    told = []
    run(config, open_dataset(config), tmp_path / "run", tell=told.append)
    assert any("tables of" in line for line in told)
    stored = Config.load(tmp_path / "run" / "config.toml")
    assert stored.sizes == "given"
    assert stored.num_tables == 8
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
