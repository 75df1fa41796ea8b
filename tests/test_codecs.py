"""Codecs: what comes back, in how many bytes, and that no bytes from outside do harm."""

import math
import re
import struct
import subprocess
import sys
import tracemalloc
import zlib
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from federation import Federation
from fedmlh import parts
from fedmlh.config import Config, parse_codec
from fedmlh.entropy import coding
from fedmlh.errors import UserError
from fedmlh.federated.codecs import control_draws, make_codec, update_draws
from fedmlh.federated.codecs.codec import Codec, check_size
from fedmlh.federated.codecs.grid import GridCodec
from fedmlh.federated.codecs.integers import BLOCK
from fedmlh.federated.codecs.sketch import ROWS
from fedmlh.federated.codecs.topk import _largest
from fedmlh.federated.messages import BroadcastHeader, UpdateHeader, unpack

PLAIN = ["fp32", "fp16", "int8", "int4", "int2", "topk-1%", "topk-12.5%", "topk-100%", "sketch-10%", "sketch-100%"]
GRIDS = ["grid-25%", "grid-100%", "grid-199%"]
DOCS = Path(__file__).parent.parent / "docs"
NAMES = [*PLAIN, *(f"{name}+zlib" for name in PLAIN), *GRIDS]
#: Any finite float32: zeros of both signs, subnormals, the largest.
finite = st.floats(width=32, allow_nan=False, allow_infinity=False)
vectors = st.one_of(
    st.lists(finite, max_size=40),
    st.lists(st.floats(-(2.0**-10), 2.0**-10, width=32), max_size=300),
    st.builds(lambda n, value: [value] * n, st.integers(0, 400), finite),
)


def rng(seed=0):
    return np.random.Generator(np.random.Philox(seed))


def tensor(values):
    return torch.tensor(values, dtype=torch.float32)


def normal(length, seed=0, scale=1e-3):
    return torch.from_numpy((np.random.default_rng(seed).normal(size=length) * scale).astype(np.float32))


def pass_through(name, values, seed=0):
    """Return what a vector becomes on its way."""
    codec = make_codec(name)
    payload = codec.encode(values, rng(seed))
    assert len(payload) <= codec.size(len(values))
    return codec.decode(memoryview(payload), len(values), rng(seed))


# What holds for every codec.


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=40)
@given(values=vectors)
def test_any_finite_vector_passes_within_its_size_and_the_same_draws_give_the_same_bytes(name, values):
    codec, values = make_codec(name), tensor(values)
    payload = codec.encode(values, rng(3))
    assert payload == codec.encode(values, rng(3))
    assert len(payload) <= codec.size(len(values))
    if name in PLAIN:
        assert len(payload) == codec.size(len(values))
    decoded = codec.decode(memoryview(payload), len(values), rng(3))
    assert decoded.shape == values.shape
    assert decoded.dtype == torch.float32


@pytest.mark.parametrize("name", NAMES)
def test_what_is_decoded_can_be_written_to(name):
    """A view of the message would be read-only, and would keep the whole message alive."""
    decoded = pass_through(name, torch.ones(3))
    before = decoded.clone()
    decoded += 1
    assert torch.equal(decoded, before + 1)


@pytest.mark.parametrize("name", NAMES)
def test_a_vector_of_zeros_stays_one(name):
    for length in (0, 1, 127, 128, 129, 1000):
        assert torch.equal(pass_through(name, torch.zeros(length)), torch.zeros(length))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("odd", [0x7FC00000, 0x7FFFFFFF, 0xFF800001, 0x7F800000, 0xFF800000], ids=hex)
def test_what_is_not_finite_stays_so_and_can_be_refused(name, odd):
    """Infinity of both signs, and NaN whatever its other bits are."""
    values = normal(1000)
    values.numpy().view(np.uint32)[500] = odd
    assert not torch.isfinite(pass_through(name, values)).all()


@settings(deadline=None)
@given(st.sampled_from(PLAIN), vectors)
def test_deflating_changes_no_bit(name, values):
    values = tensor(values)
    plain, deflated = pass_through(name, values), pass_through(f"{name}+zlib", values)
    assert plain.numpy().tobytes() == deflated.numpy().tobytes()


def test_deflating_makes_what_repeats_smaller_and_nothing_more_than_a_byte_larger():
    assert len(make_codec("int2+zlib").encode(torch.zeros(10**6), rng())) < 2000
    noise = torch.from_numpy(np.random.default_rng(0).integers(0, 2**32, 5000, np.uint32).view(np.float32))
    assert len(make_codec("fp32+zlib").encode(noise, rng())) == 20_001


