"""FedProx (Li et al. 2020): a pull of strength μ towards the model that a client was sent.

The setting `prox_mu` above 0 chooses it, alone or beside another remedy. The loops that train add the pull to every
gradient; here is what they are told, and what the pull assumes.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from fedmlh.errors import UserError

if TYPE_CHECKING:
    from fedmlh.config import Config
    from fedmlh.model.recipe import Recipe


def check_premises(config: "Config") -> None:
    """Refuse a pull that would carry a client past the model that it was sent."""
    if config.optimizer == "sgd" and config.prox_mu * config.learning_rate > 1:
        raise UserError(
            f"prox_mu {config.prox_mu:g} times learning_rate {config.learning_rate:g} is more than 1: a step of sgd "
            f"would overshoot the global model; make one of them smaller"
        )


def add_pull(recipe: "Recipe", config: "Config") -> "Recipe":
    """Return how a client trains with the pull; μ = 0 is FedAvg, to the bit."""
    return replace(recipe, prox_mu=config.prox_mu)
