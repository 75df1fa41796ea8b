"""Damaged files and wrong words on the command line: an exact parse, or one sentence, exit code 2, nothing written."""

import dataclasses
import errno
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import sys
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from scipy.sparse import csr_matrix, load_npz, save_npz

from fedmlh import cli
from fedmlh.config import Config
from fedmlh.data.text import DEFAULT_DIM, TextFeatures
from fedmlh.runs import report

D, P = 20, 12  # features, labels
SIZES = {"train": 30, "test": 10}
SETTINGS = {
    "name": "tiny",
    "device": "cpu",
    "partition": "iid",
    "num_clients": 3,
    "clients_per_round": 2,
    "rounds": 2,
    "local_epochs": 1,
    "batch_size": 10,
    "num_tables": 2,
    "num_buckets": 5,
    "feature_dim": 8,
    "hidden_sizes": [4],
    "top_k": [1, 3],
    "validation_fraction": 0.2,
    "text_dim": 64,
}


SMALL = {"synthetic_points": 50, "synthetic_labels": 10, "synthetic_features": 50}


def toml(**changes):
    values = {**SETTINGS, **changes}
    return "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())


@dataclass
class World:
    """Sound inputs of every kind; a case damages a copy."""

    place: Path

    def copy(self, name, target):
        shutil.copytree(self.place / name, target)
        return target


@dataclass(frozen=True)
class Case:
    """A command line, and what must be true of it beside the law that holds for all."""

    name: str
    build: Callable  # (world, box, rng) -> arguments
    plots: bool = False  # curves are drawn, which takes a second
    says: str = ""  # what the one line must tell
    passes: Callable | None = None  # (world, box, stdout, stderr): what must hold if the exit code is 0; None: it is 2
    must_pass: bool = False
    usage: bool = False  # the command line's own complaint, with its usage line
    begins: bool = False  # the run starts and fails on the way, so that its folder is there


CASES: list[Case] = []


def add(name, build, **options):
    CASES.append(Case(name, build, **options))


# Sound data.


def write_sound_data(place):
    """One small data set in every format."""
    rng = np.random.default_rng(0)
    X = {part: np.round(rng.random((n, D)) * (rng.random((n, D)) < 0.3), 3).astype("f4") for part, n in SIZES.items()}
    Y = {part: (rng.random((n, P)) < 0.25).astype("f4") for part, n in SIZES.items()}
    for part in SIZES:
        X[part][:, 0] = 0.5
        X[part][:, -1] = 0.25
        Y[part][:, 0] = 1
    words = [f"word{i}" for i in range(D)]
    names = "".join(f"k{i}\tname of {i}\n" for i in range(P))

    def rows(part, base):
        for x, y in zip(X[part], Y[part], strict=True):
            features = " ".join(f"{i + base}:{x[i]:g}" for i in np.flatnonzero(x))
            yield f"{','.join(map(str, np.flatnonzero(y)))} {features}\n"

    def put(name, content):
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    def zipped(text):
        return gzip.compress(text.encode(), mtime=0)

    for part, n in SIZES.items():
        put(f"xmc/{part}.txt", f"{n} {D} {P}\n" + "".join(rows(part, 0)))
        put(f"xmc/filter_labels_{part}.txt", "".join(f"{i} {(3 * i) % P}\n" for i in range(n)))
        for site in ("a", "b"):
            put(f"sites/{site}/{part}.txt", f"{n} {D} {P}\n" + "".join(rows(part, 0)))
        put(f"svmlight/{part}.svm", "".join(rows(part, 1)))
        short = {"train": "trn", "test": "tst"}[part]
        for letter, matrix in (("X", X), ("Y", Y)):
            buffer = io.BytesIO()
            save_npz(buffer, csr_matrix(matrix[part]))
            put(f"npz/{letter}.{short}.npz", buffer.getvalue())
        texts = [" ".join(words[i] for i in np.flatnonzero(x)) for x in X[part]]
        labels = [np.flatnonzero(y).tolist() for y in Y[part]]
        lines = "".join(
            json.dumps({"text": text, "labels": [f"k{i}" for i in own]}) + "\n"
            for text, own in zip(texts, labels, strict=True)
        )
        put(f"jsonl/{short}.jsonl", lines)
        put(f"jsonlgz/{short}.jsonl.gz", zipped(lines))
        records = (
            {"uid": str(i), "title": text, "content": "", "target_ind": own, "target_rel": [1.0] * len(own)}
            for i, (text, own) in enumerate(zip(texts, labels, strict=True))
        )
        put(f"lf/{short}.json.gz", zipped("".join(json.dumps(record) + "\n" for record in records)))
    put(
        "lf/lbl.json.gz",
        zipped("".join(json.dumps({"uid": f"k{i}", "title": f"name of {i}"}) + "\n" for i in range(P))),
    )
    for folder in ("xmc", "svmlight", "npz", "jsonl", "jsonlgz", "sites/a", "sites/b"):
        put(f"{folder}/labels.txt", names)


# A plain reading of the formats, written from their description.