# Floats.


@settings(deadline=None)
@given(st.lists(st.integers(0, 2**32 - 1), max_size=30))
def test_fp32_changes_no_bit(patterns):
    """Not even of NaN, infinity, negative zero or subnormals."""
    values = np.array(patterns, "<u4").view("<f4")
    assert make_codec("fp32").encode(torch.from_numpy(values.copy()), rng()) == values.tobytes()
    assert pass_through("fp32", torch.from_numpy(values.copy())).numpy().tobytes() == values.tobytes()


@settings(deadline=None)
@given(st.lists(st.floats(-65504, 65504, width=32), max_size=30))
def test_fp16_is_within_half_a_unit_in_the_last_place(values):
    given_values = tensor(values)
    decoded = pass_through("fp16", given_values)
    for x, y in zip(given_values.double().tolist(), decoded.double().tolist(), strict=True):
        unit = 2.0 ** max(math.frexp(x)[1] - 11, -24)  # 11 significant bits, subnormals in steps of 2^-24
        assert abs(x - y) <= unit / 2
    assert torch.equal(pass_through("fp16", decoded), decoded)


def test_fp16_beyond_its_range_becomes_infinite_not_something_else():
    assert pass_through("fp16", tensor([1e5, -1e5, 65504.0])).tolist() == [math.inf, -math.inf, 65504.0]


# Integers.


def test_integers_take_their_bits_and_two_bytes_a_block():
    for bits in (8, 4, 2):
        for length in (0, 1, 3, 127, 128, 129, 1000, 10**6 + 1):
            size = 2 * math.ceil(length / BLOCK) + math.ceil(length * bits / 8)
            assert make_codec(f"int{bits}").size(length) == size


@pytest.mark.parametrize("bits", [8, 4, 2])
@settings(deadline=None, max_examples=60)
@given(values=st.lists(st.floats(-(2.0**126), 2.0**126, width=32), min_size=1, max_size=300))
def test_a_value_moves_to_one_of_the_two_levels_around_it(bits, values):
    """The levels are evenly spaced up to a scale that is at most 1/128 above the block's largest magnitude."""
    values, top = tensor(values), 2 ** (bits - 1) - 1
    decoded = pass_through(f"int{bits}", values)
    for start in range(0, len(values), BLOCK):
        x, y = values[start : start + BLOCK].double(), decoded[start : start + BLOCK].double()
        step = float(x.abs().max()) * (1 + 2**-7) / top
        assert float((x - y).abs().max()) <= step * (1 + 1e-5) + 2.0**-133
        assert not ((y * x < 0).any())


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_integers_are_unbiased(bits):
    """The mean of many encodings comes as near to the vector as their variance says, in every value and in all."""
    values = torch.cat([normal(200), normal(60, 1, 1e-30), normal(60, 2, 1e30), torch.zeros(40)])
    codec, draws = make_codec(f"int{bits}"), 4000
    source = rng(bits)
    total = torch.zeros(len(values), dtype=torch.float64)
    for _ in range(draws):
        total += codec.decode(memoryview(codec.encode(values, source)), len(values), source)
    top = 2 ** (bits - 1) - 1
    peaks = torch.cat([part.abs().max().expand(len(part)) for part in values.double().split(BLOCK)])
    sigma = peaks * (1 + 2**-7) / top / 2 / math.sqrt(draws)  # of a rounding, at most half a step
    score = (total / draws - values) / sigma.clamp(min=1e-300)
    assert float(score.abs().max()) < 5
    assert abs(float(score.mean())) < 5 / math.sqrt(len(values))


@pytest.mark.parametrize(("bits", "less"), [(8, True), (4, True), (2, False)])
def test_with_four_bits_or_more_less_is_left_out_than_was_given(bits, less):
    """So that a broadcast of changes comes nearer to the model; this is the worst block that there is."""
    top = 2 ** (bits - 1) - 1
    left = []
    for ratio in np.geomspace(1e-3, 1, 60):
        values = torch.full((BLOCK,), float(ratio))
        values[0] = 1.0
        errors = [float((pass_through(f"int{bits}", values, seed) - values).square().sum()) for seed in range(30)]
        left.append(np.mean(errors) / float(values.square().sum()))
    assert max(left) == pytest.approx((math.sqrt(1 + (BLOCK - 1) / top**2) - 1) / 2, rel=0.1)
    assert (max(left) < 1) == less == (not parse_codec(f"int{bits}").family.leaves_more)


