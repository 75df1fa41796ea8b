"""Replay: a run of any engine, repeated in this process from its participation log to the same bits."""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedmlh.comparison.settings import list_differing
from fedmlh.config import Config
from fedmlh.data.dataset import Dataset
from fedmlh.engines.local import LocalClients, live_in_process
from fedmlh.engines.run import run
from fedmlh.errors import UserError
from fedmlh.federated.client import Memory
from fedmlh.federated.mail import Outbox, Reply
from fedmlh.federated.messages import Rejected
from fedmlh.federated.participation import Attempt
from fedmlh.runs.folder import FREE_ON_RESUME, RunFolder
from fedmlh.runs.model_folder import load_bundle
from fedmlh.runs.one_round.frozen import FILE as TERMS
from fedmlh.runs.population import Population
from fedmlh.runs.rounds import Run, Tell, Watch, ignore
from fedmlh.storage import Sealed, read_checked
from fedmlh.untrusted import MOST_JSON, parse_json

#: Values that let one round choose a setting by itself.
_CHOSEN = {"ridge": 0.0, "count_power": -1.0}


class ReplayedClients:
    """Clients in this process: those that counted in the log answer, the others are refused as they were."""

    def __init__(self, local: LocalClients, log: Sequence[Attempt]) -> None:
        self.local = local
        self.log = {(line.round, line.attempt): line for line in log}

    @property
    def memories(self) -> dict[int, Memory]:
        """Return what the clients keep."""
        return self.local.memories

    def exchange(self, sampled: Sequence[int], outbox: Outbox[Any]) -> Iterator[tuple[int, Reply]]:
        """Yield the replies and refusals of this attempt, as the log has them."""
        round_index, attempt = outbox.place
        line = self.log.get((round_index, attempt))
        if line is None or list(line.sampled) != list(sampled):
            raise UserError(
                f"round {round_index}, attempt {attempt} does not match the log, which was made with other settings or "
                f"other data: pass the data of the run (--data)"
            )
        yield from self.local.exchange(line.accepted, outbox)
        for client_id in sampled:
            if client_id not in line.accepted:
                outbox.write(client_id)  # it was sent the broadcast like all others
        for entry in line.refused:
            yield entry.client, Rejected(entry.reason, entry.detail)


def read_log(folder: RunFolder) -> tuple[Config, list[Attempt]]:
    """Return the config with which the rounds of a run can be repeated, and who took part in them."""
    config, whole = folder.read_config(), folder.read_participation()
    rounds = len(folder.read_metrics())
    log = [line for line in whole if line.round <= rounds]  # without those at a round that was given up
    most = 1 + max(line.attempt for line in log)
    # A run may have been resumed with other limits; its log ends where the run ended.
    limits: dict[str, int] = {"patience": 0, "max_attempts": max(most, config.max_attempts)}
    limits |= {"correct": rounds - 1} if config.training == "one-round" else {"rounds": rounds}
    return config.replace(**limits), log


def explain_difference(original: RunFolder, copy: RunFolder) -> str:
    """Say why a replay may have ended with another model than the run, as far as their folders know."""
    try:
        was, now = load_bundle(original.model, original.path), load_bundle(copy.model)
    except UserError as problem:
        return str(problem)
    told = copy.read_config()
    chosen = {name for name, value in _CHOSEN.items() if getattr(told, name) == value}
    differing = [
        f"{name} was {values[0]}, and is {values[1]}"
        for name, values in list_differing([was.task.config, now.task.config])
        if name not in {*FREE_ON_RESUME, *chosen, "data"}
    ]
    if was.seeds.run != now.seeds.run:
        differing.append(f"seed was {was.seeds.run}, and is {now.seeds.run}")
    if was.data != now.data:
        differing.append(f"the fingerprint of the data was {was.data}, and is {now.data}")
    if differing:
        return "; ".join(differing)
    names = _read_name(original), _read_name(copy)
    if None not in names and names[0] != names[1]:
        return (
            "data and settings are the same, so the run was made by another version of fedmlh, which trains differently"
        )
    version = "their data and settings" if None in names else "their data, settings and version of training"
    return f"nothing known differs ({version} are the same): perhaps the processor, a GPU or a library"


def check_data(original: RunFolder, dataset: Dataset) -> None:
    """Refuse other data than a finished run had; a run with real sites knows only the points of its server."""
    try:
        of_sites = "training_points" not in original.read_summary()
        was = load_bundle(original.model, original.path).data
    except UserError:  # the run has no whole model
        return
    if was != dataset.fingerprint and not of_sites:
        raise UserError(
            f"this is other data than the run had (fingerprint {was}, now {dataset.fingerprint}): pass the data of the "
            f"run (--data)"
        )


def _read_name(folder: RunFolder) -> str | None:
    """Return the run's name in its checkpoint, a hash of settings, data and version of training; None: unknown."""
    try:
        once = folder.checkpoints / TERMS
        if once.is_file():
            return str(parse_json(read_checked(once).partition(b"\n")[0])["run"])
        newest = max(folder.checkpoints.glob("round-*"))
        return str(parse_json(Sealed(newest, folder.path).read("state.json", MOST_JSON))["run"])
    except (UserError, KeyError, TypeError, ValueError):  # ValueError: also no checkpoint at all
        return None


def replay(
    config: Config,
    log: Sequence[Attempt],
    dataset: Dataset,
    out: str | Path,
    *,
    workers: int | None = None,
    watch: Watch = ignore,
    tell: Tell = ignore,
) -> Run:
    """Repeat a run in the new folder `out`, with exactly those clients that counted in each attempt."""

    @contextmanager
    def live(population: Population, workers: int | None) -> Iterator[ReplayedClients]:
        lines = log
        if config.training == "one-round" and population.trains:
            # Rounds of networks count from 1, and the log has the round of the linear model before them.
            lines = [dataclasses.replace(line, round=line.round - 1) for line in log if line.round > 1]
        with live_in_process(population, workers) as local:
            yield ReplayedClients(local, lines)

    return run(config, dataset, out, engine=live, progress=False, workers=workers, watch=watch, tell=tell)
