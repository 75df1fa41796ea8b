"""Data in memory: texts, arrays and labels, in the forms that users have, become a Dataset."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, issparse

from fedmlh.data.dataset import Dataset, Labels, Split
from fedmlh.data.limits import MAX_FEATURES, MAX_LABELS
from fedmlh.data.matrix import build_indptr, build_labels
from fedmlh.data.originals import Original
from fedmlh.data.text import KINDS, TextFeatures
from fedmlh.errors import UserError
from fedmlh.randomness import generator


@dataclass(frozen=True)
class LabelTable:
    """The labels of points, and each label as it was in its source."""

    Y: csr_matrix  # [n, p]
    classes: tuple[Any, ...]  # in their own types, sorted
    #: Whether each point came with one label instead of a list.
    single: bool

    @property
    def catalogue(self) -> Labels:
        """Return the labels as a catalogue, with their texts as names."""
        names = tuple(map(str, self.classes))
        if len(set(names)) != len(names):
            twice = next(name for place, name in enumerate(names) if name in names[:place])
            raise UserError(f"two labels have the same text '{twice:.60}': give each its own")
        return Labels(names, names)


def from_texts(
    texts: Iterable[str], labels: Any, sites: Any, test: Any, seed: int, name: str, text_features: str, text_dim: int
) -> Dataset:
    """Return a data set of texts: see Dataset.from_texts."""
    own = check_texts(texts, "texts")
    if text_features not in KINDS:
        raise UserError(f"text_features is {text_features!r}: choose one of {', '.join(KINDS)}")
    fitted = TextFeatures.hashing(text_dim)
    rows, other = _choose_test(test, len(own), seed)
    if text_features == "tfidf":
        fitted = TextFeatures.fit_tfidf(own if rows is None else [own[row] for row in rows.train])
    parts = [fitted.transform(own)]
    if other is None:
        assert rows is not None
        asked = [own[row] for row in rows.test]
    else:
        asked = check_texts(other[0], "the texts of test")
        parts.append(fitted.transform(asked))
    dataset = _assemble(parts, labels, sites, rows, other, name, fitted)
    return replace(dataset, originals=partial(map, partial(Original, None), asked))


def from_arrays(X: Any, Y: Any, sites: Any, test: Any, seed: int, name: str) -> Dataset:
    """Return a data set of features: see Dataset.from_arrays."""
    parts = [to_features(X, "X")]
    rows, other = _choose_test(test, parts[0].shape[0], seed)
    if other is not None:
        parts.append(to_features(other[0], "X of test"))
        if parts[1].shape[1] != parts[0].shape[1]:
            raise UserError(
                f"X has {parts[0].shape[1]:,} features, X of test {parts[1].shape[1]:,}: give both the same features"
            )
    return _assemble(parts, Y, sites, rows, other, name, None)


@dataclass(frozen=True)
class _Rows:
    """The rows of the training part and of the test part."""

    train: np.ndarray
    test: np.ndarray


def _choose_test(test: Any, num_points: int, seed: int) -> tuple[_Rows | None, tuple[Any, Any] | None]:
    """Return the rows of both parts, or the points and labels of a test part that is given."""
    if isinstance(test, tuple):
        if len(test) != 2:
            raise UserError("test is a tuple that is not (points, labels): give both, or a share like 0.2")
        return None, test
    if isinstance(test, bool) or not isinstance(test, int | float) or not 0 < test < 1:
        raise UserError(f"test is {test!r:.60}: give a share between 0 and 1, or (points, labels)")
    cut = max(1, round(test * num_points))
    if cut >= num_points:
        raise UserError(f"test={test} of {num_points:,} points leaves nothing to train on: give more points")
    order = generator(seed, "test part").permutation(num_points)
    return _Rows(np.sort(order[cut:]), np.sort(order[:cut])), None


def _assemble(
    parts: list[csr_matrix],
    labels: Any,
    sites: Any,
    rows: _Rows | None,
    other: tuple[Any, Any] | None,
    name: str,
    text: TextFeatures | None,
) -> Dataset:
    table = to_labels(labels)
    check_lengths(parts[0].shape[0], table.Y.shape[0])
    owners, site_names = (None, ()) if sites is None else number_sites(sites, parts[0].shape[0])
    whole = Split(parts[0], table.Y, None, owners)
    if rows is not None:
        train, test = whole.take(rows.train), whole.take(rows.test)
    else:
        assert other is not None
        asked = to_labels(other[1], table.classes)
        check_lengths(parts[1].shape[0], asked.Y.shape[0], " of test")
        train, test = whole, Split(parts[1], asked.Y)
    return Dataset(name, train, test, table.catalogue, text, site_names=site_names)


def check_lengths(points: int, labels: int, of: str = "") -> None:
    """Refuse labels that are not one entry per point."""
    if points != labels:
        raise UserError(f"there are {points:,} points{of} but labels for {labels:,}: give one entry per point")
    if points == 0:
        raise UserError(f"there are no points{of}: give at least one")


def check_texts(texts: Iterable[str], what: str) -> list[str]:
    """Return texts as a list; refuse an entry that is not a text, and say which."""
    if isinstance(texts, str | bytes):
        raise UserError(f"{what} is one text: put it in a list")
    found = list(texts)
    for row, text in enumerate(found):
        if not isinstance(text, str):
            raise UserError(f"{what}: entry {row} is {text!r:.40}, not a text; replace what is missing by ''")
    return found


def to_features(X: Any, what: str) -> csr_matrix:
    """Return features in the form that the product works on: any matrix of numbers is converted.  # [n, d]"""
    if hasattr(X, "columns") and hasattr(X, "to_numpy"):
        X = X.to_numpy()
    matrix = X.tocsr() if issparse(X) else _make_array(X, what)
    hint = "; texts go through Dataset.from_texts" if matrix.dtype.kind in "OSU" else ""
    if matrix.ndim != 2:
        raise UserError(f"{what} has the shape {matrix.shape}: it must have two dimensions, points and features{hint}")
    if matrix.dtype.kind not in "biuf":
        raise UserError(f"{what} is of type {matrix.dtype}: it must hold real numbers{hint}")
    if not 1 <= matrix.shape[1] <= MAX_FEATURES:
        raise UserError(f"{what} has {matrix.shape[1]:,} features: it must have 1 to {MAX_FEATURES:,}")
    with np.errstate(over="ignore"):
        found = csr_matrix(matrix, dtype=np.float32, copy=True)
    found.sum_duplicates()
    odd = np.flatnonzero(~np.isfinite(found.data))
    if len(odd):
        row = int(np.searchsorted(found.indptr, odd[0], side="right")) - 1
        column, value = int(found.indices[odd[0]]), matrix[row, found.indices[odd[0]]]
        is_missing = value != value
        kind = "NaN" if is_missing else "a value that 32-bit floats cannot hold"
        todo = "fill in or drop what is missing" if is_missing else "scale this feature"
        raise UserError(f"{what} has {kind} in row {row}, column {column}: {todo} first")
    found.eliminate_zeros()
    return found


