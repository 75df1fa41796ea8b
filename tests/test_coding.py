"""The entropy coder: what comes back, in how many bytes, and that no bytes from outside do harm."""

import hashlib
import tracemalloc
from itertools import accumulate
from math import isqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmlh.entropy import coding
from fedmlh.entropy.coding import decode, encode, most_values

MOST = 2**62 - 1


@pytest.fixture(scope="module", params=["plain", "compiled"], autouse=True)
def kernels(request):
    """Choose the loops that all tests of this file go through."""
    if request.param == "compiled":
        pytest.importorskip("numba", reason="the extra 'fast' is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coding, "_FEW_CALLS", 0 if request.param == "compiled" else 10**9)
        assert (coding._choose_kernels() is None) == (request.param == "plain")
        yield


def lanes(num_values):
    """Return how many lanes a message has."""
    return 1 + max(isqrt(num_values) // 3, num_values // 1024)


def split(value):
    """Return the symbol of a number, and how many raw bits follow it."""
    width = max(0, value.bit_length() - 4)
    return (value if value < 16 else 8 * width + (value >> width)), width


def plain_decode(payload, contexts):
    """Return the values and the number of bytes used: the format's decoder in plain Python, value after value."""
    used, length = 1, payload[0] & 127
    while payload[used - 1] > 127:
        length |= (payload[used] & 127) << 7 * used
        used += 1
    end = used + length
    present, tables, head = sorted(set(contexts)), {}, Bits(payload[used:end])
    while present:
        sharing, num_symbols = head.gamma(), head.gamma()
        symbols = [place - 1 for place in accumulate(head.gamma() for _ in range(num_symbols))]
        changes = [-(number // 2) if number % 2 else number // 2 for number in (head.gamma() for _ in symbols)]
        weights = [code if code < 8 else (4 + code % 4) << code // 4 - 1 for code in accumulate(changes)]
        for context in present[:sharing]:
            tables[context] = list(zip(symbols, slots_of(weights), strict=True))
        present = present[sharing:]

    at, num_lanes = used + -(-head.taken // 8), lanes(len(contexts)) if contexts else 0
    states = [int.from_bytes(payload[at + 4 * lane : at + 4 * lane + 4], "little") for lane in range(num_lanes)]
    at += 4 * num_lanes
    decoded = []
    for index, context in enumerate(contexts):
        high, offset = divmod(states[index % num_lanes], 2**14)
        entries = iter(tables[context])
        symbol, share = next(entries)
        while offset >= share:
            offset -= share
            symbol, share = next(entries)
        state = share * high + offset
        if state < 2**16:
            state = state << 16 | payload[at] | payload[at + 1] << 8
            at += 2
        states[index % num_lanes] = state
        decoded.append(symbol)
    assert states == [2**16] * num_lanes

    raw = Bits(payload[at:end])
    values = [s if s < 16 else ((8 + s % 8) << s // 8 - 1) + raw.take(s // 8 - 1) for s in decoded]
    assert -(-raw.taken // 8) == end - at
    return values, end


class Bits:
    """Bits of bytes, from the lowest one."""

    def __init__(self, data):
        self.number, self.taken = int.from_bytes(data, "little"), 0

    def take(self, width):
        self.taken += width
        return self.number >> self.taken - width & 2**width - 1

    def gamma(self):
        zeros = 0
        while not self.take(1):
            zeros += 1
        return 2**zeros + self.take(zeros)


def slots_of(weights):
    """Return shares of 2^14 slots, at least one each, with the rest for the largest; none has more than 15/16."""

    def share(weights, slots):
        shares = [1 + weight * (slots - len(weights)) // sum(weights) for weight in weights]
        if shares:
            shares[weights.index(max(weights))] += slots - sum(shares)
        return shares

    shares, top = share(weights, 2**14), weights.index(max(weights))
    if shares[top] > 15 * 2**10:
        shares = share(weights[:top] + weights[top + 1 :], 2**10)
        shares.insert(top, 15 * 2**10)
    return shares


def geometric(length, num_contexts, seed=0):
    rng = np.random.default_rng(seed)
    contexts = rng.integers(0, num_contexts, length).astype(np.uint8)
    return rng.geometric(np.geomspace(0.02, 0.8, num_contexts)[contexts]) - 1, contexts


def entropy(values, contexts):
    """Return the bytes of the symbols, given their contexts, and of the raw bits."""
    symbols, widths = np.array([split(value) for value in values.tolist()]).T
    bits = float(widths.sum())
    for context in np.unique(contexts):
        counts = np.unique(symbols[contexts == context], return_counts=True)[1]
        bits -= (counts * np.log2(counts / counts.sum())).sum()
    return bits / 8


def round_trip(values, contexts):
    values, contexts = np.asarray(values, np.int64), np.asarray(contexts, np.uint8)
    payload = encode(values, contexts)
    decoded, rest = decode(memoryview(payload + b"next"), contexts)
    assert bytes(rest) == b"next"
    assert decoded.dtype == np.int64
    assert np.array_equal(decoded, values)
    assert len(values) <= most_values(len(payload))
    return payload


def refused(payload, contexts):
    """Say whether decode refuses; otherwise the result must be values that encode accepts."""
    try:
        values, _ = decode(memoryview(payload), contexts)
    except ValueError:
        return True
    assert values.shape == contexts.shape
    assert values.dtype == np.int64
    assert np.all((values >= 0) & (values <= MOST))
    return False


def peak_memory(function):
    tracemalloc.start()
    try:
        function()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


# What comes back.

numbers = st.one_of(
    st.integers(0, 3),
    st.integers(0, 40),
    st.integers(0, MOST),
    st.builds(lambda power, step: min(MOST, 2**power + step), st.integers(4, 62), st.integers(-1, 1)),
)
messages = st.one_of(
    st.lists(st.tuples(numbers, st.integers(0, 255)), max_size=300),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=300),
    st.builds(lambda n, value, context: [(value, context)] * n, st.integers(0, 5000), numbers, st.integers(0, 255)),
)


@settings(deadline=None, max_examples=300)
@given(message=messages)
def test_any_numbers_come_back_and_the_bytes_that_follow_stay(message):
    round_trip([value for value, _ in message], [context for _, context in message])


@pytest.mark.parametrize("length", [0, 1, 2, 15, 16, 17, 1023, 1024, 16_384, 65_537, 300_001])
def test_any_number_of_lanes_comes_back(length):
    round_trip(*geometric(length, 5))


@pytest.mark.parametrize("value", [0, 1, 15, 16, 17, 31, 32, 2**52 + 1, 2**53 + 1, 2**61 - 1, 2**61, MOST])
def test_one_value_comes_back_alone_and_among_many(value):
    assert len(round_trip([value], [7])) < 25
    round_trip([value] * 10_000, [255] * 10_000)
    round_trip([0] * 5000 + [value] + [3] * 5000, np.arange(10_001) % 256)


def test_all_contexts_come_back_whether_they_are_frequent_or_occur_once():
    rng = np.random.default_rng(1)
    round_trip(rng.integers(0, 2**62, 256), np.arange(256))
    once = np.concatenate([np.zeros(3000, np.uint8), np.arange(256)])
    round_trip(rng.integers(0, 100, len(once)), once)
    # Each context has one number of its own: far from what its neighbours have.
    many = np.repeat(np.arange(256), 200)
    round_trip((many * 37 % 256).astype(np.int64) ** 7, many)


def test_any_type_of_whole_number_is_taken_and_anything_else_refused():
    contexts = np.zeros(3, np.uint8)
    for kind in (np.uint8, np.int16, np.uint64):
        assert encode(np.array([1, 2, 100], kind), contexts) == encode(np.array([1, 2, 100]), contexts)
    for wrong in ([0, -1, 2], [2**62, 0, 0], np.array([2**63, 0, 0], np.uint64), [1.0, 2, 3], [1, 2], [[1, 2, 3]]):
        with pytest.raises(ValueError, match="values must be"):
            encode(np.array(wrong), contexts)
    for wrong in (np.zeros(3, np.int64), np.zeros((3, 1), np.uint8)):
        with pytest.raises(ValueError, match="contexts must be"):
            encode(np.zeros(wrong.shape, np.int64), wrong)
        with pytest.raises(ValueError, match="contexts must be"):
            decode(memoryview(b"\0"), wrong)


@settings(deadline=None, max_examples=60)
@given(message=messages)
def test_the_format_is_what_a_plain_decoder_reads(message):
    values = np.array([value for value, _ in message], np.int64)
    contexts = np.array([context for _, context in message], np.uint8)
    payload = encode(values, contexts)
    assert plain_decode(payload, contexts.tolist()) == (values.tolist(), len(payload))


def test_a_plain_decoder_reads_many_lanes():
    values, contexts = geometric(20_000, 12, seed=4)
    payload = encode(values, contexts)
    assert plain_decode(payload, contexts.tolist()) == (values.tolist(), len(payload))


@settings(deadline=None, max_examples=100)
@given(message=messages)
def test_both_loops_write_the_same_bytes(message):
    values = np.array([value for value, _ in message], np.int64)
    contexts = np.array([context for _, context in message], np.uint8)
    payloads = []
    for few in (0, 10**9):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(coding, "_FEW_CALLS", few)
            payloads.append(encode(values, contexts))
    assert payloads[0] == payloads[1]


def test_the_bytes_of_a_message_never_change():
    index = np.arange(30_000)
    values = (index * index * 2654435761 % 2**32) >> index % 29
    payload = encode(values, (index * 7 % 23).astype(np.uint8))
    assert hashlib.sha256(payload).hexdigest() == "a4f027c5a751327151c988ca53df8c6c77473bcb63d97a162feafc6f4636e3af"


# In how many bytes.


def test_a_large_message_is_within_one_per_cent_of_its_entropy():
    values, contexts = geometric(200_000, 8)
    assert len(encode(values, contexts)) < 1.01 * entropy(values, contexts) + 100


def test_a_small_message_pays_some_tens_of_bytes():
    values, contexts = geometric(300, 4)
    assert len(encode(values, contexts)) < entropy(values, contexts) + 80
    rng = np.random.default_rng(2)
    values, contexts = rng.geometric(0.3, 300) - 1, rng.integers(0, 100, 300).astype(np.uint8)
    # A hundred contexts with little to say: as short as if there were one.
    assert len(encode(values, contexts)) < entropy(values, np.zeros(300, np.uint8)) + 50


def test_contexts_share_a_table_only_where_that_is_shorter():
    rng = np.random.default_rng(3)
    contexts = rng.integers(0, 60, 100_000).astype(np.uint8)
    values = rng.geometric(np.array([0.1, 0.5, 0.2])[contexts // 20]) - 1
    best = entropy(values, contexts // 20)
    assert len(encode(values, contexts)) < 1.01 * best + 50
    assert 1.05 * best < entropy(values, np.zeros_like(contexts))


@pytest.mark.parametrize("length", [1, 100, 5000, 300_000])
def test_no_message_holds_more_values_than_is_said(length):
    for value in (0, 5, 16):
        payload = round_trip([value] * length, np.zeros(length))
        assert len(payload) * 80 * 8 < length * (8 + 80 * split(value)[1]) + 80 * 8 * (20 + 4 * lanes(length))


# Bytes from outside.


def test_other_bytes_give_an_error_or_other_values():
    rng = np.random.default_rng(5)
    for trial in range(500):
        values, contexts = geometric(int(rng.integers(1, 6000)) if trial % 10 == 0 else 50, 6, seed=trial)
        payload = bytearray(encode(values * 50, contexts))
        kind = trial % 5
        at = int(rng.integers(len(payload)))
        if kind == 0:
            payload[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            payload[: at + 1] = rng.bytes(at + 1)
        elif kind == 2:
            del payload[at]
        elif kind == 3:
            payload[2:] = rng.bytes(len(payload) - 2)
        else:
            payload[at : at + 3] = rng.choice([0, 1, 128, 255], 3).astype(np.uint8).tobytes()
        refused(bytes(payload), contexts)


def test_a_message_that_is_cut_off_is_refused():
    values, contexts = geometric(400, 6)
    payload = encode(values, contexts)
    assert all(refused(payload[:end], contexts) for end in range(len(payload)))


def test_almost_any_change_of_symbols_or_tables_is_noticed():
    values, contexts = geometric(600, 4)
    payload = encode(values % 16, contexts)
    flips = np.random.default_rng(6).integers(0, 8 * len(payload), 200)
    changed = [payload[: at // 8] + bytes([payload[at // 8] ^ 1 << at % 8]) + payload[at // 8 + 1 :] for at in flips]
    # A state may fall back into step after one wrong value, about once in a hundred times.
    assert sum(refused(wrong, contexts) for wrong in changed) >= 190


def test_contexts_that_the_encoder_did_not_have_are_refused_or_give_other_values():
    values, contexts = geometric(3000, 6)
    payload = encode(values, contexts)
    for other in (contexts[:-1], contexts[::-1].copy(), contexts * 40, np.append(contexts, contexts[:1]), contexts[:0]):
        refused(payload, other)
    assert refused(payload, contexts[:-1])
    assert refused(payload, contexts[:0])


def test_slots_of_no_symbol_and_loose_ends_are_refused():
    contexts = np.zeros(1, np.uint8)
    payload = encode(np.zeros(1, np.int64), contexts)
    state = slice(len(payload) - 4, len(payload))
    assert decode(memoryview(payload), contexts)[0].tolist() == [0]
    # The value's share is 15/16 of the slots. This state lies beyond it, and ends where it should.
    wrong = bytearray(payload)
    wrong[state] = (64 << 14 | 15 << 10).to_bytes(4, "little")
    with pytest.raises(ValueError, match="in no table"):
        decode(memoryview(wrong), contexts)
    for low in (0, 1, 2**16 - 1):
        wrong[state] = low.to_bytes(4, "little")
        with pytest.raises(ValueError, match="too small"):
            decode(memoryview(wrong), contexts)
    with pytest.raises(ValueError, match="raw bits"):
        decode(memoryview(bytes([len(payload)]) + payload[1:] + b"\0"), contexts)
    with pytest.raises(ValueError, match="a length"):
        decode(memoryview(bytes([payload[0] | 128, 0]) + payload[1:]), contexts)
    with pytest.raises(ValueError, match="a length"):
        decode(memoryview(b"\xff" * 20), contexts)
    padded = encode(np.array([16]), contexts)
    with pytest.raises(ValueError, match="after the last"):
        decode(memoryview(padded[:-1] + bytes([padded[-1] | 128])), contexts)
    with pytest.raises(ValueError, match="no values"):
        decode(memoryview(b"\1\0"), contexts[:0])


def by_hand(numbers, rest, padding=0):
    """Return a message of one value: the numbers that describe its table, in gamma code, and what follows."""
    digits = "".join("0" * (n.bit_length() - 1) + "1" + f"{n:b}"[:0:-1] for n in numbers)
    table = int(digits[::-1], 2) | padding << len(digits)
    body = table.to_bytes(-(-len(digits) // 8), "little") + rest
    return memoryview(bytes([len(body)]) + body)


def test_tables_that_no_encoder_writes_are_refused():
    contexts, zero = np.zeros(1, np.uint8), np.zeros(1, np.int64)
    # One context, one symbol, which is 0 and has the weight 1.
    good, state = [1, 1, 1, 2], encode(zero, contexts)[-4:]
    assert by_hand(good, state) == encode(zero, contexts)
    for numbers, match in [
        ([2, 1, 1, 2], "impossible"),  # for two contexts
        ([1, 1, 481, 2], "impossible"),  # symbol 480
        ([1, 2, 240, 241, 2, 1], "impossible"),
        ([1, 1, 1, 1], "impossible"),  # weight 0
        ([1, 1, 1, 3], "impossible"),
        ([1, 1, 1, 112], "impossible"),
        ([1, 1, 512, 2], "cut off or too large"),
    ]:
        with pytest.raises(ValueError, match=match):
            decode(by_hand(numbers, state), contexts)
    with pytest.raises(ValueError, match="cut off or too large"):
        decode(by_hand([1, 1, 1], b""), contexts)
    # The last number lacks its lowest bits.
    with pytest.raises(ValueError, match="cut off or too large"):
        decode(memoryview(b"\1\x47"), contexts)
    with pytest.raises(ValueError, match="after the last"):
        decode(by_hand(good, state, padding=1), contexts)
    with pytest.raises(ValueError, match="states that are cut off"):
        decode(by_hand(good, state[:3]), contexts)
    # A state that asks for a word when only half a word is left.
    with pytest.raises(ValueError, match="words that are cut off"):
        decode(by_hand(good, (2**16).to_bytes(4, "little") + b"\0"), contexts)


def test_a_claim_of_many_values_costs_no_memory():
    payload = encode(*geometric(3000, 6))
    contexts = np.zeros(most_values(len(payload)) + 1, np.uint8)
    assert peak_memory(lambda: refused(payload, contexts)) < 50_000
    with pytest.raises(ValueError, match="cannot hold"):
        decode(memoryview(payload), contexts)


def test_memory_is_bounded_by_contexts_and_bytes_for_any_bytes():
    length = 300_000
    values, contexts = geometric(length, 6)
    honest = encode(values * 1000, contexts)
    # The most raw bits that values can claim, most of them missing: three bytes tell the new length.
    wide = encode(np.full(length, MOST), contexts)[4:-2_000_000]
    wide = bytes([len(wide) & 127 | 128, len(wide) >> 7 & 127 | 128, len(wide) >> 14]) + wide
    with pytest.raises(ValueError, match="raw bits"):
        decode(memoryview(wide), contexts)
    noise = honest[:1000] + np.random.default_rng(7).bytes(len(honest) - 1000)
    for payload in (honest, wide, noise):
        assert peak_memory(lambda payload=payload: refused(payload, contexts)) < 100 * length + 10 * len(payload)
