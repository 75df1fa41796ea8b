"""A data reader from outside: named, recorded and cached like our own, and what it gives is checked like a file."""

import os
import time
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from command_line import call
from fedmlh import parts
from fedmlh.config import Config
from fedmlh.data.dataset import Labels
from fedmlh.data.readers.formats import load
from fedmlh.data.readers.layout import Reader
from fedmlh.data.readers.raw import RawFolder, RawPart
from fedmlh.errors import UserError

EXAMPLE = Path(__file__).parent / "examples" / "own_reader.py"
TABLE = {"train.csv": "0,1,0,0.5\n1,0,2,0\n2,3,0,0\n", "test.csv": "1,0,1,0\n", "labels.txt": "x\ny\nz\n"}
#: The same points as a format of ours.
XMC = {"train.txt": "3 3 3\n0 0:1 2:0.5\n1 1:2\n2 0:3\n", "test.txt": "1 3 3\n1 1:1\n", "labels.txt": "x\ny\nz\n"}


def put(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return put(tmp_path / "table", TABLE)


def test_it_reads_what_a_reader_of_ours_reads(table, tmp_path):
    parts.load_parts(EXAMPLE)
    ours = load(put(tmp_path / "xmc", XMC))
    assert load(table, data_format="csv").fingerprint == ours.fingerprint
    assert (
        load(table, data_format="csv", training_only=True).train.X.toarray().tolist() == ours.train.X.toarray().tolist()
    )


def test_it_is_taken_only_where_it_is_named(table):
    """What reads the data stands in the config, with its hash."""
    parts.load_parts(EXAMPLE)
    with pytest.raises(UserError, match="no data set recognised; looked for"):
        load(table)
    with pytest.raises(UserError, match=r"there is no reader 'cvs': .*did you mean 'csv'"):
        load(table, data_format="cvs")
    (recorded,) = Config(data_format="csv").foreign
    assert (recorded["setting"], recorded["origin"]) == ("data_format", "own_reader.py")


def test_every_command_for_data_takes_it(table, tmp_path, capsys):
    given = ("--parts", EXAMPLE, "--format", "csv")
    assert call("data", "info", table, *given) == 0
    assert "table" in capsys.readouterr().out
    assert call("data", "convert", table, tmp_path / "npz", *given) == 0
    assert load(tmp_path / "npz").fingerprint == load(table, data_format="csv").fingerprint
    assert call("plan", "--data", table, "--clients", 1, *given) == 0


def test_a_run_records_it_and_its_folder_asks_for_it(table, tmp_path, capsys, forget_parts):
    settings = (
        "--set",
        "data_format=csv",
        "--set",
        "num_buckets=2",
        "--set",
        "partition=iid",
        "--set",
        "num_clients=1",
    )
    more = (
        "--set",
        "clients_per_round=1",
        "--rounds",
        1,
        "--out",
        tmp_path / "run",
        "--set",
        "validation_fraction=0.4",
    )
    assert call("run", "demo", "--parts", EXAMPLE, "--data", table, *settings, *more) == 0
    forget_parts()
    capsys.readouterr()
    assert call("eval", tmp_path / "run") == 2
    assert "the reader 'csv' comes from own_reader.py: load that file first (fedmlh.load_parts, --parts)" in " ".join(
        capsys.readouterr().err.split()
    )


def test_sites_in_folders_of_their_own_are_one_data_set(tmp_path):
    parts.load_parts(EXAMPLE)
    for site in ("north", "south"):
        put(tmp_path / "sites" / site, TABLE)
    data = load(tmp_path / "sites", data_format="csv")
    assert (data.site_names, len(data.train)) == (("north", "south"), 6)


def age(folder: Path) -> None:
    """Make files look as if they had been left alone for a while."""
    for path in folder.iterdir():
        os.utime(path, (time.time() - 60,) * 2)


def test_its_files_are_read_once_and_again_by_another_one(table, tmp_path):
    age(table)
    read = []

    def load_from(text: str) -> None:
        file = tmp_path / "own_reader.py"
        file.write_text(EXAMPLE.read_text() + text)
        parts.load_parts(file)
        reader = parts._parts["reader", "csv"]
        parts._parts["reader", "csv"] = Reader(reader.find, lambda layout: read.append(layout) or reader.read(layout))
        load(table, data_format="csv")
        load(table, data_format="csv")

    load_from("")
    assert len(read) == 1
    load_from("# changed\n")
    assert len(read) == 2


def test_without_the_test_part_its_files_stay_closed(table):
    parts.load_parts(EXAMPLE)
    (table / "test.csv").write_text("not a table\n")
    assert len(load(table, data_format="csv", training_only=True).train) == 3
    with pytest.raises(
        UserError, match=r"table: the reader 'csv' failed \(own_reader.py, line 16\): ValueError: could not"
    ):
        load(table, data_format="csv")


def csr(*rows) -> csr_matrix:
    return csr_matrix(np.array(rows, np.float32))


def broken(matrix: csr_matrix, place: int) -> csr_matrix:
    """Make a matrix that points beyond itself."""
    matrix.indices[1] = place
    return matrix


X, Y, LABELS = csr([1, 0, 2]), csr([1, 0]), Labels.numbered(2)
GOOD = RawPart(X, Y)


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (None, "gave NoneType, and should give a fedmlh.RawFolder"),
        (RawFolder(X, GOOD, LABELS), "training part: is csr_matrix, and should be a fedmlh.RawPart"),
        (RawFolder(RawPart(csr([1, np.nan, 0]), Y), GOOD, LABELS), "a feature value is NaN"),
        (RawFolder(RawPart(X.astype(np.float64) * 1e300, Y), GOOD, LABELS), "too large for a 32-bit float"),
        (RawFolder(RawPart(X.toarray(), Y), GOOD, LABELS), "points should be a scipy csr_matrix or a list of texts"),
        (RawFolder(RawPart(broken(csr([1, 0, 1]), 7), Y), GOOD, LABELS), "a column number is outside 0 to 2"),
        (
            RawFolder(GOOD, RawPart(X, broken(csr([1, 1]), -1)), LABELS),
            "test part: Y: a column number is outside 0 to 1",
        ),
        (RawFolder(RawPart(csr([1, 0, 2], [0, 0, 0]), Y), GOOD, LABELS), "a row per point and a column per label"),
        (RawFolder(GOOD, RawPart(X, csr([1, 0, 0])), LABELS), "a row per point and a column per label"),
        (RawFolder(GOOD, RawPart(X, csr([0.5, 0])), LABELS), "labels are 0 or 1"),
        (RawFolder(GOOD, RawPart(csr([1, 0]), Y), LABELS), "the training part has 3 features, the test part 2"),
        (RawFolder(GOOD, RawPart(["a text"], Y), LABELS), "both be text or both be features"),
        (RawFolder(RawPart([1], Y), RawPart(["text"], Y), LABELS), "points should be texts"),
        (RawFolder(RawPart(["\ud800"], Y), RawPart(["text"], Y), LABELS), "half a character"),
        (RawFolder(GOOD, GOOD, ("a", "b")), "labels are tuple, and should be fedmlh.Labels"),
        (RawFolder(GOOD, GOOD, Labels(("a", "a"), ("a", "b"))), "each label should have a key of its own"),
        (RawFolder(GOOD, GOOD, Labels(("a", 1), ("a", "b"))), "labels should be texts"),
        (RawFolder(RawPart(X[:0], Y[:0]), GOOD, LABELS), "the training part has no points"),
        (RawFolder(RawPart(X, Y, csr([1])), GOOD, LABELS), "excluded should be"),
        (
            RawFolder(RawPart(X, Y, None, np.array([1])), RawPart(X, Y, None, np.array([0])), LABELS, (), ("a",)),
            "site 1",
        ),
        (RawFolder(GOOD, GOOD, LABELS, (), ("a",)), "sites should be an array"),
        (RawFolder(GOOD, GOOD, LABELS, (), ("a", "a")), "two of its site_names are the same"),
        (RawFolder(GOOD, GOOD, LABELS, first_feature=2), "first_feature is 2"),
    ],
)
def test_what_it_gives_is_checked_like_a_file(table, raw, says):
    parts.register("reader", "given", Reader(lambda folder, names: (("train.csv",), ("test.csv",)), lambda layout: raw))
    with pytest.raises(UserError) as refusal:
        load(table, data_format="given")
    assert says in str(refusal.value)
    assert "Traceback" not in str(refusal.value)


