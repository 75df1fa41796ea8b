"""Where numbers are worked on: the CPU, or a GPU."""

import torch

from fedmlh.errors import UserError


def pick_device(name: str) -> torch.device:
    """The device of that name; auto takes a GPU where there is one."""
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise UserError("device is 'cuda', but torch finds no GPU here: use --device cpu")
    return torch.device("cuda" if available and name != "cpu" else "cpu")