def plain_text(path):
    content = path.read_bytes()
    text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8")
    lines = text.split("\n")
    return [line.removesuffix("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]


def plain_labels(path):
    pairs = [line.removeprefix("\ufeff").partition("\t") for line in plain_text(path)]
    return {key: name if name.strip() else key for key, _, name in pairs}


def plain_rows(lines):
    for line in lines:
        tokens = line.replace("\t", " ").split(" ")
        tokens = [token for token in tokens if token]
        labels = tokens.pop(0).split(",") if tokens and ":" not in tokens[0] else []
        assert all(re.fullmatch("[0-9]+", label) for label in labels)
        pairs = [re.fullmatch(r"([0-9]+):([0-9.eE+-]+)", token).groups() for token in tokens]
        yield [int(label) for label in labels], [(int(feature), float(value)) for feature, value in pairs]


def dense(rows, base=0, width=D, num_labels=P):
    X, Y = np.zeros((len(rows), width), "f4"), np.zeros((len(rows), num_labels), "f4")
    for i, (labels, pairs) in enumerate(rows):
        Y[i, labels] = 1
        for feature, value in pairs:
            X[i, feature - base] += np.float32(value)
    return X, Y


def plain_read(folder, kind):
    """Label keys and names, and for each part X, Y and the excluded pairs."""
    if kind == "lf":
        records = [json.loads(line) for line in plain_text(folder / "lbl.json.gz")]
        labels = {record["uid"]: record.get("title", "").strip() or record["uid"] for record in records}
    else:
        labels = plain_labels(folder / "labels.txt")
    parts = {}
    if kind == "svmlight":
        lines = {
            part: [body for line in plain_text(folder / f"{part}.svm") if (body := line.partition("#")[0]).strip(" \t")]
            for part in SIZES
        }
        rows = {part: list(plain_rows(lines[part])) for part in SIZES}
        used = [feature for part in rows.values() for _, pairs in part for feature, _ in pairs]
        base = min(min(used), 1)
    for part, n in SIZES.items():
        short = {"train": "trn", "test": "tst"}[part]
        excluded = set()
        if kind == "xmc":
            head, *lines = plain_text(folder / f"{part}.txt")
            assert [int(x) for x in head.split()] == [len(lines), D, P]
            X, Y = dense(list(plain_rows(lines)))
            pairs = [tuple(map(int, line.split())) for line in plain_text(folder / f"filter_labels_{part}.txt")]
            assert all(0 <= i < n and 0 <= j < P for i, j in pairs)
            excluded = set(pairs)
        elif kind == "svmlight":
            X, Y = dense(rows[part], base, max(used) + 1 - base, len(labels))
        elif kind == "npz":
            X, Y = (load_npz(folder / f"{letter}.{short}.npz").toarray() for letter in "XY")
        else:
            name = f"{short}.json.gz" if kind == "lf" else f"{short}.jsonl{'.gz' if kind == 'jsonlgz' else ''}"
            records = [json.loads(line) for line in plain_text(folder / name)]
            texts = [
                r["text"] if "text" in r else f"{r.get('title', '')} {r.get('content', '')}".strip() for r in records
            ]
            X = TextFeatures.hashing(DEFAULT_DIM).transform(texts)
            keys, values = list(labels), list(labels.values())
            Y = np.zeros((len(records), len(labels)), "f4")
            for i, record in enumerate(records):
                for label in record["target_ind" if kind == "lf" else "labels"]:
                    if isinstance(label, int) and kind == "lf":
                        Y[i, label] = 1
                    elif str(label) in keys or str(label) in values:
                        Y[i, keys.index(str(label)) if str(label) in keys else values.index(str(label))] = 1
                    else:
                        assert part == "test", "an unknown label of a training point was passed over"
        parts[part] = (csr_matrix(X), Y, excluded)
    return labels, parts


def same_data(folder, expected):
    """Whether a converted folder holds what a plain reading gives, to the bit."""
    labels, parts = expected
    assert plain_labels(folder / "labels.txt") == labels
    for part, (X, Y, excluded) in parts.items():
        short = {"train": "trn", "test": "tst"}[part]
        found = load_npz(folder / f"X.{short}.npz")
        assert found.shape == X.shape
        assert (found != X).nnz == 0
        assert np.array_equal(load_npz(folder / f"Y.{short}.npz").toarray(), Y)
        path = folder / f"filter_labels_{part}.txt"
        assert excluded == (
            set() if not path.exists() else {tuple(map(int, line.split())) for line in plain_text(path)}
        )


def reads_as_it_stands(kind, source="data"):
    return lambda world, box, stdout, stderr: same_data(box / "out", plain_read(box / source, kind))


def reads_as_sound(kind):
    """For files with a checksum: damage that is not refused must have changed nothing."""
    return lambda world, box, stdout, stderr: same_data(box / "out", plain_read(world.place / kind, kind))


def converting(kind, change):
    """`data convert` of a folder to which something was done."""

    def build(world, box, rng):
        change(world.copy(kind, box / "data"), rng)
        return ["data", "convert", str(box / "data"), str(box / "out"), "--to", "npz"]

    return build


# Damaged data, by chance.


def cut(content, rng):
    return content[: int(rng.integers(1, len(content)))]


def flip(content, rng):
    changed = bytearray(content)
    bit = int(rng.integers(8 * len(content)))
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def garble(content, rng):
    start = int(rng.integers(len(content)))
    return content[:start] + rng.bytes(8) + content[start + 8 :]


def lose(content, rng):
    start, stop = sorted(rng.integers(0, len(content), 2).tolist())
    return content[:start] + content[stop + 1 :]


def swap(content, rng):
    """Two neighbouring bytes change places, as typing fingers do."""
    place = int(rng.integers(len(content) - 1))
    return content[:place] + content[place + 1 : place + 2] + content[place : place + 1] + content[place + 2 :]


def repeat(content, rng):
    return content + content[int(rng.integers(len(content))) :]


def append(content, rng):
    return content + rng.bytes(20)


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
            law = reads_as_sound(kind) if summed and damage is not repeat else reads_as_it_stands(kind)
            add(f"{kind} {file} {damage.__name__} {number}", damaging(kind, file, damage), passes=law)
        add(f"{kind} {file} empty", damaging(kind, file, lambda content, rng: b""), passes=reads_as_it_stands(kind))
        add(
            f"{kind} {file} missing",
            converting(kind, lambda folder, rng, file=file: (folder / file).unlink()),
            **({"passes": lambda *_: None} if file == "labels.txt" or "filter" in file else {}),
        )


# Damaged data, by hand.


def rewriting(kind, file, old, new, count=1):
    """A file in which one thing stands for another."""

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
    b"\n",
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
        (folder / name).write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))

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
    """An archive with these arrays instead of the right ones."""

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
    """An array that says it is far larger than it is, or that wants to be unpickled."""
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


# Wrong settings.


def running(*arguments, text=None):
    """`run` with a config file of its own."""

    def build(world, box, rng):
        (box / "config.toml").write_bytes(toml().encode() if text is None else text)
        return ["run", str(box / "config.toml"), "--out", str(box / "out"), *arguments]

    return build


def misspell(name):
    middle = len(name) // 2
    return name[:middle] + name[middle] + name[middle:]


