"""A file of records goes in, and comes out with labels: in order, with ids and columns, whole or not at all."""

import csv
import gzip
import io
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from command_line import invoke
from drawn_models import BASE, calibrate, make_bundle, name_labels
from fedmlh.data.importing import sources
from fedmlh.data.importing.sources import Marks
from fedmlh.data.readers.files import Incoming
from fedmlh.data.text import TextFeatures
from fedmlh.errors import UserError
from fedmlh.serving.answers import answer, write_json, write_table
from fedmlh.serving.predictor import Model
from fedmlh.serving.records import Record, _tell_apart, open_records
from peak_memory import PEAK
from spreadsheets import NAMES, SPREADSHEETS, TWO, list_left, put

#: A model of texts whose labels are called by their names alone.
MODEL = Model(name_labels(calibrate(make_bundle(BASE, 5, d=50, text=TextFeatures.hashing(50))), []))
GOOD = "id,title,note\n7,Olive oil,old\n8,,empty\n9,Fish quotas,\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of MODEL."""
    folder = tmp_path_factory.mktemp("predict") / "model"
    MODEL.save(folder)
    return folder


def predict(model: Path, *arguments: object) -> tuple[int, str, str]:
    return invoke("predict", model, *arguments)


def read_table(path: Path, delimiter: str = ",") -> tuple[list[str], list[list[str]]]:
    """Read a file as the csv module does."""
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file, delimiter=delimiter, strict=True)
    return header, rows


def expect(texts: list[str], k: int = 5) -> list[list[str]]:
    """Return the cells of labels and probabilities, in the plainest words."""
    return [
        ["; ".join(label["name"] for label in labels), "; ".join(f"{label['probability']:.3f}" for label in labels)]
        for labels in MODEL.predict(texts, k)
    ]


# Spreadsheets.


@pytest.mark.parametrize("case", SPREADSHEETS)
def test_an_odd_spreadsheet_keeps_its_rows_and_gets_labels(model: Path, tmp_path: Path, case: str) -> None:
    content, options, meant = SPREADSHEETS[case]
    path = put(tmp_path / NAMES.get(case, "a.csv"), content)
    has_header = "--no-header" not in options
    said = [option for option in options if option != "--no-header"]
    pairs = list(zip(said[::2], said[1::2], strict=True))
    columns = [value for name, value in pairs if name == "--text"]
    marks = {name[2:]: value for name, value in pairs if name in ("--delimiter", "--quote", "--escape", "--encoding")}
    asked = [*(["--column", name] for name in columns), *([f"--{name}", mark] for name, mark in marks.items())]
    more = [] if has_header else ["--no-header"]
    code, _, err = predict(model, "--input", path, *sum(asked, more), "--out", tmp_path / "out.tsv")
    assert code == 0, err
    records = open_records(path, columns, None, Marks(**marks, header=has_header))
    texts = [record.text for record in records]
    rest = iter(texts)
    assert all(text in rest for text, _ in (TWO if meant is None else meant)), "what an import would learn from"
    header, rows = read_table(tmp_path / "out.tsv", "\t")
    assert [name.removeprefix("\ufeff") for name in header] == [*records.headers, "labels", "probabilities"]
    assert [row[-2:] for row in rows] == expect(texts)
    for row, record in zip(rows, records, strict=True):
        cells = ["" if value is None else value for value in map(record.fields.get, records.fields)]
        assert row[:-2] == [cell if isinstance(cell, str) else json.dumps(cell) for cell in cells]
    assert list_left(tmp_path) == sorted([path.name, "out.tsv"])


