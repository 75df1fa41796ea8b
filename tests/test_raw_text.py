"""Raw text, folders of sites, and the recognition of folders."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_files import X, dense, put, put_npz, put_text
from fedmlh.data.readers.formats import load, read_points
from fedmlh.errors import BadLine, UserError

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


TRAIN = [{"text": "red fish", "labels": ["b", 7]}, {"text": "blue fish", "labels": ["b", "b"]}]
TEST = [{"text": "red bird", "labels": ["c"], "uid": 3}]


@pytest.mark.parametrize("end", ["jsonl", "jsonl.gz"])
def test_text_without_a_catalogue(folder: Path, end: str) -> None:
    data = load(put_text(folder, TRAIN, TEST, end), text_dim=32)
    assert data.labels.keys == data.labels.names == ("7", "b", "c")
    assert dense(data.train.Y) == [[1, 1, 0], [0, 1, 0]]
    assert dense(data.test.Y) == [[0, 0, 1]]
    assert data.notes == (f"trn.{end}: duplicate labels of a point: 1 merged",)
    assert data.text is not None
    assert dense(data.train.X) == dense(data.text.transform(["red fish", "blue fish"]))


def test_text_with_a_catalogue(folder: Path) -> None:
    put_text(folder, TRAIN, TEST, labels__txt="7\tseven\nx\tb\nb\tx\n")
    data = load(folder, text_features="tfidf")
    assert dense(data.train.Y) == [[1, 0, 1], [0, 0, 1]]
    assert data.text is not None
    assert data.text.vocabulary == ("fish",)
    assert data.notes[-1] == "tst.jsonl: labels that labels.txt does not list: 1 left out"
    put(folder, labels__txt="7\tseven\nx\tB\n")
    with pytest.raises(BadLine, match=r"trn.jsonl, line 1: label 'b' is not in labels.txt"):
        load(folder)
    put(folder, labels__txt="x\tb\ny\tb\n7\n")
    with pytest.raises(BadLine, match=r"trn.jsonl, line 1: label 'b' is the name of 2 labels"):
        load(folder)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "is not JSON"),
        ("[1]", "should be a JSON object"),
        ('{"labels": []}', "has no `text`"),
        ('{"text": 3, "labels": []}', "`text` should be a string"),
        ('{"text": "a"}', "has no `labels`"),
        ('{"text": "a", "labels": "b"}', "`labels` should be a list"),
        ('{"text": "a", "labels": [1.5]}', "label 1.5 should be a string or a whole number"),
        ('{"text": "a", "labels": [true]}', "label True should be"),
        ('{"text": "a", "labels": [" "]}', "label ' ' is empty"),
        ('{"text": "a", "labels": ["\\ud800"]}', "is half a character"),
        ("[" * 100_000, "is not JSON"),
        ("9" * 5000, "is not JSON"),
        (b'{"text": "\xff"}', "is not UTF-8"),
    ],
)
def test_text_refusals(folder: Path, line: str | bytes, problem: str) -> None:
    good = b'{"text": "a", "labels": [1]}\n'
    put(folder, trn__jsonl=good, tst__jsonl=good + (line.encode() if isinstance(line, str) else line) + b"\n")
    with pytest.raises(BadLine, match=r"tst\.jsonl, line 2: ") as caught:
        load(folder)
    assert problem in str(caught.value)


def test_gzip_cut_short_or_of_something_else_is_refused(folder: Path) -> None:
    path = put_text(folder, TRAIN, TEST, "jsonl.gz") / "trn.jsonl.gz"
    whole = path.read_bytes()
    for content in (*(whole[:length] for length in range(1, len(whole))), b"plain", whole[:-6] + b"abcdef"):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"trn\.jsonl\.gz"):
            load(folder)


def put_lf(folder: Path, target: Any = 1) -> Path:
    train = [{"uid": "A", "title": "red", "content": "fish", "target_ind": [0, 1], "target_rel": [1.0, 1.0]}]
    test = [{"uid": "B", "title": "blue", "target_ind": [target]}]
    put_text(folder, train, test, "json.gz", filter_labels_test__txt="0 1\n")
    labels = '{"uid": "L0", "title": "zero"}\n{"uid": 5, "title": " "}\n'
    return put(folder, **{"lbl.json.gz": labels})


def test_lf_folder(folder: Path) -> None:
    data = load(put_lf(folder), text_dim=64)
    assert (data.labels.keys, data.labels.names) == (("L0", "5"), ("zero", "5"))
    assert dense(data.train.Y) == [[1, 1]]
    assert dense(data.test.Y) == [[0, 1]]
    assert data.train.excluded is None
    assert dense(data.test.excluded) == [[0, 1]]
    assert data.text is not None
    assert dense(data.train.X) == dense(data.text.transform(["red fish"]))


def test_lf_refusals(folder: Path) -> None:
    for target in (2, -1, 1.0, "1", True):
        with pytest.raises(BadLine, match=r"tst\.json\.gz, line 1: target_ind"):
            load(put_lf(folder, target))
    put_lf(folder)
    (folder / "lbl.json.gz").write_bytes(gzip.compress(b'{"uid": "a"}\n{"uid": "a"}\n'))
    with pytest.raises(BadLine, match=r"lbl\.json\.gz, line 2: the uid 'a' is taken"):
        load(folder)
    (folder / "lbl.json.gz").unlink()
    with pytest.raises(UserError, match=r"lbl\.json\.gz should stand beside"):
        load(folder)


def test_sites_of_numbers(folder: Path) -> None:
    put_npz(folder / "north")
    put(folder / "south", train__txt="1 3 2\n1 0:9\n", test__txt="0 3 2\n", filter_labels_train__txt="0 0\n")
    data = load(folder)
    assert data.site_names == ("north", "south")
    assert data.train.sites is not None
    assert data.train.sites.tolist() == [0, 0, 1]
    assert dense(data.train.X) == [*X.toarray().tolist(), [9, 0, 0]]
    assert data.train.excluded.toarray().tolist() == [[0, 0], [0, 0], [1, 0]]
    assert len(data.test) == 1
    put(folder / "south", train__txt="1 4 2\n1 0:9\n", test__txt="0 4 2\n")
    with pytest.raises(UserError, match="site north has 3 features, site south has 4"):
        load(folder)
    put(folder / "south", train__txt="1 3 2\n1 0:9\n", test__txt="0 3 2\n", labels__txt="a\nb\n")
    with pytest.raises(UserError, match="should list the same labels in the same order"):
        load(folder)
    put_text(folder / "west", TRAIN, TEST)
    put(folder / "south", labels__txt="0\n1\n")
    with pytest.raises(UserError, match="should both be text or both be features"):
        load(folder)


def test_sites_of_text_unite_their_labels(folder: Path) -> None:
    put_text(folder / "b", [{"text": "red fish", "labels": ["z", "m"]}], TEST)
    put_text(folder / "a", TRAIN, TEST, labels__txt="b\tBee\nc\n7\n")
    data = load(folder, text_features="tfidf")
    assert (data.labels.keys, data.labels.names) == (("7", "b", "c", "m", "z"), ("7", "Bee", "c", "m", "z"))
    assert dense(data.train.Y) == [[1, 1, 0, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0, 1, 1]]
    assert data.test.sites is not None
    assert data.test.sites.tolist() == [0, 1]
    assert data.notes == ("a/trn.jsonl: duplicate labels of a point: 1 merged",)
    assert data.text is not None
    assert "red fish" in data.text.vocabulary


def test_folders_that_are_not_data_sets(folder: Path) -> None:
    for path, problem in ((folder / "none", "no such folder"), (Path(__file__), "should be a folder")):
        with pytest.raises(UserError, match=problem):
            load(path)
    with pytest.raises(UserError, match=r"no data set recognised; looked for X\.trn\.npz"):
        load(folder)
    with pytest.raises(UserError, match="there is no reader 'csv': choose one of npz, xmc, svmlight, text"):
        load(folder, data_format="csv")
    with pytest.raises(UserError, match="text features 'bert'"):
        load(folder, text_features="bert")
    with pytest.raises(UserError, match="text dimension 0"):
        load(folder, text_dim=0)
    (put_npz(folder / "one").parent / "two").mkdir()
    with pytest.raises(UserError, match=r"two: no data set recognised, though one beside it is one"):
        load(folder)
    put(folder, train__txt="1 1 1\n\n", filter_labels_test__txt="")
    with pytest.raises(UserError, match=r"train\.txt is there, but no test file"):
        load(folder)
    with pytest.raises(UserError, match="in the format svmlight"):
        load(folder / "one", data_format="svmlight")
    put(folder, trn__jsonl="", train__jsonl="", tst__jsonl="")
    with pytest.raises(UserError, match=r"which is the training file, train\.jsonl or trn\.jsonl"):
        load(folder, data_format="text")


def test_text_is_no_points_of_a_model_of_features(folder: Path) -> None:
    put(folder, a__jsonl='{"text": "red"}\n')
    with pytest.raises(UserError, match="holds text, but the model was trained on features"):
        read_points(folder / "a.jsonl", num_features=3)


@pytest.mark.parametrize(
    ("name", "train", "test", "d", "p"),
    [
        ("Bibtex", 4880, 2515, 1836, 159),
        ("Delicious", 12920, 3185, 500, 983),
        ("CiteULike-T-46K", 20755, 5189, 20000, 46227),
        ("EurLex-EuroVoc-titles-4K", 17028, 4257, 6865, 4072),
        ("TIBKAT-GND-en-21K", 36354, 5851, 47995, 21264),
    ],
)
def test_real_folders(name: str, train: int, test: int, d: int, p: int) -> None:
    if not (SHARED / name).is_dir():
        pytest.skip(f"{SHARED / name} is not on this machine")
    data = load(SHARED / name)
    assert (len(data.train), len(data.test), data.num_features, data.num_labels) == (train, test, d, p)
    for split in (data.train, data.test):
        for matrix in (split.X, split.Y):
            assert matrix.has_canonical_format
            assert matrix.dtype == np.float32
    if (SHARED / name / "trn.jsonl.gz").is_file():
        text = load(SHARED / name, data_format="text")
        for mine, prepared in ((text.train, data.train), (text.test, data.test)):
            assert (mine.Y != prepared.Y).nnz == 0