FIELDS = [entry.name for entry in dataclasses.fields(Config)]
for number, field in enumerate(FIELDS):
    wrong = misspell(field)
    by_flag = running("--set", f"{wrong}=1")
    in_file = running(text=toml(**{wrong: 1}).encode())
    add(
        f"misspelt {wrong}",
        in_file if number % 2 else by_flag,
        says=f"there is no setting '{wrong}'; did you mean '{field}'?",
    )
    day = f"{field} = {date(2024, 2, 29)}\n".encode()
    text = "".join(line + "\n" for line in toml().splitlines() if not line.startswith(f"{field} = ")).encode()
    add(f"a date for {field}", running(text=text + day), says=f"{field} is ")
    add(f"a table for {field}", running(text=text + f"[{field}]\nx = 1\n".encode()), says=f"{field} is ")
for setting, says in (
    ("rounds=0", "rounds is 0: it must be "),
    ("rounds=-1", "rounds is -1"),
    ("rounds=1.5", "rounds is 1.5: it must be a whole number"),
    ("rounds=true", "rounds is True"),
    ("rounds=", "rounds is ''"),
    ("rounds=many", "rounds is 'many'"),
    ("rounds=nan", "rounds is nan"),
    ("rounds=1" + "0" * 400, "rounds is "),
    ("rounds=1" + "0" * 5000, "rounds is "),
    ("seed=-1", "seed is -1"),
    (f"seed={2**63}", "seed is "),
    ("learning_rate=nan", "learning_rate is "),
    ("learning_rate=inf", "learning_rate is "),
    ("learning_rate=-1", "learning_rate is -1"),
    ("learning_rate=1" + "0" * 400, "learning_rate is "),
    ("learning_rate=1e999", "learning_rate is "),
    ("validation_fraction=0.95", "validation_fraction is 0.95: it must be from 0 to 0.9"),
    ("validation_fraction=0", "selection 'validation' needs a validation_fraction above 0"),
    ("validation_fraction=0.001", "leaves nothing on one side"),
    ("feature_signed=yes", "feature_signed is 'yes': say true or false"),
    ("feature_signed=1", "feature_signed is 1: say true or false"),
    ("algorithm=fedprox", "algorithm is 'fedprox': choose one of fedmlh, fedavg"),
    ("loss=1", "loss is 1: choose one of bce, softmax"),
    ("hidden_sizes=0", "hidden_sizes is 0"),
    ("hidden_sizes=4,x", "hidden_sizes is '4,x'"),
    ("hidden_sizes=[4,[5]]", "hidden_sizes is [5]"),
    ("hidden_sizes=[1.5]", "hidden_sizes is 1.5"),
    ("hidden_sizes=1000000000000000000000", "hidden_sizes"),
    ("hidden_sizes=1000000000000000", "hidden_sizes"),
    ("top_k=[]", "top_k is empty"),
    ("top_k=0", "top_k is 0"),
    ("label_seeds=random", "label_seeds is 'random'"),
    ("label_seeds=1", "label_seeds needs at least 2 numbers"),
    ("label_seeds=1,-1", "label_seeds needs at least 2 numbers"),
    ("feature_seeds=[]", "feature_seeds needs at least 1 numbers"),
    ("num_tables=1025", "num_tables is 1025"),
    ("num_buckets=13", "num_buckets is 13, more than the 12 labels"),
    ("clients_per_round=4", "clients_per_round is 4, but there are only 3 clients"),
    ("quorum=3", "quorum is 3, more than the 2 clients"),
    ("partition=folder", "partition 'folder'"),
    ("data_format=npz", "no data set recognised in the format npz"),
    ("text_dim=0", "text_dim is 0"),
    ("device=tpu", "device is 'tpu'"),
    ("=5", "--set =5: say field=value"),
    ("rounds", "--set rounds: say field=value"),
    ("", "--set : say field=value"),
    ("qwertyuiop=1", "there is no setting 'qwertyuiop'"),
    ("rounds=2\nseed=1", "rounds"),
):
    add(
        f"set {setting[:50]} ({len(setting)})",
        lambda world, box, rng, setting=setting: [
            *running("--set", setting)(world, box, rng),
            "--data",
            str(world.place / "xmc"),
        ],
        says=says,
    )
for name, text, says in (
    ("open string", b'name = "a', "is not valid TOML"),
    ("no value", b"rounds =", "is not valid TOML"),
    ("same key twice", b"rounds = 1\nrounds = 2", "is not valid TOML"),
    ("JSON", b'{"rounds": 1}', "is not valid TOML"),
    ("not UTF-8", b'name = "\xff"', "UTF-8"),
    ("UTF-16", "rounds = 1".encode("utf-16"), "UTF-8"),
    ("zeros", b"\0" * 100, "is not valid TOML"),
    ("deep list", b"hidden_sizes = " + b"[" * 100_000, "is not valid TOML"),
    ("many digits", b"rounds = " + b"1" * 5000, "is not valid TOML"),
    ("many digits that parse", b"rounds = " + b"1" * 4000, "rounds is "),
    ("a table of settings", b"[run]\nrounds = 1", "there is no setting 'run'"),
    ("quoted key", b'"ro unds" = 1', "there is no setting 'ro unds'; did you mean 'rounds'?"),
    ("empty key", b'"" = 1', "there is no setting ''"),
    ("line break in key", b'"a\\nb" = 1', "there is no setting"),
):
    add(f"toml {name}", running(text=text), says=says)
for config in ("demos", "nowhere.toml", "", ".", "/dev/null/x"):
    add(
        f"config {config!r}",
        lambda world, box, rng, c=config: ["run", c, "--out", str(box / "out")],
        says="is neither a preset",
    )
for arguments in (
    ["--rounds", "x"],
    ["--rounds", "1.5"],
    ["--seed", ""],
    ["--nonsense"],
    ["extra"],
    ["--set"],
):
    add(f"usage run {arguments}", running(*arguments), usage=True)
for arguments in (["nonsense"], ["data", "nonsense"], ["run"], ["predict"], ["report"], ["data", "info"], ["compare"]):
    add(f"usage {arguments}", lambda world, box, rng, arguments=arguments: arguments, usage=True)
