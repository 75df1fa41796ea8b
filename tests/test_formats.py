"""Data files of every format: what they mean, what is done on purpose, and what is refused, with its line."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from data_files import X, dense, put, put_npz, put_text
from fedmlh.data.readers.formats import load, read_points
from fedmlh.errors import BadLine, UserError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def test_xmc_folder(folder: Path) -> None:
    put(folder, train__txt="3 4 2\n0,1 3:1.5 0:2\n\n 1:4\n", test__txt="1 4 2\r\n1 2:1\r\n", labels__txt="a\tA\nb\n")
    data = load(folder)
    assert dense(data.train.X) == [[2, 0, 0, 1.5], [0, 0, 0, 0], [0, 4, 0, 0]]
    assert dense(data.train.Y) == [[1, 1], [0, 0], [0, 0]]
    assert dense(data.test.X) == [[0, 0, 1, 0]]
    assert (data.labels.keys, data.labels.names, data.notes) == (("a", "b"), ("A", "b"), ())


def test_on_purpose_duplicates_zeros_and_a_missing_end(folder: Path) -> None:
    put(folder, a_train__txt="2 4 3\n2,2,1 1:1 0:3 1:2 2:0\n0 3:1 3:-1\n", a_test__txt="1 4 3\n0 1:1")
    data = load(folder)
    assert dense(data.train.X) == [[3, 3, 0, 0], [0, 0, 0, 0]]
    assert dense(data.train.Y) == [[0, 1, 1], [1, 0, 0]]
    assert data.labels.keys == ("0", "1", "2")
    assert data.notes == (
        "a_test.txt: the last line does not end; was the file cut short?",
        "a_train.txt: duplicate features in a point: 2 summed",
        "a_train.txt: duplicate labels of a point: 1 merged",
    )


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "line 1: should be `points features labels`"),
        ("1 0:2\n", "line 1: should be `points features labels`, is '1 0:2'; a file that has no such header"),
        ("1 4\n1 0:2\n", "line 1: should be"),
        ("-1 4 2\n1 0:2\n", "line 1: should be"),
        ("1 4 99999999999\n1 0:2\n", "line 1: number of labels '99999999999' is not below"),
        ("1 3 2\n1 0:2\n", "4 features and 2 labels, the test file's 3 and 2"),
        ("2 4 2\n1 0:2\n", "header promises 2 points, the file has 1"),
        ("1 4 2\n1 0:2\n\n", "line 3: the header promises 1 points, and here is one more"),
        ("2 4 2\n1 0:2\n1 4:1\n", "line 3: feature '4' is not below 4"),
        ("2 4 2\n1 0:2\n2 3:1\n", "line 3: label '2' is not below 2"),
        ("0 4 2\n", "the test part has no points"),
        ("1 4 2\n1 0:3e38 0:3e38\n", "too large for a 32-bit float"),
    ],
)
def test_xmc_refusals(folder: Path, content: str, problem: str) -> None:
    put(folder, train__txt="1 4 2\n1 0:2\n", test__txt=content)
    with pytest.raises(UserError) as caught:
        load(folder)
    assert problem in str(caught.value)


def test_xmc_cut_short_is_refused_or_parsed_to_the_letter(folder: Path) -> None:
    whole = "4 9 9\n1,2 3:0.5 4:1.25\n\n8 1:2\n3,4 5:0.75 8:1.5\n"
    for length in range(len(whole)):
        put(folder, train__txt=whole[:length], test__txt=whole)
        if length <= whole.index("3,4"):
            with pytest.raises(UserError):
                load(folder)
            continue
        try:
            data = load(folder)
        except BadLine as problem:
            error = str(problem)
        else:
            error = "line 5"
            assert any("cut short" in note for note in data.notes)
            assert (data.train.X[:3] != data.test.X[:3]).nnz == 0
        assert "line 5" in error


@pytest.mark.parametrize(
    ("names", "train", "test"),
    [
        (("train.txt", "test.txt"), "2 3 2\n0,1 2:1.5\n 0:4\n", "1 3 2\n1 1:1\n"),
        (("a_train.txt", "a_test.txt"), "2 3 2\n0,1 2:1.5\n 0:4\n", "1 3 2\n1 1:1\n"),
        (("train.svm", "test.svm"), "0,1 2:1.5\n 0:4\n", "1 1:1\n"),
    ],
)
def test_packed_text_is_read_as_what_it_holds(folder: Path, names: tuple[str, str], train: str, test: str) -> None:
    plain = load(put(folder / "plain", **{names[0]: train, names[1]: test}))
    packed = load(put(folder / "packed", **{f"{names[0]}.gz": train, f"{names[1]}.gz": test}))
    assert dense(plain.train.X) == [[0, 0, 1.5], [4, 0, 0]]
    assert packed.fingerprint == plain.fingerprint
    points = read_points(folder / "packed" / f"{names[1]}.gz", num_features=3, first_feature=0)
    assert dense(points) == [[0, 1, 0]]
    cut = folder / "packed" / f"{names[0]}.gz"
    cut.write_bytes(cut.read_bytes()[:-9])
    with pytest.raises(UserError, match="cut short"):
        load(folder / "packed")


APART = {
    "trn_X_Xf.txt": "3 4\n3:1.5 0:2\n\n1:4 1:1\n",
    "trn_X_Y.txt": "3 2\n0:1.00000 1:1\n1:1 1:1\n\n",
    "tst_X_Xf.txt": "1 4\r\n2:1\r\n",
    "tst_X_Y.txt": "1 2\n1:1\n",
}


@pytest.mark.parametrize("end", ["", ".gz"])
def test_features_and_labels_in_files_of_their_own(folder: Path, end: str) -> None:
    put(folder, filter_labels_test__txt="0 0\n", labels__txt="a\tA\nb\n", **{n + end: c for n, c in APART.items()})
    data = load(folder)
    assert dense(data.train.X) == [[2, 0, 0, 1.5], [0, 0, 0, 0], [0, 5, 0, 0]]
    assert dense(data.train.Y) == [[1, 1], [0, 1], [0, 0]]
    assert dense(data.test.X) == [[0, 0, 1, 0]]
    assert data.test.excluded is not None
    assert dense(data.test.excluded) == [[1, 0]]
    assert data.labels.names == ("A", "b")
    assert data.notes == (
        f"trn_X_Xf.txt{end}: duplicate features in a point: 1 summed",
        f"trn_X_Y.txt{end}: duplicate labels of a point: 1 merged",
    )
    assert load(folder, data_format="xmc").fingerprint == data.fingerprint
    with pytest.raises(UserError, match="no data set recognised in the format svmlight"):
        load(folder, data_format="svmlight")


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("tst_X_Xf.txt", "1 4 2\n2:1\n", "tst_X_Xf.txt, line 1: should be `points features`, is '1 4 2'"),
        ("tst_X_Xf.txt", "1 3\n2:1\n", "say 4 features and 2 labels, the test files' 3 and 2"),
        ("tst_X_Y.txt", "1 3\n2:1\n", "say 4 features and 2 labels, the test files' 4 and 3"),
        ("tst_X_Y.txt", "2 2\n1:1\n\n", "tst_X_Y.txt: 2 points, but tst_X_Xf.txt has 1"),
        ("tst_X_Y.txt", "1 2\n1:0.5\n", "tst_X_Y.txt: the value of a label is 1, and one is not"),
        ("tst_X_Y.txt", "1 2\n2:1\n", "tst_X_Y.txt, line 2: feature '2' is not below 2"),
        ("tst_X_Y.txt", "1 2\n1\n", "tst_X_Y.txt, line 2: should be `column:value` only"),
        ("trn_X_Xf.txt", "3 4\n3:1\n1:1\n2 1:1\n", "trn_X_Xf.txt, line 4: should be `column:value` only"),
        ("trn_X_Y.txt", "2 2\n1:1\n1:1\n1:1\n", "trn_X_Y.txt, line 4: the header promises 2 points"),
    ],
)
def test_files_apart_refusals(folder: Path, name: str, content: str, problem: str) -> None:
    put(folder, **{**APART, name: content})
    with pytest.raises(UserError) as caught:
        load(folder)
    assert problem in str(caught.value)


def test_svmlight_agrees_with_scikit_learn(folder: Path) -> None:
    from sklearn.datasets import load_svmlight_file

    rng = np.random.default_rng(0)

    def draw(n: int) -> str:
        lines = ["# drawn"]
        for _ in range(n):
            labels = ",".join(map(str, rng.choice(9, rng.integers(1, 4), replace=False)))
            features = np.sort(rng.choice(np.arange(1, 30), rng.integers(1, 9), replace=False))
            lines.append(labels + "".join(f" {f}:{rng.normal():.6g}" for f in features) + " # end")
        return "\n".join(lines) + "\n"

    put(folder, train__svm=draw(60), test__svm=draw(30))
    data = load(folder)
    for name, split in (("train.svm", data.train), ("test.svm", data.test)):
        theirs, labels = load_svmlight_file(
            str(folder / name), multilabel=True, n_features=data.num_features, zero_based=False, dtype=np.float32
        )
        assert dense(split.X) == theirs.toarray().tolist()
        assert [row.indices.tolist() for row in split.Y] == [sorted(map(int, row)) for row in labels]


def test_svmlight_base_is_recognised_over_both_parts(folder: Path) -> None:
    data = load(put(folder, train__svm="0 1:1\n", test__svm="0 2:1\n"))
    assert dense(data.train.X) == [[1, 0]]
    data = load(put(folder, train__svm="0 1:1\n", test__svm="0 0:1\n"))
    assert dense(data.train.X) == [[0, 1]]


def test_svmlight_labels_file_says_how_many(folder: Path) -> None:
    put(folder, x_train__txt="1 1:1\n", x_test__txt="0 2:1\n", labels__txt="a\nb\nc\n")
    assert load(folder, data_format="svmlight").num_labels == 3
    put(folder, x_test__txt="0 2:1\n# no\n\n3 2:1\n")
    with pytest.raises(BadLine, match=r"x_test.txt, line 4: label '3' is not below 3"):
        load(folder, data_format="svmlight")
    with pytest.raises(BadLine, match=r"x_train.txt, line 1: should be `points features labels`"):
        load(folder)


def test_svmlight_refuses_qid_and_emptiness(folder: Path) -> None:
    with pytest.raises(BadLine, match=r"train.svm, line 2: qid"):
        load(put(folder, train__svm="0 1:1\n1 qid:4 1:2\n", test__svm="0 2:1\n"))
    with pytest.raises(UserError, match="the training part has no points"):
        load(put(folder, train__svm="# nothing\n", test__svm="0 2:1\n"))
    with pytest.raises(UserError, match="0 features"):
        load(put(folder, train__svm="1\n", test__svm="2\n"))


def test_npz_folder_wins_over_text(folder: Path) -> None:
    put_text(put_npz(folder), [{"text": "a", "labels": []}], [{"text": "b", "labels": []}])
    put(folder, labels__txt="k0\tzero\nk1\t\n")
    data = load(folder)
    assert (data.name, data.text) == ("data", None)
    assert dense(data.train.X) == X.toarray().tolist()
    assert dense(data.test.Y) == [[1, 1]]
    assert data.labels.names == ("zero", "k1")
    text = load(folder, data_format="text", text_dim=16)
    assert text.num_features == 16


def test_npz_duplicates_and_zeros(folder: Path) -> None:
    messy = csr_matrix((np.array([1.0, 2.0, 0.0]), np.array([2, 2, 0]), np.array([0, 3, 3])), shape=(2, 3))
    labels = csr_matrix((np.array([1, 1, 0]), np.array([1, 1, 0]), np.array([0, 2, 3])), shape=(2, 2))
    data = load(put_npz(folder, X_trn=messy, Y_trn=labels))
    assert dense(data.train.X) == [[0, 0, 3], [0, 0, 0]]
    assert dense(data.train.Y) == [[0, 1], [0, 0]]
    assert [note[:10] for note in data.notes] == ["X.trn.npz:", "Y.trn.npz:"]


GOOD = {"format": b"csr", "shape": (1, 3), "data": np.ones(2), "indices": np.array([0, 2]), "indptr": [0, 2]}


@pytest.mark.parametrize(
    "change",
    [
        {"format": b"csc"},
        {"format": np.array([b"csr", b"csr"])},
        {"shape": (1, 3, 1)},
        {"shape": (-1, 3)},
        {"shape": (2, 3)},
        {"shape": (1, 2)},
        {"shape": (1, 2**31)},
        {"shape": (1.0, 3.0)},
        {"data": np.array([1.0, np.nan])},
        {"data": np.array([1.0, np.inf])},
        {"data": np.array([1.0, 1e39])},
        {"data": np.array(["1", "2"])},
        {"data": np.array([1j, 2])},
        {"data": np.ones(3)},
        {"data": np.ones((2, 1))},
        {"indices": np.array([0, -1])},
        {"indices": np.array([0.0, 2.0])},
        {"indptr": [1, 2]},
        {"indptr": [0, 3]},
        {"indptr": [0, 5, 2]},
        {"indptr": np.zeros(0, int)},
    ],
)
def test_npz_refusals(folder: Path, change: dict[str, Any]) -> None:
    np.savez(put_npz(folder) / "X.tst.npz", **{**GOOD, **change})
    with pytest.raises(UserError, match=r"X\.tst\.npz") as caught:
        load(folder)
    assert len(str(caught.value).splitlines()) == 1


def test_npz_with_objects_or_missing_parts_is_refused(folder: Path) -> None:
    np.savez(put_npz(folder) / "X.tst.npz", data=np.array([{}], object), allow_pickle=True)
    with pytest.raises(UserError, match=r"X\.tst\.npz: should be a CSR matrix"):
        load(folder)
    np.savez(folder / "X.tst.npz", **{**GOOD, "data": np.array([{}, {}], object)}, allow_pickle=True)
    with pytest.raises(UserError, match="allow_pickle=False"):
        load(folder)
    np.savez(folder / "X.tst.npz", **{name: content for name, content in GOOD.items() if name != "data"})
    with zipfile.ZipFile(folder / "X.tst.npz", "a") as archive, archive.open("data.npy", "w") as member:
        np.save(member, np.ones(2))
        member.write(b"more")
    with pytest.raises(UserError, match="data is longer than it says"):
        load(folder)
    (folder / "X.tst.npz").write_bytes(b"\x93NUMPY junk")
    with pytest.raises(UserError, match=r"X\.tst\.npz: cannot be read"):
        load(folder)
    (folder / "X.tst.npz").unlink()
    with pytest.raises(UserError, match=r"X\.tst\.npz should stand beside"):
        load(folder)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"X_tst": csr_matrix((1, 4))}, "3 features, the test part 4"),
        ({"Y_tst": csr_matrix((1, 3))}, "2 labels, the test part 3"),
        ({"Y_tst": csr_matrix((2, 2))}, "2 rows, but X.tst.npz has 1"),
        ({"Y_tst": csr_matrix(np.array([[0.5, 1]]))}, "labels are 0 or 1"),
    ],
)
def test_npz_parts_that_disagree(folder: Path, changes: dict[str, csr_matrix], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        load(put_npz(folder, **changes))


def test_npz_cut_short_or_changed_never_passes(folder: Path) -> None:
    whole = (put_npz(folder) / "X.trn.npz").read_bytes()
    for length in range(0, len(whole), 11):
        (folder / "X.trn.npz").write_bytes(whole[:length])
        with pytest.raises(UserError):
            load(folder)
    rng = np.random.default_rng(0)
    for place in rng.integers(len(whole), size=200):
        (folder / "X.trn.npz").write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            data = load(folder)
        except UserError:
            continue
        assert dense(data.train.X) == X.toarray().tolist()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("a\n", "names 1 labels, the data has 2"),
        ("a\tA\na\tB\n", "line 2: the key 'a' is taken"),
        ("a\n\n", "line 2: should be `key<TAB>name`"),
        ("a\n\tB\n", "line 2: should be `key<TAB>name`"),
        (b"a\n\xff\xfe\n", "line 2: is not UTF-8"),
        ("", "names no label"),
    ],
)
def test_labels_file_refusals(folder: Path, content: str | bytes, problem: str) -> None:
    put(put_npz(folder), labels__txt=content)
    with pytest.raises(UserError, match=problem):
        load(folder)


def test_filter_files(folder: Path) -> None:
    put(put_npz(folder), filter_labels_train__txt="1 0\n0 1\n1 0\n", filter_labels_test__txt="")
    data = load(folder)
    assert data.train.excluded.toarray().tolist() == [[0, 1], [1, 0]]
    assert data.test.excluded.nnz == 0
    for bad, problem in (("2 0", "point '2' is not below 2"), ("0 1 2", "should be `point label`"), ("0 x", "label")):
        put(folder, filter_labels_train__txt=f"0 0\n{bad}\n")
        with pytest.raises(BadLine, match=f"filter_labels_train.txt, line 2: {problem}"):
            load(folder)


def test_read_points_of_numbers(folder: Path) -> None:
    put(put_npz(folder), a__txt="1 3 0\n 2:1\n", b__svm="0:1\n1 2:4\n", c__svm="1:1 3:2\n", d__txt="2:1\n", e__x="")
    assert dense(read_points(folder / "X.trn.npz", num_features=3)) == X.toarray().tolist()
    assert dense(read_points(folder / "a.txt", num_features=3)) == [[0, 0, 1]]
    assert dense(read_points(folder / "b.svm", num_features=3)) == [[1, 0, 0], [0, 0, 4]]
    assert dense(read_points(folder / "c.svm", num_features=3)) == [[1, 0, 2]]
    assert dense(read_points(folder / "d.txt", num_features=3, first_feature=1)) == [[0, 1, 0]]
    for name, settings, problem in (
        ("d.txt", {"num_features": 3}, "nothing in it tells whether features count from 0 or from 1"),
        ("b.svm", {"num_features": 2}, "has a feature 2, the model was trained on 2 features"),
        ("b.svm", {"num_features": 3, "first_feature": 1}, "has a feature 0"),
        ("a.txt", {"num_features": 4}, "has 3 features, the model was trained on 4"),
        ("e.x", {}, "should end in"),
        ("none.svm", {}, "should be a file"),
    ):
        with pytest.raises(UserError, match=problem):
            read_points(folder / name, **settings)
