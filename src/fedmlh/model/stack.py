"""R sub-models of equal shape as one stack of tensors over one flat vector of parameters."""

import math
import warnings
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from scipy.sparse import csr_matrix
from torch import Tensor

from fedmlh.randomness import generator


@dataclass(frozen=True)
class Stack:
    """The shape of R perceptrons that share nothing but their tensors; `hidden` may be empty (a linear model)."""

    num_tables: int  # R
    num_inputs: int  # d̃
    hidden: tuple[int, ...]
    num_outputs: int  # B

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Weight and bias of each layer in the order in which they lie in the flat vector."""
        widths = (self.num_inputs, *self.hidden, self.num_outputs)
        return [shape for i, o in pairwise(widths) for shape in ((self.num_tables, i, o), (self.num_tables, o))]

    @property
    def num_parameters(self) -> int:
        """The numbers in a model, which decide what it costs to send."""
        return sum(math.prod(shape) for shape in self.shapes)

    def initial(self, seed: int, *, rare: bool = False) -> Tensor:
        """Draw the model that every party derives from the seed, so that it need not be sent.  # [P]

        Uniform in ±1/√fan_in, as torch.nn.Linear draws weights and biases. If `rare`, output biases lie around −log B,
        where a bucket's odds are 1 to B.
        """
        rng = generator(seed, "initial model")
        parts = []
        for weight, bias in zip(self.shapes[::2], self.shapes[1::2], strict=True):
            bound = 1 / math.sqrt(weight[1])
            for shape in (weight, bias):
                parts.append((rng.random(math.prod(shape), np.float32) * 2 - 1) * np.float32(bound))
        if rare:
            parts[-1] -= np.float32(math.log(self.num_outputs))
        return torch.from_numpy(np.concatenate(parts))

    def fits(self, flat: Tensor) -> bool:
        """Return whether a vector from outside is a model of this shape: float32, of the right length, finite."""
        if flat.shape != (self.num_parameters,) or flat.dtype != torch.float32:
            return False
        return all(math.isfinite(end) for end in torch.aminmax(flat))  # NaN passes through to both ends

    def views(self, flat: Tensor) -> list[Tensor]:
        """Return weight [R, in, out] and bias [R, out] of each layer, as views that share the flat vector's memory."""
        sizes = [math.prod(shape) for shape in self.shapes]
        return [part.view(shape) for part, shape in zip(torch.split(flat, sizes), self.shapes, strict=True)]


def forward(layers: list[Tensor], inputs: Tensor) -> Tensor:
    """Return logits of all tables; inputs are shared (one map) or one per table.  # [1 or R, n, d̃] -> [R, n, B]"""
    return _upwards(layers, torch.baddbmm(layers[1].unsqueeze(1), inputs.expand(layers[0].shape[0], -1, -1), layers[0]))


def forward_sparse(layers: list[Tensor], features: tuple[csr_matrix, ...]) -> Tensor:
    """Return what `forward` returns, from sparse inputs and without gradients.  # M × [n, d̃] -> [R, n, B]"""
    inputs = [_to_torch(x, layers[0].device) for x in features]
    first = [inputs[table % len(inputs)] @ weight for table, weight in enumerate(layers[0])]
    return _upwards(layers, torch.stack(first).add_(layers[1].unsqueeze(1)))


def _upwards(layers: list[Tensor], first: Tensor) -> Tensor:
    """Go from the first layer's sums to the last layer's."""
    for weight, bias in zip(layers[2::2], layers[3::2], strict=True):
        first = torch.baddbmm(bias.unsqueeze(1), torch.relu(first), weight)
    return first


def _to_torch(x: csr_matrix, device: torch.device) -> Tensor:
    with warnings.catch_warnings():
        # Some versions say that sparse tensors are in beta, some that nothing checks them; scipy's are sound.
        warnings.simplefilter("ignore")
        indptr, indices, data = (torch.from_numpy(part) for part in (x.indptr, x.indices, x.data))
        return torch.sparse_csr_tensor(indptr, indices, data, x.shape, check_invariants=False).to(device)
