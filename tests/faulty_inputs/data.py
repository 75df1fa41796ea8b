"""Damaged data: by chance, and by hand."""

import gzip
import json
import re
import shutil
import zipfile

import numpy as np

from faulty_inputs.cases import Cases, append, cut, flip, garble, lose, repeat, swap
from faulty_inputs.plain_reading import plain_read, same_data

CASES = Cases()
add = CASES.add


def reads_as_it_stands(kind, source="data"):
    return lambda world, box, stdout, stderr: same_data(box / "out", plain_read(box / source, kind))


def reads_as_sound(kind):
    """Check files with a checksum: damage that is not refused must have changed nothing."""
    return lambda world, box, stdout, stderr: same_data(box / "out", plain_read(world.place / kind, kind))


def converting(kind, change):
    """Call `data convert` on a folder to which something was done."""

    def build(world, box, rng):
        change(world.copy(kind, box / "data"), rng)
        return ["data", "convert", str(box / "data"), str(box / "out"), "--to", "npz"]

    return build


# By chance.


FILES = {
    "xmc": "train.txt test.txt labels.txt filter_labels_train.txt filter_labels_test.txt".split(),
    "svmlight": "train.svm test.svm labels.txt".split(),
    "npz": "X.trn.npz Y.trn.npz X.tst.npz Y.tst.npz".split(),
    "jsonl": "trn.jsonl tst.jsonl labels.txt".split(),
    "jsonlgz": "trn.jsonl.gz tst.jsonl.gz".split(),
    "lf": "trn.json.gz tst.json.gz lbl.json.gz".split(),
}
DAMAGES = (cut, flip, flip, garble, lose, swap, repeat, append)


def damaging(kind, name, damage):
    def change(folder, rng):
        path = folder / name
        path.write_bytes(damage(path.read_bytes(), rng))

    return converting(kind, change)


for kind, files in FILES.items():
    summed = kind in ("npz", "jsonlgz", "lf")
    for file in files:
        for number, damage in enumerate(DAMAGES):
            # A gzip file may be followed by another, so that a repeated piece can be a file again.
            expected = reads_as_sound(kind) if summed and damage is not repeat else reads_as_it_stands(kind)
            add(f"{kind} {file} {damage.__name__} {number}", damaging(kind, file, damage), passes=expected)
        add(f"{kind} {file} empty", damaging(kind, file, lambda content, rng: b""), passes=reads_as_it_stands(kind))
        add(
            f"{kind} {file} missing",
            converting(kind, lambda folder, rng, file=file: (folder / file).unlink()),
            **({"passes": lambda *_: None} if file == "labels.txt" or "filter" in file else {}),
        )


# By hand.


def rewriting(kind, file, old, new, count=1):
    """Write a file in which one thing is replaced by another."""

    def change(folder, rng):
        content = (folder / file).read_bytes()
        assert re.search(old, content), (file, old)
        (folder / file).write_bytes(re.sub(old, lambda match: new, content, count=count))

    return converting(kind, change)


LINE = rb"(?<=\n)[^\n]*\n"  # the second line of a file
for header in (
    b"30 20",
    b"30 20 12 1",
    b"-30 20 12",
    b"30.0 20 12",
    b"x y z",
    b"29 20 12",
    b"31 20 12",
    b"30 19 12",
    b"30 20 11",
    b"30 0 12",
    b"30 20 0",
    b"30 20 99999999999999999999",
    b"30 99999999999999999999 12",
    b"99999999999999999999 20 12",
    b"30 20 " + b"1" * 5000,
    b"",
):
    add(f"xmc header {header[:20]!r}", rewriting("xmc", "train.txt", rb"^30 20 12", header), says="train.txt")
for line in (
    b"0 1:x\n",
    b"0 1:\n",
    b"0 :1\n",
    b"0 1:1:1\n",
    b"0 20:1\n",
    b"12 1:1\n",
    b"-1 1:1\n",
    b"0 -1:1\n",
    b"0,,1 1:1\n",
    b"0, 1:1\n",
    b"0 1 1:1\n",
    b"0.5 1:1\n",
    b"0 1.5:1\n",
    b"0 1:nan\n",
    b"0 1:inf\n",
    b"0 1:1e39\n",
    b"0 1:-1e999\n",
    b"0 1:0x1\n",
    b"0 1:1_0\n",
    b"0 1:--1\n",
    b"0 1:1e\n",
    b"0 \xb2:1\n",
    b"0 1:\xd9\xa1\n",
    b"\xff\xfe\n",
    b"0 1:1\x00\n",
    b"0\x0b1:1\n",
    b"qid:1 1:1\n",
    b"0 99999999999999999999:1\n",
    b"99999999999999999999 1:1\n",
    b"0 1:1 \r \n",
):
    add(f"xmc line {line!r}", rewriting("xmc", "train.txt", LINE, line), says="train.txt, line 2: ")
    if line not in (b"0 20:1\n",):  # one more feature is no mistake where no header says how many there are
        add(f"svmlight line {line!r}", rewriting("svmlight", "train.svm", LINE, line), says="train.svm, line 2: ")
