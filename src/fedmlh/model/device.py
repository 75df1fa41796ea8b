"""The device that computes: the CPU, or a GPU."""

import torch

from fedmlh.errors import UserError


def pick_device(name: str) -> torch.device:
    """Return the device of that name; auto takes a GPU if there is one."""
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise UserError("device is 'cuda', but torch finds no GPU here: set device to cpu (--device cpu)")
    return torch.device("cuda" if available and name != "cpu" else "cpu")
