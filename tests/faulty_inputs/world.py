"""Sound inputs of every kind: data in every format, and runs on it."""

import gzip
import io
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix, save_npz

import command_line
from fedmlh.comparison import report

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


def write_sound_data(place):
    """Write one small data set in every format."""
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


def invoke(arguments, plots=False):
    """Run a command as `command_line.invoke` does, without the figures where nobody looks at them."""
    with pytest.MonkeyPatch.context() as patch:
        if not plots:
            patch.setattr(report, "draw_curves", lambda *arguments: b"<svg></svg>")
        return command_line.invoke(*arguments)
