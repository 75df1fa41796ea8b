"""Answers of a model beside what the records say: as rows of a table, or as JSON lines."""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from fedmlh.data.importing.tables import fold
from fedmlh.errors import UserError
from fedmlh.serving.predictor import Model
from fedmlh.serving.records import Record, Records

#: A record and the labels that the model proposes: predictions, or explained ones.
Answer: TypeAlias = tuple[Record, Sequence[Mapping[str, Any]]]

#: What is held at once of the records.
_MOST_RECORDS, _MOST_CHARACTERS = 1024, 1 << 22
#: What stands between the labels of a cell: the first that no label of the model holds.
_SEPARATORS = (";", "|")
#: How cells begin that spreadsheet programs take for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
#: A cell names the words that speak for a label: the largest ones of those that add this much to its score.
_MOST_WORDS, _LEAST_ADDED = 3, 0.005
_PREFIX = "predicted_"


def answer(
    model: Model, records: Iterable[Record], k: int = 5, threshold: float = 0.0, *, why: bool = False
) -> Iterator[Answer]:
    """Yield each record with the labels for its text, in the memory that some records take."""
    for some in _take_some(records):
        texts = [record.text for record in some]
        found: Iterable[Sequence[Mapping[str, Any]]]
        found = model.explain(texts, k, threshold) if why else model.predict_stream(texts, k, threshold)
        yield from zip(some, found, strict=True)


def write_json(model: Model, records: Records, answers: Iterable[Answer]) -> Iterator[str]:
    """Yield a line of JSON per answer: the fields of the record, and its labels with all that the model says."""
    has_keys, (name,) = _has_keys(model), _find_names(records.source.path, records.fields, ["labels"])
    for record, labels in answers:
        shown = [dict(label) if has_keys else {k: v for k, v in label.items() if k != "key"} for label in labels]
        yield json.dumps({**record.fields, name: shown}, ensure_ascii=False) + "\n"


def write_table(
    model: Model, records: Records, answers: Iterable[Answer], *, tabs: bool = False, why: bool = False
) -> Iterator[str]:
    """Yield the lines of a CSV file, or of one with tabs: a row per record with all its columns, then what is proposed.

    The file has the delimiter and the byte order mark of the table that the records are from.
    """
    added = _list_columns(model, why)
    names = _find_names(records.source.path, records.headers, list(added))
    theirs = records.delimiter if records.delimiter not in (None, "\t") else ","
    separator = _choose_separator(model)
    lines = io.StringIO()
    writer = csv.writer(lines, delimiter="\t" if tabs else theirs)
    lines.write("\ufeff" if records.has_mark else "")
    writer.writerow([*records.headers, *names])
    for record, labels in answers:
        cells = [_write_cell(record.fields.get(field)) for field in records.fields]
        shown = ([_write_part(label, part) for label in labels] for part in added.values())
        writer.writerow([*cells, *(_join(parts, separator) for parts in shown)])
        yield lines.getvalue()
        lines.seek(0)
        lines.truncate()
    yield lines.getvalue()


def _take_some(records: Iterable[Record]) -> Iterator[list[Record]]:
    some: list[Record] = []
    characters = 0
    for record in records:
        some.append(record)
        characters += len(record.text)
        if len(some) == _MOST_RECORDS or characters >= _MOST_CHARACTERS:
            yield some
            some, characters = [], 0
    if some:
        yield some


def _has_keys(model: Model) -> bool:
    """Say whether labels have keys that are not their names, such as URIs."""
    return model.bundle.labels.keys != model.bundle.labels.names


def _list_columns(model: Model, why: bool) -> dict[str, str]:
    """Return the columns that a table of answers adds, each with what it shows of a label."""
    columns = {"labels": "name"}
    if _has_keys(model):
        columns["keys"] = "key"
    columns |= {"scores": "score"} if model.bundle.curve is None else {"probabilities": "probability"}
    return columns | ({"why": "words"} if why else {})


def _find_names(path: object, taken: Iterable[str], names: Sequence[str]) -> list[str]:
    """Return names that no column of the input has: what the input says stays as it is."""
    used = set(map(fold, taken))
    for found in (list(names), [_PREFIX + name for name in names]):
        if not used & set(found):
            return found
    both = next(name for name in names if _PREFIX + name in used)
    raise UserError(
        f"{path}: has a column '{_PREFIX}{both}' already, from another prediction: rename it or take it out"
    )


def _choose_separator(model: Model) -> str | None:
    """Return what no label of the model holds; None if there is no such separator."""
    texts = (*model.bundle.labels.names, *model.bundle.labels.keys)
    return next((mark for mark in _SEPARATORS if not any(mark in text for text in texts)), None)


def _join(parts: Sequence[str], separator: str | None) -> str:
    """Put several texts into a cell, as a list in brackets if there is no separator; `data import` reads both."""
    if separator is None and parts:
        return json.dumps(parts, ensure_ascii=False)
    return f"{separator} ".join(parts)


def _write_part(label: Mapping[str, Any], part: str) -> str:
    """Return what a cell shows of a label; a text from the model never begins as a formula does."""
    value = label[part]
    if part in ("score", "probability"):
        return f"{value:.3f}"
    if part == "words":
        adding = [word for word in value if word["adds"] >= _LEAST_ADDED][:_MOST_WORDS]
        words = ", ".join(f"{word['word']} {word['adds']:+.2f}" for word in adding)
        value = f"{label['name']} ({words})" if words else label["name"]
    return f"'{value}" if value.startswith(_FORMULA) else str(value)


def _write_cell(value: Any) -> str:
    """Return a value of the input as it is; what only JSON has is written as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
