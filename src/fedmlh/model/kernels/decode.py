"""Exact top-k by a byte filter (the plain twin is fedmlh.model.kernels.plain).

For a block of 64 points the bucket scores become bytes: how many steps a bucket lies below the best of its table,
rounded down, in steps so large that a label whose steps add up to 254 cannot be among the k best. A row of bytes holds
one bucket for all 64 points, so one vector instruction per label and table adds 64 bounds, and one comparison says to
which points the label may still matter. For those alone its score is computed, with the plain path's arithmetic.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

#: Points that share a row of bytes: one AVX-512 register, four of NEON.
BLOCK = 64
#: Fewer points than this are cheaper one at a time.
FEW = 8
#: From a table's best score down to the first threshold; sums up to here stay clear of 255, where addition saturates.
_STEPS = 253
#: Buckets of the first table whose labels are visited together, so that their rows stay in the first-level cache.
_NEIGHBOURS = 256
#: Labels that are scored at once where there is no filter.
_CHUNK = 512
_NO_LABEL = np.iinfo(np.int64).max
_LOWEST = np.float32(-np.inf)

_ROW = ir.VectorType(ir.IntType(8), BLOCK)


def _compiled(function: Callable[..., Any]) -> Any:
    """Compile a function when it is first called, and keep the result on disk if there is a place for it."""
    try:
        return njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:  # numba finds no folder that it may write to
        return njit(nogil=True, error_model="numpy")(function)


class Labels(NamedTuple):
    """A label map laid out for the filter: places are labels in the order in which they are visited."""

    ids: np.ndarray  # [p]
    buckets: np.ndarray  # [p, R], by place
    members: np.ndarray  # [p], places by their bucket of the first table
    begins: np.ndarray  # [B + 1], where in members a bucket begins


@intrinsic
def _survivors(typing_context: Any, steps: Any, buckets: Any, num_buckets: Any, place: Any, limits: Any) -> Any:
    """Return bits: bit i is set if the steps of a label for point i add up to less than its limit.

    Written in LLVM's intermediate language: from plain code LLVM does not keep 64 running byte sums in a register.
    # steps [R * B + 64, 64], buckets [p, R], limits [64]
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        steps, buckets, limits = (
            context.make_array(signature.args[i])(context, builder, arguments[i]) for i in (0, 1, 4)
        )
        num_buckets, place = (context.cast(builder, arguments[i], signature.args[i], types.intp) for i in (2, 3))
        word = place.type
        num_tables = builder.extract_value(buckets.shape, 1)
        rows = builder.bitcast(steps.data, _ROW.as_pointer())
        own = builder.gep(buckets.data, [builder.mul(place, num_tables)])
        saturating_add = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(_ROW, (_ROW, _ROW)), f"llvm.uadd.sat.v{BLOCK}i8"
        )
        before, loop, after = builder.block, builder.append_basic_block("table"), builder.append_basic_block("end")
        builder.branch(loop)
        builder.position_at_end(loop)
        table, begin, total = builder.phi(word), builder.phi(word), builder.phi(_ROW)
        bucket = builder.zext(builder.load(builder.gep(own, [table])), word)
        row = builder.load(builder.gep(rows, [builder.add(begin, bucket)]), align=1)
        added = builder.call(saturating_add, [total, row])
        following = builder.add(table, word(1))
        for variable, initial, changed in (
            (table, word(0), following),
            (begin, word(0), builder.add(begin, num_buckets)),
            (total, ir.Constant(_ROW, None), added),
        ):
            variable.add_incoming(initial, before)
            variable.add_incoming(changed, loop)
        builder.cbranch(builder.icmp_signed("<", following, num_tables), loop, after)
        builder.position_at_end(after)
        limit = builder.load(builder.bitcast(limits.data, _ROW.as_pointer()), align=1)
        return builder.bitcast(builder.icmp_unsigned("<", added, limit), ir.IntType(BLOCK))

    return types.uint64(steps, buckets, num_buckets, place, limits), generate