for size, value in (("--points", "9"), ("--labels", "1"), ("--features", "x"), ("--seed", "-1")):
    synth = lambda world, box, rng, size=size, value=value: ["data", "synth", str(box / "out"), size, value]  # noqa: E731
    add(f"usage synth {size} {value}", synth, usage=True)
add(
    "synth huge", lambda world, box, rng: ["data", "synth", str(box / "out"), "--points", "1" + "0" * 14], says="memory"
)
add("rounds 0", running("--rounds", "0"), says="rounds is 0")
add("algorithm", running("--algorithm", "x"), says="algorithm is 'x'")
add(
    "divergence",
    running(text=toml(learning_rate=1e9, optimizer="sgd", **SMALL).encode()),
    begins=True,
    says="round 1 was given up",
)


# Damaged models.


def seal(folder, **changes):
    """Change files of a sealed folder and seal it again, as an attacker or another program would."""
    for name, content in changes.items():
        (folder / name.replace("__", ".")).write_bytes(content)
    names = sorted(path.name for path in folder.iterdir() if path.name != "manifest.json")
    digests = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names}
    write_manifest(folder, digests)


def write_manifest(folder, files, version=1):
    manifest = json.dumps({"version": version, "files": files}, indent=1, sort_keys=True)
    (folder / "manifest.json").write_text(manifest)


def asking(change, command="predict"):
    """A trained model to which something was done, asked."""

    def build(world, box, rng):
        folder = world.copy("run/model", box / "model")
        change(folder, rng, world)
        if command == "eval":
            return ["eval", str(folder), "--data", str(world.place / "xmc")]
        return ["predict", str(folder), "--input", str(world.place / "xmc" / "test.txt"), "--out", str(box / "out")]

    return build


MODEL = ("manifest.json", "model.json", "config.toml", "labels.json", "weights.safetensors")
for file in MODEL:
    for number, damage in enumerate((flip, flip, flip, cut, garble, append)):

        def spoil(folder, rng, world, file=file, damage=damage):
            (folder / file).write_bytes(damage((folder / file).read_bytes(), rng))

        add(
            f"model {file} {damage.__name__} {number}", asking(spoil, "eval" if number % 2 else "predict"), says="model"
        )
    add(f"model without {file}", asking(lambda folder, rng, world, file=file: (folder / file).unlink()), says="model")
    if file != "labels.json":  # which is the same there
        others = asking(lambda folder, rng, world, f=file: shutil.copy(world.place / "other" / "model" / f, folder / f))
        add(f"model with another's {file}", others, says="model")


def about(**changes):
    """The model's description with other values, sealed."""

    def change(folder, rng, world):
        values = {**json.loads((folder / "model.json").read_bytes()), **changes}
        seal(folder, model__json=json.dumps(values).encode())

    return change


def weights(make):
    def change(folder, rng, world):
        old = load_tensors((folder / "weights.safetensors").read_bytes())["weights"]
        seal(folder, weights__safetensors=make(old))

    return change


def tensors(**named):
    return save_tensors({name: tensor.contiguous() for name, tensor in named.items()})


