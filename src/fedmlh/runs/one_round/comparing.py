"""A row per simulated client: the model of one round on its held-out points, and the client alone."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedmlh.data.dataset import Dataset
from fedmlh.data.division import Division
from fedmlh.evaluation.evaluate import Values
from fedmlh.oneround.choose import POWERS, RIDGES
from fedmlh.oneround.exchange import Respondent
from fedmlh.runs.one_round.closing import Closing, pick_rows
from fedmlh.runs.population import Population
from fedmlh.runs.rounds import Tell

#: Labels [n, k] that the model ranks for the validation points that chose λ -> figures for the summary.
Compare = Callable[[Closing, np.ndarray], dict[str, Any]]


def make_row(division: Division, client: int, held_out: int, values: Values, own: Sequence[str]) -> dict[str, Any]:
    """Return a client's row of a summary: its points, how many were held out, and the metrics on these.

    `own`: the metrics of users, which are shown as well.
    """
    row = {"client": client, "examples": len(division.shards[client]), "held_out": held_out}
    return row | {name: values[name] for name in ("precision", *own)}


def compare_clients(dataset: Dataset, division: Division, population: Population, tell: Tell) -> Compare:
    """Return a function that makes a row per client.

    Alone, a client has the linear model of its own points, with the λ and the power that are best on its held-out
    points.
    """

    def compare(closing: Closing, labels: np.ndarray) -> dict[str, Any]:
        config, rows = closing.task.config, []
        picked = pick_rows(len(division.validation))
        points = division.validation.take(picked)
        held_out = {client_id: division.held_out.get(client_id, picked[:0]) for client_id in division.shards}
        parts = {client_id: np.flatnonzero(np.isin(picked, own)) for client_id, own in held_out.items()}
        parts = {client_id: own for client_id, own in parts.items() if len(own)}
        for client_id, values in closing.evaluator.judge_parts(labels, points.Y, parts).items():
            row = make_row(division, client_id, len(parts[client_id]), values, config.metrics)
            if config.local_baseline:
                tell(f"solving for client {client_id} alone")
                own = points.take(parts[client_id])
                respondent = Respondent(population.task, client_id, *population.points(client_id), population.labels)
                sums = respondent.sum(closing.terms, closing.seeds)
                alone = closing.appoint(closing.pose(sums), own).choose(RIDGES, POWERS)
                judged = closing.evaluator.judge(alone.labels, own.Y)
                row |= {f"{name}_alone": judged[name] for name in ("precision", *config.metrics)}
            if config.partition == "folder":
                row["site"] = dataset.site_names[client_id]
            rows.append(row)
        return {"clients": rows}

    return compare
