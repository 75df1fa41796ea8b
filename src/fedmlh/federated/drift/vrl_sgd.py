"""Variance-reduced local SGD (Liang et al. 2019): Δ_k is subtracted from every gradient of a client.

Δ_k is how the client's gradients differ from the average. It follows from the last round: x̂ is the model that the
client is sent, which is the average of all clients' trained models, and x_k is the client's own.
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

#: Δ_k and x_k in the client's state.
_DELTA, _END = "delta", "end"


@register("drift", "vrl-sgd")
class VrlSgd(Remedy):
    """Corrects gradients by how the client's own have differed from the average; no extra vector is sent."""

    keeps = True
    counts_steps = True

    def check_premises(self, config: "Config") -> None:
        """Refuse what would keep x̂ from being the average, or Σ Δ_k from being zero."""
        check_sums(config)
        if not parse_codec(config.update_codec).family.every_value:
            raise UserError(
                f"correction 'vrl-sgd' would mistake what update_codec '{config.update_codec}' leaves out for drift, "
                f"and correct it again and again: use {list_families(lambda family: family.every_value)}"
            )
        if config.optimizer != "sgd":
            raise UserError(
                "correction 'vrl-sgd' computes a gradient from how a client's model moved, and so needs optimizer "
                "'sgd'; 'scaffold' works with adam as well"
            )
        if config.learning_rate_decay != 1:
            raise UserError(
                "correction 'vrl-sgd' carries gradients from round to round by one learning rate: set "
                "learning_rate_decay=1"
            )
        if not config.clients_per_round == config.quorum == config.num_clients:
            raise UserError(
                f"correction 'vrl-sgd' needs every client in every round: set clients_per_round and quorum to "
                f"{config.num_clients} (num_clients), or use 'scaffold'"
            )
        if (config.server_optimizer, config.server_learning_rate, config.broadcast_codec) != ("average", 1.0, "fp32"):
            raise UserError(
                "correction 'vrl-sgd' needs the model that a client is sent to be the plain average of all clients' "
                "models: use server_optimizer 'average', server_learning_rate 1 and broadcast_codec 'fp32'"
            )

    def correct(
        self, config: "Config", steps: int, model: "Tensor", extra: "Tensor | None", kept: "Mapping[str, Tensor]"
    ) -> "Tensor":
        """Return −Δ_k.  # [P]"""
        return -find_delta(model, kept, steps * config.learning_rate)

    def keep(self, trained: Trained, send: "Callable[[Tensor], Tensor]") -> "dict[str, Tensor]":
        """Keep Δ_k and x_k, which the next model that is sent turns into the next Δ_k."""
        assert trained.correction is not None
        return {_DELTA: -trained.correction.cpu(), _END: trained.end()}


def find_delta(model: "Tensor", kept: "Mapping[str, Tensor]", reach: float) -> "Tensor":
    """Return Δ_k, given x̂ and what the client keeps.  # [P]

    `reach` is steps · learning rate of the client with the most steps, and the same for all clients: else their Δ would
    not add up to zero.
    """
    if _END not in kept:
        return model.new_zeros(len(model))
    return kept[_DELTA] + (model - kept[_END]) / reach
