"""The result of training networks beside the linear model of one round."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix
from torch import Tensor

from fedmlh.evaluation.evaluate import Evaluator
from fedmlh.federated.participation import Attempt
from fedmlh.federated.task import Seeds, Task
from fedmlh.hashing.features import FeatureMap
from fedmlh.model.ranking import Decoder
from fedmlh.oneround.corrected import Corrected, CorrectedRanker, encode_networks
from fedmlh.oneround.linear import Linear
from fedmlh.runs.checkpoint import Progress
from fedmlh.runs.model_folder import Networks


@dataclass(frozen=True)
class Correction:
    """Trained networks beside a linear model, and what they gain."""

    task: Task
    seeds: Seeds
    both: CorrectedRanker
    features: FeatureMap  # of the networks
    evaluator: Evaluator  # of both together
    model: Tensor  # float32 [P], each value as clients are sent it
    weight: float  # 0: they do not help
    gain: float  # in the mean of P@k on validation
    labels: np.ndarray  # [n, k] that the model which is kept ranks first for the validation points
    progress: Progress

    @property
    def history(self) -> list[dict[str, Any]]:
        """The records of the rounds, which follow the round of the linear model."""
        return [renumber(record) for record in self.progress.history]

    @property
    def log(self) -> list[Attempt]:
        """Who took part in these rounds."""
        return [replace(line, round=line.round + 1) for line in self.progress.log]

    @property
    def payload(self) -> bytes:
        """The networks as they are sent to clients."""
        return encode_networks(self.model) if self.weight else b""

    @property
    def figures(self) -> dict[str, Any]:
        """Return the figures for a summary."""
        history, config = self.progress.history, self.task.config
        return {
            "weight": self.weight,
            "validation_gain": self.gain,
            "rounds": self.progress.server.round,
            "best_round": self.progress.best_round,
            "bytes_up": sum(record["bytes_up"] for record in history),
            "bytes_down": sum(record["bytes_down"] for record in history),
            "num_parameters": self.task.stack.num_parameters,
            "sizes": {name: getattr(config, name) for name in ("num_tables", "num_buckets", "feature_dim")}
            | {"hidden_sizes": list(config.hidden_sizes)},
        }

    @property
    def networks(self) -> Networks:
        """The networks as a model folder keeps them."""
        return Networks(self.task, self.seeds, self.model.half().numpy(), self.weight)

    def add_scores(self, linear: Tensor, X: csr_matrix) -> tuple[Decoder, Tensor]:
        """Return the scores of both for some points, given the linear model's, and what decodes them.  # [R, n, B]"""
        networks = self.both.score(self.model, self.features.apply(X))
        return self.both.decoder, self.both.add(linear, networks, self.weight)

    def add_to(self, linear: Linear) -> Corrected:
        """Return the model of both."""
        return Corrected(linear, self.model, self.weight)


def renumber(record: dict[str, Any]) -> dict[str, Any]:
    """Return the record of a round of networks as one after the round of the linear model."""
    return {**record, "round": record["round"] + 1}
