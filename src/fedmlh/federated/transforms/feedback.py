"""Error feedback: what a codec left out of one update is added to the next, so that nothing is lost for good."""

from collections.abc import Mapping

import torch
from torch import Tensor

#: What was left out, in a client's state.
_RESIDUAL = "residual"


class ErrorFeedback:
    """Keeps what the codec leaves out."""

    def apply(self, delta: Tensor, kept: Mapping[str, Tensor]) -> Tensor:
        """Add what earlier updates left out.  # [P]"""
        return delta.cpu() + kept.get(_RESIDUAL, torch.zeros(()))

    def keep(self, applied: Tensor, sent: Tensor) -> dict[str, Tensor]:
        """Keep what this update leaves out."""
        return {_RESIDUAL: applied - sent}
