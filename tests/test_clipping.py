"""How far one client may move the model: bounds that honest clients stay below, and that one liar cannot move."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedmlh.config import Config
from fedmlh.errors import UserError
from fedmlh.federated.aggregate import LIMIT
from fedmlh.federated.codecs import make_codec
from fedmlh.federated.task import Task
from fedmlh.federated.transforms.clipping import EARLY_SLACK, SLACK, Clipping, Lengths, cap_weight, confine
from tiny import TINY

CODECS = ["fp32", "fp16", "int8", "int4", "int2", "topk-10%", "sketch-50%", "sketch-5%", "int4+zlib"]


def clipping(sizes: list[int] | None = None, **settings: object) -> Clipping:
    config = TINY.replace(**{"num_clients": 10, "clients_per_round": 4} | settings)
    return Clipping(Task(config, 60, 40), dict(enumerate(sizes or [80] * 10)))


def test_the_first_bound_is_what_the_optimizer_can_reach() -> None:
    """80 points in batches of 40 are two steps; an update may be half as long again as Adam's steps."""
    bounds = clipping(learning_rate=0.01).bounds([0, 3], Lengths())
    assert bounds.updates == pytest.approx({0: 0.01 * 2 * 1.5, 3: 0.01 * 2 * 1.5})
    assert clipping(learning_rate=0.01, clip="off").bounds([0], Lengths()).updates == {0: math.inf}


def test_a_claim_of_many_points_widens_the_bound_twice_at_most() -> None:
    bounds = clipping([80] * 9 + [2**31 - 1]).bounds(range(10), Lengths())
    assert bounds.updates[9] == pytest.approx(2 * bounds.updates[0])
    bounds = clipping([80] * 9 + [1]).bounds(range(10), Lengths())
    assert bounds.updates[9] == bounds.updates[0]


def test_later_bounds_follow_the_median_and_forget() -> None:
    rule, recent = clipping(), Lengths()
    for known in range(1, 7):
        recent = rule.remember(recent, {0: 0.2, 1: 0.2, 2: 0.2, 3: 1000.0}, {})
        slack = EARLY_SLACK if 4 * known < 8 else SLACK
        assert rule.bounds([5], recent).updates[5] == pytest.approx(slack * 0.2)
    for _ in range(4):
        recent = rule.remember(recent, dict.fromkeys(range(4), 0.01), {})
    assert rule.bounds([5], recent).updates[5] == pytest.approx(SLACK * 0.01)
    assert len(recent.steps) == 16


def test_a_federation_that_stood_still_may_move_again() -> None:
    rule = clipping()
    still = rule.remember(Lengths(), dict.fromkeys(range(4), 0.0), {})
    assert rule.bounds([0], still).updates == rule.bounds([0], Lengths()).updates


def test_with_a_correction_the_bound_is_wider_and_refuses() -> None:
    plain, corrected = (
        clipping(optimizer="sgd", correction=name).bounds([0], Lengths()) for name in ("none", "scaffold")
    )
    assert plain.scales
    assert not corrected.scales
    assert corrected.updates[0] == pytest.approx(4 * plain.updates[0])
    recent = Lengths((0.1,), (0.3,))
    assert clipping(correction="scaffold").bounds([0], recent).extra == pytest.approx(4 * EARLY_SLACK * 0.3)


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("shape", ["normal", "heavy", "worst", "sparse"])
def test_no_codec_makes_a_vector_longer_than_it_says(name: str, shape: str) -> None:
    rng, codec = np.random.default_rng(3), make_codec(name)
    values = {
        "normal": rng.normal(size=12_800),
        "heavy": rng.standard_t(2, 12_800),
        # One value of a block of 128 is 1 and all others are what is rounded up at the greatest cost.
        "worst": np.tile([1.0] + [0.08] * 127, 100),
        "sparse": rng.normal(size=12_800) * (rng.random(12_800) < 0.01),
    }[shape].astype(np.float32)
    payload = memoryview(codec.encode(torch.from_numpy(values), np.random.default_rng(5)))
    decoded = codec.decode(payload, len(values), np.random.default_rng(5)).double().numpy()
    longer = float(np.linalg.norm(decoded) / np.linalg.norm(values.astype(np.float64)))
    assert longer <= 1.1 * codec.inflation  # on average over draws; these are some
    if name == "int2" and shape == "worst":
        assert longer > 0.9 * codec.inflation  # the figure is reached: it says no more than it must


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=12), st.floats(0.01, 1))
def test_no_weight_has_more_than_its_share_where_that_can_be(sizes: list[int], share: float) -> None:
    cap = cap_weight(dict(enumerate(sizes)), share)
    weights = [min(size, cap) for size in sizes]
    assert 1 <= cap <= max(sizes)
    if share * len(sizes) >= 1:
        # Whole numbers: one example more or less.
        assert max(weights) <= share * sum(weights) + 1
    if max(sizes) <= share * sum(sizes):
        assert weights == sizes


def test_a_site_that_claims_all_there_is_counts_as_much_as_the_others_together() -> None:
    assert cap_weight({0: 40, 1: 45, 2: 50, 3: 2**31 - 1}, 0.5) == 135
    assert cap_weight({0: 40, 1: 45}, 1.0) == 45


def test_values_are_confined_and_what_is_no_number_ends_the_round() -> None:
    values, clamped = confine(torch.tensor([1.0, -2000.0, math.inf, LIMIT]), "the model")
    assert values.tolist() == [1.0, -LIMIT, LIMIT, LIMIT]
    assert clamped == 2
    same = torch.tensor([1.0, -2.0])
    assert confine(same, "the model") == (same, 0)
    with pytest.raises(UserError, match="the model with values that are not numbers"):
        confine(torch.tensor([1.0, math.nan]), "the model")


def test_a_retired_setting_of_older_files_is_read_and_any_other_value_refused() -> None:
    assert Config.from_mapping({"max_update_rms": 10.0}, "old") == Config()
    with pytest.raises(UserError, match="max_update_rms is no longer a setting"):
        Config.from_mapping({"max_update_rms": 9.0}, "old")