SEEDS = {"run": 0, "labels": [1, 2], "features": [3]}
for name, change in {
    "num_features 19": about(num_features=19),
    "num_features text": about(num_features="many"),
    "num_features null": about(num_features=None),
    "num_features infinite": about(num_features=float("inf")),
    "num_features negative": about(num_features=-1),
    "num_labels 11": about(num_labels=11),
    "num_labels huge": about(num_labels=10**30),
    "num_labels 0": about(num_labels=0),
    "seeds missing": about(seeds=None),
    "seeds a list": about(seeds=[1, 2]),
    "label seeds too few": about(seeds={**SEEDS, "labels": [1]}),
    "label seeds too many": about(seeds={**SEEDS, "labels": [1, 2, 3]}),
    "label seeds texts": about(seeds={**SEEDS, "labels": ["a", "b"]}),
    "label seeds negative": about(seeds={**SEEDS, "labels": [-1, -2]}),
    "label seeds huge": about(seeds={**SEEDS, "labels": [2**70, 2**71]}),
    "label seeds lists": about(seeds={**SEEDS, "labels": [[1], [2]]}),
    "feature seeds none": about(seeds={**SEEDS, "features": []}),
    "feature seeds text": about(seeds={**SEEDS, "features": "x"}),
    "feature seeds floats": about(seeds={**SEEDS, "features": [0.5]}),
    "text of nothing": about(text={}),
    "text of a list": about(text=[]),
    "text of another kind": about(text={"kind": "magic", "dim": 20}),
    "text of another size": about(text={"kind": "hashing", "dim": 10**12}),
    "model.json a list": lambda folder, rng, world: seal(folder, model__json=b"[]"),
    "model.json null": lambda folder, rng, world: seal(folder, model__json=b"null"),
    "model.json not UTF-8": lambda folder, rng, world: seal(folder, model__json=b'{"a": "\xff"}'),
    "model.json deep": lambda folder, rng, world: seal(folder, model__json=b"[" * 200_000),
    "model.json empty": lambda folder, rng, world: seal(folder, model__json=b""),
    "labels a list": lambda folder, rng, world: seal(folder, labels__json=b"[]"),
    "labels numbers": lambda folder, rng, world: seal(
        folder, labels__json=json.dumps({"keys": list(range(P)), "names": list(range(P))}).encode()
    ),
    "labels of other lengths": lambda folder, rng, world: seal(
        folder, labels__json=json.dumps({"keys": ["k"] * P, "names": ["k"] * (P - 1)}).encode()
    ),
    "labels too few": lambda folder, rng, world: seal(folder, labels__json=b'{"keys": ["a"], "names": ["a"]}'),
    "labels a text": lambda folder, rng, world: seal(folder, labels__json=b'{"keys": "abcdefghijkl", "names": 5}'),
    "config of nothing": lambda folder, rng, world: seal(folder, config__toml=b""),
    "config unknown": lambda folder, rng, world: seal(folder, config__toml=b"nonsense = 1"),
    "config broken": lambda folder, rng, world: seal(folder, config__toml=b"="),
    "config not UTF-8": lambda folder, rng, world: seal(folder, config__toml=b"\xff"),
    "config of more buckets": lambda folder, rng, world: seal(folder, config__toml=toml(num_buckets=6).encode()),
    "config of one table": lambda folder, rng, world: seal(folder, config__toml=toml(num_tables=1).encode()),
    "weights too few": weights(lambda old: tensors(weights=old[:-1])),
    "weights too many": weights(lambda old: tensors(weights=torch.cat([old, old]))),
    "weights square": weights(lambda old: tensors(weights=old[:, None])),
    "weights named otherwise": weights(lambda old: tensors(model=old)),
    "weights of halves": weights(lambda old: tensors(weights=old.half())),
    "weights of doubles": weights(lambda old: tensors(weights=old.double())),
    "weights of whole numbers": weights(lambda old: tensors(weights=old.long())),
    "weights not finite": weights(lambda old: tensors(weights=old * float("nan"))),
    "weights noise": lambda folder, rng, world: seal(folder, weights__safetensors=rng.bytes(500)),
    "weights empty": lambda folder, rng, world: seal(folder, weights__safetensors=b""),
    "weights of a huge header": lambda folder, rng, world: seal(folder, weights__safetensors=b"\xff" * 8 + b"{}"),
    "weights a pickle": lambda folder, rng, world: seal(folder, weights__safetensors=b"cos\nsystem\n(S'true'\ntR."),
    "manifest with a list": lambda folder, rng, world: write_manifest(folder, []),
    "manifest with nothing": lambda folder, rng, world: write_manifest(folder, None),
    "manifest with a text": lambda folder, rng, world: write_manifest(folder, "x"),
    "manifest with no files": lambda folder, rng, world: write_manifest(folder, {}),
    "manifest of version 2": lambda folder, rng, world: write_manifest(folder, {}, 2),
    "manifest of version null": lambda folder, rng, world: write_manifest(folder, {}, None),
    "manifest above": lambda folder, rng, world: write_manifest(folder, {"../x": "0"}),
    "manifest absolute": lambda folder, rng, world: write_manifest(folder, {"/etc/passwd": "0"}),
    "manifest of a null byte": lambda folder, rng, world: write_manifest(folder, {"a\0b": "0"}),
    "manifest of half a letter": lambda folder, rng, world: write_manifest(folder, {"\ud800": "0"}),
    "manifest of a long name": lambda folder, rng, world: write_manifest(folder, {"x" * 5000: "0"}),
    "manifest of dots": lambda folder, rng, world: write_manifest(folder, {"..": "0", ".": "0", "": "0"}),
    "manifest with numbers": lambda folder, rng, world: write_manifest(folder, {"model.json": 5}),
    "manifest deep": lambda folder, rng, world: (folder / "manifest.json").write_bytes(b"[" * 200_000),
    "manifest a folder": lambda folder, rng, world: [
        (folder / "manifest.json").unlink(),
        (folder / "manifest.json").mkdir(),
    ],
}.items():
    add(f"model sealed: {name}", asking(change))
add("model sealed: unchanged", asking(lambda folder, rng, world: seal(folder)), must_pass=True, passes=lambda *_: None)


# Damaged checkpoints.


def resuming(change, both=True):
    """A run of which two of three rounds are done, to which something was done, resumed."""

    def build(world, box, rng):
        out = world.copy("stopped", box / "out")
        for generation in sorted((out / "checkpoint").iterdir(), reverse=True)[: 2 if both else 1]:
            change(generation, rng, world)
        return ["run", str(world.place / "three.toml"), "--out", str(out), "--resume"]

    return build


def falls_back(world, box, stdout, stderr):
    told = "".join(stderr.split())
    assert re.search("round-000002.*goingonfromthecheckpointbeforeit", told), stderr
    equals_unbroken(world, box, stdout, stderr)


def equals_unbroken(world, box, stdout, stderr):
    for name in MODEL:
        assert (box / "out" / "model" / name).read_bytes() == (world.place / "three" / "model" / name).read_bytes()


def state(**changes):
    def change(folder, rng, world):
        values = {**json.loads((folder / "state.json").read_bytes()), **changes}
        seal(folder, state__json=json.dumps({key: value for key, value in values.items() if value != "gone"}).encode())

    return change


def model(make, name="model.safetensors"):
    def change(folder, rng, world):
        old = load_tensors((folder / name).read_bytes())["model"]
        seal(folder, **{name.replace(".", "__"): make(old)})

    return change


def keep_old(folder, rng, world):
    """The manifest of the generation before."""
    shutil.copy(folder.with_name("round-000001") / "manifest.json", folder / "manifest.json")


