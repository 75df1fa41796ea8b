"""Usual values of settings for which another value can silently ruin a run.

Measured in a few rounds on the built-in data (preset demo) and on EurLex titles (recommended, in rounds): a factor of
three or ten beyond these ranges costs half of P@1 or more on one of them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fedmlh.config import Config
from fedmlh.model.losses import find_loss


@dataclass(frozen=True)
class Guide:
    """The usual range of a setting under a condition."""

    setting: str
    low: float
    high: float
    #: The condition, and its wording.
    holds: Callable[[Config], bool]
    condition: str
    #: What happens with other values.
    sentence: str


def _trains(optimizer: str, kernel: str) -> Callable[[Config], bool]:
    return lambda config: config.optimizer == optimizer and find_loss(config.loss).kernel == kernel


def _steps(*optimizers: str) -> Callable[[Config], bool]:
    return lambda config: config.server_optimizer in optimizers


_PULLED = "with more, clients stay near the global model and hardly learn"
_LOCAL = "with less, clients hardly learn; with more, steps overshoot"
_SERVER = "with less, the model hardly moves; with more, steps overshoot"
GUIDES = (
    Guide("prox_mu", 0, 1e-3, _trains("adam", "softmax"), "adam and a softmax loss", _PULLED),
    Guide("prox_mu", 0, 1e-5, _trains("adam", "bce"), "adam and a bce loss", _PULLED),
    Guide("learning_rate", 3e-4, 0.1, lambda config: config.optimizer == "adam", "adam", _LOCAL),
    Guide("learning_rate", 0.3, 10, _trains("sgd", "softmax"), "sgd and a softmax loss", _LOCAL),
    Guide("learning_rate", 10, 1000, _trains("sgd", "bce"), "sgd and a bce loss, which is a mean over outputs", _LOCAL),
    Guide("server_learning_rate", 0.03, 0.3, _steps("adam", "yogi"), "server_optimizer adam or yogi", _SERVER),
    Guide("server_learning_rate", 0.3, 1, _steps("adagrad"), "server_optimizer adagrad", _SERVER),
    Guide(
        "loss_tau",
        0,
        1.5,
        lambda config: find_loss(config.loss).known is not None,
        "a balanced loss",
        "with more, frequent labels are no longer found",
    ),
)


def list_unusual(config: Config) -> Iterator[str]:
    """Yield a sentence per setting outside its usual range: what is usual, and what happens otherwise."""
    for guide in GUIDES:
        value = getattr(config, guide.setting)
        if guide.holds(config) and not guide.low <= value <= guide.high:
            yield (
                f"{guide.setting} is {value:g}; with {guide.condition}, {guide.low:g} to {guide.high:g} is usual: "
                f"{guide.sentence}"
            )
