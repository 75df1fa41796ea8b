"""Code whole numbers without loss, close to their entropy, each under a context that both sides know.

A number is a symbol and raw bits: a number below 16 is its own symbol, a larger one has a symbol for its octave and the
three bits below the leading one. Symbols are coded by rANS (Duda 2009) in lanes that advance together, value i in lane
i mod L. Raw bits are packed as they are. Only integers are used, so that all machines write the same bytes.

A message is: the length of the rest (LEB128), the tables of frequencies, the lanes' states (32 bits each), their words
(16 bits each), the raw bits. Bits fill bytes from the lowest one, and bytes are little-endian.
"""

import importlib
from functools import cache
from itertools import count
from math import isqrt
from typing import Any

import numpy as np

from fedmlh.entropy.bits import pack, unpack
from fedmlh.entropy.frequencies import (
    NUM_SYMBOLS,
    SCALE,
    SCALE_BITS,
    Model,
    make_model,
    make_tables,
    read_tables,
    write_tables,
)

#: States are at least this between two steps, and where they start.
_LOW = 1 << 16
#: A lane costs up to 4 bytes, a step of all lanes about 20 microseconds: few values take few lanes, and many values
#: no more than this many steps.
_MOST_STEPS = 1024

#: The compiled twins take a second to load, which pays after this many calls. A client of one round makes fewer.
_FEW_CALLS = 64
_CALLS = count()

#: The first number of each symbol, and how many raw bits follow it.
_FIRSTS = np.array([*range(16), *((8 + step) << octave for octave in range(1, 59) for step in range(8))], np.int64)
_WIDTHS = np.array([*[0] * 16, *(octave for octave in range(1, 59) for _ in range(8))], np.uint8)
#: Cells per context in an array of all symbols.
_ROW = NUM_SYMBOLS + 1


def most_values(num_bytes: int) -> int:
    """Return the most values that encode() writes into a message of this length.

    Let the potential be 16 bits per word written and the sum of log2 of the states. A step takes a state x, or x / 2^16
    if it writes a word, to at least (4 · 16/15 + 1 − 1/15360) / 5 = 1.0533 times as much, since x // frequency is at
    least 4 then. So each value adds log2 of it, 0.0749 bits, and the message has more than 16 bits per lane besides.
    """
    return 107 * num_bytes


def encode(values: np.ndarray, contexts: np.ndarray) -> bytes:
    """Encode whole numbers from 0 below 2^62, each under the context (0..255, uint8) that both sides know."""
    _check_contexts(contexts)
    if values.shape != contexts.shape or values.dtype.kind not in "iu":
        raise ValueError("values must be whole numbers, one per context")
    if not values.size:
        return _leb128(0)
    if values.min() < 0 or values.max() >= 1 << 62:
        raise ValueError("values must be from 0 below 2^62")
    kernels = _choose_kernels()
    present = _find_present(contexts, kernels)
    symbols, counts = _count_symbols(values, contexts, present, kernels)
    tables = make_tables(counts, kernels)
    model = make_model(tables, present)
    wide = np.flatnonzero(symbols >= 16)
    raw = pack(values[wide] - _FIRSTS[symbols[wide]], _WIDTHS[symbols[wide]])
    body = b"".join([write_tables(tables), _write_lanes(model, symbols, contexts, kernels), raw])
    return _leb128(len(body)) + body