for name, change in {
    "noise for the state": lambda folder, rng, world: (folder / "state.json").write_bytes(rng.bytes(99)),
    "model flipped": lambda folder, rng, world: (folder / "model.safetensors").write_bytes(
        flip((folder / "model.safetensors").read_bytes(), rng)
    ),
    "manifest cut": lambda folder, rng, world: (folder / "manifest.json").write_bytes(
        cut((folder / "manifest.json").read_bytes(), rng)
    ),
    "state of another run": lambda folder, rng, world: seal(
        folder, state__json=(world.place / "other" / "checkpoint" / folder.name / "state.json").read_bytes()
    ),
    "all of another run": lambda folder, rng, world: [
        shutil.rmtree(folder),
        shutil.copytree(world.place / "other" / "checkpoint" / folder.name, folder),
    ],
    "nothing in it": lambda folder, rng, world: [path.unlink() for path in folder.iterdir()],
    "no files": lambda folder, rng, world: write_manifest(folder, {}),
    "a list of files": lambda folder, rng, world: write_manifest(folder, []),
    "a newer version": lambda folder, rng, world: write_manifest(folder, {}, 2),
    "state a list": lambda folder, rng, world: seal(folder, state__json=b"[]"),
    "state deep": lambda folder, rng, world: seal(folder, state__json=b"[" * 200_000),
    "no round": state(round="gone"),
    "no history": state(history="gone"),
    "no run": state(run="gone"),
    "round a text": state(round="2"),
    "round negative": state(round=-1),
    "round a fraction": state(round=1.5),
    "round null": state(round=None),
    "round far ahead": state(round=10**9),
    "accepted a list": state(accepted=[1]),
    "accepted short": state(accepted={"0": [1]}),
    "accepted of texts": state(accepted={"0": ["a", "b"]}),
    "accepted of nobody": state(accepted={"x": [1, 0]}),
    "memories a list": state(memories=[1]),
    "memories of nobody": state(memories={"x": []}),
    "memories of numbers": state(memories={"0": 5}),
    "history a text": state(history="x"),
    "history of numbers": state(history=[1, 2]),
    "history empty": state(history=[]),
    "history of one": state(history=[{"round": 1}]),
    "best score a text": state(best_score="high"),
    "best score null": state(best_score=None),
    "best round a text": state(best_round="x"),
    "best round far": state(best_round=99),
    "model too short": model(lambda old: tensors(model=old[:-1])),
    "model of doubles": model(lambda old: tensors(model=old.double())),
    "model of whole numbers": model(lambda old: tensors(model=old.long())),
    "model not finite": model(lambda old: tensors(model=old * float("nan"))),
    "model misnamed": model(lambda old: tensors(weights=old)),
    "model noise": model(lambda old: b"noise"),
    "best too short": model(lambda old: tensors(model=old[:-1]), "best.safetensors"),
    "best of whole numbers": model(lambda old: tensors(model=old.long()), "best.safetensors"),
}.items():
    add(f"checkpoints: {name}", resuming(change))
    add(f"newest checkpoint: {name}", resuming(change, both=False), passes=falls_back, must_pass=True)
add("newest checkpoint: older manifest", resuming(keep_old, both=False), passes=falls_back, must_pass=True)
add(
    "checkpoints: sealed again",
    resuming(lambda folder, rng, world: seal(folder)),
    passes=equals_unbroken,
    must_pass=True,
)


def changing(path, content):
    """The stopped run with another file in place of one of its own, resumed."""

    def build(world, box, rng):
        out = world.copy("stopped", box / "out")
        (out / path).write_bytes(content)
        return ["run", str(world.place / "three.toml"), "--out", str(out), "--resume"]

    return build


add("resume: config cut", changing("config.toml", b"rounds = "), says="is not valid TOML")
add("resume: config noise", changing("config.toml", b"\xff\xfe"), says="UTF-8")
add("resume: config unknown", changing("config.toml", b"nonsense = 1"), says="there is no setting 'nonsense'")
add("resume: config of another", changing("config.toml", toml(rounds=3, seed=5).encode()), says="seed = 5")
add("resume: metrics noise", changing("metrics.jsonl", b"\xff\xfe"), passes=equals_unbroken, must_pass=True)


# Damaged results.


def reporting(name, change):
    def build(world, box, rng):
        run = world.copy("run", box / "run")
        content = change((run / name).read_bytes(), rng)
        (run / name).unlink() if content is None else (run / name).write_bytes(content)
        return ["report", str(run), "--out", str(box / "report.html")]

    return build


def summary(**changes):
    def change(content, rng):
        values = {**json.loads(content), **changes}
        return json.dumps({key: value for key, value in values.items() if value != "gone"}).encode()

    return reporting("summary.json", change)


SHOWN = (
    "name algorithm selection precision precision_paper precision_infrequent ndcg psp best_round model_bytes".split()
)
SHOWN += "bytes_up_to_best bytes_down_to_best paper_volume_bytes seconds_per_round".split()
for key in SHOWN:
    add(f"summary without {key}", summary(**{key: "gone"}), says="summary.json")
    if key not in ("name", "algorithm", "selection"):
        add(f"summary {key} a text", summary(**{key: "x"}), says="summary.json")
        add(f"summary {key} null", summary(**{key: None}), says="summary.json")
for name, content in {
    "empty": b"",
    "a list": b"[]",
    "a list of numbers": b"[1]",
    "pairs": b'[["name", "x"]]',
    "null": b"null",
    "a number": b"5",
    "a text": b'"x"',
    "an object": b"{}",
    "deep": b"[" * 200_000,
    "not UTF-8": b'{"name": "\xff"}',
}.items():
    add(f"summary {name}", reporting("summary.json", lambda old, rng, content=content: content), says="summary.json")
    if name != "empty":
        add(
            f"metrics {name}",
            reporting("metrics.jsonl", lambda old, rng, content=content: content),
            plots=True,
            says="metrics.jsonl",
        )
add("metrics empty", reporting("metrics.jsonl", lambda old, rng: b""), plots=True, says="metrics.jsonl")
add("metrics blank line", reporting("metrics.jsonl", lambda old, rng: old + b"\n"), plots=True, says="metrics.jsonl")
add("summary precision empty", summary(precision={}), says="summary.json")
add("summary precision of texts", summary(precision={"1": "a", "3": "b"}), says="summary.json")
add("summary precision of another k", summary(precision={"7": 0.5}), says="summary.json")
add("summary cut", reporting("summary.json", lambda old, rng: old[:-5]), says="summary.json")
add("metrics cut", reporting("metrics.jsonl", lambda old, rng: old[:-5]), plots=True, says="metrics.jsonl")
add("no summary", reporting("summary.json", lambda old, rng: None), says="has no summary.json")
add("no metrics", reporting("metrics.jsonl", lambda old, rng: None), says="has no metrics.jsonl")
add("no config", reporting("config.toml", lambda old, rng: None), says="config.toml")
add("config noise", reporting("config.toml", lambda old, rng: b"\xff"), says="config.toml")
add("report of nothing", lambda world, box, rng: ["report", str(box / "nowhere")], says="has no summary.json")
add("report of data", lambda world, box, rng: ["report", str(world.place / "xmc")], says="has no summary.json")


# Wrong questions.


def predicting(name, content, run="run", *arguments):
    def build(world, box, rng):
        (box / name).write_bytes(content)
        return [
            "predict",
            str(world.place / run),
            "--input",
            str(box / name),
            "--out",
            str(box / "answers"),
            *arguments,
        ]

    return build


