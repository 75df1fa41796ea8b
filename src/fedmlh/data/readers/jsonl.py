"""Raw text with labels: one JSON object per line, in our own layout or that of the repository's LF data sets."""

from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from fedmlh.data.dataset import Labels
from fedmlh.data.limits import check_labels
from fedmlh.data.matrix import build_labels, count_merged
from fedmlh.data.readers.json_lines import Record, read_records, take_key, take_list, take_string, take_text
from fedmlh.data.readers.label_files import read_filter, read_labels
from fedmlh.data.readers.label_lines import strip_brackets
from fedmlh.data.readers.layout import PACKED, Layout, Parts, Reader, find_pair
from fedmlh.data.readers.raw import RawFolder, RawPart
from fedmlh.errors import BadLine, UserError
from fedmlh.parts import register

#: The label file of the LF data sets; it belongs to both parts.
LF_LABELS = "lbl.json.gz"
#: Yields the labels of a record as numbers, or as they are if the catalogue does not list them.
TakeLabels = Callable[[Path, int, Record], Iterator[int | str]]


def find_text(folder: Path, names: list[str]) -> Parts | None:
    """Find raw text with labels by name, or that of the LF data sets, with labels by row of a label file."""
    stems = (("trn", "tst"), ("train", "test"))
    exact = [(f"{a}.jsonl{end}", f"{b}.jsonl{end}") for a, b in stems for end in PACKED]
    pair = find_pair(folder, names, exact, [])
    if pair is not None:
        return pair
    pair = find_pair(folder, names, [("trn.json.gz", "tst.json.gz")], [])
    if pair is None:
        return None
    if LF_LABELS not in names:
        raise UserError(f"{folder}: {LF_LABELS} should stand beside trn.json.gz")
    train, test = pair
    return (*train, LF_LABELS), (*test, LF_LABELS)


def read_text(layout: Layout) -> RawFolder:
    """Read a folder of either layout."""
    return read_lf(layout) if len(layout.train) > 1 else read_jsonl(layout)


def read_jsonl(layout: Layout) -> RawFolder:
    """Read a folder with `text` and `labels`: keys or names of labels.txt, or, without that file, any labels."""
    if layout.labels is not None:
        labels = read_labels(layout.labels)
    else:
        labels = collect_labels([layout.train[0], layout.test[0]])
    find = index_labels(labels)

    def take_labels(path: Path, lineno: int, record: Record) -> Iterator[int | str]:
        for value in take_list(path, lineno, record, "labels"):
            key = take_key(path, lineno, value, "label")
            try:
                yield find(key)
            except ValueError as problem:
                raise BadLine(path, lineno, str(problem)) from None

    return read_parts(layout, labels, take_labels)


def index_labels(labels: Labels) -> Callable[[str], int | str]:
    """Return a look-up by key, then by name, of a label's number, or of the label itself if it is not listed."""
    by_key = {key: number for number, key in enumerate(labels.keys)}
    # Without labels.txt a label's name is its key.
    named = labels.names is not labels.keys
    by_name = {name: number for number, name in enumerate(labels.names)} if named else {}
    uses = Counter(labels.names) if named else Counter()

    def find(label: str) -> int | str:
        if label not in by_key:
            label = strip_brackets(label)  # labels.txt is read without those of a URI
        if label not in by_key and uses[label] > 1:
            raise ValueError(f"label {label!r:.60} is the name of {uses[label]} labels of labels.txt: give its key")
        return by_key.get(label, by_name.get(label, label))

    return find


def collect_labels(paths: list[Path]) -> Labels:
    """Make the catalogue of a source that has none: the sorted labels of all its parts."""
    keys: set[str] = set()
    for path in paths:
        for lineno, record in read_records(path):
            keys.update(take_key(path, lineno, value, "label") for value in take_list(path, lineno, record, "labels"))
            check_labels(path, len(keys))
    if not keys:
        raise UserError(f"{paths[0].parent}: no point of it has a label")
    ordered = tuple(sorted(keys))
    return Labels(ordered, ordered)


def read_lf(layout: Layout) -> RawFolder:
    """Read a folder with trn.json.gz and tst.json.gz, whose `target_ind` counts the lines of lbl.json.gz."""
    path, names = layout.train[1], dict[str, str]()
    for lineno, record in read_records(path):
        key = take_key(path, lineno, record.get("uid"), "uid")
        if key in names:
            raise BadLine(path, lineno, f"the uid {key!r:.40} is taken by a line above")
        names[key] = take_string(path, lineno, record, "title", "").strip() or key
        check_labels(path, len(names))
    if not names:
        raise UserError(f"{path}: names no label")
    labels = Labels(tuple(names), tuple(names.values()))

    def take_labels(path: Path, lineno: int, record: Record) -> Iterator[int | str]:
        for number in take_list(path, lineno, record, "target_ind"):
            if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < len(labels):
                raise BadLine(
                    path, lineno, f"target_ind {number!r:.40} should be a whole number from 0 below {len(labels):,}"
                )
            yield number

    return read_parts(layout, labels, take_labels)


def read_parts(layout: Layout, labels: Labels, take_labels: TakeLabels) -> RawFolder:
    """Read both parts; a label that is not listed is refused in the training part, and left out of the test part.

    Catalogues are often made of the labels of the training part, and no model can predict other labels.
    """
    train, train_notes = read_part(layout.train[0], layout.train_filter, labels, take_labels, must_know=True)
    test, test_notes = read_part(layout.test[0], layout.test_filter, labels, take_labels, must_know=False)
    return RawFolder(train, test, labels, train_notes + test_notes)


def read_part(
    path: Path, filter_path: Path | None, labels: Labels, take_labels: TakeLabels, must_know: bool
) -> tuple[RawPart, tuple[str, ...]]:
    """Read texts and labels of one file, and what there is to note."""
    texts: list[str] = []
    numbers, ends = array("i"), array("q", [0])  # lists of whole numbers would take four times the memory
    unknown = 0
    for lineno, record in read_records(path):
        texts.append(take_text(path, lineno, record))
        for label in take_labels(path, lineno, record):
            if isinstance(label, int):
                numbers.append(label)
            elif must_know:
                raise BadLine(path, lineno, f"label {label!r:.60} is not in labels.txt")
            else:
                unknown += 1
        ends.append(len(numbers))
    Y, merged = build_labels(np.frombuffer(numbers, np.int32), np.frombuffer(ends, np.int64), (len(texts), len(labels)))
    notes = count_merged(path.name, 0, merged)
    if unknown:
        notes += (f"{path.name}: labels that labels.txt does not list: {unknown:,} left out",)
    return RawPart(texts, Y, read_filter(filter_path, Y.shape)), notes


register("reader", "text", Reader(find_text, read_text))
