"""Local training on the CPU as one compiled loop per table: no Python per step, sparse inputs, sparse targets.

The reference is `train_plain` in fedmlh.model.local_training; tests/test_kernels.py compares the two. What differs is
only the order of floating-point sums and, for Adam, the first layer: rows whose features a batch does not carry are
not streamed through memory, but brought up to date when they are next needed (see fedmlh.model.kernels.schedule). With
FedProx or a correction of the gradient no row is ever without a gradient, so that each is updated at every step.

Here a naive loop spends its time on memory traffic, not on arithmetic. So a row of the first layer is read twice per
step (caught up and used; given its gradient and updated) however many points carry it, a weight's gradient is used
while it is in the cache, and moments are neither allocated nor cleared for a client.
"""

from typing import Any

import numpy as np
from numba import njit
from scipy.sparse import csr_matrix
from torch import Tensor

from fedmlh.model.kernels.schedule import BETA1, BETA2, EPS, FADE1, FADE2, PACE, REACH, TAIL, make_schedule
from fedmlh.model.losses import find_loss, logit_offsets
from fedmlh.model.recipe import Recipe
from fedmlh.model.stack import Stack

_JIT: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy"}
#: Sums may be reordered so that they vectorise; NaN and infinity keep their meaning. Always inlined: if it were called,
#: a process that has just compiled it would run another copy than a process that loads the loop from the cache, and the
#: two might sum in different orders.
_PART: dict[str, Any] = {**_JIT, "fastmath": {"reassoc", "contract", "arcp", "nsz"}, "forceinline": True}
#: Whether a table's buckets compete for one distribution, by the loss that the loop knows.
KERNELS = {"bce": False, "softmax": True}
#: Rows of a weight matrix whose gradient is made and used while it is still in the cache.
_ROWS = 64