def _make_array(values: Any, what: str) -> np.ndarray:
    try:
        return np.asarray(values)
    except ValueError:
        raise UserError(f"{what} has rows of different lengths: give a matrix of points and features") from None


def to_labels(labels: Any, known: Sequence[Any] | None = None) -> LabelTable:
    """Return labels as a matrix; they come as one matrix of 0 and 1, one label per point, or lists of labels.

    If `known` is given, other labels are left out: the model could not predict them.
    """
    columns = None
    if hasattr(labels, "columns") and hasattr(labels, "to_numpy"):
        columns, labels = list(labels.columns), labels.to_numpy()
    if issparse(labels) or (isinstance(labels, np.ndarray) and labels.ndim == 2):
        return _read_matrix(labels, columns, known)
    if isinstance(labels, str | bytes):
        raise UserError("the labels are one text: give a list with an entry per point")
    entries = list(labels)
    several = [isinstance(entry, list | tuple | set | frozenset | np.ndarray) for entry in entries]
    if any(several) and not all(several):
        row = several.index(not several[0])
        raise UserError(f"labels: entry {row} is {entries[row]!r:.40}, entry 0 {entries[0]!r:.40}: give lists for all")
    single = not any(several)
    lists = [[entry] for entry in entries] if single else [list(entry) for entry in entries]
    classes = _sort_classes({_plain(label, row) for row, own in enumerate(lists) for label in own})
    if known is not None:
        classes = tuple(known)
    if not classes:
        raise UserError("no point has a label: give at least one")
    place = {label: column for column, label in enumerate(classes)}
    found = [[place[label] for label in map(_plain, own) if label in place] for own in lists]
    counts = np.array([len(own) for own in found], np.int64)
    indices = np.fromiter((column for own in found for column in own), np.int32, int(counts.sum()))
    Y, _ = build_labels(indices, build_indptr(counts), (len(lists), len(classes)))
    return LabelTable(Y, classes, single)


