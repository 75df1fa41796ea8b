"""Features and labels as scipy's .npz files, checked before anything indexes with them.

The claims of an archive and of the heads of its arrays are checked first: an array is unpacked only once it is known
to fit the others, and to be no larger than its file allows.
"""

import math
import zipfile
import zlib
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from fedmlh.data.limits import MAX_FEATURES, check_size
from fedmlh.data.matrix import Head, build_features, build_marks, check_csr, check_heads, count_merged
from fedmlh.data.readers.files import check_unpacked, open_zip, readable
from fedmlh.data.readers.label_files import name_labels, read_filter
from fedmlh.data.readers.layout import Layout, Parts, Reader
from fedmlh.data.readers.raw import RawFolder, RawPart
from fedmlh.errors import UserError
from fedmlh.parts import register

Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, tuple[int, int]]  # data, indices, indptr, shape
#: All that numpy and zipfile raise on a file that is damaged, or is something else.
DAMAGED = (
    EOFError,
    KeyError,
    MemoryError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
)
#: Most bytes of the arrays that describe the others.
_MAX_SMALL = 1 << 10


def read_csr(path: Path) -> Arrays:
    """Read the arrays of a matrix that `scipy.sparse.save_npz` wrote from CSR."""
    try:
        with readable(path), open_zip(path) as archive:
            return read_arrays(path, archive)
    except DAMAGED as problem:
        raise UserError(
            f"{path}: should be a CSR matrix written by scipy.sparse.save_npz ({explain(problem)})"
        ) from problem


def read_arrays(path: Path, archive: zipfile.ZipFile) -> Arrays:
    """Read the arrays of an open archive, after checking what it claims of them."""
    fields = ("data", "indices", "indptr")
    members = [archive.getinfo(f"{name}.npy") for name in ("format", "shape", *fields)]
    if max(info.file_size for info in members[:2]) > _MAX_SMALL:
        raise ValueError("format or shape is too long")
    packed, unpacked = sum(info.compress_size for info in members), sum(info.file_size for info in members)
    check_unpacked(path, packed, unpacked, "save it with scipy.sparse.save_npz(…, compressed=False)")

    kind, size = read_array(archive, "format"), read_array(archive, "shape")
    if kind.ndim or kind.item() not in (b"csr", "csr"):
        raise UserError(f"{path}: should hold a CSR matrix; call .tocsr() before it is saved")
    if size.shape != (2,) or size.dtype.kind not in "iu" or size.min() < 0 or size[1] > MAX_FEATURES:
        raise UserError(f"{path}: its shape should be two sizes, is {size.tolist()}")
    shape = (int(size[0]), int(size[1]))
    heads = [read_head(archive, name) for name in fields]
    check_heads(str(path), heads[0], heads[1], heads[2], shape)
    data, indices, indptr = (read_array(archive, name) for name in fields)
    check_csr(str(path), data, indices, indptr, shape)
    return data, indices, indptr, shape


def read_head(archive: zipfile.ZipFile, name: str) -> Head:
    """Read shape and type of one array before it is unpacked, and check that its number of bytes fits them."""
    info = archive.getinfo(f"{name}.npy")
    with archive.open(info) as member:
        # Later versions are for heads that no array of numbers needs.
        if np.lib.format.read_magic(member) != (1, 0):
            raise ValueError(f"{name} is not in version 1.0 of the npy format")
        shape, _, dtype = np.lib.format.read_array_header_1_0(member)
        if dtype.hasobject:
            raise ValueError(f"{name} holds Python objects, which are not loaded (allow_pickle=False)")
        more = info.file_size - member.tell() - math.prod(shape) * dtype.itemsize
        if more:
            raise ValueError(f"{name} is {'longer' if more > 0 else 'shorter'} than it says")
    return Head(shape, dtype)


def read_array(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """Read one array of an .npz; reading it whole lets the archive check its sum."""
    with archive.open(f"{name}.npy") as member:
        array: np.ndarray = np.lib.format.read_array(member, allow_pickle=False)
        if member.read(1):
            raise ValueError(f"{name} is longer than it says")
    return array


def explain(problem: BaseException) -> str:
    """Return the first line of an exception's text, or its name."""
    text = str(problem).strip("'\"").splitlines()
    return text[0] if text else type(problem).__name__


def read_features(path: Path) -> tuple[csr_matrix, int]:
    """Read X of a file, and return it with the number of duplicates summed."""
    data, indices, indptr, shape = read_csr(path)
    return build_features(str(path), data, indices, indptr, shape)


def read_part(files: tuple[Path, ...], filter_path: Path | None) -> tuple[RawPart, tuple[str, ...]]:
    """Read X, Y and the pairs that are not scored."""
    X, summed = read_features(files[0])
    Y, merged = build_marks(str(files[1]), *read_csr(files[1]))
    if X.shape[0] != Y.shape[0]:
        raise UserError(f"{files[1]}: {Y.shape[0]:,} rows, but {files[0].name} has {X.shape[0]:,}")
    notes = count_merged(files[0].name, summed, 0) + count_merged(files[1].name, 0, merged)
    return RawPart(X, Y, read_filter(filter_path, Y.shape)), notes


def find_npz(folder: Path, names: list[str]) -> Parts | None:
    """Find X and Y of both parts."""
    wanted = ("X.trn.npz", "Y.trn.npz", "X.tst.npz", "Y.tst.npz")
    missing = [name for name in wanted if name not in names]
    if len(missing) == len(wanted):
        return None
    if missing:
        raise UserError(f"{folder}: {', '.join(missing)} should stand beside the other .npz files")
    return wanted[:2], wanted[2:]


def read_npz(layout: Layout) -> RawFolder:
    """Read a folder with X.trn.npz, Y.trn.npz, X.tst.npz and Y.tst.npz."""
    train, train_notes = read_part(layout.train, layout.train_filter)
    test, test_notes = read_part(layout.test, layout.test_filter)
    for what, a, b in (("features", train.points, test.points), ("labels", train.Y, test.Y)):
        if a.shape[1] != b.shape[1]:
            raise UserError(
                f"{layout.folder}: the training part has {a.shape[1]:,} {what}, the test part {b.shape[1]:,}"
            )
    check_size(layout.folder, train.points.shape[1], train.Y.shape[1])
    labels = name_labels(layout, train.Y.shape[1], train.Y.nnz + test.Y.nnz)
    return RawFolder(train, test, labels, train_notes + test_notes)


register("reader", "npz", Reader(find_npz, read_npz))
