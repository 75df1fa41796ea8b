"""A line of a label file: `key<TAB>name`, just a name, or Annif's `<uri><TAB>name<TAB>notation`."""

import re
from typing import NamedTuple

_URI = r"[A-Za-z][A-Za-z0-9+.-]*:[^<>\s]+"
_IN_BRACKETS = re.compile(f"<({_URI})>")
_BARE = re.compile(f"(?=[^:]+://){_URI}")


class LabelLine(NamedTuple):
    """What a line says of a label; the name is the key if it says none."""

    key: str
    name: str
    notation: str = ""


def is_uri(text: str) -> bool:
    """Say whether a text is a URI, in angle brackets or without them."""
    return _IN_BRACKETS.fullmatch(text) is not None or _BARE.fullmatch(text) is not None


def strip_brackets(label: str) -> str:
    """Return a URI without its angle brackets, and any other label as it is."""
    found = _IN_BRACKETS.fullmatch(label)
    return found[1] if found else label


def split_label(line: str) -> LabelLine:
    """Split a line, without its end; a key of blanks means that the line names no label.

    Annif's form is told by a URI: one in angle brackets, or one before two tabs. A name in our own form may hold tabs.
    """
    key, *rest = line.split("\t", 2)
    if _IN_BRACKETS.fullmatch(key) or (len(rest) == 2 and _BARE.fullmatch(key)):
        key = strip_brackets(key)
        name, notation = (*map(str.strip, rest), "", "")[:2]
        return LabelLine(key, name or key, notation)
    name = "\t".join(rest)
    return LabelLine(key, name if name.strip() else key)
