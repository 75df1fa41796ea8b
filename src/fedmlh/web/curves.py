"""Curves as SVG within a page: no script, no font and no colour is needed to read them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedmlh.display import escape_html

#: The drawing's own units; a page scales them.
_WIDTH, _HEIGHT = 460, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 52, 14, 44
#: More points than this are thinned out.
_MOST_POINTS = 400
#: With fewer points each has a mark.
_MARKED = 40
#: The least distance between two names of curves.
_LINE = 15
#: Values that differ by less, as a share of the largest one, differ by rounding alone.
_ROUNDING = 1e-9
#: Curves differ in their dashes as well.
KINDS = 4


@dataclass(frozen=True)
class Curve:
    """A named sequence of points."""

    name: str
    points: Sequence[tuple[float, float]]


def draw_curves(title: str, x_name: str, curves: Sequence[Curve]) -> str:
    """Return a drawing of curves, each with its name at its end; y are per cent."""
    points = [point for curve in curves for point in curve.points]
    x_ticks = find_ticks(min(0.0, *(x for x, _ in points)), max(x for x, _ in points))
    y_ticks = find_ticks(min(y for _, y in points), max(y for _, y in points))
    first, last = x_ticks[0], max(x for x, _ in points) or x_ticks[-1]

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - first) / (last - first)
        up = (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])
        return _LEFT + across * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM)

    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape_html(title)}">']
    for tick in y_ticks:
        _, y = place(first, tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="y" x="{_LEFT - 6}" y="{y + 4:.1f}">{_show(tick)}</text>')
    for tick in x_ticks:
        if tick <= last:
            x, _ = place(tick, y_ticks[0])
            parts.append(f'<text class="x" x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 18}">{_show(tick)}</text>')
    parts.append(f'<text class="x" x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 6}">{escape_html(x_name)}</text>')
    ends = [place(*curve.points[-1])[1] for curve in curves]
    for number, (curve, height) in enumerate(zip(curves, spread(ends, _TOP, _HEIGHT - _BOTTOM), strict=True)):
        kind = f"kind{number % KINDS}"
        drawn = [place(*point) for point in thin(curve.points)]
        parts.append(f'<polyline class="{kind}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in drawn)}"/>')
        if len(drawn) <= _MARKED:
            parts += [f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in drawn]
        parts.append(
            f'<text class="{kind}" x="{_WIDTH - _RIGHT + 7}" y="{height + 4:.1f}">{escape_html(curve.name)}</text>'
        )
    return "".join([*parts, "</svg>"])


def thin(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return at most some hundred of the points, evenly spread, with the first and the last."""
    if len(points) <= _MOST_POINTS:
        return list(points)
    step = (len(points) - 1) / (_MOST_POINTS - 1)
    return [points[round(number * step)] for number in range(_MOST_POINTS)]


def find_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Return round numbers, at most `most` steps, that begin at or below `low` and end at or above `high`."""
    largest = max(1.0, abs(low), abs(high))
    if high - low <= _ROUNDING * largest:
        high = low + max(1.0, 1000 * _ROUNDING * largest)
    size = 10.0 ** math.floor(math.log10((high - low) / most))
    for step in (size, 2 * size, 5 * size, 10 * size, 20 * size):
        first, last = math.floor(low / step), math.ceil(high / step)
        if last - first <= most:
            break
    return [number * step for number in range(first, last + 1)]


def spread(heights: Sequence[float], top: float, bottom: float) -> list[float]:
    """Return places for texts at these heights, moved apart where they would cover each other."""
    order = sorted(range(len(heights)), key=lambda number: heights[number])
    placed: list[float] = []
    for number in order:
        placed.append(max(heights[number], placed[-1] + _LINE if placed else top))
    lowest = bottom
    for at in reversed(range(len(placed))):
        placed[at] = min(placed[at], lowest)
        lowest = placed[at] - _LINE
    found = dict(zip(order, placed, strict=True))
    return [found[number] for number in range(len(heights))]


def _show(value: float) -> str:
    return f"{round(value, 6):,.6g}" if value < 1e6 else f"{value:.3g}"
