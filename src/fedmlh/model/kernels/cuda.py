"""Local training on a GPU: all sampled clients × all tables as one batched computation, captured once as a CUDA graph.

The reference is `train_plain` in fedmlh.model.local_training; tests/test_cuda.py holds the two together.

A step is bound by memory: it must read and write every parameter and its two moments, so all else is there to keep out
of Adam's way. Rows of the first layer whose features a batch does not carry are left alone, and caught up when they are
next used (see fedmlh.model.kernels.schedule), unless FedProx or a correction gives every row a gradient. A replayed
graph needs nothing from the host: which points come next, and how far Adam steps, is read from tables on the device by
a counter that lives there too.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from scipy.sparse import csr_matrix, vstack
from torch import Tensor

from fedmlh.model.kernels.schedule import PACE, TAIL, make_schedule
from fedmlh.model.local_training import Shard
from fedmlh.model.losses import find_loss, logit_offsets
from fedmlh.model.recipe import Recipe
from fedmlh.model.stack import Stack

#: Rows of a weight begin where the GPU can read 16 bytes at once; the columns added for that stay zero.
_ALIGN = 8
#: Share of the GPU's free memory that a round may take.
_SHARE = 0.8


class CudaTrainer:
    """Trains a run's clients together; their data and the working memory stay on the device between rounds."""

    def __init__(
        self, stack: Stack, recipe: Recipe, shards: Mapping[int, Shard], device: torch.device, *, tf32: bool
    ) -> None:
        self.stack, self.recipe, self.device, self.tf32 = stack, recipe, device, tf32
        self._lengths = {client: len(shard) for client, shard in shards.items()}
        self._begins = dict(zip(shards, np.cumsum([0, *self._lengths.values()]), strict=False))
        features = zip(*(shard.features for shard in shards.values()), strict=True)
        buckets = zip(*(shard.buckets for shard in shards.values()), strict=True)
        self._x = _Points.gather([vstack(part, "csr") for part in features], device)
        self._z = _Points.gather([vstack(part, "csr") for part in buckets], device)
        offsets = {client: logit_offsets(shard.buckets, recipe) for client, shard in shards.items()}
        self._offsets = {c: torch.from_numpy(part).to(device) for c, part in offsets.items() if part is not None}
        self._bench: _Bench | None = None

    def train(
        self,
        models: Sequence[Tensor],
        clients: Sequence[int],
        orders: Sequence[np.ndarray],
        learning_rate: float,
        corrections: Sequence[Tensor] = (),
    ) -> list[tuple[Tensor, float]]:
        """New parameters [P] and last epoch's mean loss of each client, from its model and its orders [E, n].

        The learning rate is the round's, in place of the recipe's. `corrections` [P], one a client, are added to the
        gradient of every step; with them in one round, in all.
        """
        if self._bench is None:
            tied = self.recipe.prox_mu > 0 or len(corrections) > 0
            self._bench = _Bench(self, min(len(clients), self._fitting(tied)), tied)
        # Longest first: those that still have steps to take are then always the first few.
        line = sorted(range(len(clients)), key=lambda i: -self._lengths[clients[i]])
        done: dict[int, tuple[Tensor, float]] = {}
        for begin in range(0, len(line), self._bench.most):
            some = line[begin : begin + self._bench.most]
            points = [orders[i] + self._begins[clients[i]] for i in some]
            self._bench.adjust(
                learning_rate,
                [self._offsets[clients[i]] for i in some if self._offsets],
                [corrections[i] for i in some if corrections],
            )
            done |= zip(some, self._bench.train([models[i] for i in some], points), strict=True)
        return [done[i] for i in range(len(clients))]

    @property
    def batch_size(self) -> int:
        """Points a step at most."""
        return min(self.recipe.batch_size, max(self._lengths.values()))

    def _fitting(self, tied: bool) -> int:
        """How many clients fit: models before and after, weights, moments, gradient; and what a batch needs."""
        stack = self.stack
        widths = stack.num_inputs + 2 * sum(stack.hidden) + 2 * stack.num_outputs
        each = 4 * ((8 if tied else 6) * stack.num_parameters + stack.num_tables * self.batch_size * widths)
        free = torch.cuda.mem_get_info(self.device)[0] if self.device.type == "cuda" else 2**30
        return max(1, int(_SHARE * free / each))


