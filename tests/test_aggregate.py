"""The fixed-point average: exact where it can be, close to float64 everywhere, and deaf to the order of arrival."""

from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmlh.federated.aggregate import LIMIT, Average, square_length

CPU = torch.device("cpu")


def average(updates, weights, max_weight=None):
    """Return the average of these updates, in float32."""
    size = len(updates[0])
    total = Average(size, max_weight or sum(weights), CPU)
    for update, weight in zip(updates, weights, strict=True):
        total.add(torch.as_tensor(update), weight)
    return total.result()


def draw_updates(rng, count, size=200):
    """Draw float32 values of all magnitudes from 1e-8 to LIMIT, of both signs."""
    exponents = rng.uniform(-8, np.log10(LIMIT), (count, size))
    return (10**exponents * rng.choice([-1, 1], (count, size))).astype(np.float32)


def exact_mean(updates, weights):
    """Return the mean in rational numbers, rounded once."""
    columns = np.asarray(updates).T.tolist()
    total = sum(weights)
    return np.array([float(sum(Fraction(x) * w for x, w in zip(c, weights, strict=True)) / total) for c in columns])


@pytest.mark.parametrize("weights", [(1, 1, 1, 1, 1), (3, 1, 70_000, 12, 999)])
def test_no_order_of_arrival_changes_a_bit(weights):
    updates = draw_updates(np.random.default_rng(0), 5)
    orders = list(permutations(range(5)))
    results = {average(updates[list(o)], [weights[i] for i in o]).numpy().tobytes() for o in orders}
    assert len(results) == 1
    # The same in float32 would not pass: the property is not empty on this data.
    naive = {np.add.reduce(updates[list(o)] * np.float32(0.2)).tobytes() for o in orders}
    assert len(naive) > 1


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**32), st.lists(st.integers(1, 10**6), min_size=1, max_size=12), st.randoms())
def test_it_is_the_weighted_mean_to_the_last_fixed_point_bit(seed, weights, random):
    """Each update is rounded once, by half a unit of 2^-(52 - L), L the bits of the weights' sum; then float32."""
    updates = draw_updates(np.random.default_rng(seed), len(weights), size=20)
    expected = exact_mean(updates, weights)
    order = list(range(len(weights)))
    random.shuffle(order)
    found = average(updates[order], [weights[i] for i in order]).double().numpy()
    unit = 2.0 ** (sum(weights).bit_length() - 52)
    bound = 0.5 * unit * len(weights) / sum(weights) + 2.0**-24 * np.abs(expected) * 1.001
    assert (np.abs(found - expected) <= bound).all()
    assert (0.5 * unit * len(weights) / sum(weights)) < 1e-9


def test_weights_count_exactly():
    """An update of weight w is w updates of weight 1, bit for bit, where the values are exact in fixed point."""
    rng = np.random.default_rng(1)
    updates = (rng.integers(-(2**20), 2**20, (3, 50)) / 2**12).astype(np.float32)
    weights = (5, 1, 14)
    repeated = [update for update, weight in zip(updates, weights, strict=True) for _ in range(weight)]
    assert torch.equal(average(updates, weights), average(repeated, [1] * 20))
    expected = exact_mean(updates, weights).astype(np.float32)
    np.testing.assert_array_equal(average(updates, weights).numpy(), expected)


def test_equal_weights_of_any_size_are_uniform_weights():
    updates = draw_updates(np.random.default_rng(2), 4)
    one, many = average(updates, [1] * 4), average(updates, [1024] * 4)
    np.testing.assert_allclose(one.numpy(), many.numpy(), rtol=2**-23, atol=1e-12)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("weight", [1, 10**6])
def test_a_hundred_clients_at_the_limit_do_not_overflow(sign, weight):
    """All of them at ±LIMIT with up to a million examples each: the mean is ±LIMIT, exactly."""
    updates = torch.full((3,), sign * LIMIT)
    total = Average(3, 100 * weight, CPU)
    for _ in range(100):
        total.add(updates, weight)
    assert total.result().tolist() == [sign * LIMIT] * 3


@pytest.mark.parametrize("max_weight", [1, 2, 3, 4, 7, 8, 10**8, 2**29 - 1])
def test_the_largest_sum_that_was_announced_fits(max_weight):
    total = Average(2, max_weight, CPU)
    total.add(torch.tensor([LIMIT, -LIMIT]), max_weight)
    assert total.result().tolist() == [LIMIT, -LIMIT]


def test_one_client_of_weight_one_returns_its_model():
    """The model moved by (trained - model) is the trained one, up to the rounding of that difference."""
    rng = np.random.default_rng(3)
    model = torch.from_numpy(rng.normal(size=500).astype(np.float32))
    trained = model + torch.from_numpy(rng.normal(size=500).astype(np.float32) * 0.01)
    total = Average(500, 1, CPU)
    total.add(trained - model, 1)
    moved = model + total.result()
    torch.testing.assert_close(moved, trained, rtol=2**-23, atol=1e-12)
    assert not torch.equal(moved, model)


def test_values_are_rounded_to_the_nearest_unit_not_cut():
    """With 2^29 - 1 announced a unit is 2^-23: below half of it there is nothing, above there is one."""
    unit = 2.0**-23
    values = torch.tensor([0.4, 0.6, 1.4, 1.6, -0.4, -0.6, -1.6]) * unit
    total = Average(7, 2**29 - 1, CPU)
    total.add(values, 1)
    assert (total.result() / unit).tolist() == [0, 1, 1, 2, 0, -1, -2]


def test_who_did_not_answer_does_not_count():
    """The divisor is the weight that arrived, not the one that was announced."""
    updates = draw_updates(np.random.default_rng(4), 2)
    found = average(updates, [3, 2], max_weight=1000).numpy()
    np.testing.assert_allclose(found, exact_mean(updates, [3, 2]), rtol=2**-23, atol=1e-9)


def test_the_updates_are_not_touched():
    update = torch.ones(5)
    total = Average(5, 2, CPU)
    total.add(update, 2)
    first, second = total.result(), total.result()
    assert torch.equal(first, second)
    assert first.tolist() == [1] * 5
    assert update.tolist() == [1] * 5


def test_every_part_of_a_long_vector_is_summed():
    """Work goes in chunks; the seams must not show."""
    size = 2 * (1 << 20) + 3
    values = torch.arange(size, dtype=torch.float32) / size
    total = Average(size, 2, CPU)
    total.add(values, 1)
    total.add(values * 3, 1)
    torch.testing.assert_close(total.result(), 2 * values, rtol=1e-6, atol=0)


def test_a_square_length_is_the_same_for_any_number_of_threads():
    """Engines run with different numbers of threads, and FedExP's step follows from it."""
    values = torch.from_numpy(np.random.default_rng(5).normal(size=1_300_007).astype(np.float32))
    before, found = torch.get_num_threads(), set()
    try:
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            found.add(square_length(values))
    finally:
        torch.set_num_threads(before)
    (value,) = found
    assert value == pytest.approx(float(np.square(values.numpy().astype(np.float64)).sum()), rel=1e-12)


def test_sums_of_different_scale_are_not_added():
    whole, other = Average(2, 8, CPU), Average(2, 7, CPU)
    whole.add(torch.ones(2), 3)
    other.add(torch.ones(2), 3)
    with pytest.raises(ValueError, match="do not add up"):
        whole.merge(other)
    assert whole.result().tolist() == [1, 1]
