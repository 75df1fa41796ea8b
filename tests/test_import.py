"""Spreadsheets: each becomes the data set that it means, or one sentence that names the line, and then nothing else."""

from pathlib import Path

import pytest

from spreadsheets import GOOD, NAMES, SAID, SPREADSHEETS, TWO, import_all, list_left, put, read_points


@pytest.mark.parametrize("case", SPREADSHEETS)
def test_a_spreadsheet_becomes_what_it_means(tmp_path: Path, case: str) -> None:
    content, options, meant = SPREADSHEETS[case]
    path = put(tmp_path / NAMES.get(case, "a.csv"), content)
    code, out, err = import_all(tmp_path / "out", path, *options)
    assert code == 0, out + err
    assert read_points(tmp_path / "out") == (TWO if meant is None else meant)
    assert list_left(tmp_path) == sorted(["out", path.name])


#: What is written, with which options, and the sentence.
MISTAKES: dict[str, tuple[str | bytes, tuple[str, ...], str]] = {
    "empty": ("", SAID, "a.csv: is empty"),
    "blank": ("\n \n", SAID, "a.csv: is empty"),
    "a header only": ("title,subjects\n", SAID, "a.csv: has a header and no record below it"),
    "no such column": (
        GOOD.replace("title", "titel"),
        SAID,
        "a.csv, line 1: has no column 'title': did you mean 'titel'?",
    ),
    "no header": (GOOD.split("\n", 1)[1], SAID, "line 1: has no column 'title'"),
    "no such number": (GOOD, ("--text", "4", *SAID[2:], "--delimiter", ","), "a.csv, line 1: has no column '4'"),
    "a column named twice": (
        GOOD.replace("id", "title"),
        SAID,
        "line 1: names two columns 'title': rename one, or name it by number, 1 or 2",
    ),
    "too few cells": (
        GOOD + "\n3,Trees\n",
        SAID,
        "a.csv, line 5: has 2 cells, and line 1 has 3; a cell that holds a ',' must stand in quotes",
    ),
    "too many cells": (GOOD + "3,Oil, olive,oil\n", SAID, "a.csv, line 4: has 4 cells, and line 1 has 3"),
    "too many cells after a cell of two lines": (GOOD + '3,"a\nb",oil\n4,a,b,c\n', SAID, "a.csv, line 6: has 4 cells"),
    "a quote that does not end": (
        GOOD + '3,"Trees,trees\n4,Roots,roots\n',
        SAID,
        'a.csv, line 4: a cell begins with " here and does not end',
    ),
    "a quote that ends far below": (GOOD + f'3,"{"x" * 100}\n' + "y,y\n" * 50 + '"z,\n', SAID, "a.csv, line 4: "),
    "a quote that never ends in a large file": (
        GOOD + '3,"Trees\n' + "4,Roots,roots\n" * 700_000,
        SAID,
        "a.csv, line 4: a cell begins",
    ),
    "something after a quote": (GOOD + '3,"Tr"ees,trees\n', SAID, 'line 4: something follows a " that ends a cell'),
    "not UTF-8": (
        GOOD.encode() + b"3,\xd6l,oil\n",
        SAID,
        "a.csv, line 4: is not UTF-8 text: save it as UTF-8, or name its encoding (--encoding cp1252, if it",
    ),
    "not UTF-8, far below": (
        GOOD.encode() + b"3,x,y\n" * 99_997 + b"3,\xff,oil\n",
        SAID,
        "a.csv, line 100001: is not UTF-8",
    ),
    "not what is said": (
        GOOD.encode() + b"3,\x81,oil\n",
        (*SAID, "--encoding", "cp1252"),
        "line 4: is not CP1252 text",
    ),
    "no such encoding": (GOOD, (*SAID, "--encoding", "klingon"), "there is no encoding 'klingon'"),
    "no encoding of text": (GOOD, (*SAID, "--encoding", "zlib"), "there is no encoding 'zlib'"),
    "NUL": (GOOD.encode() + b"3,a\0b,oil\n", SAID, "a.csv, line 4: holds a NUL"),
    "UTF-16 that does not say so": (
        GOOD.encode("utf-16-le"),
        SAID,
        "line 1: holds a NUL, as no text does: take it out, or name the encoding (--encoding utf-16)",
    ),
    "a workbook": (
        b"PK\x03\x04rest",
        SAID,
        "a.csv: is a file of a spreadsheet program or an archive: save the sheet as CSV (UTF-8)",
    ),
    "packed, and not named so": (b"\x1f\x8b\x08rest", SAID, "a.csv: is packed: its name should end in .gz"),
    "one column": (
        "title\nOlive oil\n",
        (),
        "line 1: has only one cell: say what stands between cells (--delimiter)",
    ),
    "a delimiter of two characters": (GOOD, (*SAID, "--delimiter", "||"), "the delimiter '||' should be one character"),
    "one mark for two things": (GOOD, (*SAID, "--delimiter", ";", "--quote", ";"), "should differ"),
    "labels in brackets": (
        'title,subjects\nFish,"[""fish""]"\n',
        SAID,
        "line 2: the labels '[\"fish\"]' are a list in brackets: say so (--separator list)",
    ),
    "labels not in brackets": (
        GOOD,
        (*SAID[:4], "--separator", "list"),
        "line 2: the labels 'oil;prices' are no list in brackets",
    ),
    "lists in lists": (
        'title,subjects\nFish,"[[1]]"\n',
        (*SAID[:4], "--separator", "list"),
        "line 2: the label [1] should be a text or a whole number",
    ),
    "brackets without end": (
        f"title,subjects\nFish,{'[' * 100_000}\n",
        (*SAID[:4], "--separator", "list"),
        "line 2: the labels '[[[",
    ),
    "nothing with text and labels": (
        "title,subjects\nFish,\n,fish\n",
        SAID,
        "no row has both text and labels: 1 lack labels that are known, 1 lack text",
    ),
    "one id, two texts": (
        GOOD + "2,Trees,trees\n",
        (*SAID, "--id", "id"),
        "a.csv, line 4: the id '2' is that of line 3 above, with another text",
    ),
    "one id, two texts far apart": (
        GOOD + "1,Trees,trees\n",
        (*SAID, "--id", "id"),
        "line 4: the id '1' stands on a line above, with another text or other labels",
    ),
    "no id": (
        GOOD + ",Trees,trees\n",
        (*SAID, "--id", "id"),
        "a.csv, line 4: has no id ('id'): every record needs one if the column is named (--id)",
    ),
    "no site": (GOOD.replace("1,", ","), (*SAID, "--site", "id"), "line 2: has no site"),
    "a site that is no folder": (
        GOOD.replace("2,", "../2,"),
        (*SAID, "--site", "id"),
        "line 3: the site '../2' cannot be the name of a folder",
    ),
    "not JSON": ('{"title": "a", "subjects": []}\n{"title": \n', SAID, "a.csv, line 2: is not JSON ("),
    "a JSON list": ('{"title": "a", "subjects": []}\n[1]\n', SAID, "a.csv, line 2: should be a JSON object"),
    "no such field": (
        '{"title": "a", "subject": ["b"]}\n',
        SAID,
        "a.csv: no record has a field 'subjects': did you mean 'subject'?",
    ),
    "a list for text": (
        '{"title": ["a"], "subjects": ["b"]}\n',
        SAID,
        "a.csv, line 1: 'title' is ['a'], and should be a text",
    ),
    "a number with a fraction for a label": (
        '{"title": "a", "subjects": [1.5]}\n',
        SAID,
        "line 1: the label 1.5 should be a text or a whole number",
    ),
    "half a character": (
        '{"title": "a\\ud800", "subjects": ["b"]}\n',
        SAID,
        "line 1: is not JSON (a text in it holds half a character)",
    ),
    "a record that no reader takes": (
        f"title,subjects\nx,y\n{'x' * 8_388_600},oil\n",
        SAID,
        "a.csv, line 3: has more than 8,388,608 bytes",
    ),
    "a line that no reader takes": (
        f"title,subjects\nx,y\n{'x' * 9_000_000},oil\n",
        SAID,
        "a.csv, line 3: is longer than 8,388,608 characters",
    ),
    "which is the text": (
        "a,subjects\n,oil\n",
        (),
        "a.csv: which column holds the text? Name it (--text); there are 'a', 'subjects'",
    ),
    "which are the labels": (
        "title,b\nOlive oil,oil\n",
        (),
        "a.csv: which column holds the labels? Name it (--labels)",
    ),
    "language without a vocabulary": (GOOD, (*SAID, "--language", "fi"), "--language chooses names of a vocabulary"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_sentence_with_its_line_and_nothing_is_left(tmp_path: Path, case: str) -> None:
    content, options, sentence = MISTAKES[case]
    path = put(tmp_path / "a.csv", content)
    code, out, err = import_all(tmp_path / "out", path, *options)
    assert (code, out) == (2, "")
    assert sentence in err
    assert (err.count("\n"), err.count("fedmlh: ")) == (1, 1)
    assert len(err) < 500
    assert list_left(tmp_path) == ["a.csv"]
