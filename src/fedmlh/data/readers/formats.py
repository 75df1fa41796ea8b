"""Data from files, whatever their format: `load` for a data set, `read_points` for points to predict."""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix

from fedmlh.data.dataset import Dataset, Split
from fedmlh.data.readers import cache
from fedmlh.data.readers.door import check_folder
from fedmlh.data.readers.files import FEATURE_ENDS, open_bytes, readable
from fedmlh.data.readers.jsonl import read_originals
from fedmlh.data.readers.layout import Layout, Reader, recognise
from fedmlh.data.readers.npz import read_features
from fedmlh.data.readers.raw import RawFolder, RawPart, merge_sites
from fedmlh.data.readers.xmc import build_points, read_svmlight_file, read_xmc_file, shift_features
from fedmlh.data.text import DEFAULT_DIM, KINDS, TextFeatures
from fedmlh.errors import UserError
from fedmlh.parts import OWN, blame, find, find_foreign

#: Formats that never hold text, so that how text becomes features does not matter.
_FEATURES = {"npz", "xmc", "svmlight"}


def load(
    path: Path | str,
    *,
    data_format: str = "auto",
    text_features: str = "hashing",
    text_dim: int = DEFAULT_DIM,
    training_only: bool = False,
) -> Dataset:
    """Load the data set in a folder, recognised by its files; text becomes features in the given way.

    With `training_only` no file of the test part is opened: the first training point takes its place.
    """
    if text_features not in KINDS:
        raise UserError(f"text features {text_features!r} should be one of {', '.join(KINDS)}")
    hashing = TextFeatures.hashing(text_dim)
    layout = recognise(Path(path), data_format)
    settings: dict[str, str | int] = {}
    if training_only:
        layout, settings["part"] = _leave_out_test(layout), "training"
    dataset = _load(layout, settings, text_features, text_dim, hashing)
    if training_only:
        return replace(dataset, test=dataset.train.take(np.zeros(1, np.int64)))
    if layout.kinds == {"text"}:
        tests = [part.test[0] for part in layout.sites or (layout,)]
        dataset = replace(dataset, originals=partial(read_originals, tests))
    return dataset


def _load(
    layout: Layout, settings: dict[str, str | int], text_features: str, text_dim: int, hashing: TextFeatures
) -> Dataset:
    """Return the data set of a recognised folder, from the cache if it is there."""
    if layout.kinds == {"npz"}:
        return read(layout, text_features, hashing)

    if layout.kinds - _FEATURES:
        settings["text_features"] = text_features
        if text_features == "hashing":
            settings["text_dim"] = text_dim
    for kind in layout.kinds:
        foreign = find_foreign("reader", kind)
        if foreign is not None:  # another reader of the same name may read something else
            settings["reader"] = foreign.sha256
    began = time.time_ns()
    with readable(layout.folder):
        key = cache.describe_source(layout, settings)
    dataset = cache.fetch(key)
    if dataset is not None:
        return dataset
    if not cache.is_settled(key, began):
        return read(layout, text_features, hashing)
    with cache.take_turn(key):
        dataset = cache.fetch(key)
        if dataset is None:
            dataset = read(layout, text_features, hashing)
            with readable(layout.folder):
                unchanged = cache.describe_source(layout, settings) == key
            if unchanged:
                cache.store(key, dataset)
    return dataset


def _leave_out_test(layout: Layout) -> Layout:
    # Readers want two parts: here both are the training part.
    sites = tuple(_leave_out_test(site) for site in layout.sites)
    return replace(layout, test=layout.train, test_filter=layout.train_filter, sites=sites)


def read_raw(layout: Layout) -> RawFolder:
    """Read the content of the files of a recognised folder."""
    if layout.sites:
        names = [site.folder.name for site in layout.sites]
        raw = merge_sites(layout.folder, dict(zip(names, _read_folders(layout.sites), strict=True)))
    else:
        (raw,) = _read_folders([layout])
    for part, name in ((raw.train, "training"), (raw.test, "test")):
        if part.Y.shape[0] == 0:
            raise UserError(f"{layout.folder}: the {name} part has no points")
    return raw


