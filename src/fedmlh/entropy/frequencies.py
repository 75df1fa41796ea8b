"""Tables of frequencies: which contexts share one, how many slots each symbol has, and how tables are written."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from fedmlh.entropy.bits import check_padding, pack

#: Frequencies of a table add up to this, at most.
SCALE_BITS = 14
SCALE = 1 << SCALE_BITS
#: The largest frequency: no value is coded in much less than a tenth of a bit, which bounds the values of a message.
CAP = SCALE // 16 * 15
#: Symbols are below this, which is also the symbol of slots that a table leaves unused. It is never coded.
NUM_SYMBOLS = 480

#: Costs are in this part of a bit.
UNIT = 4096
#: Numbers that describe tables have fewer bits after the first one.
MOST_ZEROS = 9

#: Counts are rounded to one of these weights: exact below 8, then four per octave, which costs 0.002 bits per value.
_WEIGHTS = np.array([*range(8), *((4 + step) << octave for octave in range(1, 13) for step in range(4))], np.int64)
_MIDDLES = (_WEIGHTS[:-1] + _WEIGHTS[1:] + 1) // 2

#: Elias' gamma code of each number from 1 below 512, as a field that is written from its lowest bit.
_LENGTHS = np.array([max(1, number.bit_length()) for number in range(512)], np.int64)
_GAMMA_WIDTHS = 2 * _LENGTHS - 1
_GAMMA_FIELDS = (2 * np.arange(512) + 1 - (1 << _LENGTHS)) << _LENGTHS - 1


class Table(NamedTuple):
    """Frequencies that a run of neighbouring contexts share."""

    num_contexts: int
    symbols: np.ndarray  # ascending
    codes: np.ndarray  # indices of _WEIGHTS, at least 1


class Model(NamedTuple):
    """All tables one after the other, an entry per symbol of each; table t owns the slots from t · 2^14."""

    table_of: np.ndarray  # [256]
    symbols: np.ndarray
    frequencies: np.ndarray
    starts: np.ndarray  # ascending


def make_tables(counts: np.ndarray, kernels: Any = None) -> list[Table]:
    """Return tables for the counts per context and symbol; neighbouring contexts share one if that is shorter."""
    cost = _cost if kernels is None else _compiled_cost(kernels)
    rows, sizes = list(counts), [1] * len(counts)
    alone = [cost(row) for row in rows]
    joint = [cost(one + two) for one, two in pairwise(rows)]
    while joint:
        gains = [alone[at] + alone[at + 1] - together for at, together in enumerate(joint)]
        at = gains.index(max(gains))
        if gains[at] < 0:
            break
        rows[at : at + 2] = [rows[at] + rows[at + 1]]
        sizes[at : at + 2] = [sizes[at] + sizes[at + 1]]
        alone[at : at + 2] = [joint.pop(at)]
        if at > 0:
            joint[at - 1] = cost(rows[at - 1] + rows[at])
        if at < len(joint):
            joint[at] = cost(rows[at] + rows[at + 1])
    return [_table(row, size) for row, size in zip(rows, sizes, strict=True)]


def _table(counts: np.ndarray, num_contexts: int) -> Table:
    symbols = np.flatnonzero(counts)
    counts, total = counts[symbols], int(counts.sum())
    # More digits than the scale has would not change the result.
    weights = np.maximum(1, counts * min(total, SCALE) // total)
    return Table(num_contexts, symbols, np.searchsorted(_MIDDLES, weights, side="right"))


def _numbers(table: Table) -> np.ndarray:
    """Return what describes a table, as numbers from 1: the steps from symbol to symbol and from code to code."""
    steps, changes = table.symbols.copy(), table.codes.copy()
    steps[0] += 1
    steps[1:] -= table.symbols[:-1]
    changes[1:] -= table.codes[:-1]
    folded = np.where(changes > 0, 2 * changes, 1 - 2 * changes)
    return np.concatenate([[table.num_contexts, len(table.symbols)], steps, folded])


def _frequencies(weights: np.ndarray) -> np.ndarray:
    """Return how many slots each symbol has: they add up to all slots, and none has more than CAP."""
    shares, top = _share(weights, SCALE), int(np.argmax(weights))
    if shares[top] > CAP:
        others = np.arange(len(weights)) != top
        shares[others] = _share(weights[others], SCALE - CAP)
        shares[top] = CAP
    return shares


def _share(weights: np.ndarray, slots: int) -> np.ndarray:
    if not weights.size:
        return weights
    shares: np.ndarray = 1 + weights * (slots - len(weights)) // weights.sum()
    shares[np.argmax(weights)] += slots - shares.sum()
    return shares


def _logarithms() -> np.ndarray:
    """Return log2 of 1..2^14 in units of 2^-12, rounded down; entry 0 is not used."""
    numbers = np.arange(SCALE + 1)
    whole = np.searchsorted(1 << np.arange(1, SCALE_BITS + 1), numbers, side="right")
    fractions, logarithms = numbers << 30 - whole, whole
    for _ in range(12):
        fractions = fractions * fractions >> 30
        carry = fractions >> 31
        fractions >>= carry
        logarithms = 2 * logarithms + carry
    return logarithms


_LOGARITHMS = _logarithms()


def _cost(counts: np.ndarray) -> int:
    """Return the bits of a table and of what is coded with it, in units of 2^-12."""
    table = _table(counts, 1)
    bits = SCALE_BITS * UNIT - _LOGARITHMS[_frequencies(_WEIGHTS[table.codes])]
    return int(counts[table.symbols] @ bits + UNIT * _GAMMA_WIDTHS[_numbers(table)].sum())


def _compiled_cost(kernels: Any) -> Callable[[np.ndarray], int]:
    return lambda counts: int(kernels.cost(counts, _WEIGHTS, _MIDDLES, _LOGARITHMS, _GAMMA_WIDTHS))


def write_tables(tables: list[Table]) -> bytes:
    """Return the numbers that describe the tables, in gamma code."""
    numbers = np.concatenate([_numbers(table) for table in tables])
    return pack(_GAMMA_FIELDS[numbers], _GAMMA_WIDTHS[numbers])


def read_tables(body: memoryview, num_contexts: int, kernels: Any = None) -> tuple[list[Table], memoryview]:
    """Return the tables of this number of contexts and the bytes that follow them."""
    if kernels is None:
        numbers, position = _read_numbers(body, num_contexts)
    else:
        numbers, position = kernels.read_numbers(np.frombuffer(body, np.uint8), num_contexts)
    if position < 0:
        raise ValueError("a table of frequencies that is cut off or too large")
    tables, at = [], 0
    while num_contexts:
        size, num_symbols = int(numbers[at]), int(numbers[at + 1])
        symbols = np.cumsum(numbers[at + 2 : at + 2 + num_symbols]) - 1
        at += 2 + 2 * num_symbols
        folded = numbers[at - num_symbols : at]
        codes = np.cumsum(np.where(folded % 2, -(folded // 2), folded // 2))
        if size > num_contexts or symbols[-1] >= NUM_SYMBOLS or codes.min() < 1 or codes.max() >= len(_WEIGHTS):
            raise ValueError("an impossible table of frequencies")
        tables.append(Table(size, symbols, codes))
        num_contexts -= size
    end = -(-position // 8)
    check_padding(body[:end], position)
    return tables, body[end:]


def _read_numbers(body: memoryview, num_contexts: int) -> tuple[np.ndarray, int]:
    """Return the numbers that describe the tables of these contexts, and the bits they take; -1 if cut off.

    A table that claims more contexts than are left is the last one.
    """
    numbers, position = list[int](), 0
    while num_contexts > 0:
        first, ahead = len(numbers), 2
        while ahead:
            number, position = _read_number(body, position)
            if position < 0:
                return np.array(numbers, np.int64), position
            numbers.append(number)
            ahead += 2 * number - 1 if len(numbers) == first + 2 else -1
        num_contexts -= numbers[first]
    return np.array(numbers, np.int64), position


def _read_number(body: memoryview, position: int) -> tuple[int, int]:
    """Return a number in gamma code and where the next one begins, -1 if it is cut off or too large."""
    window = int.from_bytes(body[position // 8 : position // 8 + 4], "little") >> position % 8
    zeros = (window & -window).bit_length() - 1
    end = position + 2 * zeros + 1
    if not 0 <= zeros < MOST_ZEROS or end > 8 * len(body):
        return 1, -1
    return 1 << zeros | window >> zeros + 1 & (1 << zeros) - 1, end


def make_model(tables: list[Table], present: np.ndarray) -> Model:
    """Return the tables side by side, for the contexts that are present, in ascending order."""
    table_of = np.zeros(256, np.uint32)
    table_of[present] = np.repeat(np.arange(len(tables)), [table.num_contexts for table in tables])
    symbols, frequencies = [], []
    for table in tables:
        shares = _frequencies(_WEIGHTS[table.codes])
        lone = len(shares) == 1
        symbols.append(np.append(table.symbols, NUM_SYMBOLS) if lone else table.symbols)
        frequencies.append(np.append(shares, SCALE - CAP) if lone else shares)
    joined = np.concatenate(frequencies).astype(np.uint32)
    starts = np.cumsum(joined, dtype=np.uint32) - joined
    return Model(table_of, np.concatenate(symbols).astype(np.uint16), joined, starts)