@pytest.mark.parametrize("bits", [8, 4, 2])
def test_a_long_vector_is_coded_as_its_parts_would_be_one_after_the_other(bits):
    """Work goes in chunks of 65,536 values; the seams must not show, and no chunk repeats the draws of another."""
    codec, scale = make_codec(f"int{bits}"), np.geomspace(1e-6, 1e6, 150_000, dtype=np.float32)
    values = normal(150_000) * torch.from_numpy(scale)
    source, decoded = rng(), pass_through(f"int{bits}", values)
    parts = [codec.encode(part, source) for part in values.split(512 * BLOCK)]
    for part, payload, got in zip(values.split(512 * BLOCK), parts, decoded.split(512 * BLOCK), strict=True):
        assert torch.equal(got, codec.decode(memoryview(payload), len(part), rng()))


# The grid.


@pytest.mark.parametrize("name", GRIDS)
@settings(deadline=None, max_examples=60)
@given(values=st.lists(st.floats(-(2.0**100), 2.0**100, width=32).filter(lambda x: abs(x) > 1e-30), max_size=100))
def test_a_value_moves_to_one_of_the_two_multiples_around_it(name, values):
    """Of the largest power of two below the share of the root mean square of values other than 0."""
    values = torch.cat([tensor(values), torch.zeros(70)])
    decoded = pass_through(name, values).double()
    touched = values[values != 0].double()
    if not len(touched):
        return
    limit = float(parse_codec(name).share) * math.sqrt(float(touched.square().mean()))
    step = 2.0 ** math.floor(math.log2(limit * (1 + 1e-12)))
    assert torch.equal(decoded / step, (decoded / step).round())
    assert float((decoded - values).abs().max()) < step
    assert not ((decoded * values) < 0).any()


@pytest.mark.parametrize("name", GRIDS)
def test_a_grid_is_unbiased_leaves_out_less_than_it_is_given_and_is_as_long_as_it_says(name):
    share, draws = float(parse_codec(name).share), 3000
    # Most of what can be left out: all values half a step.
    for values in (normal(200), torch.full((64,), 0.5), torch.cat([normal(64), torch.zeros(600), normal(64, 1, 1e-5)])):
        estimates = torch.stack([pass_through(name, values, seed) for seed in range(draws)]).double()
        step = share * math.sqrt(float(values[values != 0].double().square().mean()))
        assert float((estimates.mean(0) - values).abs().max()) < 5 * step / 2 / math.sqrt(draws)
        square = float(values.double().square().sum())
        assert float((estimates - values).square().sum(1).mean()) <= share**2 / 4 * square * 1.05
        length = math.sqrt(float(estimates.square().sum(1).mean()) / square)
        assert length <= make_codec(name).inflation * 1.01


def test_rows_that_nothing_touched_cost_next_to_nothing():
    codec, values = make_codec("grid-100%"), torch.zeros(100_000)
    values[50_000:60_000] = normal(10_000)
    alone = len(codec.encode(normal(10_000), rng()))
    assert len(codec.encode(values, rng())) < alone + 100_000 // 32 // 8
    assert len(codec.encode(torch.zeros(10**6), rng())) < 1000


@pytest.mark.parametrize("name", GRIDS)
def test_levels_are_coded_near_their_entropy(name):
    values = normal(300_000)
    codec = make_codec(name)
    payload = codec.encode(values, rng())
    decoded = codec.decode(memoryview(payload), len(values), rng()).numpy()
    counts = np.unique(decoded, return_counts=True)[1]
    entropy = float((counts * np.log2(len(values) / counts)).sum())
    assert entropy < 8 * len(payload) < 1.06 * entropy


