"""Curves of runs: accuracy against rounds and against bytes, as SVG for the report and PNG for everything else."""

import io
import textwrap
from collections.abc import Mapping, Sequence
from itertools import accumulate, cycle
from typing import Any

import numpy as np

from fedmlh.display import draw_literally
from fedmlh.runs.comparison import MIB, Groups
from fedmlh.runs.summary import judged

#: Colour-blind safe (Okabe and Ito), first for FedMLH.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


def draw_curves(groups: Groups, kind: str) -> bytes:
    """Precision by round (above) and by total bytes both ways (below); a thin line a seed, a thick one their mean."""
    import matplotlib

    matplotlib.use("Agg")
    # Without these, two equal runs would give different files.
    matplotlib.rcParams["svg.hashsalt"] = "fedmlh"
    from matplotlib import pyplot

    ks = list(next(iter(groups.values()))[0].summary["precision"])
    figure, axes = pyplot.subplots(2, len(ks), figsize=(3.6 * len(ks), 5.8), squeeze=False, layout="constrained")
    for (name, runs), colour in zip(groups.items(), cycle(_COLOURS), strict=False):
        # A longer line, or more of them, would leave no room for the curves.
        label = textwrap.fill(name, 30, max_lines=8, placeholder="…")
        histories = [run.history for run in runs]
        shortest = min(len(history) for history in histories)
        for column, k in enumerate(ks):
            values = [[100 * judged(record)["precision"][k] for record in history] for history in histories]
            rounds = [[float(record["round"]) for record in history] for history in histories]
            for row, x in enumerate((rounds, [_running_total(history) for history in histories])):
                for xs, ys in zip(x, values, strict=True):
                    axes[row][column].plot(xs, ys, color=colour, alpha=0.35, lw=1)
                mean_x, mean_y = (np.mean([series[:shortest] for series in many], axis=0) for many in (x, values))
                # A run of one round is a point, which a line would not show.
                marker = "o" if shortest == 1 else ""
                axes[row][column].plot(mean_x, mean_y, color=colour, lw=2.2, marker=marker, label=label)
    records = (record for runs in groups.values() for run in runs for record in run.history)
    part = " or ".join(sorted({"validation" if "validation" in record else "test" for record in records}))
    for column, k in enumerate(ks):
        axes[0][column].set(title=f"P@{k}, {part}", xlabel="round")
        axes[1][column].set(xlabel="MiB sent, both ways")
        for row in (0, 1):
            axes[row][column].grid(alpha=0.3)
            axes[row][column].set_ylabel("%" if column == 0 else "")
    axes[0][-1].legend(frameon=False, loc="lower right")
    draw_literally(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=110, metadata={"Date": None} if kind == "svg" else None)
    pyplot.close(figure)
    return buffer.getvalue()


def _running_total(history: Sequence[Mapping[str, Any]]) -> list[float]:
    return list(accumulate((record["bytes_up"] + record["bytes_down"]) / MIB for record in history))
