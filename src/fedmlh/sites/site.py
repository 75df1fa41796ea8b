"""A site's folder: its points, what it keeps between rounds, and its key; nothing in it ever leaves the site.

Only `enrolment.json` is made to be handed out: the site's public key, its number of points, and the terms under which
it was prepared.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix

from fedmlh.data.csr import pack_matrices, unpack_matrices
from fedmlh.data.dataset import Dataset, Labels, Split
from fedmlh.data.matrix import build_labels
from fedmlh.data.readers.formats import load
from fedmlh.data.readers.jsonl import index_labels
from fedmlh.data.text import DEFAULT_DIM
from fedmlh.errors import UserError
from fedmlh.federated.client import Client, keeps_state
from fedmlh.federated.messages import BroadcastHeader, Reason, Rejected, claims
from fedmlh.federated.task import Seeds, Task
from fedmlh.federated.validate import read_broadcast
from fedmlh.hashing.families import canonical
from fedmlh.lock import hold, is_empty
from fedmlh.model.local_training import HashedShard, draw_orders, train_shard
from fedmlh.model.threads import one_thread
from fedmlh.oneround.exchange import RESULT, SUMS, Respondent
from fedmlh.parts import find_sources
from fedmlh.randomness import generator
from fedmlh.sites.agreement import Agreement
from fedmlh.sites.consent import HOW_TO_AGREE, check_consent, check_points
from fedmlh.sites.installed import keep_parts
from fedmlh.sites.keys import make_node_key, write_secret
from fedmlh.sites.memory import MemoryFile
from fedmlh.sites.private import private_files
from fedmlh.storage import Sealed, read_checked, write_atomically, write_checked, write_sealed
from fedmlh.untrusted import MOST_BINARY, MOST_JSON, parse_json

CPU = torch.device("cpu")
Tell = Callable[[str], None]


@dataclass(frozen=True)
class SitePoints:
    """The points of a site: a `Split` to train on, over its own labels, and one held out, over the federation's."""

    train: Split
    labels: Labels
    held_out: Split


def read_points(agreement: Agreement, data: Path, data_format: str, tell: Tell = lambda line: None) -> SitePoints:
    """Return a site's data in the federation's terms, or raise a UserError with the field in which they differ.

    The training part is trained on, the test part held out.
    """
    text_dim = DEFAULT_DIM if agreement.text is None else agreement.text.num_features
    dataset = load(data, data_format=data_format, text_dim=text_dim)
    if (dataset.text is None) != (agreement.text is None):
        has, wants = ("text", "prepared features") if dataset.text is not None else ("prepared features", "text")
        raise UserError(f"{data}: text differs: this site has {has}, the federation trains on {wants}")
    known = None not in (dataset.first_feature, agreement.first_feature)
    if known and dataset.first_feature != agreement.first_feature:
        raise UserError(
            f"{data}: first_feature differs: features count from {dataset.first_feature} here, from "
            f"{agreement.first_feature} in the federation"
        )
    train, test = (_widen(dataset, split, agreement, data) for split in (dataset.train, dataset.test))
    return translate(agreement, SitePoints(train, dataset.labels, test), str(data), tell)


def _widen(dataset: Dataset, split: Split, agreement: Agreement, data: Path) -> Split:
    """Return points with the federation's number of features, which svmlight files do not state."""
    mine, agreed = dataset.num_features, agreement.num_features
    if mine != agreed and (dataset.first_feature is None or mine > agreed):
        raise UserError(f"{data}: num_features differs: {mine:,} here, {agreed:,} in the federation")
    X = csr_matrix((split.X.data, split.X.indices, split.X.indptr), shape=(len(split), agreed))
    return Split(X, split.Y, split.excluded)