def _read_folders(layouts: Sequence[Layout]) -> list[RawFolder]:
    kinds = {layout.kind for layout in layouts}
    if len(kinds) > 1:
        return [raw for layout in layouts for raw in _read_folders([layout])]
    (kind,) = kinds
    reader: Reader = find("reader", kind)
    with blame("reader", kind, str(layouts[0].folder)):
        if reader.read_sites is not None and len(layouts) > 1:
            raws = reader.read_sites(layouts)
        else:
            raws = [reader.read(layout) for layout in layouts]
        if find_foreign("reader", kind) is not None:
            raws = [check_folder(str(layout.folder), raw) for layout, raw in zip(layouts, raws, strict=True)]
    return raws


def read(layout: Layout, text_features: str, hashing: TextFeatures) -> Dataset:
    """Read the data set of a recognised folder from its files."""
    raw = read_raw(layout)
    text = None
    if raw.is_text:
        text = TextFeatures.fit_tfidf(raw.train.points) if text_features == "tfidf" else hashing

    def split(part: RawPart) -> Split:
        X = part.points if text is None else text.transform(part.points)
        return Split(X, part.Y, part.excluded, part.sites)

    name = layout.folder.resolve().name
    parts = (split(raw.train), split(raw.test))
    return Dataset(name, *parts, raw.labels, text, raw.notes, raw.site_names, raw.first_feature)


def read_points(
    path: Path | str,
    *,
    data_format: str = "auto",
    num_features: int | None = None,
    first_feature: int | None = None,
) -> csr_matrix:
    """Read features of points to predict from one file [n, d]; labels are allowed and ignored.

    num_features: the model's d.
    first_feature: the number of the first svmlight feature, 0 or 1, if the file does not show it.
    """
    path = Path(path)
    if data_format not in ("auto", *OWN["reader"]):
        raise UserError(f"data format {data_format!r}: single files are read as {', '.join(OWN['reader'])} or auto")
    if not path.is_file():
        raise UserError(f"{path}: should be a file with points to predict")
    name = path.name.removesuffix(".gz")
    if data_format == "auto":
        data_format = guess_format(path, name)
    if data_format == "text":
        raise UserError(f"{path}: holds text, but the model was trained on features")
    if data_format == "npz":
        points = read_features(path)[0]
    elif data_format == "xmc":
        rows, (_, d, _), _ = read_xmc_file(path)
        points = build_points(path, rows, d)[0]
    else:
        points = read_svmlight_points(path, num_features, first_feature)
    if num_features not in (None, points.shape[1]):
        raise UserError(f"{path}: has {points.shape[1]:,} features, the model was trained on {num_features:,}")
    return points


def guess_format(path: Path, name: str) -> str:
    """Return the format of a single file by its name; the header of a .txt file of numbers decides."""
    if name.endswith((".jsonl", ".json")):
        return "text"
    if name.endswith(".npz"):
        return "npz"
    if name.endswith(FEATURE_ENDS):
        return "svmlight"
    if name.endswith(".txt"):
        with readable(path), open_bytes(path) as file:
            fields = file.readline(200).split()
        return "xmc" if len(fields) == 3 and all(field.isdigit() for field in fields) else "svmlight"
    raise UserError(
        f"{path}: should end in .txt, .npz, .svm, .svmlight or .libsvm (all but .npz also with .gz), since the model "
        f"was trained on features"
    )


def read_svmlight_points(path: Path, num_features: int | None, first_feature: int | None) -> csr_matrix:
    """Read features of a file without a header; refuse a file that fits both ways of counting features."""
    if first_feature not in (None, 0, 1):
        raise UserError(f"the first feature is {first_feature}, and should be 0 or 1")
    rows, _ = read_svmlight_file(path)
    lowest, highest = int(rows.features.min(initial=2**31 - 1)), int(rows.features.max(initial=-1))
    if first_feature is None and lowest == 0:
        first_feature = 0
    if first_feature is None and highest == num_features:
        first_feature = 1
    if first_feature is None and highest >= 0:
        raise UserError(
            f"{path}: nothing in it tells whether features count from 0 or from 1; say which (first_feature, "
            f"--first-feature), or begin the file with the header `points features labels`, which counts from 0"
        )
    base = first_feature or 0
    if lowest < base:
        raise UserError(f"{path}: has a feature 0, though features should count from 1")
    d = highest + 1 - base if num_features is None else num_features
    if highest - base >= d:
        raise UserError(f"{path}: has a feature {highest:,}, the model was trained on {d:,} features")
    return build_points(path, shift_features(rows, base), d)[0]