@dataclass(frozen=True)
class _Points:
    """Sparse rows of all clients on the device: M matrices, one after the other."""

    indptr: Tensor  # [M, N + 1]
    indices: Tensor
    values: Tensor

    @classmethod
    def gather(cls, matrices: Sequence[csr_matrix], device: torch.device) -> "_Points":
        begins = np.cumsum([0, *(matrix.nnz for matrix in matrices)])
        indptr = np.stack([matrix.indptr.astype(np.int64) + b for matrix, b in zip(matrices, begins, strict=False)])
        indices = np.concatenate([matrix.indices for matrix in matrices]).astype(np.int32)
        values = np.concatenate([matrix.data for matrix in matrices]).astype(np.float32)
        return cls(*(torch.from_numpy(part).to(device) for part in (indptr, indices, values)))


class _Bench:
    """Working memory for up to `most` clients, and the captured steps over it."""

    def __init__(self, trainer: CudaTrainer, most: int, tied: bool) -> None:
        self.trainer, self.most, self.tied = trainer, most, tied
        stack, device, batch = trainer.stack, trainer.device, trainer.batch_size
        nets, widths = most * stack.num_tables, [stack.num_inputs, *map(_aligned, (*stack.hidden, stack.num_outputs))]

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.weights = [zeros(nets, i, o) for i, o in pairwise(widths)]
        self.biases = [zeros(nets, 1, o) for o in widths[1:]]
        self.adam = trainer.recipe.adam
        # Of the weights, then of the biases. SGD has none: what stands in their place is never read.
        parameters = (*self.weights, *self.biases)
        self.moments = [(zeros(*p.shape), zeros(*p.shape)) if self.adam else (p, p) for p in parameters]
        # Where the round began, and what is added to every gradient: only there, and only read, where it is tied.
        self.starts = [zeros(*p.shape) if tied else p for p in parameters]
        self.constants = [zeros(*p.shape) if tied else p for p in parameters]
        self.offsets = zeros(nets, 1, widths[-1]) if trainer._offsets else None
        self.acts = [zeros(nets, batch, width) for width in widths]
        self.deltas = [zeros(nets, batch, width) for width in widths[1:-1]]
        self.gradient = zeros(max(weight.numel() for weight in self.weights))
        self.seen = zeros(nets, stack.num_inputs, dtype=torch.int32)  # last step whose batch carried the feature
        self.last = zeros(nets, stack.num_inputs, dtype=torch.int32)  # last step that updated its row
        self.ends = zeros(most, dtype=torch.int32)  # steps of each client
        self.losses = zeros(nets, batch)
        self.step = zeros(1, dtype=torch.int64)
        longest = max(trainer._lengths.values())
        self.steps = trainer.recipe.epochs * -(-longest // batch)
        self.points = zeros(most, self.steps, batch, dtype=torch.int32) - 1  # -1: no point
        self.sizes = zeros(most, self.steps, dtype=torch.int32)
        self.shares = zeros(most, self.steps)  # what a point's loss counts for in the reported mean
        self.unit_schedule = make_schedule(self.steps, 1.0, adam=self.adam)
        self.schedule = zeros(*self.unit_schedule.shape)
        self.graphs: dict[int, Any] = {}

    def adjust(self, learning_rate: float, offsets: list[Tensor], corrections: list[Tensor]) -> None:
        """How far the next round's steps go, and what it adds to the logits and to the gradients of each client."""
        schedule = self.unit_schedule.copy()
        schedule[[PACE, TAIL]] *= learning_rate
        self.schedule.copy_(torch.from_numpy(schedule))
        rows, layers = self.trainer.stack.num_tables, len(self.weights)
        for i, offset in enumerate(offsets):
            assert self.offsets is not None
            self.offsets[i * rows : (i + 1) * rows, 0, : offset.shape[1]].copy_(offset)
        for i, correction in enumerate(corrections):
            where = (self.constants[:layers], self.constants[layers:])
            self._move(where, self.trainer.stack.views(correction), i, out=False)

    def train(self, models: list[Tensor], orders: list[np.ndarray]) -> Iterator[tuple[Tensor, float]]:
        """Train these clients, the one with the most steps first."""
        batch, stack = self.points.shape[2], self.trainer.stack
        ends = []
        points = np.full(self.points.shape, -1, np.int32)
        shares = np.zeros(self.shares.shape, np.float32)
        for i, order in enumerate(orders):
            a_pass = -(-order.shape[1] // batch)
            padded = np.full((len(order), a_pass * batch), -1, np.int32)
            padded[:, : order.shape[1]] = order
            ends.append(padded.size // batch)
            points[i, : ends[i]] = padded.reshape(-1, batch)
            shares[i, ends[i] - a_pass : ends[i]] = 1 / order.shape[1]
        active = [sum(end > step for end in ends) for step in range(ends[0])]
        for count in sorted(set(active)):
            if count not in self.graphs:
                self.graphs[count] = self._capture(count)
        for target, source in ((self.points, points), (self.shares, shares), (self.sizes, (points >= 0).sum(-1))):
            target.copy_(torch.from_numpy(source))
        for counted in (self.step, self.losses, self.seen, self.last):
            counted.zero_()
        self.ends[: len(ends)].copy_(torch.tensor(ends))
        if self.adam:
            for m, v in self.moments:
                m.zero_()
                v.zero_()
        rows, parameters = stack.num_tables, (self.weights, self.biases)
        for i, model in enumerate(models):
            self._move(parameters, stack.views(model), i, out=False)
        if self.tied:
            for start, parameter in zip(self.starts, (*self.weights, *self.biases), strict=True):
                start.copy_(parameter)
        for count in active:
            self.graphs[count]()
        if self.adam and not self.tied:
            self._per_row(_catch_up, len(models) * rows, self.ends, ALL=True)
        losses = self.losses[: len(models) * rows].view(len(models), -1).sum(1).tolist()
        for i, loss in enumerate(losses):
            result = torch.empty_like(models[i])
            self._move(parameters, stack.views(result), i, out=True)
            yield result, loss / rows

    def _move(self, where: tuple[list[Tensor], list[Tensor]], views: list[Tensor], client: int, *, out: bool) -> None:
        """A vector of one client, layer by layer, into the working memory's weights and biases, or out of them."""
        weights, biases = where
        rows = slice(client * self.trainer.stack.num_tables, (client + 1) * self.trainer.stack.num_tables)
        inner = self.trainer.stack.num_inputs
        for i, (weight, bias) in enumerate(zip(views[::2], views[1::2], strict=True)):
            width = weight.shape[2]
            mine = (weights[i][rows, :inner, :width], biases[i][rows, 0, :width])
            for a, b in zip(mine, (weight, bias), strict=True):
                b.copy_(a) if out else a.copy_(b)
            inner = width

    def _capture(self, count: int) -> Any:
        """A call that takes one step of the first `count` clients."""
        with _matmul_precision(self.trainer.tf32):
            if self.trainer.device.type != "cuda":  # Triton's interpreter
                return lambda: self._take_step(count)
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream())
            self.points.fill_(-1)
            with torch.cuda.stream(stream):
                self.step.zero_()
                self._take_step(count)  # compiles the kernels and sets libraries up, which a capture cannot
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._take_step(count)
            return graph.replay

    def _take_step(self, count: int) -> None:
        trainer, stack = self.trainer, self.trainer.stack
        tables, outputs = stack.num_tables, stack.num_outputs
        nets, layers, batch = count * tables, len(self.weights), self.points.shape[2]
        acts = [a[:nets] for a in self.acts]
        deltas = [d[:nets] for d in self.deltas]
        x, z = trainer._x, trainer._z
        where = (self.points, self.step, self.steps, batch, tables)
        entries = (x.indptr, x.indices, x.values, x.indptr.shape[1], len(x.indptr))
        _scatter[(nets, batch)](acts[0], self.seen, *entries, *where, acts[0].shape[2], CLEAR=False, BLOCK=64)
        if self.adam and not self.tied:
            self._per_row(_catch_up, nets, self.ends, ALL=False)
        for layer in range(layers):
            torch.baddbmm(self.biases[layer][:nets], acts[layer], self.weights[layer][:nets], out=acts[layer + 1])
            if layer < layers - 1:
                acts[layer + 1].relu_()
        if self.offsets is not None:
            acts[-1].add_(self.offsets[:nets])
        kernel = _GRADIENTS[find_loss(trainer.recipe.loss).kernel]
        kernel[(nets, batch)](
            *(acts[-1], self.losses, z.indptr, z.indices, z.indptr.shape[1], *where, self.sizes, self.shares),
            *(outputs, acts[-1].shape[2]),
            BLOCK=1024,
            HITS=32,
            num_warps=4,
        )
        above = acts[-1]
        for layer in range(layers - 1, -1, -1):
            if layer > 0:
                torch.bmm(above, self.weights[layer][:nets].mT, out=deltas[layer - 1])
                deltas[layer - 1].masked_fill_(acts[layer] <= 0, 0)
            weight = self.weights[layer][:nets]
            gradient = self.gradient[: weight.numel()].view(weight.shape)
            torch.bmm(acts[layer].mT, above, out=gradient)
            if layer == 0 and not self.tied:
                self._per_row(_update_row, nets, gradient)
            else:
                self._update(weight, layer, gradient)
            bias = self.biases[layer][:nets]
            gradient = self.gradient[: bias.numel()].view(bias.shape)
            torch.sum(above, dim=1, keepdim=True, out=gradient)
            self._update(bias, layers + layer, gradient)
            if layer > 0:
                above = deltas[layer - 1]
        _scatter[(nets, batch)](acts[0], self.seen, *entries, *where, acts[0].shape[2], CLEAR=True, BLOCK=64)
        self.step.add_(1)

    def _update(self, w: Tensor, part: int, gradient: Tensor) -> None:
        """A step of the weights (part 0, 1, …) or, after those, biases of one layer."""
        count = gradient.numel()
        _take[(triton.cdiv(count, 1024),)](
            *(w, *self.moments[part], gradient, count, self.schedule, self.schedule.shape[1], self.step),
            *(self.starts[part], self.constants[part], self.trainer.recipe.prox_mu),
            ADAM=self.adam,
            TIED=self.tied,
            BLOCK=1024,
        )

    def _per_row(self, kernel: Any, nets: int, argument: Tensor, **flags: bool) -> None:
        """Run a kernel for each row of the first layer of each net."""
        weight, moments = self.weights[0], self.moments[0]
        inner, width = weight.shape[1:]
        kernel[(inner, nets)](
            *(weight, *moments, argument, self.seen, self.last, self.schedule, self.schedule.shape[1], self.step),
            *(self.trainer.stack.num_tables, inner, width),
            ADAM=self.adam,
            BLOCK=min(1024, triton.next_power_of_2(width)),
            **flags,
        )


def _aligned(width: int) -> int:
    return -(-width // _ALIGN) * _ALIGN


@contextmanager
def _matmul_precision(tf32: bool) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@triton.jit
def _point(points, step, steps, batch, tables):  # type: ignore[no-untyped-def]
    """The point that this program (a net, a place in the batch) works on; -1: none."""
    client, t = tl.program_id(0) // tables, tl.load(step)
    return tl.load(points + (client * steps + t) * batch + tl.program_id(1)).to(tl.int64)


@triton.jit
def _scatter(  # type: ignore[no-untyped-def]
    dense, seen, indptr, indices, values, stride, maps, points, step, steps, batch, tables, width,
    CLEAR: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A point's sparse features into its dense row, or out of it again."""
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
    """One point's logits become the gradient of the mean loss over points and buckets."""
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
    """The same for cross-entropy against targets that sum to 1; a point with no label has neither."""
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


#: By the loss that they know.
_GRADIENTS = {"bce": _bce_gradient, "softmax": _softmax_gradient}


@triton.jit
def _adam(w, m, v, at, mask, gradient, keep1, keep2, rate, eps, ADAM: tl.constexpr):  # type: ignore[no-untyped-def]
    """A step of torch's Adam or SGD."""
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
    return 1e-8 * tl.sqrt(1.0 - tl.load(schedule + 3 * stride + s))


@triton.jit
def _take(  # type: ignore[no-untyped-def]
    w, m, v, gradient, count, schedule, stride, step, start, constant, prox_mu,
    ADAM: tl.constexpr, TIED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A stretch of parameters that every step updates; tied: pulled to where the round began, and corrected."""
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
def _update_row(  # type: ignore[no-untyped-def]
    w, m, v, gradient, seen, last, schedule, stride, step, tables, inner, width,
    ADAM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A row of the first layer, if the batch carries its feature; its moments are as of its last update."""
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
def _catch_up(  # type: ignore[no-untyped-def]
    w, m, v, ends, seen, last, schedule, stride, step, tables, inner, width,
    ADAM: tl.constexpr, BLOCK: tl.constexpr, ALL: tl.constexpr,
):  # fmt: skip
    """What the steps without a gradient did to a row, if the batch carries its feature, or to all rows at the end."""
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
