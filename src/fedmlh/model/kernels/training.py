"""Local training on the CPU as one compiled loop a table: no Python a step, sparse inputs, sparse targets.

The reference is `train_plain` in fedmlh.model.training; tests/test_kernels.py holds the two together. What differs is
only the order of floating-point sums and, for Adam, the first layer: rows whose features a batch does not carry are
not streamed through memory but brought up to date when they are next needed (see `_catch_up`).
"""

from typing import Any

import numpy as np
import torch
from numba import njit
from scipy.sparse import csr_matrix
from torch import Tensor

from fedmlh.model.recipe import Recipe
from fedmlh.model.stack import Stack

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8
#: Steps without a gradient after which what is left of a row's momentum is below float32's resolution.
_FADED = 192
_JIT: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy"}
#: Sums may be reordered so that they vectorise; NaN and infinity keep their meaning.
_FAST = {"reassoc", "contract", "arcp", "nsz"}
#: Rows of a weight matrix whose gradient is made and used while it is still in the cache.
_ROWS = 64


def train_compiled(
    stack: Stack,
    flat: Tensor,
    features: tuple[csr_matrix, ...],  # 1 or R × [n, d̃]
    buckets: tuple[csr_matrix, ...],  # R × [n, B]
    orders: np.ndarray,  # [E, n]
    recipe: Recipe,
) -> tuple[Tensor, float]:
    """All tables one after the other, each for all epochs: what one table needs stays in the cache."""
    flat = flat.clone()
    layers = stack.views(flat)
    widths = np.array((stack.num_inputs, *stack.hidden, stack.num_outputs))
    total = 0.0
    for table, z in enumerate(buckets):
        x = features[table % len(features)]
        theta = torch.cat([layer[table].reshape(-1) for layer in layers])
        total += train_table(
            theta.numpy(),
            widths,
            *(x.indptr, x.indices, x.data),
            *(z.indptr, z.indices),
            orders,
            min(recipe.batch_size, orders.shape[1]),
            recipe.loss == "softmax",
            recipe.optimizer == "adam",
            recipe.learning_rate,
        )
        parts = torch.split(theta, [layer[table].numel() for layer in layers])
        for layer, part in zip(layers, parts, strict=True):
            layer[table] = part.view(layer[table].shape)
    return flat, total / stack.num_tables