def test_a_vector_that_would_be_longer_than_its_bound_is_rounded_to_a_larger_step(monkeypatch):
    codec, values = make_codec("grid-25%"), normal(3000)
    whole = len(codec.encode(values, rng()))
    monkeypatch.setattr(GridCodec, "size", lambda self, length: whole // 2)
    payload = codec.encode(values, rng())
    assert len(payload) <= whole // 2
    assert payload[0] > make_codec("grid-25%").choose_exponent(values.numpy()) + 127
    assert 0 < float((codec.decode(memoryview(payload), 3000, rng()) - values).norm()) < float(values.norm())


def test_a_grid_refuses_what_it_never_writes():
    codec, values = make_codec("grid-100%"), torch.zeros(70)
    values[:33] = 1.0
    good = codec.encode(values, rng())
    assert torch.equal(codec.decode(memoryview(good), 70, rng()), values)
    for wrong in (b"", b"\0" + good[1:], b"\xff" + good[1:], good[:-1], good + b"\0", good[:1], b"\xff\xff"):
        with pytest.raises(ValueError, match=r"step|cut off|too large|after|no values|cannot|fill"):
            codec.decode(memoryview(wrong), 70, rng())
    none = np.zeros(3, np.uint8)
    lone = np.zeros(32, np.uint8)

    def payload(steps, levels, contexts):
        return memoryview(b"\x7f" + coding.encode(np.array(steps), none) + coding.encode(np.array(levels), contexts))

    one = [2] + [0] * 31  # a level of 1 in a block of class 1
    assert codec.decode(payload([2, 1, 0], one, lone + 1), 70, rng())[0] == 1
    for steps, levels, contexts, match in (
        ([2, 3, 0], one, lone + 1, "an invalid class"),
        ([60, 59, 0], one, lone + 30, "an invalid class"),
        ([2**61, 0, 0], one, lone, "an invalid class"),
        ([4, 3, 0], one, lone + 2, "does not have"),
        ([2, 1, 0], [4, *one[1:]], lone + 1, "does not have"),
        ([2, 1, 0], [2**25, *one[1:]], lone + 1, "too large"),
        ([0, 0, 2], [0] * 31 + [2], lone + 1, "beyond the end"),
    ):
        with pytest.raises(ValueError, match=match):
            codec.decode(payload(steps, levels, contexts), 70, rng())


def test_a_grid_gives_the_same_bytes_with_and_without_compiled_loops(monkeypatch):
    pytest.importorskip("numba", reason="the extra 'fast' is not installed")
    vectors = [normal(70_000), torch.cat([torch.zeros(5000), normal(333), torch.zeros(77)]), tensor([1e9, 1e-9] * 50)]
    both = []
    for calls in (0, 10**9):
        monkeypatch.setattr(coding, "_FEW_CALLS", calls)
        payloads = [make_codec(name).encode(values, rng()) for name in GRIDS for values in vectors]
        decoded = [pass_through(name, values).numpy().tobytes() for name in GRIDS for values in vectors]
        both.append((payloads, decoded))
    assert both[0] == both[1]


# The largest values alone.


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(["topk-1%", "topk-12.5%", "topk-50%", "topk-100%"]), vectors)
def test_exactly_the_largest_are_kept_and_the_first_of_equal_ones(name, values):
    values = tensor(values)
    kept = math.ceil(parse_codec(name).share * len(values))
    order = sorted(range(len(values)), key=lambda place: (-abs(float(values[place])), place))[:kept]
    with np.errstate(over="ignore"):
        halves = values.numpy().astype(np.float16).astype(np.float32)
    expected = torch.zeros(len(values))
    expected[order] = torch.from_numpy(halves)[order]
    assert pass_through(name, values).tolist() == expected.tolist()


def test_the_larger_of_two_floats_that_are_next_to_each_other_is_kept():
    for value in (1e-40, 1e-3, 1.0, 3e38):
        near, far = (float(np.nextafter(np.float32(value), np.float32(end))) for end in (0, math.inf))
        values = tensor([near, -value, far, value])
        assert _largest(values.numpy(), 1).tolist() == [2]
        assert _largest(values.numpy(), 3).tolist() == [1, 2, 3]


def test_a_position_costs_no_more_than_two_bits_above_the_least_possible():
    for share, name in ((0.001, "topk-0.1%"), (0.01, "topk-1%"), (0.1, "topk-10%"), (0.5, "topk-50%")):
        length = 10**6
        kept = math.ceil(length * share)
        least = (math.lgamma(length + 1) - math.lgamma(kept + 1) - math.lgamma(length - kept + 1)) / math.log(2)
        bits = 8 * (make_codec(name).size(length) - 2 * kept)
        assert least < bits < least + 2 * kept


def test_only_what_loses_something_but_less_than_it_is_given_keeps_what_it_left_out():
    keeping = {name for name in PLAIN + GRIDS if make_codec(name).feedback}
    assert keeping == {"fp16", *(n for n in PLAIN if "topk" in n)}
    assert all(make_codec(f"{name}+zlib").feedback == make_codec(name).feedback for name in PLAIN)


@pytest.mark.parametrize("name", ["topk-1%", "topk-10%+zlib", "fp16"])
def test_with_feedback_nothing_is_lost_over_time(name):
    """What was sent plus what is still owed is all that was to be said, and what is owed does not grow."""
    assert make_codec(name).feedback
    residual, sent, said, owed = torch.zeros(500), 0.0, 0.0, []
    for t in range(1000):
        said = said + normal(500, t).double()
        wanted = normal(500, t) + residual
        decoded = pass_through(name, wanted)
        residual, sent = wanted - decoded, sent + decoded.double()
        owed.append(float(residual.norm()))
    torch.testing.assert_close(sent + residual.double(), said, rtol=0, atol=1e-6)
    assert max(owed[500:]) < 1.5 * max(owed[:500])


