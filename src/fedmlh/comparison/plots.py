"""Curves of methods: accuracy against rounds and against bytes, as SVG for the report and PNG for everything else."""

import io
import textwrap
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from fedmlh.comparison.comparison import MIB
from fedmlh.comparison.methods import Method
from fedmlh.display import draw_literally
from fedmlh.runs.summary import judged

#: Colour-blind safe (Okabe and Ito), without yellow, which is hard to see on white; then again with other dashes.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
_DASHES = ("-", "--", ":", "-.")
#: The shaded ranges over seeds of more methods than these would hide curves.
MOST_SHADED = 4
#: If one method sends this many times as much as another, only a logarithmic axis shows both.
_FAR_APART = 20


def draw_curves(methods: Sequence[Method], kind: str) -> bytes:
    """Draw precision by round (above) and by bytes both ways (below): mean over seeds, and range if methods are few."""
    import matplotlib

    matplotlib.use("Agg")
    # Without these, two equal runs would give different files.
    matplotlib.rcParams["svg.hashsalt"] = "fedmlh"
    from matplotlib import pyplot

    ks = list(methods[0].runs[0].summary["precision"])
    figure, axes = pyplot.subplots(2, len(ks), figsize=(3.4 * len(ks) + 2.4, 5.8), squeeze=False, layout="constrained")
    for place, method in enumerate(methods):
        colour, dash = _COLOURS[place % len(_COLOURS)], _DASHES[place // len(_COLOURS) % len(_DASHES)]
        histories = [run.history for run in method.runs]
        shortest = min(len(history) for history in histories)
        style = {"color": colour, "ls": dash, "lw": 2, "marker": "o" if shortest == 1 else ""}  # a line of one point
        for column, k in enumerate(ks):
            values = np.array([[100 * judged(record)["precision"][k] for record in h[:shortest]] for h in histories])
            rounds = np.array([[float(record["round"]) for record in history[:shortest]] for history in histories])
            sent = np.array([_running_total(history)[:shortest] for history in histories])
            for row, x in enumerate((rounds, sent)):
                axes[row][column].plot(x.mean(axis=0), values.mean(axis=0), **style)
                if len(histories) > 1 and len(methods) <= MOST_SHADED:
                    low, high = values.min(axis=0), values.max(axis=0)
                    axes[row][column].fill_between(x.mean(axis=0), low, high, color=colour, alpha=0.15, lw=0)
    records = [record for method in methods for run in method.runs for record in run.history]
    part = " or ".join(sorted({"validation" if "validation" in record else "test" for record in records}))
    far = _are_far_apart(methods)
    for column, k in enumerate(ks):
        axes[0][column].set(title=f"P@{k}, {part}", xlabel="round")
        axes[0][column].xaxis.get_major_locator().set_params(integer=True)
        axes[1][column].set(xlabel="MiB sent, both ways", xscale="log" if far else "linear")
        axes[1][column].xaxis.set_major_formatter("{x:g}")
        for row in (0, 1):
            axes[row][column].grid(alpha=0.3)
            axes[row][column].set_ylabel("%" if column == 0 else "")
    # A longer line, or more of them, would leave no room for the curves.
    labels = [textwrap.fill(method.name, 24, max_lines=4, placeholder="…") for method in methods]
    figure.legend(axes[0][0].get_lines(), labels, loc="outside right upper", frameon=False, fontsize=9)
    draw_literally(figure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=110, metadata={"Date": None} if kind == "svg" else None)
    pyplot.close(figure)
    return buffer.getvalue()


def _running_total(history: Sequence[Mapping[str, Any]]) -> list[float]:
    return list(accumulate((record["bytes_up"] + record["bytes_down"]) / MIB for record in history))


def _are_far_apart(methods: Sequence[Method]) -> bool:
    """Say whether methods send such different totals that a linear axis would hide the one that sends least."""
    totals = [_running_total(run.history)[-1] for method in methods for run in method.runs]
    firsts = [_running_total(run.history)[0] for method in methods for run in method.runs]
    return min(firsts) > 0 and max(totals) > _FAR_APART * min(totals)
