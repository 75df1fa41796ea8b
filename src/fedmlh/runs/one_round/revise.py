"""Add clients to a finished run of one round, or remove some: the result that the new set of clients gives.

Terms, λ and the power stay as they are, and so do the messages of the clients that stay.
"""

import time
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from fedmlh.data.dataset import Dataset, Split
from fedmlh.data.readers.formats import load
from fedmlh.data.readers.jsonl import index_labels
from fedmlh.data.text import DEFAULT_DIM
from fedmlh.errors import UserError
from fedmlh.evaluation.evaluate import LabelCounts
from fedmlh.federated.messages import Rejected, StatisticsHeader, unpack
from fedmlh.federated.participation import Attempt
from fedmlh.federated.task import Task
from fedmlh.lock import hold
from fedmlh.model.device import pick_device
from fedmlh.oneround.choose import Choice
from fedmlh.oneround.desk import Desk
from fedmlh.oneround.exchange import SUMS, Respondent
from fedmlh.oneround.sums import Adder, Sums, check_room
from fedmlh.oneround.terms import Terms
from fedmlh.oneround.wire import decode_sums, read_points
from fedmlh.runs.folder import RunFolder
from fedmlh.runs.journal import Journal
from fedmlh.runs.model_folder import load_bundle
from fedmlh.runs.one_round.closing import Closing
from fedmlh.runs.one_round.collecting import OWN
from fedmlh.runs.rounds import Run, Tell, ignore
from fedmlh.storage import read_checked, write_checked


def revise(
    run: Path,
    dataset: Dataset,
    out: Path,
    *,
    remove: Collection[int] = (),
    add: Sequence[Split] = (),
    tell: Tell = ignore,
) -> Run:
    """Solve again without some clients of a run and with new ones, in the new folder `out`."""
    started, before, folder = time.perf_counter(), RunFolder(run), RunFolder(out)
    bundle = load_bundle(before.model, run)
    if bundle.terms is None:
        raise UserError(f"{run} is not a run of one-round: only such runs can add or remove clients")
    # Networks were trained with all clients, and cannot forget one: only the linear model remains.
    task, terms = (
        Task(bundle.task.config.replace(correct=0, budget_mib=0.0), bundle.task.num_features, bundle.task.num_labels),
        bundle.terms,
    )
    if bundle.networks is not None:
        tell(f"the networks of {run} are left out: they were trained with the clients that it had")
    with hold(folder.path):
        folder.check(task.config, resume=False)
        messages = read_messages(before)
        for client in remove:
            if client not in messages:
                raise UserError(f"{run} has no sums of client {client}: it has those of {_list(messages)}")
        if set(messages) <= set(remove) and not add:
            raise UserError(f"no client of {run} would be left")
        first = max(messages) + 1
        messages = {client: message for client, message in messages.items() if client not in remove}
        new = {first + place: points for place, points in enumerate(add)}
        desk = Desk(task, {client: _examples(message) for client, message in messages.items()})
        desk.run = next(map(_run, messages.values()), desk.run)
        desk.max_examples = {**desk.max_examples, **{client: len(points) for client, points in new.items()}}
        for client, points in new.items():
            request = desk.request(SUMS, client, terms.encode())
            messages[client] = Respondent(task, client, points.X, points.Y, dataset.labels).reply(request)
            tell(f"client {client}: {len(points):,} points added")
        check_room(sum(desk.max_examples.values()), task.config.point_bits)
        closing = Closing(
            task, bundle.seeds, terms, dataset, LabelCounts.of(dataset.train), pick_device(task.config.device), tell
        )
        own = read_checked(before.checkpoints / f"{OWN}.bin")
        sums = add_up(desk, messages, terms, closing.slots.count)
        whole = sums + _decode_own(own, desk, closing.slots.count)
        solved = closing.solve(whole, Choice.given(task.config.ridge, task.config.count_power))
        folder.open(task.config)
        with Journal(folder.checkpoints / f"{SUMS}.bin") as journal:
            for client, message in sorted(messages.items()):
                journal.append(client, message)
            journal.sync()
        write_checked(folder.checkpoints / f"{OWN}.bin", own)
        clients = sorted(messages)
        folder.write_participation([Attempt(1, part, clients, clients, []) for part in (0, 1)])
        record = {
            "round": 1,
            "attempts": 2,
            "clients": clients,
            "refused": [],
            "bytes_up": sum(map(len, messages.values())),
            "bytes_down": 0,
            "seconds_training": time.perf_counter() - started,
        }
        return Run(closing.write(folder, solved, record, {"training_points": sums.points}), folder.path)


