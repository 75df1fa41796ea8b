"""Files of data in every format, written for tests, and what was read from them."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, save_npz

X = csr_matrix(np.array([[1, 0, 0.5], [0, 0, 2]], np.float32))
Y = csr_matrix(np.array([[1, 1], [0, 1]], np.float32))


def put(folder: Path, **files: str | bytes) -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    for name, content in files.items():
        data = content.encode() if isinstance(content, str) else content
        path = folder / name.replace("__", ".")
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return folder


def put_npz(folder: Path, **changes: csr_matrix) -> Path:
    folder.mkdir(exist_ok=True, parents=True)
    for name, matrix in {"X_trn": X, "Y_trn": Y, "X_tst": X[:1], "Y_tst": Y[:1], **changes}.items():
        save_npz(folder / f"{name.replace('_', '.')}.npz", matrix)
    return folder


def put_text(folder: Path, train: list[Any], test: list[Any], end: str = "jsonl", **files: str) -> Path:
    lines = ["\n".join(json.dumps(record) for record in part) + "\n" for part in (train, test)]
    return put(folder, **{f"trn.{end}": lines[0], f"tst.{end}": lines[1], **files})


def dense(matrix: Any) -> list[list[float]]:
    assert matrix.dtype == np.float32
    assert matrix.has_canonical_format
    assert (matrix.data != 0).all()
    return matrix.toarray().tolist()  # type: ignore[no-any-return]
