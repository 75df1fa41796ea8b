"""Data sets written to files that `load` reads back to the same values."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix, save_npz

from fedmlh.data.dataset import Dataset, Labels, Split
from fedmlh.data.readers.label_lines import split_label
from fedmlh.errors import UserError
from fedmlh.storage import new_folder

ROWS_AT_ONCE = 1000


def write(dataset: Dataset, folder: Path | str, data_format: str) -> None:
    """Write features, labels and names to a new folder, all of it or nothing; sites get a folder each.

    Features are written as they are: for text, the features that a model sees, not the text itself.
    """
    folder = Path(folder)
    if data_format not in WRITERS:
        raise UserError(f"cannot write the format {data_format!r}; choose one of {', '.join(WRITERS)}")
    check_names(dataset)
    with new_folder(folder) as draft:
        if dataset.site_names:
            for number, name in enumerate(dataset.site_names):
                (draft / name).mkdir()
                parts = [own_points(split, number) for split in (dataset.train, dataset.test)]
                write_parts(draft / name, parts[0], parts[1], dataset.labels, data_format)
        else:
            write_parts(draft, dataset.train, dataset.test, dataset.labels, data_format)


def check_names(dataset: Dataset) -> None:
    """Refuse names that labels.txt or a file system cannot hold."""
    for key, name in zip(dataset.labels.keys, dataset.labels.names, strict=True):
        if not key.strip() or any(mark in key for mark in "\t\n\r") or any(mark in name for mark in "\n\r"):
            raise UserError(f"label {key!r:.60} ({name!r:.60}): labels.txt cannot hold a tab or line break in a label")
        if split_label(f"{key}\t{name}")[:2] != (key, name if name.strip() else key):
            raise UserError(
                f"label {key!r:.60} ({name!r:.60}): a reader would take it for Annif's form; change its key"
            )
    for name in dataset.site_names:
        if Path(name).name != name or name.startswith("."):
            raise UserError(f"site {name!r:.60}: cannot be the name of a folder")
    for split in (dataset.train, dataset.test):
        if dataset.site_names and split.sites is None:
            raise UserError(
                f"{dataset.name}: the points of its sites {', '.join(dataset.site_names[:3])} have no owner"
            )


def own_points(split: Split, site: int) -> Split:
    """Return the points of one site."""
    return split.take(np.flatnonzero(split.sites == site))


def write_parts(folder: Path, train: Split, test: Split, labels: Labels, data_format: str) -> None:
    """Write both parts and the files beside them."""
    WRITERS[data_format](folder, train, test)
    lines = (f"{key}\t{name}\n" for key, name in zip(labels.keys, labels.names, strict=True))
    write_lines(folder / "labels.txt", lines)
    for part, split in (("train", train), ("test", test)):
        if split.excluded is not None:
            pairs = zip(*split.excluded.nonzero(), strict=True)
            write_lines(folder / f"filter_labels_{part}.txt", (f"{point} {label}\n" for point, label in pairs))


def write_lines(path: Path, lines: Iterator[str]) -> None:
    """Write a UTF-8 file with the same line ends on all systems."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(lines)


def write_npz(folder: Path, train: Split, test: Split) -> None:
    """Write X and Y of both parts, compressed."""
    for part, split in (("trn", train), ("tst", test)):
        save_npz(folder / f"X.{part}.npz", csr_matrix(split.X))
        save_npz(folder / f"Y.{part}.npz", csr_matrix(split.Y))


def write_xmc(folder: Path, train: Split, test: Split) -> None:
    """Write the repository's text files: a header, features from 0."""
    for part, split in (("train", train), ("test", test)):
        header = f"{len(split)} {split.X.shape[1]} {split.Y.shape[1]}\n"
        write_lines(folder / f"{part}.txt", (line for lines in ([header], format_rows(split, 0)) for line in lines))


def write_svmlight(folder: Path, train: Split, test: Split) -> None:
    """Write files without a header, features from 1.

    A zero for the last feature tells a reader how many features there are, and gives a point without any a line.
    """
    last = train.X.shape[1]
    for part, split in (("train", train), ("test", test)):
        write_lines(folder / f"{part}.svm", add_zeros(format_rows(split, 1), last))


def add_zeros(lines: Iterator[str], last: int) -> Iterator[str]:
    """Yield the lines, with a zero for feature `last` in the first one and in those that would be blank."""
    for row, line in enumerate(lines):
        has_last = line.rsplit(" ", 1)[-1].startswith(f"{last}:")
        needs_zero = not line.strip() or (row == 0 and not has_last)
        yield f"{line.rstrip()} {last}:0\n" if needs_zero else line


def format_rows(split: Split, base: int) -> Iterator[str]:
    """Yield a line `l1,l2 f:v f:v` per point."""
    X, Y = split.X, split.Y
    for start in range(0, len(split), ROWS_AT_ONCE):
        stop = min(start + ROWS_AT_ONCE, len(split))
        first = X.indptr[start]
        values = format_values(X.data[first : X.indptr[stop]])
        features = (X.indices[first : X.indptr[stop]].astype(np.int64) + base).tolist()
        for row in range(start, stop):
            labels = ",".join(map(str, Y.indices[Y.indptr[row] : Y.indptr[row + 1]].tolist()))
            here = range(X.indptr[row] - first, X.indptr[row + 1] - first)
            yield f"{labels} {' '.join(f'{features[i]}:{values[i]}' for i in here)}\n"


def format_values(values: np.ndarray) -> list[str]:
    """Return the shortest decimals that read back as the same float32."""
    shortest = values.astype(str)
    # A reader rounds twice, by way of float64; the few values that this would change are written in full.
    wrong = shortest.astype(np.float64).astype(np.float32) != values
    texts: list[str] = shortest.tolist()
    for i in np.flatnonzero(wrong).tolist():
        texts[i] = repr(float(values[i]))
    return texts


WRITERS: dict[str, Callable[[Path, Split, Split], None]] = {
    "npz": write_npz,
    "xmc": write_xmc,
    "svmlight": write_svmlight,
}
