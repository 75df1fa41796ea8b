"""Features and labels as text: the Extreme Classification Repository's files, and multi-label svmlight."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from fedmlh.data.dataset import Labels
from fedmlh.data.limits import MAX_FEATURES, MAX_LABELS, check_size
from fedmlh.data.matrix import build_features, build_labels, count_merged
from fedmlh.data.readers.files import GUNZIP, check_unpacked, open_bytes, readable
from fedmlh.data.readers.label_files import name_labels, number_labels, read_filter, read_labels
from fedmlh.data.readers.layout import PACKED, Layout, Parts, Reader, find_pair
from fedmlh.data.readers.lines import Grammar, ParsedRows, parse_block, parse_whole, quote, read_blocks
from fedmlh.data.readers.raw import RawFolder, RawPart
from fedmlh.errors import BadLine, UserError
from fedmlh.parts import register

Header = tuple[int, int, int]  # points, features, labels
LIMITS = {"points": 2**62, "features": MAX_FEATURES + 1, "labels": MAX_LABELS + 1}


def parse_header(path: Path, line: bytes, *heads: str) -> list[int]:
    """Parse the first line of a repository's file: a number for each of `heads`."""
    fields = line.split()
    if len(fields) != len(heads) or not all(field.isdigit() for field in fields):
        hint = "; a file that has no such header is svmlight" if len(heads) == 3 else ""
        raise BadLine(path, 1, f"should be `{' '.join(heads)}`, is {quote(line.strip())}{hint}")
    try:
        return [parse_whole(f, f"number of {what}", LIMITS[what]) for f, what in zip(fields, heads, strict=True)]
    except ValueError as problem:
        raise BadLine(path, 1, str(problem)) from None


def read_xmc_file(path: Path) -> tuple[ParsedRows, Header, tuple[str, ...]]:
    """Read the points of one file of the repository, whose header and lines must agree."""
    rows, (n, d, p), notes = read_headed_file(path, "points", "features", "labels")
    return rows, (n, d, p), notes


def read_headed_file(path: Path, *heads: str) -> tuple[ParsedRows, list[int], tuple[str, ...]]:
    """Read the points of a file whose header has a number for each of `heads`; these numbers bound the ids."""
    with readable(path), open_bytes(path) as file:
        first = file.readline(200)
        header = parse_header(path, first, *heads)
        n = header[0]
        grammar = Grammar(header[1], header[2] if len(header) == 3 else MAX_LABELS)
        blocks: list[ParsedRows] = []
        packed, unpacked, count, last = path.stat().st_size, 0, 0, first
        for lineno, block in read_blocks(path, file, 2):
            blocks.append(parse_block(path, lineno, block, grammar))
            unpacked += blocks[-1].nbytes  # of empty lines far more than of text
            check_unpacked(path, packed, unpacked, GUNZIP)
            count, last = count + len(blocks[-1]), block
            if count > n:
                raise BadLine(path, n + 2, f"the header promises {n:,} points, and here is one more")
    if count != n:
        raise UserError(f"{path}: the header promises {n:,} points, the file has {count:,}; it may be cut short")
    return ParsedRows.join(blocks), header, note_ending(path, last)


def read_svmlight_file(path: Path, num_labels: int = MAX_LABELS) -> tuple[ParsedRows, tuple[str, ...]]:
    """Read the points of one file without a header, its features numbered as the file has them."""
    grammar = Grammar(num_labels=num_labels, svmlight=True)
    blocks: list[ParsedRows] = []
    with readable(path), open_bytes(path) as file:
        packed, unpacked, last = path.stat().st_size, 0, b"\n"
        for lineno, block in read_blocks(path, file, 1):
            blocks.append(parse_block(path, lineno, block, grammar))
            unpacked += blocks[-1].nbytes  # of empty lines far more than of text
            check_unpacked(path, packed, unpacked, GUNZIP)
            last = block
    return ParsedRows.join(blocks), note_ending(path, last)


