"""Whatever the csv module writes is imported as what it was, in any dialect that is said, and in usual ones unsaid."""

import csv
import json
import tempfile
import unicodedata
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedmlh.data.importing.folder import write_folder
from fedmlh.data.importing.reading import Columns, understand
from fedmlh.data.importing.sources import Marks
from fedmlh.errors import UserError

#: What a dialect could stumble over, and letters.
ODD = list("ab \"'\\,;|\t\n\r:~é\u2028\ufeff")
CELLS = st.text(
    st.one_of(st.sampled_from(ODD), st.characters(exclude_categories=["Cs"], exclude_characters="\0")), max_size=12
)
BREAKS = str.maketrans("\r\n", "  ")
SEPARATORS = ("; ", "||", "#", "\x1f")


@st.composite
def dialects(draw: st.DrawFn) -> dict[str, Any]:
    delimiter = draw(st.sampled_from(",;\t|:~"))
    quoting = draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC, csv.QUOTE_NONE]))
    doubled = quoting != csv.QUOTE_NONE and draw(st.booleans())
    return {
        "delimiter": delimiter,
        "quotechar": draw(st.sampled_from("\"'")),
        "doublequote": doubled,
        "escapechar": None if doubled else "\\",
        "quoting": quoting,
        "lineterminator": draw(st.sampled_from(["\n", "\r\n", "\r"])),
    }


def clean(label: str) -> str:
    return " ".join(unicodedata.normalize("NFC", label.replace("\ufeff", "")).split())


@st.composite
def records(draw: st.DrawFn) -> tuple[str, list[tuple[str, list[str]]]]:
    separator = draw(st.sampled_from(SEPARATORS))
    label = CELLS.filter(lambda text: not set(separator) & set(text) and not text.strip().startswith(("[", "<")))
    return separator, draw(st.lists(st.tuples(CELLS, st.lists(label, max_size=4)), min_size=1, max_size=8))


def write(path: Path, rows: list[tuple[str, list[str]]], separator: str, **dialect: Any) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, **dialect)
        writer.writerow(["number", "title", "subjects"])
        writer.writerows([number, text, separator.join(labels)] for number, (text, labels) in enumerate(rows))


def expect(rows: list[tuple[str, list[str]]]) -> list[tuple[str, str, list[str]]]:
    """Return what an import should make of rows, in the plainest words."""
    cleaned = [
        (str(n), text.strip(), [*dict.fromkeys(filter(None, map(clean, own)))]) for n, (text, own) in enumerate(rows)
    ]
    return [(number, text, labels) for number, text, labels in cleaned if text and labels]


def carry_out(path: Path, columns: Columns, marks: Marks) -> list[tuple[str, str, list[str]]] | None:
    """Return what was imported; None if it was refused, or would be asked."""
    out = path.parent / "out"
    try:
        reading = understand([path], columns, marks)
        if reading.guessed:
            return None
        write_folder(reading, None, out, test=0)
    except UserError as refused:
        if "no row has both text and labels" in str(refused):
            return []
        raise
    found = [json.loads(line) for line in (out / "trn.jsonl").read_bytes().decode().split("\n") if line]
    listed = (out / "labels.txt").read_bytes().decode().split("\n")[:-1]
    assert listed == sorted({label for record in found for label in record["labels"]})
    return [(record["id"], record["text"], record["labels"]) for record in found]


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(records(), dialects())
def test_any_dialect_that_is_said(written: tuple[str, list[tuple[str, list[str]]]], dialect: dict[str, Any]) -> None:
    separator, rows = written
    if dialect["lineterminator"] == "\r":  # then line breaks of the other kind make a file that nothing can read
        rows = [(text.translate(BREAKS), [label.translate(BREAKS) for label in labels]) for text, labels in rows]
    marks = Marks(
        dialect["delimiter"],
        "" if dialect["quoting"] == csv.QUOTE_NONE else dialect["quotechar"],
        dialect["escapechar"] or "",
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.csv"
        write(path, rows, separator, **dialect)
        assert carry_out(path, Columns(("title",), ("subjects",), separator, "number"), marks) == expect(rows)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(records(), st.sampled_from(",;\t|"), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_usual_dialects_are_found(
    written: tuple[str, list[tuple[str, list[str]]]], delimiter: str, end: str, all_quoted: bool
) -> None:
    separator, rows = written
    quoting = csv.QUOTE_ALL if all_quoted else csv.QUOTE_MINIMAL
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.csv"
        write(path, rows, separator, delimiter=delimiter, lineterminator=end, quoting=quoting)
        found = carry_out(path, Columns(("title",), ("subjects",), separator, "number"), Marks())
        assert found == expect(rows)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(CELLS, st.lists(CELLS, max_size=4)), min_size=1, max_size=8), st.booleans())
def test_json_lines(rows: list[tuple[str, list[str]]], ascii_only: bool) -> None:
    rows = [(text, [label for label in labels if not label.strip().startswith("<")]) for text, labels in rows]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.jsonl"
        lines = [
            json.dumps({"number": n, "title": text, "subjects": labels}, ensure_ascii=ascii_only)
            for n, (text, labels) in enumerate(rows)
        ]
        path.write_bytes("\n".join(lines).encode())
        assert carry_out(path, Columns(("title",), ("subjects",), None, "number"), Marks()) == expect(rows)
