"""Spreadsheets written for tests, and what an import made of them."""

import gzip
from pathlib import Path

from command_line import invoke
from fedmlh.data.readers.jsonl import read_records, read_text
from fedmlh.data.readers.layout import recognise

#: Text and labels of each point.
Points = list[tuple[str, list[str]]]


def put(path: Path, content: str | bytes) -> Path:
    """Write a file, packed if its name says so."""
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def read_points(folder: Path) -> Points:
    """Return the training points as the reader of training reads them, with the names of their labels."""
    raw = read_text(recognise(folder))
    rows = [sorted(raw.labels.names[column] for column in row.indices) for row in raw.train.Y]
    return list(zip(raw.train.points, rows, strict=True))


def read_ids(folder: Path) -> list[str]:
    """Return the ids of the training points."""
    return [record["id"] for _, record in read_records(folder / "trn.jsonl")]


def import_all(folder: Path, *arguments: object) -> tuple[int, str, str]:
    """Import into `folder` without a test part; exit code, standard output and standard error."""
    return invoke("data", "import", *arguments, "--test", 0, "--out", folder)


def list_left(folder: Path) -> list[str]:
    """Return the names of all that an import left beside its sources, drafts included."""
    return sorted(path.name for path in folder.iterdir())
