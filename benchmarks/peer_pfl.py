"""A contestant of `peers.py`: rounds in pfl, as its users write them.

torchrun starts it, once per core: pfl joins its processes when it is imported, and only in a program's main process.
pfl 0.6.0 needs Python before 3.13; with torch 2.13 and numpy 2 it works as it is, with a warning about `reduce_op`.
"""

import json
import os
import sys
import time
from functools import partial
from pathlib import Path

import torch
from peers import CLIENTS, Tables, load, load_dense, order
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.context import UserContext
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics, StringMetricName, Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.postprocessor.base import Postprocessor
from rounds import BATCH, RATE

LOSS = StringMetricName("loss of the local epoch")


class Measured(Tables):
    """The model with the evaluation that pfl asks of every model."""

    def metrics(self, inputs: torch.Tensor, *targets: torch.Tensor) -> dict[str, float]:
        """Measure nothing: the first round, in which pfl always evaluates, is not timed."""
        return {"points": len(inputs)}


class EpochLoss(Postprocessor):
    """The loss of the local epoch; pfl itself evaluates before and after training, not during it."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables

    def postprocess_one_user_metrics(self, *, user_context: UserContext) -> Metrics:
        """Return the client's mean loss, which pfl averages over clients and processes."""
        return Metrics([(LOSS, Weighted.from_unweighted(self.tables.take_loss()))])


class Stopwatch(TrainingProcessCallback):
    """When each round ended, and its loss."""

    def __init__(self) -> None:
        self.moments: list[float] = []
        self.losses: list[float] = []

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        """Note when the first round begins."""
        self.moments.append(time.perf_counter())
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Note when a round has ended."""
        self.moments.append(time.perf_counter())
        self.losses.append(aggregate_metrics[LOSS].overall_value)
        return False, Metrics()


def make_dataset(number: int) -> PyTorchTensorDataset:
    """Return a client's points in the order of the first round's epochs: pfl cuts batches once and never shuffles."""
    rows = order(1, number).ravel()
    return PyTorchTensorDataset(tuple(part[rows] for part in load_dense(number)))


def run(form: str, rounds: int, target: Path) -> None:
    """Run this many rounds; the times of the stopwatch go to a file."""
    work, watch = load(), Stopwatch()
    tables = Measured(work.stack, work.start)
    model = PyTorchModel(
        tables,
        local_optimizer_create=partial(torch.optim.Adam, fused=form == "easy"),
        central_optimizer=torch.optim.SGD(tables.parameters(), lr=1.0),  # takes the mean update as it is
    )
    datasets = {number: make_dataset(number) for number in range(CLIENTS)}
    users = FederatedDataset(datasets.__getitem__, get_user_sampler("minimize_reuse", list(datasets)))
    FederatedAveraging().run(
        NNAlgorithmParams(rounds, evaluation_frequency=rounds, train_cohort_size=CLIENTS, val_cohort_size=None),
        SimulatedBackend(users, users, postprocessors=[EpochLoss(tables)]),
        model,
        NNTrainHyperParams(local_batch_size=BATCH, local_num_epochs=1, local_learning_rate=RATE),
        callbacks=[watch],
        send_metrics_to_platform=False,
    )
    if os.environ["RANK"] == "0":
        target.write_text(json.dumps({"moments": watch.moments, "loss": watch.losses[0]}))


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
