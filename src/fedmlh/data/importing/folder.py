"""A folder of texts and labels, written from the records of files, all of it or nothing."""

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from fedmlh.data.importing.points import Counts, is_test, make_points
from fedmlh.data.importing.reading import Reading, Record
from fedmlh.data.importing.vocabulary import Vocabulary
from fedmlh.data.limits import check_labels
from fedmlh.data.readers.files import MAX_LINE
from fedmlh.errors import BadLine, UserError
from fedmlh.storage import new_folder

#: Lines are written once they have this many bytes: no more are in memory, and no file stays open between writes.
_BUFFER_BYTES = 4 << 20
_MOST_SITES = 10_000
_FILES = {False: "trn.jsonl", True: "tst.jsonl"}


@dataclass(frozen=True)
class Imported:
    """What an import wrote."""

    folder: Path
    counts: Counts
    num_labels: int

    @property
    def sites(self) -> list[str]:
        """The names of the sites, none if the data did not come by site."""
        return sorted({site for site, _ in self.counts.points} - {""})

    def count(self, *, test: bool) -> int:
        """Return how many points a part has."""
        return sum(number for (_, part), number in self.counts.points.items() if part == test)


def write_folder(
    reading: Reading, vocabulary: Vocabulary | None, out: Path, test: float = 0.2, seed: int = 0
) -> Imported:
    """Write a new folder in the format `text`: a training and a test part and labels.txt, per site if there are any.

    `test` is the share of records that become the test part, by a hash of their id, or of their text if they have none.
    """
    if not 0 <= test < 1:
        raise UserError(f"the test part is to have a share of {test:g}: it should be from 0 below 1 (--test)")
    with new_folder(out) as draft:
        counts, used = Counts(), set[str]()
        lines = _Lines(draft)
        for point in make_points(reading.records(), vocabulary, counts):
            part = is_test(point.text if point.id is None else point.id, test, seed)
            counts.points[point.site or "", part] += 1
            counts.pairs += len(point.labels)
            used.update(point.labels)
            check_labels(point.path, len(used))
            lines.add(point, part)
        lines.flush()
        _check_parts(counts, test)
        names = reading.cells.names if vocabulary is None else vocabulary.names
        listed = "".join(f"{key}\n" if names.get(key, key) == key else f"{key}\t{names[key]}\n" for key in sorted(used))
        for site in {site for site, _ in counts.points}:
            (draft / site / "labels.txt").write_text(listed, encoding="utf-8", newline="\n")
            for name in _FILES.values():
                (draft / site / name).touch()
    return Imported(out, counts, len(used))


class _Lines:
    """Lines on their way to the files of sites and parts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._waiting: defaultdict[tuple[str, bool], list[bytes]] = defaultdict(list)
        self._bytes = 0
        self._sites: set[str] = set()

    def add(self, point: Record, test: bool) -> None:
        """Take the line of a point."""
        fields = {"text": point.text, "labels": point.labels}
        line = (
            json.dumps(fields if point.id is None else {"id": point.id, **fields}, ensure_ascii=False).encode() + b"\n"
        )
        if len(line) > MAX_LINE:
            raise BadLine(point.path, point.lineno, f"has more than {MAX_LINE:,} bytes, which no record has")
        site = point.site or ""
        if site not in self._sites:
            self._sites.add(site)
            if len(self._sites) > _MOST_SITES:
                raise UserError(
                    f"{point.path}: has more than {_MOST_SITES:,} sites: is that the right column (--site)?"
                )
            (self._folder / site).mkdir(exist_ok=True)
        self._waiting[site, test].append(line)
        self._bytes += len(line)
        if self._bytes >= _BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the lines that wait."""
        for (site, test), lines in self._waiting.items():
            with (self._folder / site / _FILES[test]).open("ab") as file:
                file.writelines(lines)
        self._waiting.clear()
        self._bytes = 0


def _check_parts(counts: Counts, test: float) -> None:
    """Refuse parts that no run could start with."""
    points = counts.points
    total = sum(points.values())
    if not total:
        raise UserError(
            f"no row has both text and labels: {counts.without_labels:,} lack labels that are known, "
            f"{counts.without_text:,} lack text; are these the right columns?"
        )
    hint = "choose another seed or share (--seed, --test), or give more rows"
    if test and not any(is_test_part for _, is_test_part in points):
        raise UserError(f"none of the {total:,} records falls into the test part, a share of {test:g}: {hint}")
    for site, _ in sorted(points):
        if not points[site, False]:
            where = f"of site '{site}' " if site else ""
            number = points[site, True]
            raise UserError(f"all {number:,} records {where}fall into the test part, a share of {test:g}: {hint}")
