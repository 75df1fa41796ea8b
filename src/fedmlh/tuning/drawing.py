"""Plain pictures for a page: SVG that needs no other file and can be read on a narrow screen."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedmlh.display import escape_html

_WIDTH, _HEIGHT = 480, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 48, 12, 12, 44
_GREY = "#767676"


@dataclass(frozen=True)
class Mark:
    """A point of a picture."""

    x: float
    y: float
    colour: str
    text: str
    #: Whether the point is drawn hollow: its trial ended early.
    hollow: bool = False
    ringed: bool = False


def draw_marks(marks: Sequence[Mark], line: Sequence[tuple[float, float]], names: tuple[str, str], log: bool) -> str:
    """Draw points, and a stepped line through some of them."""
    xs, ys = [mark.x for mark in marks], [mark.y for mark in marks]
    across = _Scale.of(xs, _LEFT, _WIDTH - _RIGHT, log=log)
    upwards = _Scale.of(ys, _HEIGHT - _BOTTOM, _TOP)
    parts = [_axes(across, upwards, names)]
    if line:
        first, *others = line
        path = f"M{across(first[0]):.1f} {upwards(first[1]):.1f}"
        path += "".join(f"H{across(x):.1f}V{upwards(y):.1f}" for x, y in others)
        path += f"H{_WIDTH - _RIGHT}"
        parts.append(f'<path d="{path}" fill="none" stroke="{_GREY}" stroke-width="1.5"/>')
    for mark in marks:
        at = f'cx="{across(mark.x):.1f}" cy="{upwards(mark.y):.1f}"'
        fill = "none" if mark.hollow else mark.colour
        parts.append(
            f'<circle {at} r="4.5" fill="{fill}" stroke="{mark.colour}" stroke-width="1.5">'
            f"<title>{escape_html(mark.text)}</title></circle>"
        )
        if mark.ringed:
            parts.append(f'<circle {at} r="8.5" fill="none" stroke="#1a1a1a" stroke-width="1.5"/>')
    return _frame("".join(parts), _HEIGHT, f"{names[1]} by {names[0]}")


def draw_bars(shares: Mapping[str, float]) -> str:
    """Draw shares of 1 as bars, with the name before each bar and the size behind it."""
    parts, height, longest = [], 26, max(shares.values()) or 1.0
    for place, (name, share) in enumerate(shares.items()):
        top, length = height * place, share / longest * (_WIDTH - 220)
        parts.append(
            f'<text x="150" y="{top + 18}" text-anchor="end">{escape_html(name)}</text>'
            f'<rect x="158" y="{top + 4}" width="{max(1.0, length):.1f}" height="18" fill="#0072b2"/>'
            f'<text x="{164 + length:.1f}" y="{top + 18}">{100 * share:.0f} %</text>'
        )
    return _frame("".join(parts), height * len(shares), "how much of the spread each setting explains")


@dataclass(frozen=True)
class _Scale:
    """A map from values to places, and the values of its ticks."""

    low: float
    high: float
    begin: float
    end: float
    log: bool
    ticks: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float], begin: float, end: float, log: bool = False) -> "_Scale":
        low, high = min(values), max(values)
        if log:
            low, high = low / 1.15, high * 1.15
            steps = [digit * 10.0**power for power in range(-6, 10) for digit in (1, 2, 5)]
            ticks = tuple(tick for tick in steps if low <= tick <= high)
            return cls(low, high, begin, end, True, ticks[:: 1 + len(ticks) // 7])
        margin = 0.06 * (high - low) or 0.5
        low, high = low - margin, high + margin
        raw = (high - low) / 5
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(digit * power for digit in (1, 2, 5, 10) if digit * power >= raw)
        first = math.ceil(low / step)
        ticks = tuple(number * step for number in range(first, math.floor(high / step) + 1))
        return cls(low, high, begin, end, False, ticks)

    def __call__(self, value: float) -> float:
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        share = ((math.log(value) if self.log else value) - low) / (high - low)
        return self.begin + share * (self.end - self.begin)


def _axes(across: _Scale, upwards: _Scale, names: tuple[str, str]) -> str:
    bottom, middle = _HEIGHT - _BOTTOM, (_LEFT + _WIDTH - _RIGHT) / 2
    parts = [
        f'<text x="{middle}" y="{_HEIGHT - 6}" text-anchor="middle">{escape_html(names[0])}</text>',
        f'<text x="13" y="{bottom / 2}" text-anchor="middle" transform="rotate(-90 13 {bottom / 2})">'
        f"{escape_html(names[1])}</text>",
    ]
    for tick in upwards.ticks:
        y = upwards(tick)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in across.ticks:
        x = across(tick)
        parts.append(f'<path d="M{x:.1f} {_TOP}V{bottom}" stroke="#eee"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{tick:g}</text>')
    parts.append(f'<path d="M{_LEFT} {_TOP}V{bottom}H{_WIDTH - _RIGHT}" fill="none" stroke="{_GREY}"/>')
    return "".join(parts)


def _frame(content: str, height: int, title: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape_html(title)}" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="#1a1a1a">{content}</svg>'
    )