def translate(agreement: Agreement, points: SitePoints, source: str, tell: Tell = lambda line: None) -> SitePoints:
    """Return points with the site's own labels in the federation's terms.

    A label is looked up by its canonical key, then by its name. If sites know labels by name, a label that is not in
    the catalogue is still trained on: its bucket follows from its name. If they know labels by number, it is refused.
    """
    find = index_labels(
        Labels(*(tuple(map(canonical, part)) for part in (agreement.labels.keys, agreement.labels.names)))
    )
    try:
        found = [find(canonical(key)) for key in points.labels.keys]
    except ValueError as problem:
        raise UserError(f"{source}: labels differ: {problem}") from None
    unknown = [place for place, label in enumerate(found) if isinstance(label, str)]
    if unknown and agreement.config.label_key == "id":
        raise UserError(
            f"{source}: labels differ: {len(unknown):,} labels of this site are not in the federation's catalogue, "
            f"such as {points.labels.keys[unknown[0]]!r:.60}"
        )
    if unknown:
        tell(f"{len(unknown):,} labels of this site are not in the catalogue: trained on, never predicted")
    known = len(agreement.labels)
    places = np.array([label if isinstance(label, int) else -1 for label in found], np.int64)
    held_out = Split(
        points.held_out.X,
        _move(points.held_out.Y, places, known),
        None if points.held_out.excluded is None else _move(points.held_out.excluded, places, known),
    )
    if agreement.config.label_key == "id":
        return SitePoints(Split(points.train.X, _move(points.train.Y, places, known)), agreement.labels, held_out)
    keys = [str(label) if isinstance(label, str) else agreement.labels.keys[label] for label in found]
    own = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    columns = np.array([own[key] for key in keys], np.int64)
    return SitePoints(
        Split(points.train.X, _move(points.train.Y, columns, len(own))), Labels(tuple(own), tuple(own)), held_out
    )


def _move(Y: csr_matrix, places: np.ndarray, count: int) -> csr_matrix:
    """Return label columns in their new places; those with place -1 are left out."""
    columns = places[Y.indices]
    rows = np.repeat(np.arange(Y.shape[0]), np.diff(Y.indptr))[columns >= 0]
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=Y.shape[0]))])
    return build_labels(columns[columns >= 0].astype(np.int32), indptr, (Y.shape[0], count))[0]


def create_site(
    folder: Path, agreement: Agreement, site: str, points: SitePoints, *, open_statistics: bool = False
) -> dict[str, Any]:
    """Write a site's folder and a new key; return its enrolment.

    `open_statistics` is the operator's consent to what sites show with training one-round.
    """
    agreement.find_client_id(site)
    check_consent(agreement, site, open_statistics)
    check_points(agreement.config, site, len(points.train))
    parts = find_sources(agreement.config.foreign)
    with hold(folder), private_files():
        if not is_empty(folder):
            raise UserError(f"{folder} is not empty: choose another --out")
        folder.chmod(0o700)  # also if it existed before: nobody else may read the site's points
        keep_parts(folder / "parts", parts)
        return _write_site(folder, agreement, site, points)


def _write_site(folder: Path, agreement: Agreement, site: str, points: SitePoints) -> dict[str, Any]:
    agreement.save(folder / "agreement")
    parts = {"X": points.train.X, "Y": points.train.Y, "held_X": points.held_out.X, "held_Y": points.held_out.Y}
    if points.held_out.excluded is not None:
        parts["held_excluded"] = points.held_out.excluded
    consent = {"open_statistics": True} if agreement.config.training == "one-round" else {}
    about = {"site": site, "number": agreement.find_client_id(site), **consent}
    write_sealed(
        folder / "shard",
        {
            "site.json": json.dumps(about).encode(),
            "labels.json": json.dumps({"keys": points.labels.keys, "names": points.labels.names}).encode(),
            "points.safetensors": pack_matrices(parts),
        },
    )
    private, public = make_node_key()
    write_secret(folder / "node.key", private)
    enrolment = {
        "site": site,
        "public_key": public.decode(),
        "examples": len(points.train),
        "held_out": len(points.held_out),
        **consent,
        "terms": agreement.terms,
    }
    write_atomically(folder / "enrolment.json", (json.dumps(enrolment, indent=1) + "\n").encode())
    return enrolment


