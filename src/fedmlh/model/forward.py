"""From features to logits: all sub-models of a stack at once."""

import warnings

import torch
from scipy.sparse import csr_matrix
from torch import Tensor


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
