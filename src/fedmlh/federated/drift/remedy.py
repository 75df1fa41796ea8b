"""The interface of a remedy for drift, and the remedy that does nothing."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from fedmlh.errors import UserError
from fedmlh.parts import register

if TYPE_CHECKING:
    from torch import Tensor

    from fedmlh.config import Config

#: The name of the server's extra vector in its state, and so in the files of a checkpoint.
EXTRA = "control"


@dataclass(frozen=True)
class Trained:
    """A client's round as a remedy sees it once the client has trained; all vectors but `correction` are on the CPU."""

    kept: "Mapping[str, Tensor]"  # the client's state before this round
    correction: "Tensor | None"  # [P] what was added to every gradient
    #: Returns the gradient of all the client's points at the model that it was sent.  # [P]
    gradient: "Callable[[], Tensor]"
    #: Returns where the client ended, as the server decodes it.  # [P]
    end: "Callable[[], Tensor]"


class Remedy(Protocol):
    """Adds a vector to the gradients of a client, made of what the client keeps and of what the server sends.

    A remedy inherits what it does not need: nothing is added, kept or sent along.
    """

    #: Whether clients keep a state. The states of all clients must add up: so an update counts whole or not at all, and
    #: if one client has lost its state, all begin with an empty one again.
    keeps: bool = False
    #: The aggregation rule of an extra vector, as long as the model, that travels both ways; empty: there is none.
    extra: str = ""
    #: Whether clients must know the most local steps of any client in a round.
    counts_steps: bool = False

    def check_premises(self, config: "Config") -> None:
        """Raise a UserError if the remedy would do harm with these settings."""

    def correct(
        self, config: "Config", steps: int, model: "Tensor", extra: "Tensor | None", kept: "Mapping[str, Tensor]"
    ) -> "Tensor | None":
        """Return what a client adds to every gradient of a round, or None.  # [P]

        `steps` are the most local steps of any client, `extra` is the server's extra vector (None: zero).
        """
        return None

    def keep(self, trained: Trained, send: "Callable[[Tensor], Tensor]") -> "dict[str, Tensor]":
        """Return what a client keeps of a round once its update is accepted.

        `send` puts a vector beside the update and returns what the server will decode of it.
        """
        return {}

    def move(self, before: "Tensor", sent: "Tensor", share: float) -> "Tensor":
        """Return the server's extra vector after a round; `sent` is what this share of all clients sent, aggregated."""
        return before


@register("drift", "none")
class NoRemedy(Remedy):
    """Leaves gradients as they are."""


def check_sums(config: "Config") -> None:
    """Refuse settings under which the states of all clients would not add up."""
    if config.weighting != "uniform":
        raise UserError(f"correction '{config.correction}' counts every client the same: use weighting 'uniform'")
    if config.aggregation != "mean":
        raise UserError(f"correction '{config.correction}' adds up over clients: use aggregation 'mean'")
