"""Remedies for clients that drift apart in local training: a file for each, with its premises and its state.

Nothing here imports torch, so that a config can check premises without it.
"""

from typing import TYPE_CHECKING

from fedmlh.federated.drift import prox
from fedmlh.federated.drift.remedy import Remedy
from fedmlh.parts import find, register

if TYPE_CHECKING:
    from fedmlh.config import Config


def find_remedy(config: "Config") -> Remedy:
    """Return the remedy that the setting `correction` names."""
    remedy: Remedy = find("drift", config.correction)()
    return remedy


def count_vectors(config: "Config") -> int:
    """Return how many vectors as long as the model a message may carry: the model's own, and a remedy's."""
    return 1 + bool(find_remedy(config).extra)


@register("premises", "drift")
def check_premises(config: "Config") -> None:
    """Refuse a config under which the premises of a remedy do not hold, so that it would do harm."""
    prox.check_premises(config)
    find_remedy(config).check_premises(config)