@intrinsic
def _transpose(typing_context: Any, tile: Any, steps: Any, begin: Any) -> Any:
    """Turn the rows of a tile into columns of 64 rows of steps; six times, interleave the halves row by row."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        tile, steps = (context.make_array(signature.args[i])(context, builder, arguments[i]) for i in (0, 1))
        begin = context.cast(builder, arguments[2], signature.args[2], types.intp)
        source, target = (builder.bitcast(array.data, _ROW.as_pointer()) for array in (tile, steps))
        rows = [builder.load(builder.gep(source, [begin.type(i)]), align=1) for i in range(BLOCK)]
        half, places = BLOCK // 2, ir.VectorType(ir.IntType(32), BLOCK)
        zips = [places([first + i // 2 + BLOCK * (i % 2) for i in range(BLOCK)]) for first in (0, half)]
        for _ in range(6):
            rows = [builder.shuffle_vector(rows[i], rows[i + half], zipped) for i in range(half) for zipped in zips]
        for i, row in enumerate(rows):
            builder.store(row, builder.gep(target, [builder.add(begin, begin.type(i))]), align=1)
        return context.get_dummy_value()

    return types.void(tile, steps, begin), generate


@intrinsic
def _lowest_bit(typing_context: Any, bits: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.IntType(1)(1))

    return types.uint64(types.uint64), generate


@_compiled
def _group(keys: np.ndarray, num_keys: int) -> tuple[np.ndarray, np.ndarray]:
    """Return indices ordered by their keys, equal keys in their own order, and where each key begins."""
    begins = np.zeros(num_keys + 1, np.int64)
    for key in keys:
        begins[key + 1] += 1
    for key in range(num_keys):
        begins[key + 1] += begins[key]
    at = begins[:-1].copy()
    indices = np.empty(len(keys), np.uint32)
    for i in range(len(keys)):
        indices[at[keys[i]]] = i
        at[keys[i]] += 1
    return indices, begins


def arrange(buckets: np.ndarray, num_buckets: int) -> Labels:
    """Order labels so that two of the R rows that a label needs are near those of the label before.  # [R, p]"""
    ids = np.arange(buckets.shape[1], dtype=np.uint32)
    if len(buckets) > 1:
        ids, _ = _group(buckets[1], num_buckets)
    ids = ids[_group(buckets[0][ids] // _NEIGHBOURS, num_buckets // _NEIGHBOURS + 1)[0]]
    return Labels(ids, np.ascontiguousarray(buckets.T[ids]), *_group(buckets[0][ids], num_buckets))


@_compiled
def _insert(labels: np.ndarray, values: np.ndarray, label: int, value: float) -> None:
    """Put a label in its place among the k best, if it is one of them: by falling score, then by id."""
    at = len(values) - 1
    if value < values[at] or (value == values[at] and label > labels[at]):
        return
    while at > 0 and (values[at - 1] < value or (values[at - 1] == value and labels[at - 1] > label)):
        values[at], labels[at] = values[at - 1], labels[at - 1]
        at -= 1
    values[at], labels[at] = value, label


@_compiled
def _survey(scores: np.ndarray, point: int, best: np.ndarray) -> bool:
    """Find the best score of each table, and return whether the point is fit: no sum may overflow or be NaN.

    -inf is fit, and so are numbers so small that neither R of them nor the difference of two overflow. Scores are read
    as integers, whose maxima LLVM finds by vectors; the order of negative floats is reversed.  # [R, n, B] -> [R]
    """
    minus_infinity, magnitude = np.int32(-0x800000), np.int32(0x7FFFFFFF)
    bound = np.float32(2.0**126 / len(scores)).view(np.int32)
    keys = best.view(np.int32)
    unfit = 0
    for r in range(len(scores)):
        bits = scores[r, point].view(np.int32)
        largest = minus_infinity ^ magnitude
        for b in range(len(bits)):
            largest = max(largest, np.int32(bits[b] ^ ((bits[b] >> np.int32(31)) & magnitude)))
            unfit |= ((bits[b] & magnitude) > bound) & (bits[b] != minus_infinity)
        keys[r] = largest ^ ((largest >> np.int32(31)) & magnitude)
    return unfit == 0


@_compiled
def _scan(
    scores: np.ndarray, point: int, buckets: np.ndarray, identity: bool, labels: np.ndarray, values: np.ndarray
) -> None:
    """Find the k best of one point by scoring every label.  # scores [R, n, B], buckets [R, p]"""
    num_tables, num_labels = len(scores), scores.shape[2] if identity else buckets.shape[1]
    labels[:], values[:] = _NO_LABEL, _LOWEST
    totals = np.empty(_CHUNK, np.float32)
    for begin in range(0, num_labels, _CHUNK):
        size = min(_CHUNK, num_labels - begin)
        chunk = totals[:size]
        if identity:
            chunk = scores[0, point, begin : begin + size]
        else:
            row, own = scores[0, point], buckets[0, begin : begin + size]
            for i in range(size):
                chunk[i] = row[own[i]]
            for r in range(1, num_tables):
                row, own = scores[r, point], buckets[r, begin : begin + size]
                for i in range(size):
                    chunk[i] += row[own[i]]
            for i in range(size):
                chunk[i] /= np.float32(num_tables)
        worst, better = values[-1], 0
        for i in range(size):
            better |= chunk[i] > worst
        if better or labels[-1] == _NO_LABEL:
            for i in range(size):
                if chunk[i] > values[-1] or labels[-1] == _NO_LABEL:
                    _insert(labels, values, begin + i, chunk[i])


@_compiled
def scan(
    scores: np.ndarray,
    begin: int,
    end: int,
    buckets: np.ndarray,
    identity: bool,
    labels: np.ndarray,
    values: np.ndarray,
    fit: np.ndarray,
) -> None:
    """Decode points one at a time; leave those that are not fit alone.  # [R, n, B], [R, p] -> [n, k], [n, k], [n]"""
    best = np.empty(len(scores), np.float32)
    for point in range(begin, end):
        fit[point] = _survey(scores, point, best)
        if fit[point]:
            _scan(scores, point, buckets, identity, labels[point], values[point])


@_compiled
def _score(scores: np.ndarray, point: int, buckets: np.ndarray, place: int) -> float:
    """Score one label by the arithmetic of plain code.  # scores [R, n, B], buckets [p, R]"""
    total = scores[0, point, buckets[place, 0]]
    for r in range(1, len(scores)):
        total += scores[r, point, buckets[place, r]]
    return total / np.float32(len(scores))


@_compiled
def _first_threshold(
    scores: np.ndarray,
    point: int,
    order: Labels,
    hot: np.ndarray,
    heat: np.ndarray,
    labels: np.ndarray,
    values: np.ndarray,
) -> float:
    """Return a score that k labels reach: the k-th best of labels from the hottest buckets of the first table."""
    hot[:], heat[:], labels[:], values[:] = _NO_LABEL, _LOWEST, _NO_LABEL, _LOWEST
    row = scores[0, point]
    for b in range(len(row)):
        if row[b] > heat[-1]:
            _insert(hot, heat, b, row[b])
    for b in hot:
        if b != _NO_LABEL:
            for i in range(order.begins[b], min(order.begins[b + 1], order.begins[b] + max(64, 8 * len(labels)))):
                value = _score(scores, point, order.buckets, order.members[i])
                if value > values[-1]:
                    _insert(labels, values, i, value)
    return values[-1]


@_compiled
def _fill(scores: np.ndarray, begin: int, size: int, best: np.ndarray, scale: np.ndarray, steps: np.ndarray) -> None:
    """Turn scores into steps, 64 buckets of 64 points at a time.  # [R, n, B] -> [R * B + 64, 64]"""
    num_tables, _, num_buckets = scores.shape
    tile = np.zeros((BLOCK, BLOCK), np.uint8)
    for r in range(num_tables):
        for first in range(0, num_buckets, BLOCK):
            width = min(BLOCK, num_buckets - first)
            for i in range(size):
                if scale[i] > 0:
                    row, top, by = scores[r, begin + i, first : first + width], best[i, r], scale[i]
                    for b in range(width):
                        below = (top - row[b]) * by
                        below = below if below < np.float32(255) else np.float32(255)
                        tile[i, b] = np.uint8(np.int32(below))
            _transpose(tile, steps, r * num_buckets + first)


@_compiled
def _filter(
    scores: np.ndarray,
    begin: int,
    size: int,
    order: Labels,
    buckets: np.ndarray,
    steps: np.ndarray,
    labels: np.ndarray,
    values: np.ndarray,
    fit: np.ndarray,
) -> None:
    """Decode up to 64 points at once."""
    num_tables, _, num_buckets = scores.shape
    num_labels, k = len(order.ids), labels.shape[1]
    best = np.empty((BLOCK, num_tables), np.float32)
    # A label's score is at least t only if its steps, times their size, add up to no more than room - R t: room is
    # what the best buckets would add up to, and what rounding may hide. Rounding errs by R / 2^24 of the sum of all
    # sizes, which for a label that reaches t is no more than twice the positive part of room and R |t|.
    room, scale = np.zeros(BLOCK), np.zeros(BLOCK, np.float32)
    limits, visits = np.zeros(BLOCK, np.uint8), np.zeros(BLOCK, np.int64)
    num_hot = min(num_buckets, max(2, -(-(4 * k + 12) * num_buckets // num_labels)))
    hot, heat = np.empty(num_hot, np.int64), np.empty(num_hot, np.float32)
    for i in range(size):
        point = begin + i
        fit[point] = _survey(scores, point, best[i])
        if fit[point]:
            threshold = _first_threshold(scores, point, order, hot, heat, labels[point], values[point])
            if threshold > _LOWEST:
                lowest, positive = np.float64(threshold) * num_tables, 0.0
                for r in range(num_tables):
                    room[i] += best[i, r]
                    positive += max(best[i, r], 0.0)
                room[i] += num_tables * (2.0**-22 * (2 * positive + abs(lowest)) + 2.0**-140)
                scale[i] = _STEPS / max(room[i] - lowest, 1e-30)
                limits[i] = _limit(room[i] - lowest, scale[i])
            # The k best so far are k unknown labels that reach the threshold; as many labels will take their places.
            labels[point], values[point] = _NO_LABEL, threshold
    _fill(scores, begin, size, best, scale, steps)
    for place in range(num_labels):
        bits = _survivors(steps, order.buckets, num_buckets, place, limits)
        while bits:
            lane = np.int64(_lowest_bit(bits))
            bits &= bits - np.uint64(1)
            best_labels, best_values = labels[begin + lane], values[begin + lane]
            score = _score(scores, begin + lane, order.buckets, place)
            _insert(best_labels, best_values, np.int64(order.ids[place]), score)
            limits[lane] = _limit(room[lane] - np.float64(best_values[-1]) * num_tables, scale[lane])
            visits[lane] += 1
            if visits[lane] > num_labels // 8 + 16 * k:  # nearly all tie: without the filter it is faster
                limits[lane] = 0
    for i in range(size):
        if fit[begin + i] and limits[i] == 0:
            _scan(scores, begin + i, buckets, False, labels[begin + i], values[begin + i])


@_compiled
def _limit(below: float, scale: float) -> int:
    """Return one more than the steps that fit: slightly too many, as scores become steps in single precision."""
    return np.uint8(1 + min(max(below * scale * (1 + 2.0**-20), 0.0), 254.0))  # type: ignore[return-value]


@_compiled
def filter_blocks(
    scores: np.ndarray,
    begin: int,
    end: int,
    order: Labels,
    buckets: np.ndarray,
    labels: np.ndarray,
    values: np.ndarray,
    fit: np.ndarray,
) -> None:
    """Decode points in blocks; leave those that are not fit alone.  # [R, n, B] -> [n, k], [n, k], [n]"""
    num_rows = scores.shape[0] * scores.shape[2] + BLOCK
    memory = np.empty((num_rows + 1) * BLOCK, np.uint8)
    aligned = -memory.ctypes.data % BLOCK  # a row that lies across two cache lines costs two reads
    steps = memory[aligned : aligned + num_rows * BLOCK].reshape(num_rows, BLOCK)
    for first in range(begin, end, BLOCK):
        _filter(scores, first, min(BLOCK, end - first), order, buckets, steps, labels, values, fit)
