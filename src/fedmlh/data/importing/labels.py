"""Labels as cells hold them: several in one cell, in brackets, with blanks around them."""

import ast
import json
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from fedmlh.data.readers.label_lines import is_uri, strip_brackets

#: The separator of cells that hold a list in brackets, as JSON or Python writes it.
LIST = "list"
#: Of two separators that are in equally many cells, the first one is taken.
_SEPARATORS = (";", "|", "\n", "\t")
#: The share of cells that hold a separator; below it, a comma is one, which is often part of a name.
_LEAST = 0.1
#: The longest list as Python writes it; to read one takes much more memory than it has characters.
_LONGEST_LIST = 1 << 16


@lru_cache(maxsize=1 << 16)
def clean_label(label: str) -> str:
    """Return a label in the one form that equal labels have: NFC, single blanks, a URI without its angle brackets."""
    return strip_brackets(" ".join(unicodedata.normalize("NFC", label.replace("\ufeff", "")).split()))


class LabelCells:
    """The labels that cells hold, and the names that some cells give them."""

    def __init__(self, separator: str) -> None:
        """Take cells in which labels stand so apart; a blank stands for any blanks, "" for one label per cell."""
        self.separator = separator
        self.names: dict[str, str] = {}

    def read(self, value: Any) -> list[str]:
        """Return the labels of a cell, or raise a ValueError that says what is wrong with it."""
        if value is None:
            return []
        if isinstance(value, str):
            labels = self._split(value)
        else:
            labels = [self._take(item) for item in (value if isinstance(value, list) else [value])]
        return [label for label in map(clean_label, labels) if label]

    def _split(self, cell: str) -> list[str]:
        if self.separator == LIST:
            return [self._take(item) for item in parse_list(cell)]
        if is_list(cell):
            raise ValueError(f"the labels {cell!r:.40} are a list in brackets: say so (--separator {LIST})")
        if not self.separator:
            return [cell]
        return cell.split(None if self.separator == " " else self.separator)

    def _take(self, item: Any) -> str:
        """Return the label of an item of a list: a text, a whole number, or Annif's {"uri": …, "label": …}."""
        if isinstance(item, dict):
            uri, name = item.get("uri", item.get("label")), item.get("label")
            if isinstance(uri, str) and isinstance(name, str | None):
                if name and name.strip():
                    self.names.setdefault(clean_label(uri), clean_label(name))
                return uri
        elif isinstance(item, str | int) and not isinstance(item, bool):
            return str(item)
        raise ValueError(f"the label {item!r:.40} should be a text or a whole number")


def is_list(cell: str) -> bool:
    """Say whether a cell holds a list in brackets."""
    cell = cell.strip()
    if not (cell.startswith("[") and cell.endswith("]")):
        return False
    try:
        parse_list(cell)
    except ValueError:
        return False
    return True


def parse_list(cell: str) -> list[Any]:
    """Return the items of a list in brackets; a blank cell has none."""
    cell = cell.strip()
    if not cell:
        return []
    for parse in (json.loads, ast.literal_eval) if len(cell) <= _LONGEST_LIST else (json.loads,):
        try:
            items = parse(cell)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(items, list | tuple):
            return list(items)
    raise ValueError(f"the labels {cell!r:.40} are no list in brackets: say what stands between them (--separator)")


def guess_separator(cells: Sequence[str]) -> str:
    """Return what stands between labels in these cells."""
    if cells and all(map(is_list, cells)):
        return LIST
    if cells and all(is_uri(word) for cell in cells for word in cell.split()):
        return " "
    counts = [sum(separator in cell for cell in cells) for separator in _SEPARATORS]
    if any("," in cell for cell in cells) and max(counts) < _LEAST * len(cells):
        return ","
    return _SEPARATORS[counts.index(max(counts))] if any(counts) else ""