def read_client(folder: Path, dataset: Dataset, data_format: str = "auto") -> Split:
    """Return the training points of a data folder with the features and labels of a run's data."""
    if dataset.text is not None and not dataset.has_raw_words:
        raise UserError("the features of this run depend on all of its texts (text tfidf): no client can be added")
    text_dim = DEFAULT_DIM if dataset.text is None else dataset.num_features
    own = load(folder, data_format=data_format, text_dim=text_dim)
    if (own.text is None) != (dataset.text is None) or own.num_features != dataset.num_features:
        raise UserError(
            f"{folder}: {own.num_features:,} features{' of text' if own.text else ''}, but the run was trained on "
            f"{dataset.num_features:,}{' of text' if dataset.text else ''}: prepare the data as that of the run"
        )
    find = index_labels(dataset.labels)
    places = [find(key) for key in own.labels.keys]
    unknown = [place for place in places if isinstance(place, str)]
    if unknown:
        raise UserError(f"{folder}: the run does not know {len(unknown):,} labels, such as {unknown[0]!r:.60}")
    moved = own.train.Y.copy()
    moved.indices = np.array(places, np.int32)[moved.indices]
    moved = csr_matrix((moved.data, moved.indices, moved.indptr), shape=(len(own.train), dataset.num_labels))
    moved.sum_duplicates()
    moved.data[:] = 1
    return Split(own.train.X, moved)


def read_messages(run: RunFolder) -> dict[int, bytes]:
    """Return the messages with the sums of all clients that counted in a run."""
    accepted = run.read_participation()[1].accepted
    found: dict[int, bytes] = {}
    for client, message in Journal(run.checkpoints / f"{SUMS}.bin").read():
        if client in accepted and client not in found and _is_whole(message):
            found[client] = message
    missing = sorted(set(accepted) - set(found))
    if missing or not found:
        raise UserError(
            f"{run.path} does not have the sums of {_list(missing) or 'any client'} (a run keeps them unless "
            f"keep_sums = false): train again"
        )
    return found


def add_up(desk: Desk, messages: dict[int, bytes], terms: Terms, num_slots: int) -> Sums:
    """Return the sums of all these clients."""
    adder = Adder(num_slots, desk.num_outputs)
    for client, message in messages.items():
        try:
            adder.add(desk.read_sums(client, message, terms, num_slots))
        except Rejected as refusal:
            raise UserError(f"the sums of client {client} cannot be used ({refusal}): train again") from None
    return adder.result()


def _decode_own(payload: bytes, desk: Desk, num_slots: int) -> Sums:
    bits, outputs, view = desk.task.config.point_bits, desk.num_outputs, memoryview(payload)
    try:
        return decode_sums(view, read_points(view), num_slots, outputs, bits, most=max(1, desk.task.num_labels))
    except ValueError as problem:
        raise UserError(f"the sums of the server's own points cannot be used ({problem}): train again") from None


def _is_whole(message: bytes) -> bool:
    try:
        unpack(StatisticsHeader, message, len(message))
    except Rejected:
        return False
    return True


def _examples(message: bytes) -> int:
    return unpack(StatisticsHeader, message, len(message))[0].examples


def _run(message: bytes) -> str:
    return unpack(StatisticsHeader, message, len(message))[0].run


def _list(clients: Collection[int]) -> str:
    shown = ", ".join(map(str, sorted(clients)[:10]))
    return f"{shown}, …" if len(clients) > 10 else shown
