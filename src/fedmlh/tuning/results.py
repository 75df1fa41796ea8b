"""Results of a search: the best config, and a table of all trials."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedmlh.config import SETTINGS, Config
from fedmlh.display import count
from fedmlh.storage import write_atomically
from fedmlh.tuning.search import FINISHED, Row

MIB = 2**20
#: Settings that tell trials apart, in the order of the table: of both sides, of networks, of one round.
_COMMON = ("training", "label_map", "num_tables", "num_buckets")
_NETWORKS = (
    *("feature_map", "feature_dim", "hidden_sizes", "learning_rate", "learning_rate_decay", "loss", "loss_tau"),
    *("output_bias", "model_average", "batch_size", "local_epochs"),
)
_LINEAR = ("feature_slots", "ridge", "count_power", "correct", "budget_mib")


def find_best(rows: Sequence[Row]) -> Row | None:
    """Return the finished trial with the best score; among equal scores, the one that sent less."""
    return next(iter(rank(rows)), None)


def rank(rows: Sequence[Row]) -> list[Row]:
    """Return the finished trials, the best first."""
    finished = [row for row in rows if row.state == FINISHED]
    return sorted(finished, key=lambda row: (-(row.score or 0.0), row.bytes_total, row.side, row.number))


def find_front(rows: Sequence[Row]) -> list[Row]:
    """Return the finished trials that no other beats with the same bytes or fewer, by rising bytes."""
    front: list[Row] = []
    for row in sorted(rank(rows), key=lambda row: (row.bytes_total, -(row.score or 0.0))):
        if not front or (row.score or 0.0) > (front[-1].score or 0.0):
            front.append(row)
    return front


def write_results(rows: Sequence[Row], out: Path) -> None:
    """Write trials.csv, and best.toml once a trial has finished."""
    write_atomically(out / "trials.csv", _list_trials(rows).encode())
    best = find_best(rows)
    if best is not None and best.config is not None:
        head = (
            f"# trial {best.name} of fedmlh tune: {show_precision(best)} on validation, "
            f"{best.bytes_total / MIB:,.2f} MiB in {count(best.rounds, 'round')}\n"
        )
        write_atomically(out / "best.toml", (head + best.config.to_toml()).encode())


def show_precision(row: Row) -> str:
    """Return P@k as a short text."""
    values = row.precision or {}
    return f"P@{'/'.join(values)} {'/'.join(f'{100 * value:.1f}' for value in values.values())} %"


def _list_trials(rows: Sequence[Row]) -> str:
    ks = list(next((row.precision for row in rows if row.precision), {}))
    heads = [
        *("trial", "state", "mean_precision", *(f"precision_at_{k}" for k in ks), "rounds", "bytes_up_per_round"),
        *("bytes_down_per_round", "bytes_up", "bytes_down", "seconds", *_COMMON, *_NETWORKS, *_LINEAR, "reason"),
    ]
    file = io.StringIO()
    table = csv.writer(file, lineterminator="\n")
    table.writerow(heads)
    for row in rows:
        per_round = max(1, row.rounds)
        cells: list[Any] = [row.name, row.state, row.score, *((row.precision or {}).get(k) for k in ks), row.rounds]
        cells += [round(row.bytes_up / per_round), round(row.bytes_down / per_round), row.bytes_up, row.bytes_down]
        table.writerow([*cells, f"{row.seconds:.1f}", *_list_settings(row.config), row.reason])
    return file.getvalue()


def _list_settings(config: Config | None) -> list[Any]:
    """Return the settings of a trial; a setting without effect on it stays empty."""
    names = (*_COMMON, *_NETWORKS, *_LINEAR)
    if config is None:
        return [""] * len(names)
    idle = {*(_NETWORKS if config.training == "one-round" else _LINEAR)}
    idle |= {name for name in _COMMON if SETTINGS[name].is_idle(config)}
    values = ["" if name in idle else getattr(config, name) for name in names]
    return [" ".join(map(str, value)) if isinstance(value, tuple) else value for value in values]
