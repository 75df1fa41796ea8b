"""Text to be shown on a terminal, in a page or in a drawing.

A name, a label or a setting from outside may hold anything. Whatever would steer a terminal, break a line or turn the
direction of reading is shown as an escape, and nothing is taken for markup.
"""

import html
import re
from collections.abc import Iterator
from typing import Any

#: Control characters, separators of lines, halves of characters, and what is invisible or turns the direction of
#: reading; not the two that scripts and emoji need to join letters (U+200C, U+200D).
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u2064\u2066-\u206f\ud800-\udfff\ufeff"
    "\ufff9-\ufffb\U000e0001\U000e0020-\U000e007f]"
)


def make_printable(text: str) -> str:
    r"""Return the text as one line, with an escape such as \x1b for each character that is not to be shown."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def is_printable(text: str) -> bool:
    """Say whether a text can be shown as it is."""
    return _UNPRINTABLE.search(text) is None


def count(number: int, noun: str) -> str:
    """Return a number of things in words: "1 round", "2,000 rounds"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def escape_html(text: str) -> str:
    """Return the text as HTML, fit to stand between tags or within the quotes of an attribute."""
    return html.escape(make_printable(text))


def escape_json(text: str) -> str:
    """Return the same JSON in characters that can be shown; its own line breaks stay."""
    return "\n".join(_UNPRINTABLE.sub(lambda found: _write_units(found[0]), line) for line in text.split("\n"))


def _write_units(character: str) -> str:
    units = memoryview(character.encode("utf-16-be", "surrogatepass"))
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def draw_literally(figure: Any) -> None:
    """Have matplotlib draw every text of a figure as it is, not as mathematics, with escapes for what its font lacks.

    Numbers at ticks are matplotlib's own, and stay.
    """
    for text in _find_texts(figure):
        text.set_parse_math(False)
        text.set_usetex(False)
        lines = (make_printable(line) for line in text.get_text().split("\n"))
        text.set_text("\n".join(_replace_missing(line, text.get_fontfamily()) for line in lines))


def _find_texts(figure: Any) -> Iterator[Any]:
    yield from figure.texts
    legends = [*figure.legends]
    for panel in figure.axes:
        yield from (panel.title, panel.xaxis.label, panel.yaxis.label, *panel.texts)
        legends += [panel.get_legend()]
    for legend in legends:
        if legend is not None:
            yield from legend.get_texts()


def _replace_missing(line: str, families: list[str]) -> str:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    fonts = [get_font(findfont(FontProperties(family=[family]))) for family in families]
    known = {character: any(font.get_char_index(ord(character)) for font in fonts) for character in set(line)}
    return "".join(character if known[character] else character.encode("unicode_escape").decode() for character in line)