class Site:
    """A prepared site, which answers the server's messages from the files in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.agreement = Agreement.load(folder / "agreement", folder, folder / "parts")
        sealed = Sealed(folder / "shard", folder)
        try:
            about, names = (parse_json(sealed.read(name, MOST_JSON)) for name in ("site.json", "labels.json"))
            parts = unpack_matrices(sealed.read("points.safetensors", MOST_BINARY), str(folder / "shard"))
            self.name, self.client_id = str(about["site"]), int(about["number"])
            #: Whether the operator has agreed to what sites show with training one-round.
            self.open_statistics = about.get("open_statistics") is True
            self.points = SitePoints(
                Split(parts["X"], parts["Y"]),
                Labels(tuple(names["keys"]), tuple(names["names"])),
                Split(parts["held_X"], parts["held_Y"], parts.get("held_excluded")),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{folder} is not a site's folder ({type(error).__name__}: {error})") from None

    def answer(self, message: bytes) -> bytes:
        """Return the reply to a broadcast or a request; the client's memory is on disk before the reply is sent."""
        task = self.agreement.task
        if task.config.training == "one-round":
            if not (task.config.correct and claims(BroadcastHeader, message)):
                return self._answer_request(message)
            task = task.networks
        broadcast = read_broadcast(message, self.client_id, task)
        run, memory = broadcast.header.run, MemoryFile(self.folder / "memory")
        with one_thread():
            update, staged = self._client(task, broadcast.seeds).follow(broadcast, memory.load(run))
        if keeps_state(task.config):
            memory.save(run, staged)
        return update

    def _answer_request(self, request: bytes) -> bytes:
        """Return the statistics that a request asks for; neither counts nor sums leave without consent."""
        task, train = self.agreement.task, self.points.train
        if not self.open_statistics:
            raise Rejected(Reason.CONFIG, f"this site has not agreed to open statistics: {HOW_TO_AGREE}")
        least = task.config.min_site_points
        if len(train) < least:
            raise Rejected(Reason.EXAMPLES, f"{len(train):,} points are fewer than min_site_points = {least:,}")
        with one_thread():
            labels = self.points.labels
            return Respondent(task, self.client_id, train.X, train.Y, labels, self._keep, least).reply(request)

    def _keep(self, part: str, payload: memoryview) -> None:
        """Write the terms of this site's sums, or the result of the sums of all sites, to disk."""
        if part in (SUMS, RESULT):
            write_checked(self.folder / part, bytes(payload))

    def _client(self, task: Task, seeds: Seeds) -> Client:
        """Return the client with its points hashed by these seeds: read from disk, or hashed now."""
        train = self.points.train
        known = self._read_prepared(task)
        if known is not None and known[0] == seeds:
            return Client.from_shard(task, self.client_id, seeds, known[1], CPU)
        client = Client(task, self.client_id, train.X, train.Y, self.points.labels, CPU)
        self._write_prepared(task, seeds, client.prepare(seeds))
        return client

    def warm_up(self) -> None:
        """Hash the points and compile what trains, so that the first round need not wait for it."""
        task = self.agreement.task
        if task.config.training == "one-round":
            if not task.config.correct:
                return
            task = task.networks
        seeds = task.draw_seeds()
        shard = self._client(task, seeds).prepare(seeds)
        few = HashedShard(tuple(part[:2] for part in shard.features), tuple(part[:2] for part in shard.buckets))
        orders = draw_orders(len(few), task.recipe, generator(seeds.run, "warm-up"))
        with one_thread():
            train_shard(task.stack, task.initial(seeds.run), few, task.recipe, orders)

    def _read_prepared(self, task: Task) -> tuple[Seeds, HashedShard] | None:
        """Return the hashed points on disk, if they are whole and made under these terms."""
        try:
            first, _, rest = read_checked(self.folder / "prepared").partition(b"\n")
            about = json.loads(first)
            if about["config_hash"] != task.fingerprint:
                return None
            seeds = Seeds(about["run"], tuple(about["labels"]), tuple(about["features"]))
            parts = unpack_matrices(rest, "prepared points")
            return seeds, HashedShard(_numbered(parts, "features"), _numbered(parts, "buckets"))
        except (UserError, KeyError, TypeError, ValueError):
            return None

    def _write_prepared(self, task: Task, seeds: Seeds, shard: HashedShard) -> None:
        about = {"config_hash": task.fingerprint, "run": seeds.run}
        about |= {"labels": seeds.labels, "features": seeds.features}
        parts = {f"features.{place}": matrix for place, matrix in enumerate(shard.features)}
        parts |= {f"buckets.{place}": matrix for place, matrix in enumerate(shard.buckets)}
        write_checked(self.folder / "prepared", json.dumps(about).encode() + b"\n" + pack_matrices(parts))


def _numbered(parts: dict[str, csr_matrix], kind: str) -> tuple[csr_matrix, ...]:
    return tuple(parts[f"{kind}.{place}"] for place in range(sum(name.startswith(f"{kind}.") for name in parts)))
