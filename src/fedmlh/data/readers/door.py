"""Checks of what a user's reader returns: they are as strict as those of our own readers."""

from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from fedmlh.data.dataset import Labels
from fedmlh.data.limits import check_size
from fedmlh.data.matrix import build_features, build_marks, check_csr, count_merged
from fedmlh.data.readers.raw import RawFolder, RawPart
from fedmlh.errors import UserError


def check_folder(source: str, raw: Any) -> RawFolder:
    """Return what was read, with matrices in canonical form; raise a UserError that says what is wrong with it."""
    if not isinstance(raw, RawFolder):
        raise UserError(f"{source}: its reader gave {type(raw).__name__}, and should give a fedmlh.RawFolder")
    labels, site_names = _check_labels(source, raw.labels), _check_texts(f"{source}: site_names", raw.site_names)
    if len(set(site_names)) < len(site_names):
        raise UserError(f"{source}: two of its site_names are the same")
    train, test = (
        _check_part(f"{source}, {name} part", part, len(labels), len(site_names))
        for name, part in (("training", raw.train), ("test", raw.test))
    )
    if isinstance(train[0].points, list) != isinstance(test[0].points, list):
        raise UserError(f"{source}: the training and the test part should both be text or both be features")
    mine, others = (1 if isinstance(part.points, list) else part.points.shape[1] for part, _ in (train, test))
    if mine != others:
        raise UserError(f"{source}: the training part has {mine:,} features, the test part {others:,}")
    check_size(source, mine, len(labels))
    if raw.first_feature not in (None, 0, 1):
        raise UserError(f"{source}: first_feature is {raw.first_feature!r:.40}, and should be 0, 1 or None")
    notes = (*_check_texts(f"{source}: notes", raw.notes), *train[1], *test[1])
    return RawFolder(train[0], test[0], labels, notes, site_names, raw.first_feature)


def _check_labels(source: str, labels: Any) -> Labels:
    if not isinstance(labels, Labels):
        raise UserError(f"{source}: labels are {type(labels).__name__}, and should be fedmlh.Labels")
    keys, names = (_check_texts(f"{source}: labels", part) for part in (labels.keys, labels.names))
    if not len(keys) == len(names) == len(set(keys)) or not all(key.strip() for key in keys):
        raise UserError(f"{source}: each label should have a key of its own, and a name")
    return Labels(keys, names)


def _check_texts(source: str, texts: Any) -> tuple[str, ...]:
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise UserError(f"{source} should be texts")
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        raise UserError(f"{source}: one is half a character, which no file can hold") from None
    return tuple(texts)


def _check_part(source: str, part: Any, num_labels: int, num_sites: int) -> tuple[RawPart, tuple[str, ...]]:
    """Return a part and the notes on it."""
    if not isinstance(part, RawPart):
        raise UserError(f"{source}: is {type(part).__name__}, and should be a fedmlh.RawPart")
    if isinstance(part.points, csr_matrix):
        points, summed = build_features(f"{source}: points", *_take_arrays(f"{source}: points", part.points))
        count = points.shape[0]
    elif isinstance(part.points, list):
        points, summed = list(_check_texts(f"{source}: points", part.points)), 0
        count = len(points)
    else:
        raise UserError(f"{source}: points should be a scipy csr_matrix or a list of texts")
    Y, merged = _check_marks(f"{source}: Y", part.Y, (count, num_labels))
    excluded = None if part.excluded is None else _check_marks(f"{source}: excluded", part.excluded, Y.shape)[0]
    sites = _check_sites(source, part.sites, count, num_sites)
    return RawPart(points, Y, excluded, sites), count_merged(source, summed, merged)


def _take_arrays(source: str, matrix: csr_matrix) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[int, int]]:
    """Return the arrays of a matrix, after checking that they are one."""
    shape = (int(matrix.shape[0]), int(matrix.shape[1]))
    check_csr(source, matrix.data, matrix.indices, matrix.indptr, shape)
    return matrix.data, matrix.indices, matrix.indptr, shape


def _check_marks(source: str, matrix: Any, shape: tuple[int, int]) -> tuple[csr_matrix, int]:
    if not isinstance(matrix, csr_matrix) or matrix.shape != shape:
        raise UserError(f"{source} should be a scipy csr_matrix with a row per point and a column per label: {shape}")
    return build_marks(source, *_take_arrays(source, matrix))


def _check_sites(source: str, sites: Any, count: int, num_sites: int) -> np.ndarray | None:
    if sites is None and num_sites == 0:
        return None
    if not isinstance(sites, np.ndarray) or sites.shape != (count,) or sites.dtype.kind not in "iu":
        raise UserError(f"{source}: sites should be an array that gives each point the number of a site in site_names")
    if count and not 0 <= sites.min() <= sites.max() < num_sites:
        raise UserError(f"{source}: a point has the site {sites.max()}, and there are {num_sites} site_names")
    return sites.astype(np.int32)