def train_compiled(
    stack: Stack,
    flat: Tensor,
    features: tuple[csr_matrix, ...],  # 1 or R × [n, d̃]
    buckets: tuple[csr_matrix, ...],  # R × [n, B]
    orders: np.ndarray,  # [E, n]
    recipe: Recipe,
    correction: Tensor | None = None,  # [P]
) -> tuple[Tensor, float]:
    """Train one table after the other, each for all epochs, so that what a table needs stays in the cache."""
    start, flat = flat.numpy(), flat.clone()
    constant = np.zeros(len(start) if recipe.prox_mu > 0 else 0, np.float32)
    if correction is not None:
        constant = correction.numpy()
    softmax = KERNELS[find_loss(recipe.loss).kernel]
    offsets = logit_offsets(buckets, recipe)
    if offsets is None:
        offsets = np.empty((stack.num_tables, 0), np.float32)
    layers = stack.views(flat)
    sizes = [layer[0].numel() for layer in layers]
    batch_size = min(recipe.batch_size, orders.shape[1])
    steps = len(orders) * -(-orders.shape[1] // batch_size)
    adam = recipe.adam
    moments = _borrow_moments(sum(sizes)) if adam else np.empty((2, 0), np.float32)
    schedule = make_schedule(steps, recipe.learning_rate, adam=adam)
    total = 0.0
    for table, z in enumerate(buckets):
        x = features[table % len(features)]
        total += train_table(
            flat.numpy(),
            moments,
            np.array([layer[table].storage_offset() for layer in layers]),
            np.cumsum([0, *sizes[:-1]]),
            np.array((stack.num_inputs, *stack.hidden, stack.num_outputs)),
            *map(_own, (x.indptr, x.indices, x.data)),
            *map(_own, (z.indptr, z.indices)),
            _own(orders),
            batch_size,
            softmax,
            offsets[table],
            schedule,
            *(start, constant, np.float32(recipe.prox_mu)),
        )
    if adam:
        _spare.append(moments)
    return flat, total / stack.num_tables


def _own(array: np.ndarray) -> np.ndarray:
    """Return the array in our own memory; copy it if it lies elsewhere.

    For numba, a read-only or unaligned array has another type: the loops would be compiled for it once more, sum in
    another order, and might then serve all other arrays of the process as well.
    """
    return np.require(array, requirements=("C", "A", "W"))


#: Memory for Adam's moments that no client uses at the moment; fresh memory from the system costs as much as a step.
_spare: list[np.ndarray] = []


def _borrow_moments(size: int) -> np.ndarray:
    """Return memory with arbitrary content, to be put back into `_spare`.  # [2, P / R]"""
    while _spare:
        moments = _spare.pop()
        if moments.shape[1] == size:
            return moments
    return np.empty((2, size), np.float32)


@njit(**_JIT)
def train_table(
    theta: np.ndarray,  # [P] parameters of all tables; those of one are changed in place
    moments: np.ndarray,  # [2, P / R] room for Adam's moments, whatever it holds; empty: plain SGD
    at_theta: np.ndarray,  # where this table's weight, bias, weight, bias … begin in theta
    at_moments: np.ndarray,  # and in the moments
    widths: np.ndarray,  # inputs, hidden …, outputs
    x_indptr: np.ndarray,
    x_indices: np.ndarray,
    x_data: np.ndarray,
    z_indptr: np.ndarray,
    z_indices: np.ndarray,
    orders: np.ndarray,  # [E, n] the points of each epoch in order
    batch_size: int,
    softmax: bool,
    offsets: np.ndarray,  # [B] added to the logits in training; empty: none
    schedule: np.ndarray,
    start: np.ndarray,  # [P] parameters of all tables as the round began
    constant: np.ndarray,  # [P] added to every gradient; empty: only points give gradients
    prox_mu: float,
) -> float:
    """Train one table for all epochs; return the last epoch's mean loss."""
    layers, epochs, n = len(widths) - 1, orders.shape[0], orders.shape[1]
    inputs, first = widths[0], widths[1]
    widest = widths[1:].max()
    acts = np.empty((layers, batch_size * widest), np.float32)
    deltas = np.empty((2, batch_size * widest), np.float32)
    turned = np.empty(batch_size * widest, np.float32)
    grad = np.empty(_ROWS * widest, np.float32)
    bits = np.empty(widest, np.int32)
    most = _most_nonzeros(x_indptr, batch_size, n)
    tied = len(constant) > 0
    rows_at_most = inputs if tied else min(inputs, most)
    counts = np.zeros(inputs, np.int64)
    features = np.empty(rows_at_most, np.int64)
    bounds = np.empty(rows_at_most + 1, np.int64)
    points = np.empty(most, np.int64)
    values = np.empty(most, np.float32)
    last = np.zeros(inputs, np.int64)  # step of the last update of each row of the first layer
    m_all, v_all = moments[0], moments[1]
    w_first = theta[at_theta[0] : at_theta[0] + inputs * first]
    step, mean_loss = 0, 0.0

    for epoch in range(epochs):
        measured = epoch == epochs - 1
        for begin in range(0, n, batch_size):
            rows = orders[epoch, begin : begin + batch_size]
            size = len(rows)
            step += 1
            count = _by_feature(rows, x_indptr, x_indices, x_data, counts, features, bounds, points, values, tied)
            # Forward.
            out = acts[0, : size * first].reshape(size, first)
            _fill(out, theta[at_theta[1] : at_theta[1] + first])
            for i in range(count):
                a, b = features[i] * first, (features[i] + 1) * first
                _catch_up(w_first[a:b], m_all[a:b], v_all[a:b], last[features[i]], step - 1, schedule)
                _spread(w_first[a:b], points[bounds[i] : bounds[i + 1]], values[bounds[i] : bounds[i + 1]], out)
            if layers > 1:
                _relu(out.ravel())
            for layer in range(1, layers):
                inner, width = widths[layer], widths[layer + 1]
                weight = theta[at_theta[2 * layer] : at_theta[2 * layer] + inner * width].reshape(inner, width)
                below = out
                out = acts[layer, : size * width].reshape(size, width)
                np.dot(below, weight, out)
                _add(out, theta[at_theta[2 * layer + 1] : at_theta[2 * layer + 1] + width], layer < layers - 1)
            # Loss and its gradient, in place of the logits.
            if len(offsets) > 0:
                _add(out, offsets, False)
            if softmax:
                loss = _softmax_gradient(out, rows, z_indptr, z_indices, bits, measured)
            else:
                loss = _bce_gradient(out, rows, z_indptr, z_indices, bits, measured)
            mean_loss += loss * size / n if measured else 0.0
            # Backward: the gradient goes down before the weight that it passes through changes.
            for layer in range(layers - 1, -1, -1):
                inner, width = widths[layer], widths[layer + 1]
                d_out = out
                if layer > 0:
                    below = acts[layer - 1, : size * inner].reshape(size, inner)
                    weight = theta[at_theta[2 * layer] : at_theta[2 * layer] + inner * width].reshape(inner, width)
                    out = deltas[layer % 2, : size * inner].reshape(size, inner)
                    np.dot(d_out, weight.T, out)
                    _mask(out.ravel(), below.ravel())
                    across = turned[: size * inner].reshape(inner, size)
                    _turn(below, across)
                    for row in range(0, inner, _ROWS):
                        end = min(row + _ROWS, inner)
                        g = grad[: (end - row) * width]
                        np.dot(across[row:end], d_out, g.reshape(end - row, width))
                        a, b = at_theta[2 * layer] + row * width, at_moments[2 * layer] + row * width
                        w, m, v = theta[a : a + len(g)], m_all[b : b + len(g)], v_all[b : b + len(g)]
                        if tied:
                            _tie(g, w, start[a : a + len(g)], constant[a : a + len(g)], prox_mu)
                        _update(w, m, v, g, step - 1, step, schedule)
                else:
                    i = 0
                    while i < count:
                        # Neighbouring rows of the same age are updated as one stretch, which saves ragged ends.
                        row, age, length = features[i], last[features[i]], 0
                        while i < count and length < _ROWS and features[i] == row + length and last[features[i]] == age:
                            g = grad[length * width : (length + 1) * width]
                            _gather(d_out, points[bounds[i] : bounds[i + 1]], values[bounds[i] : bounds[i + 1]], g)
                            last[features[i]] = step
                            length += 1
                            i += 1
                        a, b = row * width, (row + length) * width
                        g = grad[: length * width]
                        if tied:
                            at = at_theta[0] + a
                            _tie(g, w_first[a:b], start[at : at + len(g)], constant[at : at + len(g)], prox_mu)
                        _update(w_first[a:b], m_all[a:b], v_all[a:b], g, age, step, schedule)
                g = grad[:width]
                _sum_rows(d_out, g)
                a, b = at_theta[2 * layer + 1], at_moments[2 * layer + 1]
                w, m, v = theta[a : a + width], m_all[b : b + width], v_all[b : b + width]
                if tied:
                    _tie(g, w, start[a : a + width], constant[a : a + width], prox_mu)
                _update(w, m, v, g, step - 1, step, schedule)
    for feature in range(inputs):
        a, b = feature * first, (feature + 1) * first
        _catch_up(w_first[a:b], m_all[a:b], v_all[a:b], last[feature], step, schedule)
    return mean_loss


@njit(**_JIT)
def _most_nonzeros(indptr: np.ndarray, batch_size: int, n: int) -> int:
    """Return the most entries that a batch can carry: those of the fullest points together."""
    counts = np.sort(indptr[1:] - indptr[:-1])
    return counts[max(0, n - batch_size) :].sum()


@njit(**_JIT)
def _by_feature(
    rows: np.ndarray,
    indptr: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    counts: np.ndarray,  # [d̃] zero, before and after
    features: np.ndarray,
    bounds: np.ndarray,
    points: np.ndarray,
    values: np.ndarray,
    every: bool,
) -> int:
    """Group a batch by feature: its features (or every feature) ascending, each with its points and values."""
    for row in rows:
        for at in range(indptr[row], indptr[row + 1]):
            counts[indices[at]] += 1
    count, begin = 0, 0
    for feature in range(len(counts)):
        if counts[feature] > 0 or every:
            features[count], bounds[count] = feature, begin
            begin += counts[feature]
            counts[feature] = bounds[count]
            count += 1
    bounds[count] = begin
    for i in range(len(rows)):
        for at in range(indptr[rows[i]], indptr[rows[i] + 1]):
            place = counts[indices[at]]
            points[place], values[place] = i, data[at]
            counts[indices[at]] += 1
    for i in range(count):
        counts[features[i]] = 0
    return count


@njit(**_PART)
def _fill(out: np.ndarray, bias: np.ndarray) -> None:
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = bias[j]


@njit(**_PART)
def _add(out: np.ndarray, bias: np.ndarray, relu: bool) -> None:
    floor = np.float32(0 if relu else -np.inf)
    for i in range(out.shape[0]):
        row = out[i]
        for j in range(len(bias)):
            row[j] = max(row[j] + bias[j], floor)


@njit(**_PART)
def _relu(x: np.ndarray) -> None:
    for i in range(len(x)):
        x[i] = max(x[i], np.float32(0))


@njit(**_PART)
def _mask(gradient: np.ndarray, activations: np.ndarray) -> None:
    for i in range(len(gradient)):
        gradient[i] = gradient[i] if activations[i] > 0 else np.float32(0)


@njit(**_JIT)
def _turn(x: np.ndarray, out: np.ndarray) -> None:
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[j, i] = x[i, j]


@njit(**_PART)
def _sum_rows(x: np.ndarray, out: np.ndarray) -> None:
    out[:] = 0
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[j] += x[i, j]


@njit(**_PART)
def _spread(weight: np.ndarray, points: np.ndarray, values: np.ndarray, out: np.ndarray) -> None:
    """Add what a feature contributes to the points that carry it."""
    for i in range(len(points)):
        target, value = out[points[i]], values[i]
        for j in range(len(weight)):
            target[j] += value * weight[j]


@njit(**_PART)
def _gather(d_out: np.ndarray, points: np.ndarray, values: np.ndarray, gradient: np.ndarray) -> None:
    """Sum the gradient of a feature's row over the points that carry it."""
    gradient[:] = 0
    for i in range(len(points)):
        source, value = d_out[points[i]], values[i]
        for j in range(len(gradient)):
            gradient[j] += value * source[j]


@njit(**_PART)
def _tie(gradient: np.ndarray, w: np.ndarray, start: np.ndarray, constant: np.ndarray, prox_mu: float) -> None:
    """Add FedProx's pull towards where the round began, and a correction that is constant for the round."""
    for i in range(len(gradient)):
        gradient[i] += prox_mu * (w[i] - start[i]) + constant[i]


@njit(**_PART)
def _update(
    w: np.ndarray, m: np.ndarray, v: np.ndarray, gradient: np.ndarray, last: int, step: int, schedule: np.ndarray
) -> None:
    """Take a step of torch's Adam on parameters whose moments are as of step `last`; without moments, of SGD."""
    rate = np.float32(schedule[PACE, step])
    if len(m) == 0:
        for i in range(len(w)):
            w[i] -= rate * gradient[i]
        return
    new1, new2 = np.float32(1 - BETA1), np.float32(1 - BETA2)
    eps = np.float32(EPS * np.sqrt(1 - schedule[FADE2, step]))
    if last == 0:  # the moments' memory holds nothing yet
        for i in range(len(w)):
            m[i] = new1 * gradient[i]
            v[i] = new2 * gradient[i] * gradient[i]
            w[i] -= rate * m[i] / (np.sqrt(v[i]) + eps)
        return
    keep1, keep2 = np.float32(schedule[FADE1, step - last]), np.float32(schedule[FADE2, step - last])
    for i in range(len(w)):
        g = gradient[i]
        m[i] = keep1 * m[i] + new1 * g
        v[i] = keep2 * v[i] + new2 * g * g
        w[i] -= rate * m[i] / (np.sqrt(v[i]) + eps)


@njit(**_PART)
def _catch_up(w: np.ndarray, m: np.ndarray, v: np.ndarray, last: int, until: int, schedule: np.ndarray) -> None:
    """Do what Adam would have done to a row in the steps last + 1 … until, in which its gradient was zero.

    See fedmlh.model.kernels.schedule. The moments stay as of the last update, which `_update` knows.
    """
    if len(m) == 0 or last == 0 or until <= last:
        return
    move = np.float32(schedule[TAIL, last] - schedule[REACH, until - last] * schedule[TAIL, until])
    eps = np.float32(EPS * np.sqrt(1 - schedule[FADE2, last + 1]))
    for i in range(len(w)):
        w[i] -= move * m[i] / (np.sqrt(v[i]) + eps)


@njit(**_PART)
def _exp(x: np.ndarray, bits: np.ndarray) -> None:
    """Compute e^x in place for x ≤ 0, to float32's precision; unlike a call of exp, this vectorises."""
    power = bits[: len(x)].view(np.float32)
    for i in range(len(x)):
        y = max(x[i], np.float32(-87.0))
        k = np.int32(y * np.float32(1.44269504) - np.float32(0.5))
        f = np.float32(k)
        r = (y - f * np.float32(0.693359375)) + f * np.float32(2.12194440e-4)
        p = np.float32(1.9875691500e-4)
        p = p * r + np.float32(1.3981999507e-3)
        p = p * r + np.float32(8.3334519073e-3)
        p = p * r + np.float32(4.1665795894e-2)
        p = p * r + np.float32(1.6666665459e-1)
        p = p * r + np.float32(5.0000001201e-1)
        x[i] = p * r * r + r + np.float32(1)
        bits[i] = (k + np.int32(127)) << np.int32(23)
    for i in range(len(x)):
        x[i] *= power[i]


@njit(**_PART)
def _bce_gradient(
    logits: np.ndarray, rows: np.ndarray, indptr: np.ndarray, indices: np.ndarray, bits: np.ndarray, measured: bool
) -> float:
    """Turn logits into the gradient of the mean loss over points and buckets; return the loss if it is asked for."""
    size, width = logits.shape
    scale = np.float32(1 / (size * width))
    loss = 0.0
    e = np.empty(width, np.float32)
    for i in range(size):
        z = logits[i]
        for j in range(width):
            e[j] = -abs(z[j])
        _exp(e, bits)
        if measured:
            for at in range(indptr[rows[i]], indptr[rows[i] + 1]):
                loss -= z[indices[at]]
            for j in range(width):
                loss += max(z[j], np.float32(0))
            # Σ log(1 + e) = log Π(1 + e), in stretches whose product a double can hold.
            for begin in range(0, width, 256):
                product = 1.0
                for j in range(begin, min(begin + 256, width)):
                    product *= 1.0 + e[j]
                loss += np.log(product)
        for j in range(width):
            s = np.float32(1) / (np.float32(1) + e[j])
            z[j] = (s if z[j] >= 0 else e[j] * s) * scale
        for at in range(indptr[rows[i]], indptr[rows[i] + 1]):
            z[indices[at]] -= scale
    return loss / (size * width)


@njit(**_PART)
def _softmax_gradient(
    logits: np.ndarray, rows: np.ndarray, indptr: np.ndarray, indices: np.ndarray, bits: np.ndarray, measured: bool
) -> float:
    """Turn logits into the gradient of cross-entropy against targets that sum to 1; return the mean loss.

    A point without labels has neither loss nor gradient.
    """
    size, width = logits.shape
    loss = 0.0
    for i in range(size):
        z, begin, end = logits[i], indptr[rows[i]], indptr[rows[i] + 1]
        if begin == end:
            z[:] = 0
            continue
        top = z.max()
        share = np.float32(1 / (size * (end - begin)))
        hits = 0.0
        for at in range(begin, end):
            hits += z[indices[at]] - top
        for j in range(width):
            z[j] -= top
        _exp(z, bits)
        total = np.float32(0)
        for j in range(width):
            total += z[j]
        loss += (np.log(total) - hits / (end - begin)) / size
        scale = np.float32(1 / (size * total))
        for j in range(width):
            z[j] *= scale
        for at in range(begin, end):
            z[indices[at]] -= share
    return loss