# The sketch.


def test_a_sketch_takes_its_share_of_the_bytes():
    for share in (1, 10, 25, 100):
        for length in (1000, 12_345, 10**6):
            size, whole = make_codec(f"sketch-{share}%").size(length), 4 * length * share / 100
            assert whole - 2 * ROWS < size <= whole


def test_a_sketch_is_unbiased_and_as_far_off_as_its_cells_say():
    """Count Sketch: an estimate's variance is the squared length of the rest, divided by the cells."""
    values, draws = normal(300, scale=1.0), 3000
    cells = make_codec("sketch-25%").size(300) / 2
    estimates = torch.stack([pass_through("sketch-25%", values, seed) for seed in range(draws)]).double()
    sigma = torch.sqrt((values.double().square().sum() - values.double() ** 2) / cells)
    score = (estimates.mean(0) - values) / sigma * math.sqrt(draws)
    assert float(score.abs().max()) < 5
    spread = (estimates - values).square().mean(0).sqrt()
    torch.testing.assert_close(spread, sigma, rtol=0.15, atol=0)


@pytest.mark.parametrize("place", [0, 1, 18])
def test_over_the_draws_a_value_comes_to_every_cell_with_either_sign_alike(place):
    """The first one too: a hash function that only multiplies would leave it where it is."""
    values, draws = torch.zeros(19), 400
    values[place] = 1.0
    cells = np.stack([np.frombuffer(make_codec("sketch-100%").encode(values, rng(s)), "<f2") for s in range(draws)])
    cells = cells.reshape(draws * ROWS, -1)  # one cell of each row is 1 or -1
    share = 1 / cells.shape[1]
    sigma = math.sqrt(share * (1 - share) / len(cells))
    assert np.abs(np.abs(cells).mean(0, np.float64) - share).max() < 5 * sigma
    assert np.abs(cells.mean(0, np.float64)).max() < 5 * math.sqrt(share / len(cells))


def test_a_sketch_recovers_heavy_hitters():
    values = normal(20_000, scale=1e-3)
    places = np.random.default_rng(1).choice(20_000, 20, replace=False)
    values[places] = torch.from_numpy(np.random.default_rng(2).choice([-1.0, 1.0], 20).astype(np.float32))
    decoded = pass_through("sketch-10%", values)
    assert set(decoded.abs().topk(20).indices.tolist()) == set(places.tolist())
    assert torch.equal(decoded[places].sign(), values[places].sign())


def test_values_far_apart_in_a_long_vector_do_not_collide_more_than_others():
    """Work goes in chunks of 2^18 values; two that stand alike in theirs have places of their own."""
    values = torch.zeros(3 * 2**18 + 7)
    places = [5, 2**18 + 5, 2 * 2**18 + 5, 3 * 2**18 + 5]
    values[places] = tensor([1.0, -0.5, 0.25, 2.0])
    decoded = pass_through("sketch-10%", values)
    assert torch.equal(decoded[places], values[places])


def test_hash_functions_of_a_sketch_come_from_the_key_and_not_over_the_wire():
    header = UpdateHeader("", "", 3, 1, 2, "sketch-25%", 1, 0.0)
    codec, values = make_codec("sketch-25%"), normal(100)
    payload = memoryview(codec.encode(values, update_draws(7, header)))
    right = codec.decode(payload, 100, update_draws(7, header))
    assert torch.equal(right, codec.decode(payload, 100, update_draws(7, header)))
    for seed, other in ((8, {}), (7, {"round": 4}), (7, {"attempt": 0}), (7, {"client": 1})):
        key = UpdateHeader(**{**vars(header), **other})
        assert not torch.equal(right, codec.decode(payload, 100, update_draws(seed, key)))


def test_no_two_vectors_of_a_run_share_their_draws():
    """Not an update and the control beside it either: their roundings would go the same way."""
    header = UpdateHeader("", "", 3, 1, 2, "int4", 1, 0.0)
    keys = [(7, {}), (8, {}), (7, {"round": 1}), (7, {"attempt": 3}), (7, {"client": 1}), (7, {"client": 3})]
    drawn = [
        draws(seed, UpdateHeader(**{**vars(header), **other})).bytes(8)
        for draws in (update_draws, control_draws)
        for seed, other in keys
    ]
    assert len(set(drawn)) == 2 * len(keys)