ODD = list("ab \"'\\,;|\t\n\r:~é\u2028\ufeff=+-@")
CELLS = st.text(
    st.one_of(st.sampled_from(ODD), st.characters(exclude_categories=["Cs"], exclude_characters="\0")), max_size=12
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=8),
    st.sampled_from(",;\t|"),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["utf-8", "utf-8-sig"]),
    st.booleans(),
)
def test_what_the_csv_module_writes_comes_back_with_labels(
    rows: list[tuple[str, str]], delimiter: str, end: str, encoding: str, tabs: bool
) -> None:
    """As a web page does it: the bytes of a CSV file in, the text of one out."""
    written = io.StringIO()
    writer = csv.writer(written, delimiter=delimiter, lineterminator=end, quoting=csv.QUOTE_ALL)
    writer.writerow(["number", "title", "note"])
    writer.writerows([number, *row] for number, row in enumerate(rows))
    records = open_records(Incoming.of("upload.csv", written.getvalue().encode(encoding)), ["title"])
    text = "".join(write_table(MODEL, records, answer(MODEL, records), tabs=tabs))
    assert text.startswith("\ufeff") == (encoding == "utf-8-sig")
    mark = "\t" if tabs or delimiter == "\t" else delimiter
    mark = "," if not tabs and delimiter == "\t" else mark
    found = list(csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=""), delimiter=mark, strict=True))
    assert found[0] == ["number", "title", "note", "labels", "probabilities"]
    assert [row[:3] for row in found[1:]] == [[str(number), *row] for number, row in enumerate(rows)]
    assert [row[3:] for row in found[1:]] == expect([title for title, _ in rows])


