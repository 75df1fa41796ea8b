"""The labels that a vocabulary lists, with their names: Annif's TSV and CSV, or a labels.txt."""

from collections.abc import Iterator
from pathlib import Path

from fedmlh.data.importing.labels import clean_label
from fedmlh.data.importing.lines import read_text, take_sample
from fedmlh.data.importing.sources import Table
from fedmlh.data.importing.tables import fold, guess_dialect
from fedmlh.data.limits import check_labels
from fedmlh.data.readers.label_lines import split_label
from fedmlh.errors import BadLine, UserError

_LANGUAGE = "label_"
#: A key, the name to show, other names and the notation.
_Concept = tuple[int, str, str, tuple[str, ...]]


class Vocabulary:
    """Labels by key, by a name in any language, and by notation."""

    def __init__(self, path: Path) -> None:
        """Begin without a label."""
        self.path = path
        self.names: dict[str, str] = {}
        # What else a label is called, the names to show first; None: several labels are called so.
        self._called: tuple[dict[str, str | None], ...] = ({}, {})

    def add(self, lineno: int, key: str, name: str, others: tuple[str, ...]) -> None:
        """Add a label."""
        if not key:
            raise BadLine(self.path, lineno, "names no label")
        if key in self.names:
            raise BadLine(self.path, lineno, f"the label {key!r:.60} stands on a line above: take one of them out")
        self.names[key] = name or key
        check_labels(self.path, len(self.names))
        for called, names in zip(self._called, ({name}, set(others)), strict=True):
            for each in names - {""}:
                called[each] = key if called.get(each, key) == key else None

    def find(self, label: str) -> str | None:
        """Return the key of a label that is given by key, name or notation; None if the vocabulary lacks it."""
        if label in self.names:
            return label
        for called in self._called:
            if label in called:
                key = called[label]
                if key is None:
                    raise ValueError(f"{label!r:.60} is the name of several labels of {self.path}: give the key of one")
                return key
        return None


def read_vocabulary(path: Path, language: str | None = None) -> Vocabulary:
    """Read a vocabulary; `language` chooses the names to show, where there are several."""
    first = take_sample(path).first
    is_table = any(fold(first).startswith(f"{start}{mark}") for start in ("uri", '"uri"') for mark in ",;\t")
    if not is_table and language is not None:
        raise UserError(f"{path}: has names in one language: do not name a language (--language)")
    found = Vocabulary(path)
    for lineno, key, name, others in _read_table(path, language) if is_table else _read_lines(path):
        found.add(lineno, key, name, others)
    if not found.names:
        raise UserError(f"{path}: names no label")
    return found


def _read_lines(path: Path) -> Iterator[_Concept]:
    for lineno, line in enumerate(read_text(path), start=1):
        if line.strip():
            key, name, notation = map(clean_label, split_label(line.rstrip("\r\n")))
            yield lineno, key, name, (notation,)


def _read_table(path: Path, language: str | None) -> Iterator[_Concept]:
    """Yield the concepts of a CSV file; one without a name is deprecated, and left out as Annif does."""
    dialect, _ = guess_dialect(take_sample(path), ["uri"])
    table = Table(path, None, dialect, header=True)
    languages = [name[len(_LANGUAGE) :] for name in map(fold, table.columns) if name.startswith(_LANGUAGE)]
    chosen = _choose_language(path, languages, language)
    columns = ["uri", *(_LANGUAGE + each for each in [chosen, *(each for each in languages if each != chosen)])]
    if "notation" in map(fold, table.columns):
        columns.append("notation")
    for lineno, values, _ in table.rows(columns):
        key, *rest = map(clean_label, values)
        names = rest[: len(languages)]
        if any(names):
            yield lineno, key, next(filter(None, names)), tuple(rest)


def _choose_language(path: Path, languages: list[str], language: str | None) -> str:
    listed = ", ".join(languages)
    if not languages:
        raise UserError(f"{path}: has no column of names, such as {_LANGUAGE}en")
    if language is None:
        if len(languages) > 1:
            raise UserError(f"{path}: has names in {listed}: choose a language (--language)")
        return languages[0]
    if fold(language) not in languages:
        raise UserError(f"{path}: has no names in {language!r:.20}: choose one of {listed} (--language)")
    return fold(language)