def npz_bytes(matrix):
    buffer = io.BytesIO()
    save_npz(buffer, csr_matrix(matrix))
    return buffer.getvalue()


for name, content, says in (
    ("points.txt", b"1 19 12\n0 1:1\n", "19 features"),
    ("points.txt", b"2 20 12\n0 1:1\n", "it may be cut short"),
    ("points.txt", b"1 20 12\n0 1:x\n", "line 2"),
    ("points.txt", b"0 20:1\n0 x\n", "line 2"),
    ("points.svm", b"0 1:1\n", "count from 0 or from 1"),
    ("points.svm", b"0 0:1 20:1\n", "feature"),
    ("points.svm", b"0 21:1\n", "feature"),
    ("points.svm", b"0 99999999999:1\n", "line 1"),
    ("points.npz", b"", "points.npz"),
    ("points.npz", b"PK\3\4", "points.npz"),
    ("points.npz", npz_bytes(np.ones((2, 19))), "19 features"),
    ("points.npz", npz_bytes(np.full((2, 20), np.nan)), "NaN"),
    ("points.jsonl", b'{"text": "a"}\n', "holds text"),
    ("points.csv", b"1,2\n", "should end in"),
    ("points", b"1 20 12\n0 1:1\n", "should end in"),
):
    add(f"predict {name} {content[:30]!r}", predicting(name, content), says=says)
for name, content, says in (
    ("points.jsonl", b'{"text": 5}\n', "line 1"),
    ("points.jsonl", b'{"text": "a"}\n{"labels": []}\n', "line 2"),
    ("points.jsonl", b"[]\n", "line 1"),
    ("points.jsonl", b"\xff\n", "line 1"),
    ("points.jsonl.gz", b'{"text": "a"}\n', "points.jsonl.gz"),
    ("points.jsonl.gz", gzip.compress(b'{"text": "a"}\n')[:-4], "points.jsonl.gz"),
    ("points.txt", b"fine\n\xff\n", "line 2"),
    ("points.txt.gz", b"\x1f\x8b", "points.txt.gz"),
    ("points.npz", npz_bytes(np.ones((2, 20))), "holds features"),
    ("points.svm", b"0 1:1\n", "holds features"),
    ("points.pdf", b"%PDF", "should end in"),
):
    add(f"predict text {name} {content[:30]!r}", predicting(name, content, "textrun"), says=says)


def answers(count):
    def check(world, box, stdout, stderr):
        lines = [json.loads(line) for line in (box / "answers").read_text().splitlines()]
        assert [line["point"] for line in lines] == list(range(count))
        assert all(len(line["labels"]) == 5 for line in lines)

    return check


add("predict no text", predicting("points.jsonl", b"", "textrun"), passes=answers(0), must_pass=True)
add("predict empty texts", predicting("points.txt", b"\n\n", "textrun"), passes=answers(2), must_pass=True)
add(
    "predict odd text",
    predicting("points.jsonl", b'{"text": "\\ud800 \\u0000"}\n', "textrun"),
    passes=answers(1),
    must_pass=True,
)
add("predict no point", predicting("points.txt", b"0 20 12\n"), passes=answers(0), must_pass=True)
add("predict a blank point", predicting("points.txt", b"1 20 12\n\n"), passes=answers(1), must_pass=True)
for top in ("0", "-1", "10001", "x"):
    add(f"usage predict --top {top}", predicting("points.txt", b"1 20 12\n\n", "run", "--top", top), usage=True)
for arguments, says in (
    (["{run}"], "say what to label"),
    (["{run}", "--text", "a", "--input", "b"], "say what to label"),
    (["{run}", "--text", "a"], "not on text"),
    (["{run}", "--input", "{box}/nowhere"], "should be a file"),
    (["{run}", "--input", "{box}"], "should be a file"),
    (["{box}/nowhere", "--text", "a"], "is not a folder"),
    (["{box}", "--text", "a"], "manifest.json"),
    (["{xmc}", "--text", "a"], "manifest.json"),
    (["{unfinished}", "--text", "a"], "holds no model yet"),
    (["{run}/config.toml", "--text", "a"], "is not a folder"),
):
    add(
        f"predict {' '.join(arguments)}",
        lambda world, box, rng, arguments=arguments: [
            "predict",
            *(
                part.format(
                    run=world.place / "run", box=box, xmc=world.place / "xmc", unfinished=world.place / "stopped"
                )
                for part in arguments
            ),
        ],
        says=says,
    )
for data, says in (("svmlight", ""), ("jsonl", "pass the data it was trained on"), ("run", "no data set recognised")):
    add(
        f"eval on {data}",
        lambda world, box, rng, data=data: ["eval", str(world.place / "run"), "--data", str(world.place / data)],
        says=says,
        **({"passes": lambda *_: None, "must_pass": True} if data == "svmlight" else {}),
    )


# Places that cannot be written to.


def occupy(box, how):
    """A path that is taken or cannot be."""
    place = box / "taken"
    if how == "a file":
        place.write_text("mine")
    elif how == "a full folder":
        place.mkdir()
        (place / "note").write_text("mine")
    elif how == "below a file":
        place.write_text("mine")
        place = place / "below"
    elif how == "below a device":
        place = Path("/dev/null/below")
    elif how == "no place":
        place = Path("/proc/nowhere/below")
    elif how == "a long name":
        place = box / ("x" * 300)
    return str(place)


WRITERS = {
    "run": lambda world, out: ["run", str(world.place / "three.toml"), "--out", out],
    "run --resume": lambda world, out: ["run", str(world.place / "three.toml"), "--out", out, "--resume"],
    "compare": lambda world, out: ["compare", str(world.place / "three.toml"), "--out", out],
    "data convert": lambda world, out: ["data", "convert", str(world.place / "xmc"), out],
    "data synth": lambda world, out: ["data", "synth", out, "--points", "50", "--labels", "10", "--features", "50"],
}
for command, arguments in WRITERS.items():
    for how in ("a file", "a full folder", "below a file", "below a device", "no place", "a long name"):
        taken = lambda world, box, rng, arguments=arguments, how=how: arguments(world, occupy(box, how))  # noqa: E731
        add(f"{command} to {how}", taken)