def _count_symbols(
    values: np.ndarray, contexts: np.ndarray, present: np.ndarray, kernels: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Return the symbol of each value, and how often each context that is present has each symbol."""
    places = np.zeros(256, np.int64)
    places[present] = np.arange(len(present))
    if kernels is not None:
        counts = np.zeros((len(present), _ROW), np.int64)
        return kernels.count_symbols(values, contexts, places, counts), counts
    symbols = np.searchsorted(_FIRSTS, values, side="right") - 1
    cells = np.bincount(places[contexts] * _ROW + symbols, minlength=len(present) * _ROW)
    return symbols, cells.reshape(-1, _ROW)


def decode(payload: memoryview, contexts: np.ndarray) -> tuple[np.ndarray, memoryview]:
    """Return the values (int64), one per context, and the bytes that follow.

    Bytes that encode() never writes raise ValueError. Memory is bounded by a multiple of the contexts and the payload.
    """
    _check_contexts(contexts)
    body, rest = _own_part(payload)
    if len(contexts) > most_values(len(body)):
        raise ValueError(f"{len(body)} bytes cannot hold {len(contexts)} values")
    if not contexts.size:
        if body:
            raise ValueError("bytes for no values")
        return np.zeros(0, np.int64), rest
    kernels = _choose_kernels()
    present = _find_present(contexts, kernels)
    tables, body = read_tables(body, len(present), kernels)
    model = make_model(tables, present)
    symbols, body = _read_lanes(model, contexts, body, kernels)
    if symbols.max() == NUM_SYMBOLS:
        raise ValueError("a symbol that is in no table")
    values = symbols.astype(np.int64)
    wide = np.flatnonzero(symbols >= 16)
    values[wide] = _FIRSTS[symbols[wide]] + unpack(body, _WIDTHS[symbols[wide]])
    return values, rest


def _find_present(contexts: np.ndarray, kernels: Any) -> np.ndarray:
    """Return the contexts that occur, ascending."""
    return np.flatnonzero(np.bincount(contexts, minlength=256) if kernels is None else kernels.find_contexts(contexts))


def _choose_kernels() -> Any:
    """Return the compiled twins, or None while they would not pay."""
    return _load_kernels() if next(_CALLS) >= _FEW_CALLS else None


@cache
def _load_kernels() -> Any:
    """Return the compiled twins; None if numba is not installed (extra `fast`)."""
    try:
        return importlib.import_module("fedmlh.entropy.kernels")
    except ImportError:
        return None


def _check_contexts(contexts: np.ndarray) -> None:
    if contexts.dtype != np.uint8 or contexts.ndim != 1:
        raise ValueError("contexts must be a vector of uint8")


def _leb128(number: int) -> bytes:
    digits = [number >> shift & 127 for shift in range(0, max(1, number.bit_length()), 7)]
    return bytes([*(digit | 128 for digit in digits[:-1]), digits[-1]])


def _own_part(payload: memoryview) -> tuple[memoryview, memoryview]:
    length = 0
    for index, byte in enumerate(payload[:9]):
        length |= (byte & 127) << 7 * index
        if byte < 128:
            start = index + 1
            if length > len(payload) - start or (index and not byte):
                break
            return payload[start : start + length], payload[start + length :]
    raise ValueError("a length that is cut off or too large")


# Lanes of rANS.


def _num_lanes(num_values: int) -> int:
    return 1 + max(isqrt(num_values) // 3, num_values // _MOST_STEPS)


def _write_lanes(model: Model, symbols: np.ndarray, contexts: np.ndarray, kernels: Any) -> bytes:
    num_lanes = _num_lanes(len(symbols))
    # Where the slots of each symbol start and, above 16 bits, how many there are.
    rows = np.zeros((int(model.table_of.max()) + 1, _ROW), np.uint32)
    rows[model.starts >> SCALE_BITS, model.symbols] = model.starts & SCALE - 1 | model.frequencies << 16
    if kernels is not None:
        states, words = kernels.write_lanes(symbols, rows, model.table_of, contexts, num_lanes)
        return b"".join([states.astype("<u4").tobytes(), words.astype("<u2").tobytes()])
    cells = rows[model.table_of[contexts], symbols]
    frequencies, starts = cells >> 16, cells & 0xFFFF
    states = np.full(num_lanes, _LOW, np.uint32)
    words = []
    # From the last value to the first, since a decoder undoes the latest step first.
    for first in reversed(range(0, len(symbols), num_lanes)):
        frequency = frequencies[first : first + num_lanes]
        state = states[: len(frequency)]
        full = state >= frequency << 32 - SCALE_BITS
        words.append(state[full].astype("<u2"))
        state >>= full.astype(np.uint32) << 4
        whole, part = np.divmod(state, frequency)
        state[:] = (whole << SCALE_BITS) + part + starts[first : first + num_lanes]
    return b"".join([states.astype("<u4").tobytes(), *(word.tobytes() for word in reversed(words))])


def _read_lanes(model: Model, contexts: np.ndarray, body: memoryview, kernels: Any) -> tuple[np.ndarray, memoryview]:
    num_lanes = _num_lanes(len(contexts))
    if len(body) < 4 * num_lanes:
        raise ValueError("states that are cut off")
    states = np.frombuffer(body[: 4 * num_lanes], "<u4").astype(np.uint32)
    body = body[4 * num_lanes :]
    words = np.frombuffer(body[: len(body) // 2 * 2], "<u2").astype(np.uint32)
    # From here on every state is at least _LOW after a step, whatever the words are.
    if states.min() < _LOW:
        raise ValueError("a state that is too small")
    if kernels is None:
        entries, taken = _walk_lanes(states, words, model.table_of[contexts], model.starts, model.frequencies)
        symbols = model.symbols[entries]
    else:
        # The entry of each slot is looked up in a table; for few values it is searched for.
        num_tables = int(model.table_of.max()) + 1
        count = len(model.starts) if len(contexts) >= SCALE * num_tables and len(model.starts) < 1 << 16 else 0
        entry_of = np.repeat(np.arange(count, dtype=np.uint16), model.frequencies[:count])
        symbols, taken = kernels.walk_lanes(
            states, words, model.table_of, contexts, entry_of, model.starts, model.frequencies, model.symbols
        )
    if taken < 0:
        raise ValueError("words that are cut off")
    if np.any(states != _LOW):
        raise ValueError("states that do not end where they started")
    return symbols, body[2 * taken :]


def _walk_lanes(
    states: np.ndarray, words: np.ndarray, tables: np.ndarray, starts: np.ndarray, frequencies: np.ndarray
) -> tuple[np.ndarray, int]:
    """Return the entry of each value and the number of words taken, -1 if they are too few; `states` is updated."""
    entries, num_lanes, taken = np.zeros(len(tables), np.uint32), len(states), 0
    for first in range(0, len(tables), num_lanes):
        table = tables[first : first + num_lanes]
        state = states[: len(table)]
        slot = (table << SCALE_BITS) + (state & SCALE - 1)
        entry = np.searchsorted(starts, slot, side="right") - 1
        entries[first : first + num_lanes] = entry
        state >>= SCALE_BITS
        state *= frequencies[entry]
        state += slot - starts[entry]
        short = np.flatnonzero(state < _LOW)
        if len(short) > len(words) - taken:
            return entries, -1
        state[short] = state[short] << 16 | words[taken : taken + len(short)]
        taken += len(short)
    return entries, taken
