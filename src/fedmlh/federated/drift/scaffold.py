"""SCAFFOLD (Karimireddy et al. 2020), option I: c − c_k is added to every gradient.

A client's control c_k is the gradient of all its points at the model that it was last sent; c is the mean of all c_k,
and travels beside the model. Clients send how their control changes.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from fedmlh.config import list_families, parse_codec
from fedmlh.errors import UserError
from fedmlh.federated.drift.remedy import Remedy, Trained, check_sums
from fedmlh.parts import register

if TYPE_CHECKING:
    from torch import Tensor

    from fedmlh.config import Config

#: The client's control in its state.
_CONTROL = "control"


@register("drift", "scaffold")
class Scaffold(Remedy):
    """Corrects gradients by the difference between the controls of server and client."""

    keeps = True
    extra = "mean"

    def check_premises(self, config: "Config") -> None:
        """Refuse what would keep c from being the mean of all c_k."""
        check_sums(config)
        if parse_codec(config.update_codec).family.leaves_more:
            raise UserError(
                f"update_codec '{config.update_codec}' leaves out more than it sends, so that the controls of "
                f"correction 'scaffold' would grow from round to round: use "
                f"{list_families(lambda family: not family.leaves_more)}"
            )

    def correct(
        self, config: "Config", steps: int, model: "Tensor", extra: "Tensor | None", kept: "Mapping[str, Tensor]"
    ) -> "Tensor":
        """Return c − c_k.  # [P]"""
        own = kept[_CONTROL] if _CONTROL in kept else model.new_zeros(len(model))
        return -own if extra is None else extra - own

    def keep(self, trained: Trained, send: "Callable[[Tensor], Tensor]") -> "dict[str, Tensor]":
        """Send how the client's control changes; keep it as the server decodes it, so that c stays the mean."""
        now = trained.gradient()
        before = trained.kept[_CONTROL] if _CONTROL in trained.kept else now.new_zeros(len(now))
        return {_CONTROL: before + send(now - before)}

    def move(self, before: "Tensor", sent: "Tensor", share: float) -> "Tensor":
        """Return c, over all clients: those that did not take part keep the control that they had."""
        return before.add(sent, alpha=share)