def test_what_a_file_may_hold_it_may_give_as_well(table):
    """Duplicates, zeros, other number types, texts, owners of points."""
    doubled = csr_matrix((np.array([1, 2, 0]), np.array([2, 2, 0]), np.array([0, 3])), shape=(1, 3))
    raw = RawFolder(
        RawPart(doubled, csr_matrix(([True, True, False], [1, 1, 0], [0, 3]), (1, 2)), None, np.array([1])),
        RawPart(X, Y, csr([1, 0]), np.array([0])),
        LABELS,
        ("a note",),
        ("north", "south"),
    )
    parts.register("reader", "given", Reader(lambda folder, names: (("train.csv",), ("test.csv",)), lambda layout: raw))
    data = load(table, data_format="given")
    assert data.train.X.toarray().tolist() == [[0, 0, 3]]
    assert data.train.Y.toarray().tolist() == [[0, 1]]
    assert data.notes[0] == "a note"
    assert [note.rpartition(": ")[2] for note in data.notes[1:]] == ["1 summed", "1 merged"]
    assert (data.site_names, data.train.sites.tolist()) == (("north", "south"), [1])
    text = RawFolder(RawPart(["red fish"], Y), RawPart(["blue fish"], Y), LABELS)
    parts.register("reader", "text too", Reader(lambda *_: (("train.csv",), ("test.csv",)), lambda layout: text))
    assert load(table, data_format="text too", text_dim=64).num_features == 64


@pytest.mark.parametrize(
    ("found", "says"),
    [((("nothing.csv",), ("test.csv",)), "nothing.csv: is not a file"), (7, "the reader 'finding' failed")],
)
def test_what_it_finds_must_be_files(table, found, says):
    parts.register("reader", "finding", Reader(lambda folder, names: found, lambda layout: None))
    with pytest.raises(UserError, match=says):
        load(table, data_format="finding")


def test_a_reader_is_not_called_auto():
    with pytest.raises(UserError, match="choose another name"):
        parts.register("reader", "auto", Reader(lambda folder, names: None, lambda layout: None))
