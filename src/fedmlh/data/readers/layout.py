"""Data sets recognised by the files in their folder, before any of them is read."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from fedmlh.data.readers.files import readable
from fedmlh.data.readers.raw import RawFolder
from fedmlh.errors import UserError
from fedmlh.parts import OWN, blame, find

#: How the name of a text file may end.
PACKED = ("", ".gz")
LOOKED_FOR = (
    "X.trn.npz, Y.trn.npz, X.tst.npz and Y.tst.npz; train.txt and test.txt (or *_train.txt and *_test.txt); "
    "trn_X_Xf.txt, trn_X_Y.txt, tst_X_Xf.txt and tst_X_Y.txt; train.svm and test.svm (or .svmlight, .libsvm); "
    "trn.jsonl and tst.jsonl (or train/test); any of these but .npz with .gz; trn.json.gz, tst.json.gz and "
    "lbl.json.gz; or folders that hold these, one per site"
)


#: What to do with other files.
_FROM_TABLES = "; `fedmlh data import` makes one of spreadsheets"


@dataclass(frozen=True)
class Layout:
    """Which file plays which part in a folder."""

    folder: Path
    kind: str  # the name of its reader, or sites
    train: tuple[Path, ...] = ()
    test: tuple[Path, ...] = ()
    labels: Path | None = None
    train_filter: Path | None = None
    test_filter: Path | None = None
    sites: tuple["Layout", ...] = field(default=())

    def files(self) -> Iterator[Path]:
        """Yield every file that a load reads."""
        yield from (*self.train, *self.test)
        yield from (path for path in (self.labels, self.train_filter, self.test_filter) if path is not None)
        for site in self.sites:
            yield from site.files()

    @property
    def kinds(self) -> set[str]:
        """Return the kinds of the data sets in the folder."""
        return {site.kind for site in self.sites} or {self.kind}


#: Names of the files of the training and of the test part.
Parts = tuple[tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True)
class Reader:
    """A data format: which files of a folder belong to it, and how they are read."""

    #: Returns the files of both parts, given a folder and the names of all its files; None if they are not there.
    find: Callable[[Path, list[str]], Parts | None]
    #: Returns the content of the files that `find` named. To load the training part alone, the layout names it twice.
    read: Callable[[Layout], RawFolder]
    #: As `read`, for the folders of all sites at once, if the meaning of a number depends on all of them.
    read_sites: Callable[[Sequence[Layout]], list[RawFolder]] | None = None


def recognise(folder: Path, data_format: str = "auto") -> Layout:
    """Return the layout of a folder; if it holds both prepared features and raw text, the features are taken.

    A user's own format must be named, so that the config says what reads the data.
    """
    if data_format != "auto":
        find("reader", data_format)
    if not folder.exists():
        raise UserError(f"{folder}: there is no such folder")
    if not folder.is_dir():
        raise UserError(f"{folder}: should be a folder with a training and a test part{_FROM_TABLES}")
    layout = recognise_single(folder, data_format) or recognise_sites(folder, data_format)
    if layout is None:
        wanted = "" if data_format == "auto" else f" in the format {data_format}"
        has_tables = any(path.name.removesuffix(".gz").endswith((".csv", ".tsv")) for path in folder.iterdir())
        hint = _FROM_TABLES if has_tables else ""
        raise UserError(f"{folder}: no data set recognised{wanted}; looked for {LOOKED_FOR}{hint}")
    return layout


def recognise_single(folder: Path, data_format: str) -> Layout | None:
    """Recognise a data set whose files lie in the folder itself."""
    with readable(folder):
        names = sorted(entry.name for entry in folder.iterdir() if not entry.is_dir())
    for kind in OWN["reader"] if data_format == "auto" else [data_format]:
        reader: Reader = find("reader", kind)
        with blame("reader", kind, str(folder)):
            parts = reader.find(folder, names)
            layout = None if parts is None else describe_parts(folder, names, kind, *parts)
        if layout is not None:
            for path in layout.files():
                if not path.is_file():  # a pipe or a device, which has no end, or a link to nothing
                    raise UserError(f"{path}: is not a file; put the file itself there")
            return layout
    return None


def recognise_sites(folder: Path, data_format: str) -> Layout | None:
    """Recognise a data set in which each site has its own folder."""
    with readable(folder):
        below = sorted(entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    found = {entry: recognise_single(entry, data_format) for entry in below}
    sites = tuple(site for site in found.values() if site is not None)
    if not sites:
        return None
    for entry, site in found.items():
        if site is None:
            raise UserError(
                f"{entry}: no data set recognised, though {sites[0].folder.name} beside it is one; "
                "a folder of sites should hold nothing but sites"
            )
    return Layout(folder, "sites", sites=sites)


def describe_parts(folder: Path, names: list[str], kind: str, train: tuple[str, ...], test: tuple[str, ...]) -> Layout:
    """Return the layout of recognised parts, with the files that any format may have beside them."""

    def beside(name: str) -> Path | None:
        return folder / name if name in names else None

    return Layout(
        folder,
        kind,
        tuple(folder / name for name in train),
        tuple(folder / name for name in test),
        beside("labels.txt"),
        beside("filter_labels_train.txt"),
        beside("filter_labels_test.txt"),
    )


def find_pair(
    folder: Path, names: list[str], exact: list[tuple[str, str]], patterns: list[tuple[str, str]]
) -> Parts | None:
    """Find the one training file and the one test file that match; plain names are tried before patterns."""
    for choices in (exact, patterns):
        sides = [
            sorted({name for choice in choices for name in names if matches(name, choice[side])}) for side in (0, 1)
        ]
        if not any(sides):
            continue
        for side, expected in zip(sides, ("training", "test"), strict=True):
            if not side:
                raise UserError(f"{folder}: {(sides[0] + sides[1])[0]} is there, but no {expected} file beside it")
            if len(side) > 1:
                raise UserError(f"{folder}: which is the {expected} file, {' or '.join(side)}? Remove all but one")
        return (sides[0][0],), (sides[1][0],)
    return None


def matches(name: str, pattern: str) -> bool:
    """Say whether a name fits; filter files end like data files, but are none."""
    return fnmatchcase(name, pattern) and not name.startswith("filter_labels_")