def note_ending(path: Path, last: bytes) -> tuple[str, ...]:
    """Note a last line without a line end: it is allowed, but a file that was cut short looks the same."""
    return () if last.endswith(b"\n") else (f"{path.name}: the last line does not end; was the file cut short?",)


def build_points(path: Path, rows: ParsedRows, num_features: int) -> tuple[csr_matrix, int]:
    """Build X from parsed rows, and return it with the number of duplicates summed."""
    shape = (len(rows), num_features)
    return build_features(str(path), rows.values, rows.features, rows.feature_indptr, shape)


def build_part(
    path: Path, filter_path: Path | None, rows: ParsedRows, num_features: int, num_labels: int
) -> tuple[RawPart, tuple[str, ...]]:
    """Build X, Y and the pairs that are not scored from parsed rows."""
    X, summed = build_points(path, rows, num_features)
    Y, merged = build_labels(rows.labels, rows.label_indptr, (len(rows), num_labels))
    return RawPart(X, Y, read_filter(filter_path, Y.shape)), count_merged(path.name, summed, merged)


def build_folder(
    layout: Layout, train: ParsedRows, test: ParsedRows, num_features: int, labels: Labels, notes: tuple[str, ...]
) -> RawFolder:
    """Build both parts with their notes."""
    d, p = num_features, len(labels)
    train_part, train_notes = build_part(layout.train[0], layout.train_filter, train, d, p)
    test_part, test_notes = build_part(layout.test[0], layout.test_filter, test, d, p)
    return RawFolder(train_part, test_part, labels, (*notes, *train_notes, *test_notes))


def find_xmc(folder: Path, names: list[str]) -> Parts | None:
    """Find two text files with a header each, or four with features and labels apart, as they also come beside text."""
    exact = [(f"train.txt{end}", f"test.txt{end}") for end in PACKED]
    pair = find_pair(folder, names, exact, [(f"*_train.txt{end}", f"*_test.txt{end}") for end in PACKED])
    if pair is not None:
        return pair
    for end in PACKED:
        wanted = tuple(f"{part}_X_{what}.txt{end}" for part in ("trn", "tst") for what in ("Xf", "Y"))
        if all(name in names for name in wanted):
            return wanted[:2], wanted[2:]
    return None


def read_xmc(layout: Layout) -> RawFolder:
    """Read a folder with two files of the repository, or four."""
    if len(layout.train) > 1:
        return read_xmc_apart(layout)
    train, (_, d, p), train_notes = read_xmc_file(layout.train[0])
    test, (_, test_d, test_p), test_notes = read_xmc_file(layout.test[0])
    if (d, p) != (test_d, test_p):
        raise UserError(
            f"{layout.folder}: the training file's header says {d:,} features and {p:,} labels, "
            f"the test file's {test_d:,} and {test_p:,}"
        )
    check_size(layout.train[0], d, p)
    labels = name_labels(layout, p, len(train.labels) + len(test.labels))
    return build_folder(layout, train, test, d, labels, train_notes + test_notes)


def read_xmc_apart(layout: Layout) -> RawFolder:
    """Read a folder of the repository with a file of features and a file of labels per part."""
    train, train_notes = read_part_apart(layout.train, layout.train_filter)
    test, test_notes = read_part_apart(layout.test, layout.test_filter)
    (d, p), (test_d, test_p) = ((part.points.shape[1], part.Y.shape[1]) for part in (train, test))
    if (d, p) != (test_d, test_p):
        raise UserError(
            f"{layout.folder}: the training files' headers say {d:,} features and {p:,} labels, "
            f"the test files' {test_d:,} and {test_p:,}"
        )
    check_size(layout.train[0], d, p)
    return RawFolder(train, test, name_labels(layout, p, train.Y.nnz + test.Y.nnz), train_notes + test_notes)


