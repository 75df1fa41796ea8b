"""From records to points: rows of one record are put together, repeated ones are dropped, and each has its part."""

import hashlib
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field

from fedmlh.data.importing.reading import Record
from fedmlh.data.importing.vocabulary import Vocabulary
from fedmlh.errors import BadLine, UserError

#: How many labels that a vocabulary lacks are named.
_NAMED = 3


@dataclass
class Counts:
    """What became of the rows."""

    rows: int = 0
    continued: int = 0
    repeated: int = 0
    without_text: int = 0
    without_labels: int = 0
    unlisted: int = 0
    #: The first labels that the vocabulary lacks, and where they stand.
    named: list[str] = field(default_factory=list)
    #: Points by site ("" without sites) and part.
    points: Counter[tuple[str, bool]] = field(default_factory=Counter)
    pairs: int = 0


def is_test(key: str, share: float, seed: int) -> bool:
    """Say whether a record belongs to the test part.

    It depends on the record and the seed alone: on every machine alike, and whatever other records there are.
    """
    digest = hashlib.blake2b(f"test part {seed}\n{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64


def make_points(records: Iterable[Record], vocabulary: Vocabulary | None, counts: Counts) -> Iterator[Record]:
    """Yield a record per point, its labels by their keys, and count what is left out."""
    with closing(_Seen()) as seen:
        for record in _join_rows(records, counts):
            if not seen.is_new(record):
                counts.repeated += 1
                continue
            point = record if vocabulary is None else _look_up(record, vocabulary, counts)
            if not point.labels:
                counts.without_labels += 1
            elif not point.text:
                counts.without_text += 1
            else:
                yield point


def _join_rows(records: Iterable[Record], counts: Counts) -> Iterator[Record]:
    """Put rows together that follow each other and have one id: exports often have a row per label."""
    last: Record | None = None
    for record in records:
        counts.rows += 1
        if last is None or record.id is None or (record.id, record.site) != (last.id, last.site):
            if last is not None:
                yield last
            last = record
            continue
        if record.text != last.text:
            raise BadLine(
                record.path,
                record.lineno,
                f"the id {record.id!r:.60} is that of line {last.lineno} above, with another text: keep one of them",
            )
        labels = tuple(dict.fromkeys((*last.labels, *record.labels)))
        if labels == last.labels:
            counts.repeated += 1
        else:
            counts.continued += 1
        last = last._replace(labels=labels)
    if last is not None:
        yield last


def _look_up(record: Record, vocabulary: Vocabulary, counts: Counts) -> Record:
    """Return the record with the keys of its labels; those that the vocabulary lacks are left out."""
    keys: dict[str, None] = {}
    for label in record.labels:
        try:
            key = vocabulary.find(label)
        except ValueError as problem:
            raise BadLine(record.path, record.lineno, str(problem)) from None
        if key is not None:
            keys[key] = None
            continue
        counts.unlisted += 1
        if len(counts.named) < _NAMED:
            counts.named.append(f"'{label:.60}' ({record.path.name}, line {record.lineno})")
    return record._replace(labels=tuple(keys))


class _Seen:
    """The records so far, as digests in a database on disk: memory does not grow with them."""

    def __init__(self) -> None:
        try:
            # A database without a name lies in the folder for temporary files once it outgrows its cache.
            self._table = sqlite3.connect("", isolation_level=None)
            self._table.execute("PRAGMA journal_mode = OFF")
            self._table.execute("CREATE TABLE seen (key BLOB PRIMARY KEY, content BLOB) WITHOUT ROWID")
            self._table.execute("BEGIN")
        except sqlite3.Error as problem:
            raise _explain(problem) from None

    def is_new(self, record: Record) -> bool:
        """Say whether no record repeats this one; refuse one whose id another one has taken.

        A record is known by its id, or by all that its row says: rows that differ in any cell are different records.
        """
        if record.id is None:
            key, content = _digest(record.whole), b""
        else:
            key = _digest(f"{record.site or ''}\n{record.id}")
            content = _digest("\n".join((record.text, *sorted(record.labels))))
        try:
            if self._table.execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", (key, content)).rowcount:
                return True
            ((before,),) = self._table.execute("SELECT content FROM seen WHERE key = ?", (key,))
        except sqlite3.Error as problem:
            raise _explain(problem) from None
        if before != content:
            raise BadLine(
                record.path,
                record.lineno,
                f"the id {record.id!r:.60} stands on a line above, with another text or other labels: keep one of "
                f"them, or sort the file by id so that the rows of a record follow each other",
            )
        return False

    def close(self) -> None:
        """Remove the database."""
        self._table.close()


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _explain(problem: sqlite3.Error) -> UserError:
    return UserError(
        f"{tempfile.gettempdir()}: cannot hold the list of records so far ({problem}): set TMPDIR to a folder with room"
    )
