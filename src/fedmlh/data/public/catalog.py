"""Public data sets by name: where to get each, and the counts by which a copy is recognised."""

import difflib
from dataclasses import dataclass

from fedmlh.data.dataset import Dataset
from fedmlh.errors import UserError


@dataclass(frozen=True)
class Counts:
    """The sizes that tell one version of a data set from another."""

    train: int
    test: int
    features: int
    labels: int

    @classmethod
    def of(cls, dataset: Dataset) -> "Counts":
        """Return the sizes of a data set that has been read."""
        return cls(len(dataset.train), len(dataset.test), dataset.num_features, dataset.num_labels)


@dataclass(frozen=True)
class Entry:
    """One public data set: an archive of files that a reader of ours understands."""

    name: str
    title: str  # as the Extreme Classification Repository spells it
    url: str  # answers with the archive
    page: str  # where a person gets the same file in a browser
    counts: Counts
    sha256: str | None = None  # of the archive; None where the publisher states none
    in_paper: bool = False


def on_drive(title: str, file_id: str, counts: Counts, name: str = "", in_paper: bool = False) -> Entry:
    """Describe a file of Google Drive; `confirm` skips the page that warns of files too large for a virus scan."""
    return Entry(
        name or title.lower(),
        title,
        f"https://drive.usercontent.google.com/download?id={file_id}&export=download&confirm=t",
        f"https://drive.google.com/file/d/{file_id}/view",
        counts,
        in_paper=in_paper,
    )


#: All have bag-of-words features. If a set was published in two versions, the counts say which one is meant.
ENTRIES = (
    on_drive("EURLex-4K", "1xWW1UykQBTD2IorVn7V8XubJatQDScol", Counts(15_539, 3_809, 5_000, 3_993), in_paper=True),
    on_drive("Wiki10-31K", "1uV-p682ggXQQTiKZyK5M6B0xJJk8_lJx", Counts(14_146, 6_616, 101_938, 30_938), in_paper=True),
    on_drive(
        "LF-AmazonTitles-131K",
        "1VlfcdJKJA99223fLEawRmrXhXpwjwJKn",
        Counts(294_805, 134_835, 40_000, 131_073),
        "amazontitles-131k",
        in_paper=True,
    ),
    on_drive(
        "LF-WikiSeeAlsoTitles-320K",
        "1edWtizAFBbUzxo9Z2wipGSEA9bfy5mdX",
        Counts(693_082, 177_515, 40_000, 312_330),
        "wikiseealsotitles-320k",
        in_paper=True,
    ),
    on_drive("Yeast", "1qcU-jxF7VmHBvwTn0-6MB4FW4ItD-bIp", Counts(1_500, 917, 103, 14)),
    on_drive("Mediamill", "1YDlU9GTYSoydU1UYTNT8BpPkRw1BCnFw", Counts(30_993, 12_914, 120, 101)),
    on_drive("RCV1-2K", "1pdken_Di3PLcLlRbhHF4XIWp-CEiv9oQ", Counts(623_847, 155_962, 47_236, 2_456)),
    on_drive("EURLex-4.3K", "1UZ5joZdU1axWdCVSECakmEA8XQJ2gVuQ", Counts(45_000, 6_000, 200_000, 4_271)),
    on_drive("AmazonCat-13K", "1WvBWF9hH5ZlFcpCRhp8wLVGwdeGZXKD2", Counts(1_186_239, 306_782, 203_882, 13_330)),
    on_drive("AmazonCat-14K", "19IhTX1_a4U5I2Q56VUkzq2jFBpwm2-n-", Counts(4_398_050, 1_099_725, 597_540, 14_588)),
    on_drive("LF-Amazon-131K", "1YNGEifTHu4qWBmCaLEBfjx07qRqw9DVW", Counts(294_805, 134_835, 80_000, 131_073)),
    on_drive("DeliciousLarge-200K", "18Tb595TuGyFW--nEYGfduwS5WvSbX-sX", Counts(196_606, 100_095, 782_585, 205_443)),
    on_drive("LF-WikiSeeAlso-320K", "1N8C_RL71ErX6X92ew9h8qRuTWJ9LywE8", Counts(693_082, 177_515, 80_000, 312_330)),
    on_drive("WikiLSHTC-325K", "1Y5xEJu-j3M7voyFV5Ouq9Wl3vyd9fus2", Counts(1_778_351, 587_084, 1_617_899, 325_056)),
    on_drive("WikiSeeAlsoTitles-350K", "1icZIEU2TA5k86mTweciSa3mBLFD3fbIP", Counts(629_418, 162_491, 91_414, 352_072)),
    on_drive("WikiTitles-500K", "1RKKOw0yl2RxrWYbb-S508aOwKdCjY_ih", Counts(1_699_722, 722_678, 185_479, 501_070)),
    on_drive("LF-WikiTitles-500K", "1qa1HTTD509J5r4yNAH-Aq6wArljgg4mx", Counts(1_813_391, 783_743, 80_000, 501_070)),
    on_drive(
        "WikipediaLarge-500K", "1LkGdINF5coOfkm6J2xys3V1NMW7zz8U1", Counts(1_813_391, 783_743, 2_381_304, 501_070)
    ),
    on_drive("AmazonTitles-670K", "1TWF2_tPGdezuljGEHbp63pe7eQUq7wK6", Counts(485_176, 150_875, 66_666, 670_091)),
    on_drive("Amazon-670K", "1PV-wbKVv6Ng1K1XM1USqNxFhaQo2qfk6", Counts(490_449, 153_025, 135_909, 670_091)),
    on_drive(
        "LF-AmazonTitles-1.3M", "1Davc6BIfoTIAS3mP1mUY5EGcGr2zN2pO", Counts(2_248_619, 970_237, 128_000, 1_305_265)
    ),
    on_drive("AmazonTitles-3M", "15MpbBO7MTRLc1okzwSiPkQ9ZHgyKMzzm", Counts(1_712_536, 739_665, 165_431, 2_812_281)),
    on_drive("Amazon-3M", "1ork7yeAcliD9JQiRdEx4QknhMFHjVrku", Counts(1_717_899, 742_507, 337_067, 2_812_281)),
)
CATALOG = {entry.name: entry for entry in ENTRIES}


def find(name: str) -> Entry:
    """Return the entry of a name, or of the repository's title, in upper or lower case."""
    by_name = {entry.title.lower(): entry for entry in CATALOG.values()} | CATALOG
    if name.lower() not in by_name:
        near = difflib.get_close_matches(name.lower(), by_name, n=1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        raise UserError(f"no data set {name!r} is listed: {hint}`fedmlh data fetch` shows them all")
    return by_name[name.lower()]
