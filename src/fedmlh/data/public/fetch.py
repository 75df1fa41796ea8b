"""Public data sets by name: downloaded, unpacked, converted and counted into a folder, or no folder is made."""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from fedmlh.data.dataset import Dataset
from fedmlh.data.public.archive import unpack
from fedmlh.data.public.catalog import Counts, Entry
from fedmlh.data.public.download import NoDownload, download
from fedmlh.data.readers.convert import write
from fedmlh.data.readers.files import readable
from fedmlh.data.readers.formats import read
from fedmlh.data.readers.layout import recognise_single
from fedmlh.data.text import TextFeatures
from fedmlh.drafts import draft_folder
from fedmlh.errors import UserError
from fedmlh.lock import is_free
from fedmlh.untrusted import parse_json, read_bytes

#: The folder, in a draft, of what came out of an archive.
UNPACKED = "unpacked"
#: The file that says where a fetched folder came from.
RECORD = "source.json"
_MOST_RECORD = 2**20
#: Files in archives of the repository that a reader understands.
WANTED = (
    *("train.txt", "test.txt", "*_train.txt", "*_test.txt"),
    *("trn_X_Xf.txt", "trn_X_Y.txt", "tst_X_Xf.txt", "tst_X_Y.txt"),
    *("filter_labels_train.txt", "filter_labels_test.txt"),
)

#: Called with the current step, its bytes so far, and all its bytes (None if not known).
Watch = Callable[[str, int, int | None], None]


class WrongSource(UserError):
    """An archive or folder that is not the data set."""


@dataclass(frozen=True)
class Fetched:
    """A folder with a data set, and the archive it came from, which it no longer needs."""

    folder: Path
    counts: Counts
    archive: Path | None
    sha256: str | None  # of the archive


def fetch(entry: Entry, to: Path | None, source: Path | None, watch: Watch) -> Fetched:
    """Make the folder `to` (else data/NAME) from the entry's archive: `source`, or the one beside `to`, or a new one.

    `source` may also be a folder into which the archive was unpacked.
    """
    target = to or Path("data") / entry.name
    if target.name in ("", ".."):
        target = target.resolve()
    if target.exists() and not (target.is_dir() and is_free(target)):
        return recall(entry, target)
    own = target.with_name(f"{target.name}.zip")
    if source is None and not own.exists():
        get_archive(entry, own, watch)
    check_source(source or own)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with draft_folder(target.parent) as draft:
            try:
                return build(entry, source or own, target, draft, watch)
            except WrongSource as problem:
                again = "" if source else f"; remove {own}, and the same command downloads it again"
                # The draft is gone by the time a user reads this.
                raise UserError(str(problem).replace(str(draft / UNPACKED), str(source or own)) + again) from problem
            except UserError as problem:
                raise UserError(str(problem).replace(str(draft / "data"), str(target))) from problem
    except OSError as problem:
        raise UserError(
            f"{target}: cannot be written ({problem.strerror or problem}); nothing was left there, "
            f"and the same command tries again with {source or own}"
        ) from problem


def check_source(source: Path) -> None:
    """Refuse a source that does not exist, or that has no end, such as a device or a pipe."""
    if not source.exists():
        raise UserError(f"{source}: there is no such file or folder")
    if not source.is_file() and not source.is_dir():
        raise UserError(f"{source}: is neither a file nor a folder; save what comes from it as a file first")


def recall(entry: Entry, target: Path) -> Fetched:
    """Return what an earlier call has put there; refuse anything else, and leave it as it is."""
    try:
        record = parse_json(read_bytes(target / RECORD, _MOST_RECORD))
        if record["name"] == entry.name:
            return Fetched(target, Counts(**record["counts"]), None, record["sha256"])
    except (OSError, UserError, ValueError, KeyError, TypeError):
        pass
    raise UserError(
        f"{target}: is there already and is not {entry.name} as fetched; choose another folder or remove it"
    )


def get_archive(entry: Entry, archive: Path, watch: Watch) -> None:
    """Download the archive, or say how to get it by hand."""
    try:
        download(entry.url, archive, lambda done, size: watch("downloading", done, size))
    except NoDownload as problem:
        raise NoDownload(
            f"{entry.url}: {problem}; to get it by hand, open {entry.page} in a browser, save the file as {archive} "
            "and run the same command again (--from FILE takes it from anywhere else)"
        ) from None


def build(entry: Entry, source: Path, target: Path, draft: Path, watch: Watch) -> Fetched:
    """Unpack, read, count and convert within `draft`; the last step puts the folder in its place."""
    try:
        digest = None if source.is_dir() else open_archive(entry, source, draft / UNPACKED, watch)
        watch("converting", 0, None)
        dataset = read_features(source if source.is_dir() else draft / UNPACKED)
        counts = Counts.of(dataset)
        check_counts(entry, counts, source)
    except UserError as problem:
        raise WrongSource(str(problem)) from problem
    write(dataset, draft / "data", "npz")
    record = {"name": entry.name, "title": entry.title, "url": entry.url, "sha256": digest, "counts": asdict(counts)}
    (draft / "data" / RECORD).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    os.replace(draft / "data", target)
    return Fetched(target, counts, None if source.is_dir() else source, digest)


def open_archive(entry: Entry, archive: Path, folder: Path, watch: Watch) -> str:
    """Unpack what a reader understands, and return the archive's SHA-256."""
    watch("checking", 0, None)
    digest = compute_digest(archive)
    if entry.sha256 not in (None, digest):
        raise UserError(
            f"{archive}: its SHA-256 is {digest}, and {entry.title} has {entry.sha256}: it is damaged or another file"
        )
    watch("unpacking", 0, None)
    folder.mkdir()
    unpack(archive, folder, lambda name: any(fnmatchcase(name, pattern) for pattern in WANTED))
    return digest


def compute_digest(path: Path) -> str:
    """Return the SHA-256 of a file of any size."""
    with readable(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_features(folder: Path) -> Dataset:
    """Read the data set in an unpacked archive, without the cache, which would keep it for a folder that is removed."""
    layout = recognise_single(folder, "xmc")
    if layout is None:
        raise UserError(f"{folder}: holds no pair of files that could be the data set, such as train.txt and test.txt")
    return read(layout, "hashing", TextFeatures.hashing())


def check_counts(entry: Entry, found: Counts, source: Path) -> None:
    """Refuse another data set, or another version of this one."""
    wanted, got = asdict(entry.counts), asdict(found)
    names = {"train": "training points", "test": "test points", "features": "features", "labels": "labels"}
    wrong = [
        f"{got[key]:,} {name} instead of {wanted[key]:,}" for key, name in names.items() if got[key] != wanted[key]
    ]
    if wrong:
        raise UserError(
            f"{source}: has {', '.join(wrong)}, so it is not {entry.title} as published; "
            "unpacked, `fedmlh data convert` takes it as it is"
        )
