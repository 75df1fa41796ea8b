"""Remarks on data, settings and progress when a run begins."""

from collections.abc import Iterator

from fedmlh.data.dataset import Dataset
from fedmlh.data.division import Division
from fedmlh.federated.task import Task
from fedmlh.model.losses import find_loss
from fedmlh.parts import find
from fedmlh.runs.guides import list_unusual

#: The most notes on the data that are shown.
_MOST_NOTES = 5


class Remark(str):
    """A line that is shown once for all runs of a comparison."""


def describe_data(dataset: Dataset, partition: str) -> Iterator[Remark]:
    """Yield the notes on the data, and that the partition ignores its sites."""
    for note in dataset.notes[:_MOST_NOTES]:
        yield Remark(f"data: {note}")
    if len(dataset.notes) > _MOST_NOTES:
        yield Remark(f"data: {len(dataset.notes) - _MOST_NOTES:,} notes more (fedmlh data info)")
    if dataset.site_names and partition != "folder":
        sites = len(dataset.site_names)
        yield Remark(
            f"the data comes from {sites} sites; partition '{partition}' distributes it without regard to them"
        )


def describe_division(division: Division, partition: str) -> Iterator[Remark]:
    """Yield that points reach no client, if there are any."""
    if division.reached < division.total:
        yield Remark(
            f"{division.reached:,} of {division.total:,} training points reach a client: partition '{partition}' "
            f"leaves the others out; iid and dirichlet distribute all"
        )


def describe_settings(task: Task) -> Iterator[Remark]:
    """Yield which settings are unusual or unexpectedly costly, if networks are trained in rounds."""
    if task.config.training == "one-round":
        if task.config.correct:
            yield from describe_settings(task.networks)
        return
    config = task.config
    yield from map(Remark, list_unusual(config))
    if not find("aggregation", config.aggregation).streams:
        share = config.clients_per_round * task.stack.num_parameters * 4 / 2**20
        yield Remark(f"aggregation '{config.aggregation}' keeps all updates of a round: up to {share:,.0f} MiB")
    if not find_loss(config.loss).kernel:
        why = "has no compiled loop: clients train in plain torch, which takes longer"
        yield Remark(f"the loss '{config.loss}' {why}")


def describe_resumed(finished: int, most: int, *, over: bool = False) -> str:
    """Say with which round a run is resumed, or that none is left to train."""
    if over or finished >= most:
        return f"training had ended before, after round {finished:,} of at most {most:,}: only the results are written"
    return f"resuming with round {finished + 1:,} of at most {most:,}"