for command in ("report", "predict"):
    for how in ("a full folder", "below a file", "below a device", "no place", "a long name"):

        def write_file(world, box, rng, command=command, how=how):
            out = occupy(box, how)
            if command == "report":
                return ["report", str(world.place / "run"), "--out", out]
            points = str(world.place / "xmc" / "test.txt")
            return ["predict", str(world.place / "run"), "--input", points, "--out", out]

        add(f"{command} to {how}", write_file)


# Names that a file must give back.


def round_trip(name):
    """A run under an odd name can be resumed and reported, and its model loaded."""

    def build(world, box, rng):
        out = str(box / "out")
        text = toml(data=str(world.place / "xmc"), rounds=1).replace('"tiny"', name)
        (box / "config.toml").write_text(text, "utf-8")
        arguments = ["run", str(box / "config.toml"), "--out", out]
        for again in (arguments, ["predict", out, "--input", str(world.place / "xmc" / "test.txt")]):
            code, _, stderr = invoke(again)
            assert code == 0, stderr
        return [*arguments, "--resume"]

    return build


for name in ('"naïve"', '"a\\tb"', "'quo\"te\\'", '"😀"', '"\\u007f"', "'<script>'", '"line\\nbreak"'):
    add(f"odd name {name}", round_trip(name), passes=lambda *_: None, must_pass=True)


# The law.


def invoke(arguments, plots=False):
    """The command line in this process: exit code, stdout, stderr."""
    streams, argv, draw = (sys.stdout, sys.stderr), sys.argv, report.draw_curves
    if not plots:
        report.draw_curves = lambda *arguments: b"<svg></svg>"
    sys.stdout, sys.stderr, sys.argv = io.StringIO(), io.StringIO(), ["fedmlh", *arguments]
    try:
        cli.main()
        code = 0
    except SystemExit as stop:
        code = stop.code or 0
    finally:
        out, err = sys.stdout.getvalue(), sys.stderr.getvalue()
        (sys.stdout, sys.stderr), sys.argv, report.draw_curves = streams, argv, draw
    return code, out, err


def snapshot(folder):
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    place = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDMLH_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.chdir(tmp_path_factory.mktemp("here"))
        write_sound_data(place)
        for name, changes in {
            "run": {"data": str(place / "xmc")},
            "three": {"data": str(place / "xmc"), "rounds": 3},
            "other": {"data": str(place / "xmc"), "seed": 1, "num_buckets": 6},
            "textrun": {"data": str(place / "jsonl"), "rounds": 1},
        }.items():
            (place / f"{name}.toml").write_text(toml(**changes))
            code, _, stderr = invoke(["run", str(place / f"{name}.toml"), "--out", str(place / name)])
            assert code == 0, stderr
        # As if the run of three rounds had been killed in its third.
        shutil.copytree(place / "run", place / "stopped")
        for name in ("summary.json", "report.html", "curves.png"):
            (place / "stopped" / name).unlink()
        shutil.rmtree(place / "stopped" / "model")
        shutil.copy(place / "three" / "config.toml", place / "stopped" / "config.toml")
        yield World(place)


def test_there_are_enough_cases():
    assert len(CASES) >= 300
    assert len({case.name for case in CASES}) == len(CASES)


def test_sound_data_converts_to_what_a_plain_reading_gives(world, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDMLH_CACHE", str(tmp_path / "cache"))
    for kind in FILES:
        code, _, stderr = invoke(["data", "convert", str(world.place / kind), str(tmp_path / kind), "--to", "npz"])
        assert (code, stderr) == (0, "")
        same_data(tmp_path / kind, plain_read(world.place / kind, kind))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.encode("unicode_escape").decode()[:60])
def test_a_faulty_input_is_parsed_exactly_or_refused_in_one_line(world, tmp_path, monkeypatch, case):
    monkeypatch.setenv("FEDMLH_CACHE", str(tmp_path / "cache"))
    box = tmp_path / "box"
    box.mkdir()
    monkeypatch.chdir(box)
    arguments = case.build(world, box, np.random.default_rng(zlib.crc32(case.name.encode("utf-8", "replace"))))
    before = snapshot(box)
    code, stdout, stderr = invoke(arguments, case.plots)
    assert "Traceback" not in stdout + stderr
    if code == 0:
        assert case.passes is not None, f"accepted: {stdout}{stderr}"
        case.passes(world, box, stdout, stderr)
        return
    assert code == 2
    assert not case.must_pass, stderr
    left = snapshot(box)
    if case.begins:
        assert left.keys() - before.keys() <= {"out", "out/config.toml"}
    else:
        assert left == before
    if case.usage:
        assert re.match("Usage: |╭─ Error", stderr)
        return
    assert re.fullmatch(r"fedmlh: [^\n]+\n", stderr), stderr
    assert case.says in stderr


@pytest.mark.parametrize("command", ["convert npz", "convert xmc", "convert svmlight", "synth", "predict", "report"])
def test_a_disk_that_fills_up_leaves_nothing_behind(world, tmp_path, monkeypatch, command):
    monkeypatch.setenv("FEDMLH_CACHE", str(tmp_path / "cache"))
    box = tmp_path / "box"
    box.mkdir()
    out = str(box / "out")
    arguments = {
        "synth": ["data", "synth", out, "--points", "50", "--labels", "10", "--features", "50"],
        "predict": [
            "predict",
            str(world.place / "run"),
            "--input",
            str(world.place / "xmc" / "test.txt"),
            "--out",
            out,
        ],
        "report": ["report", str(world.place / "run"), "--out", out],
    }
    chosen = arguments.get(command) or ["data", "convert", str(world.place / "xmc"), out, "--to", command.split()[1]]
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fail(*arguments, **options):
        raise full

    monkeypatch.setattr(os, "fsync", fail)
    monkeypatch.setattr("fedmlh.data.convert.write_lines", fail)
    code, _, stderr = invoke(chosen)
    assert code == 2
    assert re.fullmatch(rf"fedmlh: [^\n]*{full.strerror}[^\n]*\n", stderr)
    assert snapshot(box) == {}