def read_part_apart(files: tuple[Path, ...], filter_path: Path | None) -> tuple[RawPart, tuple[str, ...]]:
    """Read X and Y of one part: two files of lines `column:value`, under a header `points columns` each."""
    (x_rows, (n, d), x_notes), (y_rows, (y_n, p), y_notes) = (
        read_headed_file(path, "points", columns) for path, columns in zip(files, ("features", "labels"), strict=True)
    )
    if n != y_n:
        raise UserError(f"{files[1]}: {y_n:,} points, but {files[0].name} has {n:,}")
    for path, rows in zip(files, (x_rows, y_rows), strict=True):
        if len(rows.labels):
            raise BadLine(path, int(rows.label_counts.argmax()) + 2, "should be `column:value` only")
    if not (y_rows.values == 1).all():
        raise UserError(f"{files[1]}: the value of a label is 1, and one is not")
    X, summed = build_points(files[0], x_rows, d)
    Y, merged = build_labels(y_rows.features, y_rows.feature_indptr, (n, p))
    notes = count_merged(files[0].name, summed, 0) + count_merged(files[1].name, 0, merged)
    return RawPart(X, Y, read_filter(filter_path, Y.shape)), (*x_notes, *y_notes, *notes)


@dataclass(frozen=True)
class Bounds:
    """The range of ids in svmlight files, which have no header: sizes and the first feature follow from it."""

    lowest_feature: int
    highest_feature: int
    highest_label: int

    @classmethod
    def over(cls, parts: Sequence[ParsedRows]) -> "Bounds":
        """Return the bounds of all parts together, so that all are read in the same way."""
        features, labels = (np.concatenate([getattr(part, name) for part in parts]) for name in ("features", "labels"))
        return cls(int(features.min(initial=1)), int(features.max(initial=-1)), int(labels.max(initial=-1)))

    @property
    def first_feature(self) -> int:
        """Return 0 or 1: features are counted from 1 unless a feature 0 occurs."""
        return int(self.lowest_feature > 0)


def find_bounds(layouts: Sequence[Layout]) -> Bounds:
    """Find the bounds of several sites, which must agree on what a number means."""
    paths = [path for layout in layouts for path in (layout.train[0], layout.test[0])]
    return Bounds.over([read_svmlight_file(path)[0] for path in paths])


def find_svmlight(folder: Path, names: list[str]) -> Parts | None:
    """Find two text files without a header; .txt files only if svmlight is named, since xmc is looked for first."""
    endings = [end + packed for end in (".svm", ".svmlight", ".libsvm", ".txt") for packed in PACKED]
    exact = [("train" + end, "test" + end) for end in endings]
    return find_pair(folder, names, exact, [(f"*_train{end}", f"*_test{end}") for end in endings])


def read_svmlight_sites(layouts: Sequence[Layout]) -> list[RawFolder]:
    """Read the folders of sites; in all of them, features are counted from the same number."""
    bounds = find_bounds(layouts)
    return [read_svmlight(layout, bounds) for layout in layouts]


def read_svmlight(layout: Layout, bounds: Bounds | None = None) -> RawFolder:
    """Read a folder with two svmlight files; labels.txt, if it is there, sets the number of labels."""
    labels = None if layout.labels is None else read_labels(layout.labels)
    limit = MAX_LABELS if labels is None else len(labels)
    train, train_notes = read_svmlight_file(layout.train[0], limit)
    test, test_notes = read_svmlight_file(layout.test[0], limit)
    bounds = bounds or Bounds.over([train, test])
    base = bounds.first_feature
    d = max(0, bounds.highest_feature + 1 - base)
    p = bounds.highest_label + 1 if labels is None else len(labels)
    check_size(layout.folder, d, p)
    folder = build_folder(
        layout,
        shift_features(train, base),
        shift_features(test, base),
        d,
        labels or number_labels(layout.folder, p, len(train.labels) + len(test.labels)),
        train_notes + test_notes,
    )
    return replace(folder, first_feature=base)


def shift_features(rows: ParsedRows, base: int) -> ParsedRows:
    """Return rows with features counted from 0 instead of `base`."""
    return ParsedRows(rows.labels, rows.label_counts, rows.features - base, rows.values, rows.feature_counts)


register("reader", "xmc", Reader(find_xmc, read_xmc))
register("reader", "svmlight", Reader(find_svmlight, read_svmlight, read_svmlight_sites))