for name, kind, file, old, new in (
    ("crlf", "xmc", "train.txt", rb"\n", b"\r\n"),
    ("crlf", "svmlight", "train.svm", rb"\n", b"\r\n"),
    ("crlf", "jsonl", "trn.jsonl", rb"\n", b"\r\n"),
    ("crlf", "xmc", "labels.txt", rb"\n", b"\r\n"),
    ("crlf", "xmc", "filter_labels_train.txt", rb"\n", b"\r\n"),
    ("tabs", "xmc", "train.txt", rb" (?=[0-9]+:)", b"\t"),
    ("two blanks", "xmc", "train.txt", rb" (?=[0-9]+:)", b"  "),
    ("comments", "svmlight", "train.svm", rb"\n", b" # a: note, of 1:1\n"),
    ("blank lines", "svmlight", "train.svm", rb"\n", b"\n\n"),
    ("no last line end", "xmc", "train.txt", rb"\n\Z", b""),
    ("no last line end", "svmlight", "test.svm", rb"\n\Z", b""),
    ("no last line end", "jsonl", "tst.jsonl", rb"\n\Z", b""),
    ("byte order mark", "jsonl", "labels.txt", rb"\A", b"\xef\xbb\xbf"),
    ("zeros", "xmc", "train.txt", rb":0\.5 ", b":0.50000e+00 "),
):
    harmless = rewriting(kind, file, old, new, 0)
    add(f"harmless {name} {kind} {file}", harmless, passes=reads_as_sound(kind), must_pass=True)
for line in (
    b"{}\n",
    b"[]\n",
    b"null\n",
    b"1\n",
    b"{\n",
    b'{"text": 1, "labels": []}\n',
    b'{"text": "a"}\n',
    b'{"labels": []}\n',
    b'{"text": "a", "labels": "k1"}\n',
    b'{"text": "a", "labels": [1.5]}\n',
    b'{"text": "a", "labels": [null]}\n',
    b'{"text": "a", "labels": [true]}\n',
    b'{"text": "a", "labels": [["k1"]]}\n',
    b'{"text": "a", "labels": [""]}\n',
    b'{"text": "a", "labels": ["nowhere"]}\n',
    b'{"text": "a", "labels": ["\\ud800"]}\n',
    b'{"text": null, "labels": []}\n',
    b'{"text": "a", "labels": []} {}\n',
    b'{"text": "a\xff", "labels": []}\n',
    b"[" * 100_000 + b"\n",
    b'{"a":' * 50_000 + b"\n",
    b'{"text": "a", "labels": [' + b"1" * 5000 + b"]}\n",
):
    add(f"jsonl line {line[:40]!r}", rewriting("jsonl", "trn.jsonl", LINE, line), says="trn.jsonl, line 2: ")
for line in (b"\n", b"\tname\n", b"k0\tagain\n", b"k\xff\n", b" \t \n"):
    add(f"labels.txt line {line!r}", rewriting("xmc", "labels.txt", LINE, line), says="labels.txt, line 2: ")
add("labels.txt one more", rewriting("xmc", "labels.txt", rb"\Z", b"k99\tx\n"), says="labels.txt")
add("labels.txt one less", rewriting("xmc", "labels.txt", LINE, b""), says="labels.txt")
for line in (
    b"1\n",
    b"1 2 3\n",
    b"-1 2\n",
    b"30 0\n",
    b"0 12\n",
    b"a b\n",
    b"1.0 2\n",
    b"\n",
    b"1,2\n",
    b"9" * 6000 + b" 0\n",
):
    name = "filter_labels_train.txt"
    add(f"filter line {line[:20]!r}", rewriting("xmc", name, LINE, line), says=f"{name}, line 2: ")


def zipping(name, lines):
    def change(folder, rng):
        (folder / name).write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode(), mtime=0))

    return converting("lf", change)


GOOD_LF = {"uid": "0", "title": "a", "content": "b", "target_ind": [0]}
for field, value in (
    ("target_ind", [12]),
    ("target_ind", [-1]),
    ("target_ind", [0.0]),
    ("target_ind", [True]),
    ("target_ind", ["0"]),
    ("target_ind", 0),
    ("target_ind", None),
    ("title", 5),
    ("content", []),
):
    add(
        f"lf {field} {value}",
        zipping("trn.json.gz", [GOOD_LF, {**GOOD_LF, field: value}]),
        says="trn.json.gz, line 2: ",
    )
for record in ({"uid": "0"}, {"uid": None}, {"title": "x"}, {"uid": [1]}, {"uid": "1", "title": 1}, {"uid": " "}):
    add(f"lf label {record}", zipping("lbl.json.gz", [{"uid": "0"}, record]), says="lbl.json.gz, line 2: ")


def npz_of(name, **arrays):
    """Write an archive with these arrays instead of the right ones."""

    def change(folder, rng):
        with np.load(folder / name) as archive:
            found = dict(archive)
        given = {key: value(found[key]) if callable(value) else value for key, value in arrays.items()}
        np.savez(folder / name, **{key: value for key, value in {**found, **given}.items() if value is not None})

    return converting("npz", change)


