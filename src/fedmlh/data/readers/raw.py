"""A data set between its files and `Dataset`: points may still be texts, and sites may still be separate."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, vstack

from fedmlh.data.dataset import Labels
from fedmlh.data.matrix import build_labels
from fedmlh.errors import UserError


@dataclass(frozen=True)
class RawPart:
    """A part as its files hold it, not yet a `Split`: points are features [n, d], or still one text each."""

    points: Any  # csr_matrix | list[str]: scipy has no types to tell them apart
    Y: csr_matrix
    excluded: csr_matrix | None = None
    sites: np.ndarray | None = None


@dataclass(frozen=True)
class RawFolder:
    """The content of the files of one folder, not yet a `Dataset`."""

    train: RawPart
    test: RawPart
    labels: Labels
    notes: tuple[str, ...] = ()
    site_names: tuple[str, ...] = ()
    first_feature: int | None = None  # svmlight: number of the first feature in the files

    @property
    def is_text(self) -> bool:
        """Say whether the points are texts that have yet to become features."""
        return isinstance(self.train.points, list)


def merge_sites(path: Path, folders: dict[str, RawFolder]) -> RawFolder:
    """Merge the data of sites, each point with the number of the site that owns it."""
    names, raws = tuple(folders), list(folders.values())
    first = raws[0]
    for name, raw in folders.items():
        if raw.site_names:
            raise UserError(f"{path}: {name}, the folder of a site, holds several sites: read it by itself")
        if raw.is_text != first.is_text:
            raise UserError(f"{path}: site {names[0]} and site {name} should both be text or both be features")
        if first.is_text:
            continue
        for what, mine, others in (
            ("features", first.train.points.shape[1], raw.train.points.shape[1]),
            ("labels", len(first.labels), len(raw.labels)),
        ):
            if mine != others:
                raise UserError(
                    f"{path}: site {names[0]} has {mine:,} {what}, site {name} has {others:,}; they should agree"
                )
        if raw.labels.keys != first.labels.keys:
            raise UserError(f"{path}: sites {names[0]} and {name} should list the same labels in the same order")
    labels = unite_labels([raw.labels for raw in raws])
    raws = [renumber(raw, labels) for raw in raws]
    return RawFolder(
        stack_parts([raw.train for raw in raws]),
        stack_parts([raw.test for raw in raws]),
        labels,
        tuple(f"{name}/{note}" for name, raw in folders.items() for note in raw.notes),
        names,
        first.first_feature,
    )


def unite_labels(catalogues: Sequence[Labels]) -> Labels:
    """Unite catalogues, sorted by key unless all agree; a label keeps its first name that is not just its key."""
    names: dict[str, str] = {}
    for catalogue in catalogues:
        for key, name in zip(catalogue.keys, catalogue.names, strict=True):
            if names.get(key, key) == key:
                names[key] = name
    same = all(catalogue.keys == catalogues[0].keys for catalogue in catalogues)
    keys = catalogues[0].keys if same else tuple(sorted(names))
    return Labels(keys, tuple(names[key] for key in keys))


def renumber(raw: RawFolder, labels: Labels) -> RawFolder:
    """Move the label columns of a folder to the places that `labels` gives them."""
    if raw.labels.keys == labels.keys:
        return raw
    place = {key: number for number, key in enumerate(labels.keys)}
    columns = np.array([place[key] for key in raw.labels.keys], np.int32)

    def move(matrix: csr_matrix) -> csr_matrix:
        shape = (matrix.shape[0], len(labels))
        return build_labels(columns[matrix.indices], matrix.indptr, shape)[0]

    def move_part(part: RawPart) -> RawPart:
        return replace(part, Y=move(part.Y), excluded=None if part.excluded is None else move(part.excluded))

    return replace(raw, train=move_part(raw.train), test=move_part(raw.test), labels=labels)


def stack_parts(parts: list[RawPart]) -> RawPart:
    """Stack the parts of sites, numbered in their order."""
    if isinstance(parts[0].points, list):
        points: Any = [text for part in parts for text in part.points]
    else:
        points = vstack([part.points for part in parts], format="csr")
    excluded = None
    if any(part.excluded is not None for part in parts):
        excluded = vstack(
            [csr_matrix(p.Y.shape, dtype=np.float32) if p.excluded is None else p.excluded for p in parts],
            format="csr",
        )
    sizes = [part.Y.shape[0] for part in parts]
    sites = np.repeat(np.arange(len(parts), dtype=np.int32), sizes)
    return RawPart(points, vstack([part.Y for part in parts], format="csr"), excluded, sites)
