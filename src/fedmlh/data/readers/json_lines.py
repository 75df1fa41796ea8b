"""JSON lines: one object per line, and its fields as they should be."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedmlh.data.readers.files import read_lines
from fedmlh.errors import BadLine

Record = dict[str, Any]


def read_records(path: Path) -> Iterator[tuple[int, Record]]:
    """Yield number and object of each line that is not empty."""
    for lineno, line in read_lines(path):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        # Numbers of thousands of digits are a ValueError too, and brackets nested as deep a RecursionError.
        except (ValueError, RecursionError) as problem:
            reason = getattr(problem, "msg", None) or str(problem)
            raise BadLine(path, lineno, f"is not JSON ({reason})") from None
        if not isinstance(record, dict):
            raise BadLine(path, lineno, 'should be a JSON object, like {"text": …}')
        yield lineno, record


def take_string(path: object, lineno: int, record: Record, field: str, default: str | None = None) -> str:
    """Return a field that must be a string."""
    value = record.get(field, default)
    if not isinstance(value, str):
        problem = f"`{field}` should be a string" if field in record else f"has no `{field}`"
        raise BadLine(path, lineno, problem)
    return value


def take_key(path: Path, lineno: int, value: object, field: str) -> str:
    """Return a label's key: a string or a whole number."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise BadLine(path, lineno, f"{field} {value!r:.40} should be a string or a whole number")
    key = str(value)
    if not key.strip():
        raise BadLine(path, lineno, f"{field} {key!r} is empty")
    try:
        key.encode()
    except UnicodeEncodeError:
        raise BadLine(path, lineno, f"{field} {key!r:.40} is half a character, which no file can hold") from None
    return key


def take_list(path: Path, lineno: int, record: Record, field: str) -> list[Any]:
    """Return a field that must be a list."""
    value = record.get(field)
    if not isinstance(value, list):
        raise BadLine(path, lineno, f"`{field}` should be a list" if field in record else f"has no `{field}`")
    return value


def take_text(path: object, lineno: int, record: Record) -> str:
    """Return the text of a record of either layout."""
    if "text" in record or not ("title" in record or "content" in record):
        return take_string(path, lineno, record, "text")
    title = take_string(path, lineno, record, "title", "")
    content = take_string(path, lineno, record, "content", "")
    return f"{title} {content}".strip()
