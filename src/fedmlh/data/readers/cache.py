"""Parsed data sets kept on disk, so that text is parsed once; a cache that fails is ignored."""

import contextlib
import hashlib
import json
import os
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from fedmlh.data.csr import join_arrays, list_arrays
from fedmlh.data.dataset import Dataset, Labels, Split
from fedmlh.data.matrix import build_features
from fedmlh.data.readers.layout import Layout
from fedmlh.data.readers.npz import DAMAGED, read_array
from fedmlh.data.text import TextFeatures
from fedmlh.drafts import draft_file
from fedmlh.errors import UserError
from fedmlh.lock import take_turns
from fedmlh.untrusted import MOST_BINARY, open_regular

#: To be increased whenever the same files would be parsed to something else.
PARSER_VERSION = 3
#: A file younger than this may change again without a new time of change.
SETTLED_NS = 2_000_000_000
MATRICES = ("X", "Y", "excluded")

Key = dict[str, Any]


def find_cache() -> Path:
    """Return the folder of the cache: $FEDMLH_CACHE, or else the usual place for caches."""
    own = os.environ.get("FEDMLH_CACHE")
    if own:
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "fedmlh"


def describe_source(layout: Layout, settings: dict[str, Any]) -> Key:
    """Describe everything that decides what a load returns."""
    folder = layout.folder.resolve()
    kinds = [site.kind for site in layout.sites] or [layout.kind]
    stats = [(path, path.stat()) for path in layout.files()]
    files = [[os.path.relpath(path, layout.folder), stat.st_size, stat.st_mtime_ns] for path, stat in stats]
    versions = [PARSER_VERSION, version("scikit-learn")]
    return {"folder": str(folder), "settings": {"kinds": kinds, **settings}, "files": files, "versions": versions}


def is_settled(key: Key, now_ns: int) -> bool:
    """Return whether the files are old enough for their times to tell one state from the next."""
    return all(now_ns - changed > SETTLED_NS for _, _, changed in key["files"])


def locate(key: Key) -> Path:
    """Return the cache file of a folder and its settings; a new state of the folder overwrites the old one."""
    name = json.dumps([key["folder"], key["settings"]], sort_keys=True)
    return find_cache() / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.npz"


def fetch(key: Key) -> Dataset | None:
    """Return the cached data set of exactly this source, or None."""
    try:
        with open_regular(locate(key), MOST_BINARY) as file, zipfile.ZipFile(file) as archive:
            meta = json.loads(read_array(archive, "meta").tobytes())
            if meta["key"] != key:
                return None
            parts = [read_split(archive, part, meta["arrays"]) for part in ("train", "test")]
        return Dataset(
            meta["name"],
            parts[0],
            parts[1],
            Labels(tuple(meta["keys"]), tuple(meta["names"])),
            None if meta["text"] is None else TextFeatures.from_json(meta["text"]),
            tuple(meta["notes"]),
            tuple(meta["site_names"]),
            meta["first_feature"],
        )
    except (*DAMAGED, OSError, AttributeError, UserError):
        return None


def read_split(archive: zipfile.ZipFile, part: str, arrays: list[str]) -> Split:
    """Read one part, checked like a file from outside."""
    matrices: dict[str, csr_matrix | None] = dict.fromkeys(MATRICES)
    for name in MATRICES:
        prefix = f"{part}.{name}"
        if f"{prefix}.shape" in arrays:
            found = join_arrays(prefix, partial(read_array, archive), prefix)
            matrices[name] = build_features(prefix, found.data, found.indices, found.indptr, found.shape)[0]
    sites = read_array(archive, f"{part}.sites") if f"{part}.sites" in arrays else None
    return Split(matrices["X"], matrices["Y"], matrices["excluded"], sites)


def store(key: Key, dataset: Dataset) -> None:
    """Keep a data set; if the disk is full or read-only, do nothing."""
    arrays: dict[str, np.ndarray] = {}
    for part, split in (("train", dataset.train), ("test", dataset.test)):
        for name in MATRICES:
            matrix = getattr(split, name)
            if matrix is not None:
                arrays |= list_arrays(f"{part}.{name}", matrix)
        if split.sites is not None:
            arrays[f"{part}.sites"] = split.sites
    meta = {
        "key": key,
        "name": dataset.name,
        "keys": dataset.labels.keys,
        "names": dataset.labels.names,
        "text": None if dataset.text is None else dataset.text.to_json(),
        "notes": dataset.notes,
        "site_names": dataset.site_names,
        "first_feature": dataset.first_feature,
        "arrays": sorted(arrays),
    }
    arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    # If the user has no home folder, Python raises a RuntimeError.
    with contextlib.suppress(OSError, RuntimeError):
        target = locate(key)
        make_folder(target.parent)
        # It holds features of private text: only the owner may read it.
        with draft_file(target, mode=0o600) as file:
            np.savez(file, allow_pickle=False, **arrays)


@contextmanager
def take_turn(key: Key) -> Iterator[None]:
    """Wait while another process makes the same entry, unless the cache cannot be written."""
    with ExitStack() as stack:
        with contextlib.suppress(OSError, RuntimeError):
            target = locate(key)
            make_folder(target.parent)
            stack.enter_context(take_turns(target.with_suffix(".lock")))
        yield


def make_folder(folder: Path) -> None:
    """Make the folder of the cache, if it is not there."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
