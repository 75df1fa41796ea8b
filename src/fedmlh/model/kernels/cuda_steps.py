"""Training steps on the GPU: working memory for some clients, and one step of all of them, captured as a CUDA graph.

A step is bound by memory: it must read and write every parameter and its two moments, so everything else must cost
little beside that. Rows of the first layer whose features a batch does not carry are left alone, and caught up when
they are next used (see fedmlh.model.kernels.schedule), unless FedProx or a correction gives every row a gradient. A
replayed graph needs nothing from the host: which points come next, and how far Adam steps, is read from tables on the
device by a counter that is there too.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import triton
from scipy.sparse import csr_matrix
from torch import Tensor

from fedmlh.model.kernels.cuda_programs import GRADIENTS, catch_up, scatter, update, update_row
from fedmlh.model.kernels.schedule import PACE, TAIL, make_schedule
from fedmlh.model.losses import find_loss
from fedmlh.model.recipe import Recipe
from fedmlh.model.stack import Stack

#: Rows of a weight begin where the GPU can read 16 bytes at once; the columns added for that stay zero.
_ALIGN = 8


@dataclass(frozen=True)
class DeviceRows:
    """Sparse rows of all clients on the device: M matrices over the same points, one after the other."""

    indptr: Tensor  # [M, N + 1]
    indices: Tensor
    values: Tensor

    @classmethod
    def gather(cls, matrices: Sequence[csr_matrix], device: torch.device) -> "DeviceRows":
        """Copy matrices to the device."""
        begins = np.cumsum([0, *(matrix.nnz for matrix in matrices)])
        indptr = np.stack([matrix.indptr.astype(np.int64) + b for matrix, b in zip(matrices, begins, strict=False)])
        indices = np.concatenate([matrix.indices for matrix in matrices]).astype(np.int32)
        values = np.concatenate([matrix.data for matrix in matrices]).astype(np.float32)
        return cls(*(torch.from_numpy(part).to(device) for part in (indptr, indices, values)))


@dataclass(frozen=True)
class Setup:
    """What the steps of a run depend on: the networks, how they train, and the points of all clients on the device."""

    stack: Stack
    recipe: Recipe
    device: torch.device
    tf32: bool
    features: DeviceRows  # 1 or R × [n, d̃]
    buckets: DeviceRows  # R × [n, B]
    longest: int  # points of the client that has the most
    balanced: bool  # the loss adds something to the logits of each client

    @property
    def batch_size(self) -> int:
        """Return the most points per step."""
        return min(self.recipe.batch_size, self.longest)


class Workspace:
    """Working memory for up to `most` clients, and the captured steps over it."""

    def __init__(self, setup: Setup, most: int, tied: bool) -> None:
        self.setup, self.most, self.tied = setup, most, tied
        stack, device, batch = setup.stack, setup.device, setup.batch_size
        nets, widths = most * stack.num_tables, [stack.num_inputs, *map(_aligned, (*stack.hidden, stack.num_outputs))]

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.weights = [zeros(nets, i, o) for i, o in pairwise(widths)]
        self.biases = [zeros(nets, 1, o) for o in widths[1:]]
        self.adam = setup.recipe.adam
        # Two moments per weight, then per bias. SGD has none; what stands in their place is never read.
        parameters = (*self.weights, *self.biases)
        self.moments = [(zeros(*p.shape), zeros(*p.shape)) if self.adam else (p, p) for p in parameters]
        # Where the round began, and what is added to every gradient; if not tied, stand-ins that are never read.
        self.starts = [zeros(*p.shape) if tied else p for p in parameters]
        self.constants = [zeros(*p.shape) if tied else p for p in parameters]
        self.offsets = zeros(nets, 1, widths[-1]) if setup.balanced else None
        self.acts = [zeros(nets, batch, width) for width in widths]
        self.deltas = [zeros(nets, batch, width) for width in widths[1:-1]]
        self.gradient = zeros(max(weight.numel() for weight in self.weights))
        self.seen = zeros(nets, stack.num_inputs, dtype=torch.int32)  # last step whose batch carried the feature
        self.last = zeros(nets, stack.num_inputs, dtype=torch.int32)  # last step that updated its row
        self.ends = zeros(most, dtype=torch.int32)  # steps of each client
        self.losses = zeros(nets, batch)
        self.step = zeros(1, dtype=torch.int64)
        self.steps = setup.recipe.epochs * -(-setup.longest // batch)
        self.points = zeros(most, self.steps, batch, dtype=torch.int32) - 1  # -1: no point
        self.sizes = zeros(most, self.steps, dtype=torch.int32)
        self.shares = zeros(most, self.steps)  # what a point's loss counts for in the reported mean
        self.unit_schedule = make_schedule(self.steps, 1.0, adam=self.adam)
        self.schedule = zeros(*self.unit_schedule.shape)
        self.graphs: dict[int, Any] = {}

    def adjust(self, learning_rate: float, offsets: list[Tensor], corrections: list[Tensor]) -> None:
        """Set how far the next steps go, and what is added to the logits and to the gradients of each client."""
        schedule = self.unit_schedule.copy()
        schedule[[PACE, TAIL]] *= learning_rate
        self.schedule.copy_(torch.from_numpy(schedule))
        rows, layers = self.setup.stack.num_tables, len(self.weights)
        for i, offset in enumerate(offsets):
            assert self.offsets is not None
            self.offsets[i * rows : (i + 1) * rows, 0, : offset.shape[1]].copy_(offset)
        for i, correction in enumerate(corrections):
            where = (self.constants[:layers], self.constants[layers:])
            self._move(where, self.setup.stack.views(correction), i, out=False)

    def train_group(self, models: list[Tensor], orders: list[np.ndarray]) -> Iterator[tuple[Tensor, float]]:
        """Train up to `most` clients side by side, given by falling number of steps; yield model and loss of each."""
        batch, stack = self.points.shape[2], self.setup.stack
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
            self._per_row(catch_up, len(models) * rows, self.ends, ALL=True)
        losses = self.losses[: len(models) * rows].view(len(models), -1).sum(1).tolist()
        for i, loss in enumerate(losses):
            result = torch.empty_like(models[i])
            self._move(parameters, stack.views(result), i, out=True)
            yield result, loss / rows

    def _move(self, where: tuple[list[Tensor], list[Tensor]], views: list[Tensor], client: int, *, out: bool) -> None:
        """Copy a vector of one client, layer by layer, into weights and biases of the workspace, or out of them."""
        weights, biases = where
        rows = slice(client * self.setup.stack.num_tables, (client + 1) * self.setup.stack.num_tables)
        inner = self.setup.stack.num_inputs
        for i, (weight, bias) in enumerate(zip(views[::2], views[1::2], strict=True)):
            width = weight.shape[2]
            mine = (weights[i][rows, :inner, :width], biases[i][rows, 0, :width])
            for a, b in zip(mine, (weight, bias), strict=True):
                b.copy_(a) if out else a.copy_(b)
            inner = width

    def _capture(self, count: int) -> Any:
        """Return a call that takes one step of the first `count` clients."""
        with _matmul_precision(self.setup.tf32):
            if self.setup.device.type != "cuda":  # Triton's interpreter
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
        """Take one step of the first `count` clients: forward, loss, and backward with the updates."""
        setup, stack = self.setup, self.setup.stack
        tables, outputs = stack.num_tables, stack.num_outputs
        nets, layers, batch = count * tables, len(self.weights), self.points.shape[2]
        acts = [a[:nets] for a in self.acts]
        deltas = [d[:nets] for d in self.deltas]
        x, z = setup.features, setup.buckets
        where = (self.points, self.step, self.steps, batch, tables)
        entries = (x.indptr, x.indices, x.values, x.indptr.shape[1], len(x.indptr))
        scatter[(nets, batch)](acts[0], self.seen, *entries, *where, acts[0].shape[2], CLEAR=False, BLOCK=64)
        if self.adam and not self.tied:
            self._per_row(catch_up, nets, self.ends, ALL=False)
        for layer in range(layers):
            torch.baddbmm(self.biases[layer][:nets], acts[layer], self.weights[layer][:nets], out=acts[layer + 1])
            if layer < layers - 1:
                acts[layer + 1].relu_()
        if self.offsets is not None:
            acts[-1].add_(self.offsets[:nets])
        kernel = GRADIENTS[find_loss(setup.recipe.loss).kernel]
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
                self._per_row(update_row, nets, gradient)
            else:
                self._update(weight, layer, gradient)
            bias = self.biases[layer][:nets]
            gradient = self.gradient[: bias.numel()].view(bias.shape)
            torch.sum(above, dim=1, keepdim=True, out=gradient)
            self._update(bias, layers + layer, gradient)
            if layer > 0:
                above = deltas[layer - 1]
        scatter[(nets, batch)](acts[0], self.seen, *entries, *where, acts[0].shape[2], CLEAR=True, BLOCK=64)
        self.step.add_(1)

    def _update(self, w: Tensor, part: int, gradient: Tensor) -> None:
        """Update the weights (part 0, 1, …) or, after those, the biases of one layer."""
        count = gradient.numel()
        update[(triton.cdiv(count, 1024),)](
            *(w, *self.moments[part], gradient, count, self.schedule, self.schedule.shape[1], self.step),
            *(self.starts[part], self.constants[part], self.setup.recipe.prox_mu),
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
            *(self.setup.stack.num_tables, inner, width),
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
