"""Names of codecs: `family[-N%][+zlib]`."""

import difflib
import re
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from fedmlh.parts import find, list_names

if TYPE_CHECKING:
    from fedmlh.federated.codecs.codec import Codec

_NAME = re.compile(r"([a-z0-9]+)(?:-(\d{1,3}(?:\.\d{1,3})?)%)?(\+zlib)?", re.ASCII)


class CodecName(NamedTuple):
    """The parts of a codec's name."""

    kind: str
    share: Fraction  # N / 100; 1 if the name says no N
    deflated: bool

    @property
    def family(self) -> "type[Codec]":
        """Return the class that encodes, which also holds the facts about its family."""
        return _find(self.kind)


def parse_codec(name: str) -> CodecName:
    """Return the parts of a codec's name, or raise a ValueError that lists the valid names."""
    kind, known = re.split(r"[-+]", name)[0], list_names("codec")
    if kind not in known:
        near = difflib.get_close_matches(kind.lower()[:80], known, n=1, cutoff=0.6)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise ValueError(f"say {_join([_describe(family) for family in known])}{hint}")
    found, family = _NAME.fullmatch(name), _find(kind)
    if found is not None and (found[2] is None) == (family.percent is None):
        percent = Fraction(found[2] or 100)
        least, most = family.percent or (percent, percent)
        if least <= percent <= most and (family.deflates or found[3] is None):
            return CodecName(kind, percent / 100, found[3] is not None)
    raise ValueError(f"say {_describe(kind)}")


def list_families(fits: "Callable[[type[Codec]], bool]") -> str:
    """Return the names of the families that fit, joined for a sentence."""
    return _join([kind for kind in list_names("codec") if fits(_find(kind))])


def _describe(kind: str) -> str:
    """Return the form of the names of a family."""
    family = _find(kind)
    end = "[+zlib]" if family.deflates else ""
    if family.percent is None:
        return f"{kind}{end}"
    least, most = map(float, family.percent)
    return f"{kind}-N%{end} with N from {least:g} to {most:g}"


def _join(words: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _find(kind: str) -> "type[Codec]":
    family: type[Codec] = find("codec", kind)
    return family
