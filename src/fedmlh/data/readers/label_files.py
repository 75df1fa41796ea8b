"""The small files beside a data set: labels.txt names its labels, filter files list pairs not to be scored."""

from array import array
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from fedmlh.data.dataset import Labels
from fedmlh.data.limits import check_labels
from fedmlh.data.matrix import build_indptr, build_labels
from fedmlh.data.readers.files import read_lines
from fedmlh.data.readers.label_lines import split_label
from fedmlh.data.readers.layout import Layout
from fedmlh.data.readers.lines import parse_whole
from fedmlh.errors import BadLine, UserError

#: A label takes 60 bytes even if no file names it. A single number is believed up to this many labels, and beyond that
#: if the points carry enough labels.
_NAMELESS = 1 << 22
_LABELS_PER_POSITIVE = 16


def read_labels(path: Path) -> Labels:
    """Read labels.txt: a line `key<TAB>name`, just a name, or Annif's `<uri><TAB>name`, per label in column order."""
    names: dict[str, str] = {}
    for lineno, line in read_lines(path):
        key, name, _ = split_label(line)
        if not key.strip():
            raise BadLine(path, lineno, "should be `key<TAB>name` or a name, and has neither key nor name")
        if key in names:
            raise BadLine(path, lineno, f"the key {key!r} is taken by a line above")
        names[key] = name
        check_labels(path, len(names))
    if not names:
        raise UserError(f"{path}: names no label")
    return Labels(tuple(names), tuple(names.values()))


def number_labels(folder: Path, num_labels: int, positives: int) -> Labels:
    """Return numbers as the labels of a data set that names none; its points carry `positives` labels in all."""
    if num_labels > max(_NAMELESS, _LABELS_PER_POSITIVE * positives):
        raise UserError(
            f"{folder}: {num_labels:,} labels, though its points carry only {positives:,}; if that is no mistake, name "
            f"them in labels.txt"
        )
    return Labels.numbered(num_labels)


def name_labels(layout: Layout, num_labels: int, positives: int) -> Labels:
    """Return the names that labels.txt gives to `num_labels` label columns, or numbers if there is no such file."""
    path = layout.labels
    if path is None:
        return number_labels(layout.folder, num_labels, positives)
    labels = read_labels(path)
    if len(labels) != num_labels:
        raise UserError(f"{path}: names {len(labels):,} labels, the data has {num_labels:,}")
    return labels


def read_filter(path: Path | None, shape: tuple[int, int]) -> csr_matrix | None:
    """Read a filter file: lines `point label`, the reciprocal pairs that no score counts [n, p]."""
    if path is None:
        return None
    pairs = array("q")
    for lineno, line in read_lines(path):
        fields = line.encode().split()
        if len(fields) != 2:
            raise BadLine(path, lineno, "should be `point label`, two whole numbers")
        try:
            pairs.append(parse_whole(fields[0], "point", shape[0]))
            pairs.append(parse_whole(fields[1], "label", shape[1]))
        except ValueError as problem:
            raise BadLine(path, lineno, str(problem)) from None
    rows, columns = np.frombuffer(pairs, np.int64).reshape(-1, 2).T
    order = np.argsort(rows, kind="stable")
    indptr = build_indptr(np.bincount(rows, minlength=shape[0]))
    return build_labels(columns[order].astype(np.int32), indptr, shape)[0]
