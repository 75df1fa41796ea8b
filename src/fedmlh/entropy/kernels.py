"""The loops of the entropy coder, compiled; the plain twins, in `coding` and `frequencies`, give the same bytes."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from fedmlh.entropy.frequencies import CAP, MOST_ZEROS, SCALE, SCALE_BITS, UNIT

_WORD_BITS = 16


def _compiled(function: Callable[..., Any]) -> Any:
    """Compile a function when it is first called, and keep the result on disk if there is a place for it."""
    try:
        return njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # numba finds no folder that it may write to
        return njit(nogil=True, error_model="numpy")(function)


@_compiled
def find_contexts(contexts: Any) -> Any:
    """Return which of the 256 contexts occur."""
    present = np.zeros(256, np.bool_)
    for context in contexts:
        present[context] = True
    return present


@_compiled
def count_symbols(values: Any, contexts: Any, places: Any, counts: Any) -> Any:
    """Return the symbol of each value, and count them per place of a context."""
    symbols = np.empty(len(values), np.uint16)
    for index in range(len(values)):
        value = np.int64(values[index])
        symbol = value
        if value >= 16:
            octave = 1
            while value >> octave >= 16:
                octave += 1
            symbol = 8 * octave + (value >> octave)
        symbols[index] = symbol
        counts[places[contexts[index]], symbol] += 1
    return symbols


@_compiled
def write_lanes(symbols: Any, rows: Any, row_of: Any, contexts: Any, num_lanes: Any) -> Any:
    """Return the lanes' states, and their words in the order in which a decoder takes them.

    A cell of `rows` holds where a symbol's slots start and, above 16 bits, how many it has.
    """
    states = np.full(num_lanes, 1 << _WORD_BITS, np.uint64)
    words = np.empty(len(symbols), np.uint16)
    free = len(symbols)
    low, limit = np.uint64(_WORD_BITS), np.uint64(32 - SCALE_BITS)
    shift, mask = np.uint64(SCALE_BITS), np.uint64((1 << _WORD_BITS) - 1)
    for first in range((len(symbols) - 1) // num_lanes * num_lanes, -1, -num_lanes):
        for lane in range(min(num_lanes, len(symbols) - first) - 1, -1, -1):
            cell = np.uint64(rows[row_of[contexts[first + lane]], symbols[first + lane]])
            frequency, state = cell >> low, states[lane]
            if state >= frequency << limit:
                free -= 1
                words[free] = state & mask
                state >>= low
            whole = state // frequency
            states[lane] = (whole << shift) + (state - whole * frequency) + (cell & mask)
    return states, words[free:]


@_compiled
def find_entry(starts: Any, slot: Any) -> Any:
    """Return the entry that a slot belongs to."""
    low, high = 0, len(starts)
    while high - low > 1:
        middle = (low + high) >> 1
        if np.int64(starts[middle]) <= slot:
            low = middle
        else:
            high = middle
    return low


@_compiled
def walk_lanes(
    states: Any, words: Any, table_of: Any, contexts: Any, entry_of: Any, starts: Any, frequencies: Any, symbols: Any
) -> Any:
    """Return the symbol of each value and the number of words taken, -1 if they are too few; `states` is updated.

    `entry_of` holds the entry of each slot. With few values it is empty, and entries are searched for.
    """
    found = np.empty(len(contexts), np.uint16)
    num_lanes, taken = len(states), 0
    for first in range(0, len(contexts), num_lanes):
        for lane in range(min(num_lanes, len(contexts) - first)):
            state = np.int64(states[lane])
            slot = (np.int64(table_of[contexts[first + lane]]) << SCALE_BITS) + (state & SCALE - 1)
            entry = np.int64(entry_of[slot]) if len(entry_of) else np.int64(find_entry(starts, slot))
            found[first + lane] = symbols[entry]
            state = (state >> SCALE_BITS) * np.int64(frequencies[entry]) + slot - np.int64(starts[entry])
            if state < 1 << _WORD_BITS:
                if taken == len(words):
                    return found, -1
                state = state << _WORD_BITS | np.int64(words[taken])
                taken += 1
            states[lane] = state
    return found, taken


@_compiled
def share(weights: Any, skipped: Any, slots: Any, shares: Any) -> Any:
    """Give all weights but the skipped one their share of the slots; return the index of the largest, -1 for none."""
    total, count, top = 0, 0, -1
    for index in range(len(weights)):
        if index != skipped:
            total += weights[index]
            count += 1
            if top < 0 or weights[index] > weights[top]:
                top = index
    if top >= 0:
        left = slots
        for index in range(len(weights)):
            if index != skipped:
                shares[index] = 1 + weights[index] * (slots - count) // total
                left -= shares[index]
        shares[top] += left
    return top


@_compiled
def cost(counts: Any, weights: Any, middles: Any, logarithms: Any, widths: Any) -> Any:
    """Return the bits of a table and of what is coded with it."""
    total, num_symbols = 0, 0
    for count in counts:
        total += count
        num_symbols += count > 0
    chosen, shares = np.empty(num_symbols, np.int64), np.empty(num_symbols, np.int64)
    bits, place, before, symbol_before = widths[1] + widths[num_symbols], 0, 0, -1
    for symbol in range(len(counts)):
        if counts[symbol] > 0:
            weight = max(1, counts[symbol] * min(total, SCALE) // total)
            code = np.searchsorted(middles, weight, side="right")
            change = code - before
            bits += widths[symbol - symbol_before] + widths[2 * change if change > 0 else 1 - 2 * change]
            chosen[place] = weights[code]
            place, before, symbol_before = place + 1, code, symbol
    top = share(chosen, -1, SCALE, shares)
    if shares[top] > CAP:
        share(chosen, top, SCALE - CAP, shares)
        shares[top] = CAP
    bits, place = bits * UNIT, 0
    for count in counts:
        if count > 0:
            bits += count * (SCALE_BITS * UNIT - logarithms[shares[place]])
            place += 1
    return bits


@_compiled
def read_number(body: Any, position: Any) -> Any:
    """Return a number in gamma code and where the next one begins, -1 if it is cut off or too large."""
    zeros, end = 0, 8 * len(body)
    while position + 2 * zeros < end and not body[position + zeros >> 3] >> (position + zeros & 7) & 1:
        zeros += 1
        if zeros == MOST_ZEROS:
            return 1, -1
    if position + 2 * zeros >= end:
        return 1, -1
    position += zeros + 1
    number = 1 << zeros
    for bit in range(zeros):
        number |= (body[position >> 3] >> (position & 7) & 1) << bit
        position += 1
    return number, position


@_compiled
def read_numbers(body: Any, num_contexts: Any) -> Any:
    """Return the numbers that describe the tables of these contexts, and the bits they take; -1 if cut off.

    A table that claims more contexts than are left is the last one.
    """
    numbers, count, position, left = np.empty(4096, np.int64), 0, 0, num_contexts
    while left > 0:
        ahead = 2
        first = count
        while ahead > 0:
            number, position = read_number(body, position)
            if position < 0:
                return numbers[:count], position
            if count == len(numbers):
                numbers = np.append(numbers, np.empty(count, np.int64))
            numbers[count] = number
            count += 1
            ahead += 2 * number - 1 if count == first + 2 else -1
        left -= numbers[first]
    return numbers[:count], position