@njit(**_JIT)
def train_table(
    theta: np.ndarray,  # [P / R] parameters of one table, changed in place
    widths: np.ndarray,  # inputs, hidden …, outputs
    x_indptr: np.ndarray,
    x_indices: np.ndarray,
    x_data: np.ndarray,
    z_indptr: np.ndarray,
    z_indices: np.ndarray,
    orders: np.ndarray,  # [E, n] the points of each epoch in order
    batch_size: int,
    softmax: bool,
    adam: bool,
    learning_rate: float,
) -> float:
    """Train one table for all epochs; returns the last epoch's mean loss."""
    layers, epochs, n = len(widths) - 1, orders.shape[0], orders.shape[1]
    starts = _layer_starts(widths)
    first, inputs = widths[1], widths[0]
    widest = widths[1:].max()
    moments = np.zeros((2, theta.size if adam else 0), np.float32)
    acts = np.empty((layers, batch_size * widest), np.float32)
    turned = np.empty(batch_size * widths[:-1].max() if layers > 1 else 0, np.float32)
    delta = np.empty(batch_size * widest, np.float32)
    below = np.empty(batch_size * widest, np.float32)
    grad = np.empty(_ROWS * widest, np.float32)
    bits = np.empty(widest, np.int32)
    last = np.zeros(inputs, np.int64)  # step of the last update of each row of the first layer
    slot = np.full(inputs, -1, np.int64)
    touched = np.empty(inputs, np.int64)
    rows_grad = np.zeros((min(inputs, _most_nonzeros(x_indptr, batch_size, n)), first), np.float32)
    w_first = theta[: inputs * first].reshape(inputs, first)
    steps = epochs * ((n + batch_size - 1) // batch_size)
    pace = _adam_pace(steps, learning_rate)
    step, mean_loss = 0, 0.0

    for epoch in range(epochs):
        measured = epoch == epochs - 1
        for begin in range(0, n, batch_size):
            rows = orders[epoch, begin : begin + batch_size]
            size = len(rows)
            step += 1
            count = _mark(rows, x_indptr, x_indices, slot, touched)
            if adam:
                for i in range(count):
                    _catch_up(theta, moments, touched[i], first, last[touched[i]], step - 1, pace)
            # Forward.
            for layer in range(layers):
                width = widths[layer + 1]
                out = acts[layer, : size * width].reshape(size, width)
                bias = theta[starts[layer] + widths[layer] * width : starts[layer] + (widths[layer] + 1) * width]
                if layer == 0:
                    _sparse_product(rows, x_indptr, x_indices, x_data, w_first, bias, out)
                else:
                    weight = theta[starts[layer] : starts[layer] + widths[layer] * width].reshape(widths[layer], width)
                    np.dot(acts[layer - 1, : size * widths[layer]].reshape(size, widths[layer]), weight, out)
                    for i in range(size):
                        for j in range(width):
                            out[i, j] += bias[j]
                if layer < layers - 1:
                    for i in range(size):
                        for j in range(width):
                            out[i, j] = max(out[i, j], np.float32(0))
            # Loss and its gradient, in place of the logits.
            outputs = widths[layers]
            logits = acts[layers - 1, : size * outputs].reshape(size, outputs)
            if softmax:
                loss = _softmax_gradient(logits, rows, z_indptr, z_indices, bits, measured)
            else:
                loss = _bce_gradient(logits, rows, z_indptr, z_indices, bits, measured)
            mean_loss += loss * size / n if measured else 0.0
            delta[: size * outputs] = acts[layers - 1, : size * outputs]
            # Backward, from the last layer to the second.
            for layer in range(layers - 1, 0, -1):
                width, inner = widths[layer + 1], widths[layer]
                d_out = delta[: size * width].reshape(size, width)
                a = acts[layer - 1, : size * inner].reshape(size, inner)
                weight = theta[starts[layer] : starts[layer] + inner * width].reshape(inner, width)
                d_in = below[: size * inner].reshape(size, inner)
                np.dot(d_out, weight.T, d_in)
                for i in range(size):
                    for j in range(inner):
                        if a[i, j] <= 0:
                            d_in[i, j] = 0
                at = turned[: size * inner].reshape(inner, size)
                for i in range(size):
                    for j in range(inner):
                        at[j, i] = a[i, j]
                for row in range(0, inner, _ROWS):
                    end = min(row + _ROWS, inner)
                    g = grad[: (end - row) * width].reshape(end - row, width)
                    np.dot(at[row:end], d_out, g)
                    place = starts[layer] + row * width
                    _update(theta, moments, place, grad[: (end - row) * width], adam, step, pace, learning_rate)
                _update_bias(
                    theta, moments, starts[layer] + inner * width, d_out, grad, adam, step, pace, learning_rate
                )
                delta[: size * inner] = below[: size * inner]
            # The first layer: only rows whose features the batch carries have a gradient.
            d_first = delta[: size * first].reshape(size, first)
            for i in range(size):
                for at_x in range(x_indptr[rows[i]], x_indptr[rows[i] + 1]):
                    target, value = rows_grad[slot[x_indices[at_x]]], x_data[at_x]
                    for j in range(first):
                        target[j] += value * d_first[i, j]
            for i in range(count):
                feature = touched[i]
                _update(theta, moments, feature * first, rows_grad[i], adam, step, pace, learning_rate)
                rows_grad[i, :] = 0
                last[feature] = step
                slot[feature] = -1
            _update_bias(theta, moments, inputs * first, d_first, grad, adam, step, pace, learning_rate)
    if adam:
        for feature in range(inputs):
            _catch_up(theta, moments, feature, first, last[feature], steps, pace)
    return mean_loss


@njit(**_JIT)
def _layer_starts(widths: np.ndarray) -> np.ndarray:
    starts = np.zeros(len(widths), np.int64)
    for layer in range(len(widths) - 1):
        starts[layer + 1] = starts[layer] + (widths[layer] + 1) * widths[layer + 1]
    return starts


@njit(**_JIT)
def _most_nonzeros(indptr: np.ndarray, batch_size: int, n: int) -> int:
    """No batch can carry more features than the fullest points together."""
    counts = np.sort(indptr[1:] - indptr[:-1])
    return max(1, counts[max(0, n - batch_size) :].sum())


@njit(**_JIT)
def _mark(rows: np.ndarray, indptr: np.ndarray, indices: np.ndarray, slot: np.ndarray, touched: np.ndarray) -> int:
    """Number the features of a batch in the order of their first appearance."""
    count = 0
    for row in rows:
        for at in range(indptr[row], indptr[row + 1]):
            feature = indices[at]
            if slot[feature] < 0:
                slot[feature] = count
                touched[count] = feature
                count += 1
    return count


@njit(fastmath=_FAST, **_JIT)
def _sparse_product(
    rows: np.ndarray,
    indptr: np.ndarray,
    indices: np.ndarray,
    data: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    out: np.ndarray,
) -> None:
    width = out.shape[1]
    for i in range(len(rows)):
        target = out[i]
        for j in range(width):
            target[j] = bias[j]
        for at in range(indptr[rows[i]], indptr[rows[i] + 1]):
            source, value = weight[indices[at]], data[at]
            for j in range(width):
                target[j] += value * source[j]


@njit(**_JIT)
def _adam_pace(steps: int, learning_rate: float) -> np.ndarray:
    """lr · √(1 − β2^s) / (1 − β1^s): how far step s moves a parameter for each m / √v."""
    pace = np.empty(steps + 2, np.float64)
    pace[0] = 0
    for s in range(1, steps + 2):
        pace[s] = learning_rate * np.sqrt(1 - BETA2**s) / (1 - BETA1**s)
    return pace


@njit(fastmath=_FAST, **_JIT)
def _update(
    theta: np.ndarray,
    moments: np.ndarray,
    place: int,
    gradient: np.ndarray,
    adam: bool,
    step: int,
    pace: np.ndarray,
    learning_rate: float,
) -> None:
    """A step of torch's Adam or SGD on a stretch of parameters."""
    w = theta[place : place + len(gradient)]
    if not adam:
        rate = np.float32(learning_rate)
        for i in range(len(gradient)):
            w[i] -= rate * gradient[i]
        return
    m = moments[0, place : place + len(gradient)]
    v = moments[1, place : place + len(gradient)]
    keep1, keep2 = np.float32(BETA1), np.float32(BETA2)
    new1, new2 = np.float32(1 - BETA1), np.float32(1 - BETA2)
    rate = np.float32(pace[step])
    eps = np.float32(EPS * np.sqrt(1 - BETA2**step))
    for i in range(len(gradient)):
        g = gradient[i]
        m[i] = keep1 * m[i] + new1 * g
        v[i] = keep2 * v[i] + new2 * g * g
        w[i] -= rate * m[i] / (np.sqrt(v[i]) + eps)


@njit(fastmath=_FAST, **_JIT)
def _update_bias(
    theta: np.ndarray,
    moments: np.ndarray,
    place: int,
    d_out: np.ndarray,
    grad: np.ndarray,
    adam: bool,
    step: int,
    pace: np.ndarray,
    learning_rate: float,
) -> None:
    width = d_out.shape[1]
    g = grad[:width]
    g[:] = 0
    for i in range(d_out.shape[0]):
        for j in range(width):
            g[j] += d_out[i, j]
    _update(theta, moments, place, g, adam, step, pace, learning_rate)


@njit(fastmath=_FAST, **_JIT)
def _catch_up(
    theta: np.ndarray, moments: np.ndarray, feature: int, width: int, since: int, until: int, pace: np.ndarray
) -> None:
    """What Adam would have done to a row in the steps since … until, in which its gradient was zero.

    With g = 0 step s only shrinks m by β1 and v by β2, and moves w by pace(s) · β1^j / √β2^j · m / (√v + ε'), with j
    the steps since the last gradient. Only ε' depends on s; taken as at the first of these steps, the sum over s is one
    number for the whole row. It is exact for ε = 0.
    """
    gap = until - since
    if since == 0 or gap <= 0:
        return
    ratio, factor, total = BETA1 / np.sqrt(BETA2), 1.0, 0.0
    for j in range(1, min(gap, _FADED) + 1):
        factor *= ratio
        total += factor * pace[since + j]
    move, fade1, fade2 = np.float32(total), np.float32(BETA1**gap), np.float32(BETA2**gap)
    eps = np.float32(EPS * np.sqrt(1 - BETA2 ** (since + 1)))
    place = feature * width
    w = theta[place : place + width]
    m = moments[0, place : place + width]
    v = moments[1, place : place + width]
    for i in range(width):
        w[i] -= move * m[i] / (np.sqrt(v[i]) + eps)
        m[i] *= fade1
        v[i] *= fade2


@njit(fastmath=_FAST, **_JIT)
def _exp(x: np.ndarray, bits: np.ndarray) -> None:
    """e^x in place for x ≤ 0, to float32's precision; written so that it vectorises, which a call of exp does not."""
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


@njit(fastmath=_FAST, **_JIT)
def _bce_gradient(
    logits: np.ndarray, rows: np.ndarray, indptr: np.ndarray, indices: np.ndarray, bits: np.ndarray, measured: bool
) -> float:
    """Turn logits into the gradient of the mean loss over points and buckets; the loss where it is asked for."""
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


@njit(fastmath=_FAST, **_JIT)
def _softmax_gradient(
    logits: np.ndarray, rows: np.ndarray, indptr: np.ndarray, indices: np.ndarray, bits: np.ndarray, measured: bool
) -> float:
    """The same for cross-entropy against targets that sum to 1; a point with no label has neither loss nor gradient."""
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
