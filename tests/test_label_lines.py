"""A labels.txt in Annif's form means what it means to Annif, in every format; other lines mean what they always did."""

from pathlib import Path

import pytest

from data_files import put, put_npz, put_text
from fedmlh.data.dataset import Dataset, Labels
from fedmlh.data.readers.convert import write
from fedmlh.data.readers.formats import load
from fedmlh.data.readers.label_lines import split_label
from fedmlh.errors import UserError

ANNIF = "<http://x.org/1>\tolive oil\t633.85\n<urn:x:2>\tsea fish\n"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("<http://x.org/1>\tolive oil\t633.85", ("http://x.org/1", "olive oil", "633.85")),
        ("<http://x.org/1>\tolive oil", ("http://x.org/1", "olive oil", "")),
        ("<http://x.org/1>\t\t633.85", ("http://x.org/1", "http://x.org/1", "633.85")),
        ("<http://x.org/1>", ("http://x.org/1", "http://x.org/1", "")),
        ("http://x.org/1\tolive oil\t633.85", ("http://x.org/1", "olive oil", "633.85")),
        # Our own form.
        ("http://x.org/1\tolive oil", ("http://x.org/1", "olive oil", "")),
        ("12\tolive oil", ("12", "olive oil", "")),
        ("12\tolive\toil", ("12", "olive\toil", "")),
        ("olive oil", ("olive oil", "olive oil", "")),
        ("olive oil\t ", ("olive oil", "olive oil", "")),
        ("<none>\tno subject\tx", ("<none>", "no subject\tx", "")),
        ("a: b\tc\td", ("a: b", "c\td", "")),
        ("see:also\tc\td", ("see:also", "c\td", "")),
        ("\tname", ("", "name", "")),
    ],
)
def test_a_line_says(line: str, said: tuple[str, str, str]) -> None:
    assert split_label(line) == said


def test_every_format_reads_annifs_form(tmp_path: Path) -> None:
    named = Labels(("http://x.org/1", "urn:x:2"), ("olive oil", "sea fish"))
    put(tmp_path / "xmc", train__txt="1 2 2\n1 0:1\n", test__txt="1 2 2\n0 1:1\n", labels__txt=ANNIF)
    put(tmp_path / "svmlight", train__svm="1 1:1\n", test__svm="0 2:1\n", labels__txt=ANNIF)
    put(put_npz(tmp_path / "npz"), labels__txt=ANNIF)
    # With brackets or without, by key or by name.
    train = [{"text": "a", "labels": ["<http://x.org/1>"]}, {"text": "b", "labels": ["urn:x:2", "olive oil"]}]
    put_text(tmp_path / "text", train, train[:1], labels__txt=ANNIF)
    for folder in sorted(tmp_path.iterdir()):
        if folder.name == "cache":
            continue
        assert load(folder).labels == named, folder
    assert load(tmp_path / "text").train.Y.toarray().tolist() == [[1, 0], [1, 1]]


def test_no_labels_are_written_that_would_be_read_otherwise(tmp_path: Path) -> None:
    for key, name in (("<http://x.org/1>", "olive oil"), ("http://x.org/1", "olive\toil")):
        data = Dataset.from_arrays([[1.0], [2.0]], [[0], [0]], test=0.5)
        odd = Dataset(data.name, data.train, data.test, Labels((key,), (name,)))
        with pytest.raises(UserError, match="a reader would take it for Annif's form"):
            write(odd, tmp_path / "out", "npz")
    kept = Dataset(data.name, data.train, data.test, Labels(("x",), ("olive\toil",)))
    write(kept, tmp_path / "out", "npz")
    assert load(tmp_path / "out").labels == kept.labels