# Bytes from outside.


@pytest.mark.parametrize("name", PLAIN)
def test_a_payload_of_another_length_is_refused(name):
    codec = make_codec(name)
    payload = codec.encode(torch.ones(50), rng())
    for wrong in (payload[:-1], payload + b"\0", b"", payload + payload):
        with pytest.raises(ValueError, match="expected"):
            codec.decode(memoryview(wrong), 50, rng())


@pytest.mark.parametrize("name", NAMES)
def test_whatever_comes_is_decoded_to_a_vector_or_refused_with_a_value_error(name):
    codec, source = make_codec(name), np.random.default_rng(0)
    honest = codec.encode(normal(333), rng())
    refused = 0
    for trial in range(400):
        payload = bytearray(honest)
        if trial % 4 == 0:
            payload = bytearray(source.bytes(len(honest)))
        elif trial % 4 == 1:
            payload = payload[: source.integers(len(payload))]
        else:
            for bit in source.integers(0, 8 * len(payload), 1 + trial % 5).tolist():
                payload[bit // 8] ^= 1 << bit % 8
        try:
            decoded = codec.decode(memoryview(bytes(payload)), 333, rng())
            assert decoded.shape == (333,)
        except ValueError:
            refused += 1
    assert refused >= 100


def patch(payload, start, piece):
    return payload[:start] + piece + payload[start + len(piece) :]


def test_codes_that_encode_never_writes_are_refused():
    for name, bad in (("int8", b"\xff"), ("int4", b"\x0f"), ("int4", b"\xf0"), ("int2", b"\x03"), ("int2", b"\xc0")):
        codec = make_codec(name)
        honest = codec.encode(torch.ones(256), rng())
        with pytest.raises(ValueError, match="stands for no value"):
            codec.decode(memoryview(patch(honest, 4 + 20, bad)), 256, rng())
        with pytest.raises(ValueError, match="negative scale"):
            codec.decode(memoryview(patch(honest, 0, b"\x80\xbf")), 256, rng())
        with pytest.raises(ValueError, match="negative scale"):
            codec.decode(memoryview(patch(honest, 2, b"\x00\x80")), 256, rng())
    odd = make_codec("int4").encode(torch.ones(3), rng())
    with pytest.raises(ValueError, match="stands for no value"):
        make_codec("int4").decode(memoryview(odd[:-1] + bytes([odd[-1] ^ 0x10])), 3, rng())


def test_positions_that_are_too_many_repeat_or_lie_outside_are_refused():
    codec = make_codec("topk-10%")  # of 40: 4 positions, 3 low bits each, high parts in 4 + 5 bits
    honest = codec.encode(torch.arange(40.0), rng())
    high = 2
    for bits in ("1111100000000000", "1110000000000000", "0000000000001111"):
        wrong = patch(honest, 0, int(bits, 2).to_bytes(high, "big"))
        with pytest.raises(ValueError, match="position"):
            codec.decode(memoryview(wrong), 40, rng())
    beyond = patch(honest, 0, int("00001110100000000011010110000000", 2).to_bytes(4, "big"))  # 36, 37, 38 and 40
    with pytest.raises(ValueError, match="beyond the end"):
        codec.decode(memoryview(beyond), 40, rng())
    padded = patch(honest, 3, bytes([honest[3] | 1]))
    with pytest.raises(ValueError, match="position"):
        codec.decode(memoryview(padded), 40, rng())
    same = patch(patch(honest, 0, int("1111000000000000", 2).to_bytes(2, "big")), high, b"\0\0")
    with pytest.raises(ValueError, match="do not ascend"):
        codec.decode(memoryview(same), 40, rng())


def deflate(content):
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    return b"\1" + deflater.compress(content) + deflater.flush()


@pytest.mark.parametrize("length", [0, 1000])
@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("+zlib")])
def test_a_bomb_is_refused_before_it_unfolds(name, length):
    codec = make_codec(name)
    bomb = memoryview(deflate(bytes(20_000_000)))
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="cannot be inflated"):
            codec.decode(bomb, length, rng())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < len(bomb) + 500_000  # of 20 MB; threads of other tests may take a little meanwhile