def test_labels_and_probabilities_are_those_of_the_model(model: Path, tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", GOOD)
    code, out, err = predict(model, "--input", path, "--column", "title", "--top", 3, "--out", tmp_path / "out.csv")
    assert (code, out) == (0, "")
    assert "out.csv: 3 rows, 2 with labels" in err
    header, rows = read_table(tmp_path / "out.csv")
    assert header == ["id", "title", "note", "labels", "probabilities"]
    assert [row[:3] for row in rows] == [["7", "Olive oil", "old"], ["8", "", "empty"], ["9", "Fish quotas", ""]]
    assert [row[3:] for row in rows] == expect(["Olive oil", "", "Fish quotas"], 3)
    assert rows[1][3:] == ["", ""]
    code, out, _ = predict(model, "--input", path, "--column", "title", "--top", 3, "--threshold", 0.6)
    said = [[label["name"] for label in json.loads(line)["labels"]] for line in out.splitlines()]
    above = MODEL.predict(["Olive oil", "", "Fish quotas"], 3, threshold=0.6)
    assert said == [[label["name"] for label in labels] for labels in above]
    assert sum(map(len, said)) < 6


def test_columns_are_joined_as_an_import_joins_them(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", "title,abstract\n Olive , oil \nFish,\n,quotas\n,\n, \n")
    records = open_records(path, ["title", "abstract"])
    assert [record.text for record in records] == ["Olive oil", "Fish", "quotas"]
    assert len(records) == 3, "rows of empty cells mean nothing"


def test_a_table_may_have_one_column_or_no_row(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    assert (
        predict(model, "--input", put(tmp_path / "a.csv", "title\nOlive oil\n"), "--column", "title", "--out", out)[0]
        == 0
    )
    assert read_table(out) == (["title", "labels", "probabilities"], [["Olive oil", *expect(["Olive oil"])[0]]])
    assert predict(model, "--input", put(tmp_path / "b.csv", "id,title\n"), "--column", "title", "--out", out)[0] == 0
    assert read_table(out) == (["id", "title", "labels", "probabilities"], [])


# JSON lines and lines of text.


def test_json_lines_keep_id_and_other_fields(model: Path, tmp_path: Path) -> None:
    given = [
        {"id": 5, "title": "Olive oil", "more": {"pages": [1, None]}},
        {"id": "b", "title": None, "late": True},
        {"id": "c", "labels": ["mine"], "title": "Fish quotas"},
    ]
    path = put(tmp_path / "a.jsonl", "".join(json.dumps(record) + "\n\n" for record in given))
    asked = ("--input", path, "--column", "title", "--id", "id")
    assert predict(model, *asked, "--out", tmp_path / "out.jsonl")[0] == 0
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    code, piped, _ = predict(model, *asked)
    assert (code, piped.splitlines()) == (0, lines)
    answers = [json.loads(line) for line in lines]
    # What a record says stays as it is: its own labels too.
    found = [each.pop("predicted_labels") for each in answers]
    assert answers == given
    for labels, same in zip(found, MODEL.predict(["Olive oil", "", "Fish quotas"]), strict=True):
        assert labels == [{name: value for name, value in label.items() if name != "key"} for label in same]
    assert predict(model, *asked, "--out", tmp_path / "out.csv")[0] == 0
    header, rows = read_table(tmp_path / "out.csv")
    assert header == ["id", "title", "more", "late", "labels", "predicted_labels", "predicted_probabilities"]
    assert [row[:5] for row in rows] == [
        ["5", "Olive oil", '{"pages": [1, null]}', "", ""],
        ["b", "", "", "true", ""],
        ["c", "Fish quotas", "", "", '["mine"]'],
    ]


def test_json_lines_without_a_named_column_have_the_text_of_training(tmp_path: Path) -> None:
    path = put(tmp_path / "a.jsonl.gz", '{"text": "red"}\n{"title": "t", "content": "c"}\n')
    assert [record.text for record in open_records(path)] == ["red", "t c"]
    tables = {"a.csv": "id,Text\n1,red\n", "b.tsv": "<no header>\t<http://example.org/1>\n"}
    assert [[record.text for record in open_records(put(tmp_path / name, text))] for name, text in tables.items()] == [
        ["red"],
        ["<no header>"],
    ]


def test_each_line_of_a_text_is_answered(model: Path, tmp_path: Path) -> None:
    texts = ["Olive oil", "", "Fish, quotas"]
    path = put(tmp_path / "a.txt", "\r\n".join(texts))
    assert predict(model, "--input", path, "--out", tmp_path / "out.csv")[0] == 0
    _, rows = read_table(tmp_path / "out.csv")
    assert rows == [[text, *cells] for text, cells in zip(texts, expect(texts), strict=True)]


@pytest.mark.parametrize("is_packed", [False, True])
def test_standard_input_is_read_as_a_file(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_packed: bool
) -> None:
    def pipe(content: str, *arguments: object) -> tuple[int, str, str]:
        sent = gzip.compress(content.encode()) if is_packed else content.encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(sent)))
        return predict(model, "--input", "-", *arguments)

    path = put(tmp_path / "a.csv", GOOD)
    for asked in (("--column", "title"), ("--column", "2", "--delimiter", ",")):
        assert pipe(GOOD, *asked)[:2] == predict(model, "--input", path, *asked)[:2]
    lines = put(tmp_path / "a.txt", "Olive oil\n\nFish quotas\n")
    assert pipe(lines.read_text())[1] == predict(model, "--input", lines)[1]
    texts = put(tmp_path / "a.jsonl", '{"text": "Olive oil", "n": 1}\n')
    assert pipe(texts.read_text())[1] == predict(model, "--input", texts)[1]
    for _ in range(2):  # the second time the file is replaced
        assert pipe(GOOD, "--column", "title", "--out", tmp_path / "out.csv")[0] == 0
        assert read_table(tmp_path / "out.csv")[0] == ["id", "title", "note", "labels", "probabilities"]
    code, out, err = pipe("title\n\xe9,\n", "--column", "titel")
    assert (code, out) == (2, "")
    assert "standard input, line 1: has no column 'titel': did you mean 'title'?" in err


def test_texts_of_the_command_line_are_written_too(model: Path, tmp_path: Path) -> None:
    assert predict(model, "--text", "Olive oil", "--text", "\udcff, x", "--out", tmp_path / "out.csv")[0] == 0
    _, rows = read_table(tmp_path / "out.csv")
    assert rows[0] == ["Olive oil", *expect(["Olive oil"])[0]]
    assert rows[1][0] == "\\udcff, x"


# What a table shows of labels.


def write(model: Model, content: str, *, why: bool = False, k: int = 2) -> list[list[str]]:
    records = open_records(Incoming.of("a.csv", content.encode()), ["title"])
    text = "".join(write_table(model, records, answer(model, records, k, why=why), why=why))
    return list(csv.reader(io.StringIO(text, newline=""), strict=True))


def test_keys_stand_beside_names_only_where_they_differ() -> None:
    bundle = make_bundle(BASE, 5, d=50, text=TextFeatures.hashing(50))
    header, row = write(Model(bundle), "title\nOlive oil\n")
    labels = Model(bundle).predict(["Olive oil"], 2)[0]
    assert header == ["title", "labels", "keys", "scores"], "without a curve there are no probabilities"
    assert row[1:3] == ["; ".join(label[part] for label in labels) for part in ("name", "key")]
    assert row[3] == "; ".join(f"{label['score']:.3f}" for label in labels)


def test_a_cell_of_labels_can_be_taken_apart_again() -> None:
    for odd, mark in ((["a, b"], ";"), (["a; b"], "|"), (["a; b", "c | d"], None)):
        named = Model(name_labels(MODEL.bundle, odd))
        _, row = write(named, "title\nOlive oil\n", k=30)
        names = json.loads(row[1]) if mark is None else row[1].split(f"{mark} ")
        assert names == [label["name"] for label in named.predict(["Olive oil"], 30)[0]]
        assert set(odd) <= set(names)


def test_no_label_becomes_a_formula_and_cells_of_the_user_stay() -> None:
    evil = [f"{sign}1+1" for sign in "=+-@\t\r\n"]
    named = Model(name_labels(MODEL.bundle, evil))
    _, row = write(named, "title,note\noil,=1+1\n", why=True, k=30)
    assert row[1] == "=1+1"
    for cell in (row[2], row[4]):
        parts = cell.split("; ")
        assert len(parts) == 30
        assert not [part for part in parts if part.startswith(tuple("=+-@\t\r\n"))]
    assert set(row[2].split("; ")) >= {f"'{name}" for name in evil}


def test_reasons_are_the_words_that_add_most() -> None:
    _, row = write(MODEL, "title\nolive oil and fish quotas\n", why=True, k=30)
    explained = next(MODEL.explain(["olive oil and fish quotas"], 30))
    for part, label in zip(row[3].split("; "), explained, strict=True):
        adding = sorted((w for w in label["words"] if w["adds"] >= 0.005), key=lambda w: -w["adds"])[:3]
        words = ", ".join(f"{word['word']} {word['adds']:+.2f}" for word in adding)
        assert part == (f"{label['name']} ({words})" if words else label["name"])
    records = open_records(Incoming.of("a.txt", b"olive oil"))
    (line,) = write_json(MODEL, records, answer(MODEL, records, why=True))
    assert {"words", "tables"} <= json.loads(line)["labels"][0].keys()


def test_names_of_columns_stay_and_new_ones_are_free() -> None:
    header, _ = write(MODEL, "title,Labels,,\nx,a,b,\n")
    assert header == ["title", "Labels", "", "", "predicted_labels", "predicted_probabilities"]
    records = open_records(Incoming.of("a.csv", b"2,title,,title\na,b,c,d\n"), ["2"])
    (line,) = write_json(MODEL, records, answer(MODEL, records, 1))
    assert list(json.loads(line))[:4] == ["2", "title", "3", "title (4)"]
    assert list(json.loads(line).values())[:4] == ["a", "b", "c", "d"]
    with pytest.raises(UserError, match=r"a.csv: has a column 'predicted_labels' already"):
        write(MODEL, "title,labels,predicted_labels\nx,,\n")


class Counted(str):
    """A text that counts how often it is compared."""

    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str(self) == str(other)


def test_very_many_columns_take_work_as_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 3000
    columns = [Counted(f"column {n // 2}") for n in range(count)]
    Counted.compared = 0
    assert len(set(_tell_apart(columns))) == count
    assert Counted.compared < 20 * count
    compared = []
    monkeypatch.setattr(sources.difflib, "get_close_matches", lambda _, names, n: compared.extend(names) or [])
    sources.suggest("colum 1", columns)
    assert len(compared) == 1000


def test_cells_are_counted_before_any_row_is_answered() -> None:
    wide = b"text" + b"," * 99 + b"\n" + b"olive\n" * 5
    own = b"".join(json.dumps({"text": "olive", f"field {n}": n}).encode() + b"\n" for n in range(9))
    for name, content, cells in (("a.csv", wide, 500), ("a.jsonl", own, 90)):
        origin = Incoming.of(name, content)
        assert len(open_records(origin, most_cells=cells)) == len(open_records(origin))
        with pytest.raises(UserError, match=f"a.*: has more than {cells - 1} cells"):
            open_records(origin, most_cells=cells - 1)


# Refusals.

LATE = GOOD + "\n".join(f"{n},fine,x" for n in range(3000))
TITLE = ("--column", "title")
#: The file, its content, the options, and the sentence.
REFUSED: dict[str, tuple[str, str | bytes, tuple[str, ...], str]] = {
    "no such column": ("a.csv", GOOD, ("--column", "titel"), "line 1: has no column 'titel': did you mean 'title'?"),
    "no such id": ("a.csv", GOOD, (*TITLE, "--id", "ident"), "line 1: has no column 'ident'"),
    "no column named": ("a.csv", GOOD, (), "which column holds the text? Name it (--column); there are 'id', "),
    "no field named": ("a.jsonl", '{"titel": 1}\n', (), "which column holds the text? Name it (--column); there are"),
    "no such field": ("a.jsonl", '{"titel": 1}\n', TITLE, "no record has a field 'title': did you mean 'titel'?"),
    "a short row, late": ("a.csv", LATE + "\n7,x\n", TITLE, "line 3005: has 2 cells, and line 1 has 3"),
    "no record, late": ("a.jsonl", '{"text": "a"}\n' * 3000 + "[]\n", (), "line 3001: should be a JSON object"),
    "not UTF-8, late": ("a.txt", b"fine\n" * 3000 + b"\xe9\n", (), "line 3001: is not UTF-8 text"),
    "no text": ("a.jsonl", '{"title": "a"}\n{"title": [1]}\n', TITLE, "line 2: 'title' is [1], and should be a text"),
    "no id": ("a.csv", GOOD + ",Trees,x\n", (*TITLE, "--id", "id"), "line 5: has no id ('id')"),
    "a record without a text": ("a.jsonl", '{"text": "a"}\n{"labels": []}\n', (), "line 2: has no `text`"),
    "an unknown ending": ("a.dat", "Olive oil\n", (), "should end in .csv, .tsv, .jsonl, .ndjson, .json or .txt"),
    "features": ("a.svm", "1:1\n", TITLE, "holds features, but the model was trained on text"),
    "a workbook": ("a.csv", b"PK\x03\x04rest", TITLE, "save the sheet as CSV"),
    "cut": ("a.csv.gz", GOOD, TITLE, "a.csv.gz: cannot be read"),
    "a column of lines": ("a.txt", "x\n", ("--id", "id"), "each line is a text, and has no column 'id'"),
    "empty": ("a.csv", "", TITLE, "a.csv: is empty"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_read_is_refused_before_anything_is_answered(model: Path, tmp_path: Path, case: str) -> None:
    name, content, asked, says = REFUSED[case]
    path = put(tmp_path / name, content)
    if case == "cut":
        path.write_bytes(path.read_bytes()[:-9])
    kept = put(tmp_path / "out.csv", "mine")
    for more in (("--out", kept), ()):
        code, out, err = predict(model, "--input", path, *asked, *more)
        assert (code, out) == (2, "")
        assert says in err
        assert err.count("\n") == 1
    assert list_left(tmp_path) == sorted([name, "out.csv"])
    assert kept.read_text() == "mine"


def test_a_prediction_that_fails_leaves_no_file(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "a.csv", GOOD + "x,y,z\n" * 3000)
    asked = 0
    predict_stream = Model.predict_stream

    def fail(self: Model, *arguments: Any) -> Iterator[Any]:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise UserError("the second time")
        return predict_stream(self, *arguments)

    monkeypatch.setattr(Model, "predict_stream", fail)
    code, _, err = predict(model, "--input", path, "--column", "title", "--out", tmp_path / "out.csv")
    assert (code, asked) == (2, 2)
    assert "the second time" in err
    assert list_left(tmp_path) == ["a.csv"]


def test_the_input_is_never_replaced_and_the_end_of_out_says_how_to_write(model: Path, tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", GOOD)
    (tmp_path / "link.csv").symlink_to(path)
    os.link(path, tmp_path / "hard.csv")
    for name in ("a.csv", "link.csv", "hard.csv"):
        code, _, err = predict(model, "--input", path, "--column", "title", "--out", tmp_path / name)
        assert code == 2
        assert "would replace the --input" in err
    for name in ("out", "out.xlsx", "out.csv.gz", "out.json"):
        code, _, err = predict(model, "--input", path, "--column", "title", "--out", tmp_path / name)
        assert code == 2
        assert f"{name} should end in .csv, .tsv or .jsonl" in err
    code, _, err = predict(model, "--text", "x", "--column", "title")
    assert code == 2
    assert "name the file with --input" in err
    assert list_left(tmp_path) == ["a.csv", "hard.csv", "link.csv"]
    assert path.read_text() == GOOD


def test_a_guess_is_told(model: Path, tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", "id,title\n1,'Oil, olive'\n2,'Fish, quotas'\n")
    code, out, err = predict(model, "--input", path, "--column", "title")
    assert code == 0
    quote = shlex.quote("'")
    assert f"guessed: --quote {quote}" in err
    assert [json.loads(line)["title"] for line in out.splitlines()] == ["Oil, olive", "Fish, quotas"]


# Models of features, and memory.


def test_a_model_of_features_takes_no_column(tmp_path: Path) -> None:
    drawn = Model(replace(make_bundle(BASE, 5), first_feature=0))
    drawn.save(tmp_path / "model")
    path = put(tmp_path / "a.svm", "1:1 2:1\n3:1\n")
    code, _, err = predict(tmp_path / "model", "--input", path, "--column", "title")
    assert code == 2
    assert "this model was trained on features, not on text: leave --column and --id out" in err
    assert predict(tmp_path / "model", "--input", path, "--out", tmp_path / "out.csv", "--why")[0] == 0
    header, rows = read_table(tmp_path / "out.csv")
    assert header == ["point", "labels", "keys", "scores", "why"]
    assert [row[0] for row in rows] == ["0", "1"]
    code, out, _ = predict(tmp_path / "model", "--input", path)
    assert [json.loads(line)["point"] for line in out.splitlines()] == [0, 1]


def test_records_are_answered_some_after_another() -> None:
    """Memory holds neither all rows nor many long texts."""
    taken = 0

    def rows(count: int, text: str) -> Iterator[Record]:
        nonlocal taken
        for number in range(count):
            taken += 1
            yield Record(number, "", text, {})

    for text, most in (("fish", 1024), ("fish " * 100_000, 9)):
        taken = 0
        found = answer(MODEL, rows(5000, text))
        next(found)
        assert 1 <= taken <= most


PROBE = (
    PEAK
    + """
import sys
from fedmlh.cli import main
sys.argv[0] = "fedmlh"
try:
    main()
finally:
    print(peak())
"""
)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(model: Path, tmp_path: Path) -> None:
    memory = []
    for count in (10_000, 40_000):
        path = put(tmp_path / "a.csv", "id,title,note\n" + "".join(f"{n},fish {n},{'x' * 400}\n" for n in range(count)))
        asked = ["predict", model, "--input", path, "--column", "title", "--out", tmp_path / "out.csv"]
        done = subprocess.run([sys.executable, "-c", PROBE, *asked], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert len(read_table(tmp_path / "out.csv")[1]) == count
        memory.append(float(done.stdout))
    assert memory[1] < memory[0] + 3