def _read_matrix(labels: Any, columns: list[Any] | None, known: Sequence[Any] | None) -> LabelTable:
    matrix = labels.tocsr() if issparse(labels) else labels
    if matrix.dtype.kind not in "biuf":
        raise UserError(f"the label matrix is of type {matrix.dtype}: it must hold 0 and 1")
    Y = csr_matrix(matrix, dtype=np.float32, copy=True)
    Y.sum_duplicates()
    Y.eliminate_zeros()
    odd = np.flatnonzero(Y.data != 1)
    if len(odd):
        row = int(np.searchsorted(Y.indptr, odd[0], side="right")) - 1
        raise UserError(f"the label matrix has {Y.data[odd[0]]:g} in row {row}: it must hold 0 and 1")
    if not 1 <= Y.shape[1] <= MAX_LABELS:
        raise UserError(f"the label matrix has {Y.shape[1]:,} columns: it must have 1 to {MAX_LABELS:,}")
    if known is not None and len(known) != Y.shape[1]:
        raise UserError(f"the label matrix of test has {Y.shape[1]:,} columns, that of training {len(known):,}")
    return LabelTable(Y, tuple(columns if columns is not None else range(Y.shape[1])), single=False)


def _plain(label: Any, row: int = 0) -> Any:
    """Return a label as a plain text or number; refuse anything else."""
    label = label.item() if isinstance(label, np.generic) else label
    if isinstance(label, float) and label != label:
        raise UserError(f"labels: entry {row} has NaN: leave it out, an empty list means no label")
    if not isinstance(label, str | int | float | bool):
        raise UserError(f"labels: entry {row} has {label!r:.40}: a label must be a text or a number")
    return label


def _sort_classes(labels: set[Any]) -> tuple[Any, ...]:
    if len(labels) > MAX_LABELS:
        raise UserError(f"there are {len(labels):,} labels: at most {MAX_LABELS:,} are possible")
    texts = {label for label in labels if isinstance(label, str)}
    if texts and texts != labels:
        raise UserError("some labels are texts and others numbers: give all as texts")
    return tuple(sorted(labels))


def number_sites(sites: Any, num_points: int) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the number of the site that owns each point, and the names of the sites.  # [n]"""
    owners = list(sites)
    if len(owners) != num_points:
        entries = f"{len(owners):,} {'entry' if len(owners) == 1 else 'entries'}"
        raise UserError(f"sites has {entries} for {num_points:,} points: give one site per point")
    names = _sort_classes({_plain(owner, row) for row, owner in enumerate(owners)})
    place = {name: number for number, name in enumerate(names)}
    return np.array([place[_plain(owner)] for owner in owners], np.int32), tuple(map(str, names))