def test_deflated_bytes_must_be_whole_and_alone():
    codec = make_codec("fp32+zlib")
    good = deflate(torch.ones(100).numpy().tobytes())
    assert torch.equal(codec.decode(memoryview(good), 100, rng()), torch.ones(100))
    other = zlib.compress(torch.ones(100).numpy().tobytes())
    short = deflate(torch.ones(99).numpy().tobytes())
    for wrong in (b"", b"\1", good[:-1], good + b"\0", b"\2" + good[1:], good[1:], b"\1" + other, short, b"\0" + good):
        with pytest.raises(ValueError, match=r"inflated|deflated|expected"):
            codec.decode(memoryview(wrong), 100, rng())
    with pytest.raises(ValueError, match="neither plain nor deflated"):
        codec.decode(memoryview(b"\2" + torch.ones(100).numpy().tobytes()), 100, rng())


@pytest.mark.parametrize("name", NAMES)
def test_decoding_takes_a_few_times_the_vector_and_no_more(name):
    length = 1_000_000
    codec, payload = make_codec(name), make_codec(name).encode(normal(length), rng())
    tracemalloc.start()
    try:
        codec.decode(memoryview(payload), length, rng())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10 * 4 * length


# Names.


def test_names_say_kind_share_and_whether_to_deflate():
    assert parse_codec("int4") == ("int4", 1, False)
    assert parse_codec("topk-0.5%+zlib") == ("topk", Fraction(1, 200), True)
    assert parse_codec("sketch-100%") == ("sketch", 1, False)
    assert parse_codec("grid-150%") == ("grid", Fraction(3, 2), False)
    for name in ("update_codec", "broadcast_codec"):
        assert getattr(Config(**{name: "topk-1%"}), name) == "topk-1%"


