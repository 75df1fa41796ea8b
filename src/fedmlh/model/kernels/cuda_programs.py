"""Programs for the GPU, in Triton: what a training step does beyond matrix products.

A net is one table of one client. Sparse rows, schedules and counters are read from the device; nothing comes from the
host, so that a step can be captured once and replayed.
"""

import triton
import triton.language as tl


@triton.jit
def _point(points, step, steps, batch, tables):  # type: ignore[no-untyped-def]
    """Return the point that this program (a net, a place in the batch) works on, or -1 for none."""
    client, t = tl.program_id(0) // tables, tl.load(step)
    return tl.load(points + (client * steps + t) * batch + tl.program_id(1)).to(tl.int64)


@triton.jit
def scatter(  # type: ignore[no-untyped-def]
    dense, seen, indptr, indices, values, stride, maps, points, step, steps, batch, tables, width,
    CLEAR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Put a point's sparse features into its dense row, or take them out of it again."""
    net, place = tl.program_id(0), tl.program_id(1)
    point = _point(points, step, steps, batch, tables)
    if point >= 0:
        row = indptr + ((net % tables) % maps).to(tl.int64) * stride + point
        begin, end = tl.load(row), tl.load(row + 1)
        target = dense + (net.to(tl.int64) * batch + place) * width
        for entry in range(begin, end, BLOCK):
            spots = entry + tl.arange(0, BLOCK)
            column = tl.load(indices + spots, mask=spots < end, other=0)
            if CLEAR:
                tl.store(target + column, tl.zeros((BLOCK,), tl.float32), mask=spots < end)
            else:
                tl.store(target + column, tl.load(values + spots, mask=spots < end, other=0.0), mask=spots < end)
                now = tl.load(step).to(tl.int32) + 1 + tl.zeros((BLOCK,), tl.int32)
                tl.store(seen + net.to(tl.int64) * width + column, now, mask=spots < end)


@triton.jit
def _bce_gradient(  # type: ignore[no-untyped-def]
    logits, losses, indptr, indices, stride, points, step, steps, batch, tables, sizes, shares, outputs, width,
    BLOCK: tl.constexpr, HITS: tl.constexpr,
):  # fmt: skip
    """Turn one point's logits into the gradient of the mean loss over points and buckets."""
    net, place = tl.program_id(0), tl.program_id(1)
    point = _point(points, step, steps, batch, tables)
    row = logits + (net.to(tl.int64) * batch + place) * width
    if point < 0:
        for at in range(0, width, BLOCK):
            lanes = at + tl.arange(0, BLOCK)
            tl.store(row + lanes, tl.zeros((BLOCK,), tl.float32), mask=lanes < width)
    else:
        cell = (net // tables) * steps + tl.load(step)
        scale = 1.0 / (tl.load(sizes + cell).to(tl.float32) * outputs)
        bounds = indptr + (net % tables).to(tl.int64) * stride + point
        begin, end = tl.load(bounds), tl.load(bounds + 1)
        loss = tl.zeros((BLOCK,), tl.float32)
        hit = tl.zeros((HITS,), tl.float32)
        for entry in range(begin, end, HITS):
            spots = entry + tl.arange(0, HITS)
            column = tl.load(indices + spots, mask=spots < end, other=0)
            hit += tl.load(row + column, mask=spots < end, other=0.0)
        tl.debug_barrier()
        for at in range(0, width, BLOCK):
            lanes = at + tl.arange(0, BLOCK)
            z = tl.load(row + lanes, mask=lanes < outputs, other=float("-inf"))
            e = tl.exp(-tl.abs(z))
            loss += tl.where(lanes < outputs, tl.maximum(z, 0.0) + tl.log(1.0 + e), 0.0)
            s = 1.0 / (1.0 + e)
            tl.store(row + lanes, tl.where(z >= 0, s, e * s) * scale, mask=lanes < width)
        tl.debug_barrier()
        for entry in range(begin, end, HITS):
            spots = entry + tl.arange(0, HITS)
            column = tl.load(indices + spots, mask=spots < end, other=0)
            tl.store(row + column, tl.load(row + column, mask=spots < end, other=0.0) - scale, mask=spots < end)
        kept = losses + net * batch + place
        share = tl.load(shares + cell) / outputs
        tl.store(kept, tl.load(kept) + share * (tl.sum(loss) - tl.sum(hit)))


@triton.jit
def _softmax_gradient(  # type: ignore[no-untyped-def]
    logits, losses, indptr, indices, stride, points, step, steps, batch, tables, sizes, shares, outputs, width,
    BLOCK: tl.constexpr, HITS: tl.constexpr,
):  # fmt: skip
    """Turn one point's logits into the gradient of cross-entropy against targets that sum to 1.

    A point without labels has neither loss nor gradient.
    """
    net, place = tl.program_id(0), tl.program_id(1)
    point = _point(points, step, steps, batch, tables)
    row = logits + (net.to(tl.int64) * batch + place) * width
    bounds = indptr + (net % tables).to(tl.int64) * stride + tl.maximum(point, 0)
    begin, end = tl.load(bounds), tl.load(bounds + 1)
    if (point < 0) | (begin == end):
        for at in range(0, width, BLOCK):
            lanes = at + tl.arange(0, BLOCK)
            tl.store(row + lanes, tl.zeros((BLOCK,), tl.float32), mask=lanes < width)
    else:
        cell = (net // tables) * steps + tl.load(step)
        scale = 1.0 / tl.load(sizes + cell).to(tl.float32)
        hit = tl.zeros((HITS,), tl.float32)
        for entry in range(begin, end, HITS):
            spots = entry + tl.arange(0, HITS)
            column = tl.load(indices + spots, mask=spots < end, other=0)
            hit += tl.load(row + column, mask=spots < end, other=0.0)
        tops = tl.full((BLOCK,), float("-inf"), tl.float32)
        for at in range(0, outputs, BLOCK):
            lanes = at + tl.arange(0, BLOCK)
            tops = tl.maximum(tops, tl.load(row + lanes, mask=lanes < outputs, other=float("-inf")))
        top = tl.max(tops)
        sums = tl.zeros((BLOCK,), tl.float32)
        for at in range(0, outputs, BLOCK):
            lanes = at + tl.arange(0, BLOCK)
            sums += tl.exp(tl.load(row + lanes, mask=lanes < outputs, other=float("-inf")) - top)
        total = tl.sum(sums)
        tl.debug_barrier()
        for at in range(0, width, BLOCK):
            lanes = at + tl.arange(0, BLOCK)
            z = tl.load(row + lanes, mask=lanes < outputs, other=float("-inf"))
            tl.store(row + lanes, tl.exp(z - top) * (scale / total), mask=lanes < width)
        tl.debug_barrier()
        count = (end - begin).to(tl.float32)
        for entry in range(begin, end, HITS):
            spots = entry + tl.arange(0, HITS)
            column = tl.load(indices + spots, mask=spots < end, other=0)
            now = tl.load(row + column, mask=spots < end, other=0.0)
            tl.store(row + column, now - scale / count, mask=spots < end)
        kept = losses + net * batch + place
        tl.store(kept, tl.load(kept) + tl.load(shares + cell) * (tl.log(total) + top - tl.sum(hit) / count))


#: Kernels of the losses that have one.
GRADIENTS = {"bce": _bce_gradient, "softmax": _softmax_gradient}


@triton.jit
def _adam(w, m, v, at, mask, gradient, keep1, keep2, rate, eps, ADAM: tl.constexpr):  # type: ignore[no-untyped-def]
    """Take a step of torch's Adam or SGD."""
    now = tl.load(w + at, mask=mask)
    if ADAM:
        first = keep1 * tl.load(m + at, mask=mask) + 0.1 * gradient
        second = keep2 * tl.load(v + at, mask=mask) + 0.001 * gradient * gradient
        tl.store(m + at, first, mask=mask)
        tl.store(v + at, second, mask=mask)
        tl.store(w + at, now - rate * first / (tl.sqrt(second) + eps), mask=mask)
    else:
        tl.store(w + at, now - rate * gradient, mask=mask)


@triton.jit
def _epsilon(schedule, stride, s):  # type: ignore[no-untyped-def]
    """Return Adam's ε at step s, times √(1 − β2^s) as in the pace."""
    return 1e-8 * tl.sqrt(1.0 - tl.load(schedule + 3 * stride + s))


@triton.jit
def update(  # type: ignore[no-untyped-def]
    w, m, v, gradient, count, schedule, stride, step, start, constant, prox_mu,
    ADAM: tl.constexpr, TIED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Update a stretch of parameters that have a gradient at every step.

    If tied, they are also pulled to where the round began, and corrected.
    """
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    now = tl.load(step) + 1
    rate, eps = tl.load(schedule + now), _epsilon(schedule, stride, now)
    slope = tl.load(gradient + at, mask=mask)
    if TIED:
        apart = tl.load(w + at, mask=mask) - tl.load(start + at, mask=mask)
        slope += prox_mu * apart + tl.load(constant + at, mask=mask)
    _adam(w, m, v, at, mask, slope, 0.9, 0.999, rate, eps, ADAM)


@triton.jit
def update_row(  # type: ignore[no-untyped-def]
    w, m, v, gradient, seen, last, schedule, stride, step, tables, inner, width,
    ADAM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Update a row of the first layer, if the batch carries its feature; its moments are as of its last update."""
    row = tl.program_id(1).to(tl.int64) * inner + tl.program_id(0)
    now = tl.load(step).to(tl.int32) + 1
    if tl.load(seen + row) == now:
        behind = now - tl.load(last + row)
        keep1, keep2 = tl.load(schedule + 2 * stride + behind), tl.load(schedule + 3 * stride + behind)
        rate, eps = tl.load(schedule + now), _epsilon(schedule, stride, now)
        for begin in range(0, width, BLOCK):
            lanes = begin + tl.arange(0, BLOCK)
            at, mask = row * width + lanes, lanes < width
            _adam(w, m, v, at, mask, tl.load(gradient + at, mask=mask), keep1, keep2, rate, eps, ADAM)
        tl.store(last + row, now)


@triton.jit
def catch_up(  # type: ignore[no-untyped-def]
    w, m, v, ends, seen, last, schedule, stride, step, tables, inner, width,
    ADAM: tl.constexpr, BLOCK: tl.constexpr, ALL: tl.constexpr,
):  # fmt: skip
    """Do what steps without a gradient do to a row, if the batch carries its feature; at the end, to all rows."""
    net = tl.program_id(1)
    row = net.to(tl.int64) * inner + tl.program_id(0)
    since = tl.load(last + row)
    if ALL:
        until = tl.load(ends + net // tables)
        wanted = since > 0
    else:
        until = tl.load(step).to(tl.int32)
        wanted = (since > 0) & (tl.load(seen + row) == until + 1)
    if wanted & (since < until):
        tail = schedule + stride
        move = tl.load(tail + since) - tl.load(schedule + 4 * stride + until - since) * tl.load(tail + until)
        eps = _epsilon(schedule, stride, since + 1)
        for begin in range(0, width, BLOCK):
            lanes = begin + tl.arange(0, BLOCK)
            at, mask = row * width + lanes, lanes < width
            moved = move * tl.load(m + at, mask=mask) / (tl.sqrt(tl.load(v + at, mask=mask)) + eps)
            tl.store(w + at, tl.load(w + at, mask=mask) - moved, mask=mask)
