"""How a client trains: one record for both the plain and the compiled loop."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """Loss, optimizer and the length of a local round; the optimizer starts fresh every round."""

    loss: str
    optimizer: str
    learning_rate: float
    epochs: int
    batch_size: int
    #: FedProx (Li et al. 2020): the gradient is pulled towards the model that the round began with.
    prox_mu: float = 0.0
    #: τ: the weight of the client's bucket frequencies in a balanced loss; other losses ignore it.
    loss_tau: float = 1.0

    @property
    def adam(self) -> bool:
        """Whether the optimizer is Adam, and not plain SGD; there is no third one."""
        return {"adam": True, "sgd": False}[self.optimizer]

    def steps(self, points: int) -> int:
        """Return the number of steps of a local round over this many points."""
        return self.epochs * -(-points // self.batch_size)