#: What is said of a name that is none: of a family that there is, how its names are made.
NONE = "say fp32[+zlib], fp16[+zlib], "
WRONG = {
    **dict.fromkeys(["zlib", "+zlib", "", "x" * 200, "١"], NONE),
    "int3": f"{NONE}*; did you mean 'int8'?",
    "INT8": f"{NONE}*; did you mean 'int8'?",
    " fp32": f"{NONE}*; did you mean 'fp32'?",
    "tpk-5%+zlib": f"{NONE}*; did you mean 'topk'?",
    **dict.fromkeys(
        ["topk", "topk-%", "topk-0%", "topk-101%", "topk-1", "topk-1e1%", "topk--1%", "topk-١%", "topk-0.00001%"],
        "say topk-N%[+zlib] with N from 0.001 to 100",
    ),
    **dict.fromkeys(["sketch", "sketch-0.0%"], "say sketch-N%[+zlib] with N from 0.001 to 100"),
    **dict.fromkeys(["fp32-10%", "fp32+", "fp32+zlib+zlib", "fp32+gzip", "fp32-"], "say fp32[+zlib]"),
    **dict.fromkeys(
        ["grid", "grid-24.9%", "grid-199.1%", "grid-200%", "grid-100%+zlib"], "say grid-N% with N from 25 to 199"
    ),
    "int8\n": "it must be text without control characters",
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("setting", ["update_codec", "broadcast_codec"])
def test_a_name_that_is_none_gets_one_sentence_that_says_what_there_is(setting, wrong):
    with pytest.raises(UserError) as error:
        Config(**{setting: wrong})
    begin, some, end = WRONG[wrong].partition("*")
    said = str(error.value)
    assert said.startswith(f"{setting} is {repr(wrong)[:60]}: {begin}")
    assert said.endswith(end) if some else said.endswith(begin) or begin == NONE
    assert "\n" not in said
    if begin == NONE:
        assert all(family in said for family in parts.OWN["codec"])


@pytest.mark.parametrize("name", ["int2", "int2+zlib", "sketch-10%", "sketch-100%+zlib"])
def test_a_codec_that_leaves_out_more_than_it_sends_is_for_updates_only(name):
    assert Config(update_codec=name).update_codec == name
    with pytest.raises(UserError, match="use it for updates only, and fp32, fp16, int8, int4, topk or grid here"):
        Config(broadcast_codec=name)


def test_what_a_config_asks_of_a_codec_needs_neither_numpy_nor_torch():
    """`fedmlh --help` and `fedmlh config` would wait for them."""
    names = [name for name in NAMES if not parse_codec(name).family.leaves_more]
    lines = [f"Config(update_codec={name!r}, broadcast_codec={name!r})" for name in names]
    ask = ["import sys", "from fedmlh.config import Config", *lines, "print({'numpy', 'torch'} & sys.modules.keys())"]
    ended = subprocess.run([sys.executable, "-c", "\n".join(ask)], capture_output=True, text=True, check=True)
    assert ended.stdout == "set()\n"


# A family of one's own.


class Steps(Codec):
    """Multiples of N thousandths as whole numbers of 16 bits; what rounding leaves out is kept."""

    percent = (Fraction(1), Fraction(50))
    feedback = True

    def size(self, length):
        return 2 * length

    def encode(self, values, rng):
        return np.rint(values.numpy() / float(self.share) * 10).astype("<i2").tobytes()

    def decode(self, payload, length, rng):
        check_size(payload, self.size(length))
        return torch.from_numpy(np.frombuffer(payload, "<i2").astype(np.float32)) * (float(self.share) / 10)


class Halves(Steps):
    """A family that sends the whole model each time."""

    percent = None
    whole = True
    deflates = False


class Signs(Steps):
    """A family that leaves out more than it is given, so that only updates may use it."""

    leaves_more = True


@pytest.fixture
def _own_families(monkeypatch):
    example = re.search(r"```python\n(.*?)```", (DOCS / "codecs.md").read_text(), re.DOTALL)[1]
    for name, family in (("steps", Steps), ("halves", Halves), ("signs", Signs), ("bf16", None)):
        monkeypatch.setitem(parts.OWN["codec"], name, f"fedmlh.federated.codecs.{name}")
        monkeypatch.setitem(parts._parts, ("codec", name), family)
    exec(example, {"__name__": "fedmlh.federated.codecs.bf16"})


@pytest.mark.usefixtures("_own_families", "one_thread")
@pytest.mark.parametrize(
    ("broadcasts", "model_sent", "off"),
    [
        ("steps-1%", False, 0.0005),
        ("steps-1%+zlib", False, 0.0005),
        ("halves", True, 0),
        ("bf16", False, 0.01),
        ("bf16+zlib", False, 0.01),
    ],
)
def test_a_family_is_one_class_that_a_config_can_name_and_a_run_sends_with(broadcasts, model_sent, off):
    fed = Federation(update_codec="steps-2%+zlib", broadcast_codec=broadcasts, clients_per_round=5)
    state = fed.run(4)
    size = len(state.model)
    headers, payloads = zip(*(unpack(BroadcastHeader, message, 1 << 20) for message in fed.sent), strict=True)
    assert {header.codec for header in headers} == {"initial", broadcasts}
    if not broadcasts.endswith("+zlib"):
        assert {len(payload) for payload in payloads} == {0, 2 * size + 4 * (not model_sent)}
    assert bool(state.changes) != model_sent
    assert model_sent or 0 < float((state.base_model - state.model).abs().max()) <= off * 1.001
    # Updates are multiples of their step, and what they left out is kept.
    residuals = [fed.memories[client].settle(state.accepted[client])["residual"] for client in range(5)]
    assert all(0 < float(residual.abs().max()) <= 0.001 * 1.001 for residual in residuals)
    plain = Federation(clients_per_round=5).run(4)
    assert float((state.model - plain.model).abs().max()) < 0.2 < float((state.model - fed.server.begin().model).norm())


@pytest.mark.usefixtures("_own_families")
@pytest.mark.parametrize(
    ("setting", "name", "said"),
    [
        ("update_codec", "steps-51%", "say steps-N%[+zlib] with N from 1 to 50"),
        ("update_codec", "halves+zlib", "say halves"),
        ("update_codec", "stebs-2%", "with N from 1 to 50 or bf16[+zlib]; did you mean 'steps'?"),
        (
            "broadcast_codec",
            "signs-2%",
            "use it for updates only, and fp32, fp16, int8, int4, topk, grid, steps, halves or bf16",
        ),
    ],
)
def test_a_config_knows_of_a_family_what_its_class_says(setting, name, said):
    with pytest.raises(UserError, match=re.escape(said)):
        Config(**{setting: name})


def test_scales_are_the_upper_halves_of_floats():
    """The format, written down once more: scales, then codes from the lowest bits up."""
    payload = make_codec("int4").encode(tensor([1.0, -1.0, 0.0]), rng())
    assert payload == struct.pack("<H", 0x3F80) + bytes([0 << 4 | 14, 7 << 4 | 7])


def test_positions_are_written_as_elias_and_fano_do():
    """3, 17, 38 and 39 of 40: 3 low bits from the lowest up; the high parts 0, 2, 4, 4 as steps; then fp16."""
    values = torch.zeros(40)
    values[[3, 17, 38, 39]] = tensor([1.0, -2.0, 0.5, 4.0])
    high, low = "1001001100000000", "1101000111110000"
    payload = int(high + low, 2).to_bytes(4, "big") + np.array([1.0, -2.0, 0.5, 4.0], "<f2").tobytes()
    assert make_codec("topk-10%").encode(values, rng()) == payload
