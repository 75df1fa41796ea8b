"""A plain reading of the data formats, written from their description."""

import gzip
import json
import re

import numpy as np
from scipy.sparse import csr_matrix, load_npz

from faulty_inputs.world import SIZES, D, P
from fedmlh.data.text import DEFAULT_DIM, TextFeatures


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
    """Return label keys and names, and for each part X, Y and the excluded pairs."""
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
    """Check that a converted folder holds what a plain reading gives, to the bit."""
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
