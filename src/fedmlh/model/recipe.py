"""How a client trains, in one record that the plain and the compiled loop both read."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """Loss, optimizer and the length of a local round; the optimizer starts fresh every round."""

    loss: str
    optimizer: str
    learning_rate: float
    epochs: int
    batch_size: int
