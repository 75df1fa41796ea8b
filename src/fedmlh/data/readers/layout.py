"""Data sets recognised by the files in their folder, before any of them is read."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from fedmlh.data.readers.files import readable
from fedmlh.errors import UserError

FORMATS = ("auto", "npz", "xmc", "svmlight", "text")
#: The format by which a user names a kind, if it is not the kind's own name.
FORMAT_OF = {"xmc-apart": "xmc", "jsonl": "text", "lf": "text"}
#: How the name of a text file may end.
PACKED = ("", ".gz")
LOOKED_FOR = (
    "X.trn.npz, Y.trn.npz, X.tst.npz and Y.tst.npz; train.txt and test.txt (or *_train.txt and *_test.txt); "
    "trn_X_Xf.txt, trn_X_Y.txt, tst_X_Xf.txt and tst_X_Y.txt; train.svm and test.svm (or .svmlight, .libsvm); "
    "trn.jsonl and tst.jsonl (or train/test); any of these but .npz with .gz; trn.json.gz, tst.json.gz and "
    "lbl.json.gz; or folders that hold these, one a site"
)


@dataclass(frozen=True)
class Layout:
    """Which file plays which part in a folder."""

    folder: Path
    kind: str  # npz, xmc, xmc-apart, svmlight, jsonl, lf or sites
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
        """The kinds of the data sets in it."""
        return {site.kind for site in self.sites} or {self.kind}


def recognise(folder: Path, data_format: str = "auto") -> Layout:
    """Recognise what a folder holds; prepared features go before raw text if both are there."""
    if data_format not in FORMATS:
        raise UserError(f"data format {data_format!r} is not one of {', '.join(FORMATS)}")
    if not folder.exists():
        raise UserError(f"{folder}: there is no such folder")
    if not folder.is_dir():
        raise UserError(f"{folder}: should be a folder with a training and a test part")
    layout = recognise_single(folder, data_format) or recognise_sites(folder, data_format)
    if layout is None:
        wanted = "" if data_format == "auto" else f" in the format {data_format}"
        raise UserError(f"{folder}: no data set recognised{wanted}; looked for {LOOKED_FOR}")
    return layout


def recognise_single(folder: Path, data_format: str) -> Layout | None:
    """Recognise a data set whose files lie in the folder itself."""
    with readable(folder):
        names = sorted(entry.name for entry in folder.iterdir() if not entry.is_dir())
    for kind, find in FINDERS.items():
        if data_format in ("auto", FORMAT_OF.get(kind, kind)):
            parts = find(folder, names, data_format)
            if parts is not None:
                layout = describe_parts(folder, names, kind, *parts)
                for path in layout.files():
                    if not path.is_file():  # a pipe or a device, which has no end, or a link to nothing
                        raise UserError(f"{path}: is not a file; put the file itself there")
                return layout
    return None


def recognise_sites(folder: Path, data_format: str) -> Layout | None:
    """Recognise a data set whose sites each have a folder of their own."""
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


Parts = tuple[tuple[str, ...], tuple[str, ...]]


def describe_parts(folder: Path, names: list[str], kind: str, train: tuple[str, ...], test: tuple[str, ...]) -> Layout:
    """Return the layout of recognised parts, with the files that any format may have beside them."""

    def beside(name: str) -> Path | None:
        return folder / name if name in names else None

    return Layout(
        folder,
        kind,
        tuple(folder / name for name in train),
        tuple(folder / name for name in test),
        folder / "lbl.json.gz" if kind == "lf" else beside("labels.txt"),
        beside("filter_labels_train.txt"),
        beside("filter_labels_test.txt"),
    )


def find_npz(folder: Path, names: list[str], data_format: str) -> Parts | None:
    """Find X and Y of both parts."""
    wanted = ("X.trn.npz", "Y.trn.npz", "X.tst.npz", "Y.tst.npz")
    missing = [name for name in wanted if name not in names]
    if len(missing) == len(wanted):
        return None
    if missing:
        raise UserError(f"{folder}: {', '.join(missing)} should stand beside the other .npz files")
    return wanted[:2], wanted[2:]


def find_xmc(folder: Path, names: list[str], data_format: str) -> Parts | None:
    """Find two text files with a header each."""
    exact = [(f"train.txt{end}", f"test.txt{end}") for end in PACKED]
    return find_pair(folder, names, exact, [(f"*_train.txt{end}", f"*_test.txt{end}") for end in PACKED])


def find_xmc_apart(folder: Path, names: list[str], data_format: str) -> Parts | None:
    """Find text files of features and of labels for both parts; such names also stand beside raw text."""
    for end in PACKED:
        wanted = tuple(f"{part}_X_{what}.txt{end}" for part in ("trn", "tst") for what in ("Xf", "Y"))
        if all(name in names for name in wanted):
            return wanted[:2], wanted[2:]
    return None


def find_svmlight(folder: Path, names: list[str], data_format: str) -> Parts | None:
    """Find two text files without a header; .txt ones only if the caller says what they are."""
    plain = (".svm", ".svmlight", ".libsvm") + ((".txt",) if data_format == "svmlight" else ())
    endings = [end + packed for end in plain for packed in PACKED]
    exact = [("train" + end, "test" + end) for end in endings]
    return find_pair(folder, names, exact, [(f"*_train{end}", f"*_test{end}") for end in endings])


def find_jsonl(folder: Path, names: list[str], data_format: str) -> Parts | None:
    """Find raw text with labels by name."""
    stems = (("trn", "tst"), ("train", "test"))
    exact = [(f"{a}.jsonl{end}", f"{b}.jsonl{end}") for a, b in stems for end in PACKED]
    return find_pair(folder, names, exact, [])


def find_lf(folder: Path, names: list[str], data_format: str) -> Parts | None:
    """Find raw text of the repository's LF data sets, with labels by row of a label file."""
    pair = find_pair(folder, names, [("trn.json.gz", "tst.json.gz")], [])
    if pair is not None and "lbl.json.gz" not in names:
        raise UserError(f"{folder}: lbl.json.gz should stand beside trn.json.gz")
    return pair


def find_pair(
    folder: Path, names: list[str], exact: list[tuple[str, str]], patterns: list[tuple[str, str]]
) -> Parts | None:
    """Find the one training and the one test file that match; plain names go before patterns."""
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
                raise UserError(f"{folder}: which is the {expected} file, {' or '.join(side)}? Leave one of them")
        return (sides[0][0],), (sides[1][0],)
    return None


def matches(name: str, pattern: str) -> bool:
    """Return whether a name fits; filter files end like data files and are none."""
    return fnmatchcase(name, pattern) and not name.startswith("filter_labels_")


#: In the order in which they are preferred.
FINDERS: dict[str, Callable[[Path, list[str], str], Parts | None]] = {
    "npz": find_npz,
    "xmc": find_xmc,
    "xmc-apart": find_xmc_apart,
    "svmlight": find_svmlight,
    "jsonl": find_jsonl,
    "lf": find_lf,
}