for name, arrays in {
    "format csc": {"format": np.array(b"csc")},
    "format text": {"format": np.array(["csr", "csr"])},
    "format number": {"format": np.array(3)},
    "no format": {"format": None},
    "no data": {"data": None},
    "no indptr": {"indptr": None},
    "no shape": {"shape": None},
    "shape of three": {"shape": np.array([30, 20, 1])},
    "shape negative": {"shape": np.array([-30, 20])},
    "shape of floats": {"shape": np.array([30.0, 20.0])},
    "shape huge": {"shape": np.array([2**62, 20])},
    "shape wide": {"shape": np.array([30, 2**62])},
    "shape short": {"shape": np.array([29, 20])},
    "shape narrow": {"shape": np.array([30, 19])},
    "indptr falls": {"indptr": lambda old: old[::-1].copy()},
    "indptr beyond": {"indptr": lambda old: old * 2},
    "indptr starts late": {"indptr": lambda old: old + 1},
    "indptr empty": {"indptr": np.zeros(0, np.int32)},
    "indptr of floats": {"indptr": lambda old: old.astype(float)},
    "indices negative": {"indices": lambda old: old - 1},
    "indices beyond": {"indices": lambda old: old + 1},
    "indices huge": {"indices": lambda old: old.astype(np.uint64) + 2**63},
    "indices short": {"indices": lambda old: old[:-1]},
    "indices flat": {"indices": lambda old: old.reshape(1, -1)},
    "data NaN": {"data": lambda old: old * np.nan},
    "data infinite": {"data": lambda old: np.full_like(old, np.inf)},
    "data too large": {"data": lambda old: np.full(len(old), 1e39)},
    "data of texts": {"data": lambda old: np.array(["x"] * len(old))},
    "data complex": {"data": lambda old: old.astype(complex)},
    "data of dates": {"data": lambda old: np.zeros(len(old), "M8[s]")},
}.items():
    add(f"npz X {name}", npz_of("X.trn.npz", **arrays), says="X.trn.npz")
for value in (2, -1, 0.5, np.nan):
    add(f"npz Y {value}", npz_of("Y.trn.npz", data=lambda old, value=value: old * value), says="Y.trn.npz")


def write_bomb(path, dtype, shape):
    """Write an array that claims to be far larger than it is, or that wants to be unpickled."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    head = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    head += b" " * (64 - (len(head) + 11) % 64) + b"\n"
    members["data.npy"] = b"\x93NUMPY\1\0" + len(head).to_bytes(2, "little") + head + b"cos\nsystem\n(S'true'\ntR."
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)


for dtype, shape in (("|O", "(1,)"), ("<f4", "(1000000000000000,)"), ("<f4", "(-1,)"), ("x", "(1,)"), ("<f4", "'a'")):
    bomb = converting("npz", lambda folder, rng, d=dtype, s=shape: write_bomb(folder / "X.trn.npz", d, s))
    add(f"npz bomb {dtype} {shape}", bomb, says="X.trn.npz")


def add_folder_case(name, change, says=""):
    add(f"folder {name}", converting("xmc", change), says=says)


add_folder_case("without test", lambda folder, rng: (folder / "test.txt").unlink(), "no test file")
add_folder_case(
    "with nothing", lambda folder, rng: [path.unlink() for path in folder.iterdir()], "no data set recognised"
)
add_folder_case(
    "with two",
    lambda folder, rng: (
        shutil.copy(folder / "train.txt", folder / "x_train.txt")
        and [(folder / name).rename(folder / f"y_{name}") for name in ("train.txt", "test.txt")]
    ),
    "which is the",
)
add_folder_case(
    "with a folder for a file", lambda folder, rng: [(folder / "train.txt").unlink(), (folder / "train.txt").mkdir()]
)
for change, says in (
    (lambda folder: (folder / "b" / "test.txt").unlink(), "no test file"),
    (lambda folder: (folder / "c").mkdir(), "no data set recognised"),
    (lambda folder: (folder / "b" / "labels.txt").unlink(), "should list the same labels"),
    (lambda folder: (folder / "b" / "train.txt").write_text("1 21 12\n0 1:1\n"), "features"),
):
    add(f"sites {says}", converting("sites", lambda folder, rng, change=change: change(folder)), says=says)
for arguments, says in (
    (["data", "info", "nowhere"], "there is no such folder"),
    (["data", "info", "{xmc}/train.txt"], "should be a folder"),
    (["data", "info", "{xmc}", "--format", "npz"], "no data set recognised in the format npz"),
    (["data", "info", "{xmc}", "--format", "csv"], "data_format is 'csv'"),
    (["data", "info", "{svmlight}", "--format", "xmc"], "no data set recognised"),
    (["data", "convert", "{xmc}", "{box}/out", "--to", "csv"], "cannot write the format 'csv'"),
    (["data", "convert", "{xmc}", "{box}/out", "--to", "text"], "cannot write the format 'text'"),
):
    add(
        f"command {' '.join(arguments)}",
        lambda world, box, rng, arguments=arguments: [
            part.format(xmc=world.place / "xmc", svmlight=world.place / "svmlight", box=box) for part in arguments
        ],
        says=says,
    )
