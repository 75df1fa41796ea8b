"""What all figures share: colours, a grid of panels, and one drawing as SVG and PNG."""

import importlib.util
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedmlh.display import draw_literally
from fedmlh.errors import UserError, how_to_install

#: Colour-blind safe (Okabe and Ito), the same contestant in the same colour everywhere.
COLOURS = {"fedmlh": "#0072b2", "fedavg": "#d55e00", "recommended": "#009e73", "tuned": "#cc79a7"}
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999933", "#8c6d31", "#7f3c8d", "#80ba5a")
#: @1, @3 and @5 wherever they share a panel.
DASHES = {"1": "-", "3": "--", "5": ":"}
_STYLE: Any = {
    "svg.hashsalt": "fedmlh",  # without it two equal drawings would give different files
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


@dataclass(frozen=True)
class Figure:
    """A drawing with its title and caption."""

    id: str
    title: str
    caption: str
    width: int  # in CSS pixels
    svg: bytes
    png: bytes


class Drawing:
    """A grid of panels that becomes a figure."""

    def __init__(self, rows: int, columns: int, width: float = 3.5, height: float = 2.7) -> None:
        from matplotlib import rc_context
        from matplotlib.figure import Figure as Sheet

        with rc_context(_STYLE):
            self.sheet = Sheet(figsize=(max(1, columns) * width, max(1, rows) * height), layout="constrained")
            self.panels: Any = self.sheet.subplots(max(1, rows), max(1, columns), squeeze=False)

    def legend(self, *panels: Any, columns: int) -> None:
        """Draw one legend for all panels, below them, where it hides nothing."""
        named = {
            name: handle for panel in panels for handle, name in zip(*panel.get_legend_handles_labels(), strict=True)
        }
        columns = min(columns, int(0.75 * self.sheet.get_figwidth()))  # an entry takes up to 1.3 inches
        self.sheet.legend(
            list(named.values()), list(named), loc="outside lower center", ncols=columns, frameon=False, fontsize=8
        )

    def finish(self, name: str, title: str, caption: str) -> Figure:
        """Return the figure in both formats."""
        from matplotlib import rc_context

        draw_literally(self.sheet)
        with rc_context(_STYLE):
            vector, raster = io.BytesIO(), io.BytesIO()
            self.sheet.savefig(vector, format="svg", metadata={"Date": None})
            self.sheet.savefig(raster, format="png", dpi=130)
        return Figure(name, title, caption, round(96 * self.sheet.get_figwidth()), vector.getvalue(), raster.getvalue())


def check_matplotlib() -> None:
    """Refuse to begin without matplotlib, before hours are spent on figures that cannot be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError(
            f"figures need matplotlib: {how_to_install('plot')}, or ask for tables only, e.g. --only table3"
        )


def band(panel: Any, x: Any, series: list[list[float]], **style: Any) -> None:
    """Draw the mean of several seeds' curves as a line, and their range as a shade."""
    shortest = min(len(values) for values in series)
    values = np.array([values[:shortest] for values in series])
    panel.plot(x[:shortest], values.mean(axis=0), **style)
    if len(series) > 1:
        panel.fill_between(x[:shortest], values.min(axis=0), values.max(axis=0), color=style["color"], alpha=0.15, lw=0)


def label_sizes(axis: Any, sizes: Sequence[int]) -> None:
    """Label only these sizes on a logarithmic axis; fewer than two span no axis."""
    if len(sizes) < 2:
        return
    axis.set_ticks(sizes, [f"{size:,}" for size in sizes], rotation=30 if len(sizes) > 3 else 0)
    axis.set_ticks([], minor=True)


def say_empty(*panels: Any) -> None:
    """Write into panels without data that nothing was measured; else they would look broken."""
    for panel in panels:
        panel.text(0.5, 0.5, "not measured", ha="center", va="center", transform=panel.transAxes, color="#666666")
        panel.set_axis_off()
