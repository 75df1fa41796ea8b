"""Spreadsheets written for tests, and what an import made of them."""

import gzip
from pathlib import Path

from command_line import invoke
from fedmlh.data.readers.jsonl import read_records, read_text
from fedmlh.data.readers.layout import recognise

#: Text and labels of each point.
Points = list[tuple[str, list[str]]]

SAID = ("--text", "title", "--labels", "subjects", "--separator", ";")
TWO: Points = [("Olive oil", ["oil", "prices"]), ("Fish quotas", ["fish"])]
GOOD = "id,title,subjects\n1,Olive oil,oil;prices\n2,Fish quotas,fish\n"


def shift(text: str, delimiter: str) -> str:
    return text.replace(",", delimiter)


#: What is written, with which options, and what it means; None stands for TWO.
SPREADSHEETS: dict[str, tuple[str | bytes, tuple[str, ...], Points | None]] = {
    "plain": (GOOD, SAID, None),
    "all quoted": ('"id","title","subjects"\n"1","Olive oil","oil;prices"\n"2","Fish quotas","fish"\n', SAID, None),
    "CRLF": (GOOD.replace("\n", "\r\n"), SAID, None),
    "CR": (GOOD.replace("\n", "\r"), SAID, None),
    "no end of the last line": (GOOD[:-1], SAID, None),
    "byte order mark": (GOOD.encode("utf-8-sig"), SAID, None),
    "byte order mark before the text's own column": (
        GOOD.replace("id,", "", 1).replace("1,", "").replace("2,", "").encode("utf-8-sig"),
        SAID,
        None,
    ),
    "UTF-16 with its mark": (GOOD.encode("utf-16"), SAID, None),
    "UTF-16 without": (GOOD.encode("utf-16-le"), (*SAID, "--encoding", "utf-16-le"), None),
    "cp1252": (
        "title,subjects\nÖl,Gemüse;Öl\n".encode("cp1252"),
        (*SAID, "--encoding", "cp1252"),
        [("Öl", ["Gemüse", "Öl"])],
    ),
    "semicolons": (shift(GOOD.replace("oil;prices", '"oil;prices"'), ";"), SAID, None),
    "tabs": (shift(GOOD, "\t"), SAID, None),
    "bars": (shift(GOOD, "|"), SAID, None),
    "a delimiter that is said": (shift(GOOD, "~"), (*SAID, "--delimiter", "~"), None),
    "blanks after delimiters": (shift(GOOD.replace("oil;prices", '"oil;prices"'), ", "), SAID, None),
    "blanks around all": (
        GOOD.replace("Olive oil", "  Olive oil  ").replace("oil;prices", " oil ; prices "),
        SAID,
        None,
    ),
    "delimiter in a cell": ('title,subjects\n"Oil, olive",oil\n', SAID, [("Oil, olive", ["oil"])]),
    "quotes in a cell": ('title,subjects\n"The ""big"" tree",tree\n', SAID, [('The "big" tree', ["tree"])]),
    "a quote within a bare cell": ('title,subjects\n5" guns,"guns"\n', SAID, [('5" guns', ["guns"])]),
    "a line break in a text": (
        'title,subjects\n"Olive\noil",oil\nFish,fish\n',
        SAID,
        [("Olive\noil", ["oil"]), ("Fish", ["fish"])],
    ),
    "CRLF in a text": ('title,subjects\r\n"Olive\r\noil",oil\r\n', SAID, [("Olive\r\noil", ["oil"])]),
    "line breaks between labels": (
        'title,subjects\nOlive oil,"oil\nprices"\nFish quotas,fish\n',
        ("--text", "title", "--labels", "subjects", "--separator", "\\n"),
        None,
    ),
    "a line break within a label": ('title,subjects\nFish,"sea\nfish;food"\n', SAID, [("Fish", ["food", "sea fish"])]),
    "escaped quotes": (
        'title,subjects\n"The \\"big\\" tree",tree\n',
        (*SAID, "--escape", "\\"),
        [('The "big" tree', ["tree"])],
    ),
    "single quotes": ("title,subjects\n'Oil, olive',oil\n", (*SAID, "--quote", "'"), [("Oil, olive", ["oil"])]),
    "quotes that mean nothing": (
        'title\tsubjects\n"Oil" and fish\toil\n',
        (*SAID, "--quote", ""),
        [('"Oil" and fish', ["oil"])],
    ),
    "blank lines": ("\n" + GOOD.replace("\n", "\n\n"), SAID, None),
    "rows of empty cells": (GOOD + ",,\n,,\n", SAID, None),
    "columns without a name at the end": (
        GOOD.replace("subjects\n", "subjects,,\n").replace("prices\n", "prices,,\n"),
        SAID,
        None,
    ),
    "empty cells beyond the header": (GOOD.replace("prices\n", "prices,,\n"), SAID, None),
    "cells beyond an unnamed column": (GOOD.replace("subjects\n", "subjects,\n"), SAID, None),
    "other columns": ("year,subjects,note,title\n1999,oil;prices,x,Olive oil\n2000,fish,,Fish quotas\n", SAID, None),
    "names in other letters": (GOOD.replace("title", "Title").replace("subjects", " SUBJECTS "), SAID, None),
    "columns by number": (GOOD, ("--text", "2", "--labels", "3", "--separator", ";", "--delimiter", ","), None),
    "no header": (
        GOOD.split("\n", 1)[1],
        ("--no-header", "--text", "2", "--labels", "3", "--separator", ";", "--delimiter", ","),
        None,
    ),
    "a column named twice, by number": (
        "title,title,subjects\nx,Olive oil,oil;prices\ny,Fish quotas,fish\n",
        ("--text", "2", "--labels", "subjects", "--separator", ";"),
        None,
    ),
    "a column named twice that nobody wants": (
        GOOD.replace("id,", "x,x,").replace("1,", "1,1,").replace("2,", "2,2,"),
        SAID,
        None,
    ),
    "several columns of text": (
        "title,abstract,subjects\nOlive,oil,oil;prices\nFish quotas,,fish\n",
        ("--text", "title", "--text", "abstract", *SAID[2:]),
        None,
    ),
    "several columns of labels": (
        "title,first,second\nOlive oil,oil,prices\nFish quotas,fish,\n",
        ("--text", "title", "--labels", "first", "--labels", "second", "--separator", ""),
        None,
    ),
    "one label per cell": ("title,subjects\nFish,sea;fish\n", (*SAID[:4], "--separator", ""), [("Fish", ["sea;fish"])]),
    "a separator of two characters": (
        "title,subjects\nOlive oil,oil||prices\nFish quotas,fish\n",
        (*SAID[:4], "--separator", "||"),
        None,
    ),
    "JSON lists": (
        'title,subjects\nOlive oil,"[""oil"", ""prices""]"\nFish quotas,"[""fish""]"\n',
        (*SAID[:4], "--separator", "list"),
        None,
    ),
    "Python lists": (
        "title,subjects\nOlive oil,\"['oil', 'prices']\"\nFish quotas,['fish']\n",
        (*SAID[:4], "--separator", "list"),
        None,
    ),
    "labels twice or empty": (
        "title,subjects\nOlive oil,;oil;; prices;oil ;\nFish quotas,fish;fish\n",
        SAID,
        None,
    ),
    "one label in two normal forms": ("title,subjects\nA,é\nB,e\u0301\n", SAID, [("A", ["é"]), ("B", ["é"])]),
    "rows without labels": (GOOD + "3,Trees,\n4,Roots, ; \n", SAID, None),
    "rows without text": (GOOD + "3,,trees\n4, ,trees\n", SAID, None),
    "repeated rows": (GOOD + GOOD.split("\n")[1] + "\n", SAID, None),
    "rows that differ elsewhere are records of their own": (
        GOOD + "3,Fish quotas,fish\n",
        SAID,
        [*TWO, TWO[1]],
    ),
    "a row per label": (
        "id,title,subjects\n1,Olive oil,oil\n1,Olive oil,prices\n2,Fish quotas,fish\n",
        (*SAID, "--id", "id"),
        None,
    ),
    "one id, one record": (GOOD + "1,Olive oil,prices;oil\n", (*SAID, "--id", "id"), None),
    "JSON lines": (
        '{"title": "Olive oil", "subjects": ["oil", "prices"]}\n\n{"title": "Fish quotas", "subjects": ["fish"]}\n',
        SAID,
        None,
    ),
    "JSON lines with text for labels": (
        '{"title": "Olive oil", "subjects": "oil; prices"}\n{"title": "Fish quotas", "subjects": "fish"}\n',
        SAID,
        None,
    ),
    "JSON lines with nothing": (
        '{"title": "Olive oil", "subjects": ["oil", "prices"]}\n{"title": null, "subjects": ["a"]}\n{"subjects": []}\n'
        '{"title": "Fish quotas", "subjects": ["fish"]}\n{"title": "x"}\n',
        SAID,
        None,
    ),
    "JSON lines with numbers": ('{"title": 1984, "subjects": [7, "8"]}\n', SAID, [("1984", ["7", "8"])]),
    "a packed file": (GOOD, SAID, None),
    "a text of a million characters": (
        f"title,subjects\n{'word ' * 200_000}end,oil\n",
        SAID,
        [(f"{'word ' * 200_000}end", ["oil"])],
    ),
    "odd characters": ("title,subjects\n\u2028\x85A\x1c\u202eB,\x1boil\n", SAID, [("A\x1c\u202eB", ["\x1boil"])]),
}
NAMES = {"tabs": "a.tsv", "a packed file": "a.csv.gz", "JSON lines": "a.jsonl", "JSON lines with nothing": "a.ndjson"}


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
