"""Figures of training: accuracy by rounds (3) and by bytes (4), and how it depends on B and R (5)."""

from collections.abc import Sequence
from itertools import accumulate
from statistics import fmean
from typing import Any

from fedmlh.reproduction.evidence import Evidence
from fedmlh.reproduction.figures.drawing import COLOURS, DASHES, Drawing, Figure, band, label_sizes, say_empty
from fedmlh.reproduction.methods import METHODS, PAPER
from fedmlh.reproduction.paper import UNITS
from fedmlh.reproduction.sources import Source

_GROUPS = {
    "precision": "all labels",
    "precision_frequent": "frequent labels",
    "precision_infrequent": "infrequent labels",
}


def draw_rounds(evidence: Evidence) -> Figure:
    """Draw the paper's Figure 3."""
    drawing = Drawing(len(evidence.trained), 3)
    for panels, source in zip(drawing.panels, evidence.trained, strict=False):
        for panel, (metric, group) in zip(panels, _GROUPS.items(), strict=True):
            for method in PAPER:
                runs = evidence.runs(source, method, "paper")
                for k, dashes in DASHES.items() if runs else ():
                    series = _percents(runs, k, metric)
                    rounds = list(range(1, len(series[0]) + 1))
                    label = f"{METHODS[method]} @{k}"
                    band(panel, rounds, series, color=COLOURS[method], ls=dashes, lw=1.6, label=label)
            panel.set(title=group, xlabel="round", ylim=(0, None))
        panels[0].set_ylabel(f"{source.name}\nP@k on test, %")
    if evidence.trained:
        drawing.legend(drawing.panels[0][0], columns=6)
    else:
        say_empty(*drawing.panels[0])
    return drawing.finish(
        "figure3",
        "Figure 3. Accuracy by round: all, frequent and infrequent labels",
        "As the paper's Figure 3: hits on frequent and on infrequent labels over the same k add up to the left panel. "
        "Test part after every round, nothing held out; line: mean over seeds, shade: least to largest.",
    )


def draw_bytes(evidence: Evidence) -> Figure:
    """Draw the paper's Figure 4, and all contestants by what they send both ways."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    drawing = Drawing(len(evidence.trained), 2, 4.4, 3.0)
    for panels, source in zip(drawing.panels, evidence.trained, strict=False):
        unit = UNITS[source.shape.unit]
        for method in PAPER:
            if runs := evidence.runs(source, method, "paper"):
                sent = _sent(runs[0], ("bytes_up",), unit)
                for k, dashes in DASHES.items():
                    style = {"color": COLOURS[method], "ls": dashes, "lw": 1.6}
                    band(panels[0], sent, _percents(runs, k), label=f"{METHODS[method]} @{k}", **style)
        if stopped := evidence.runs(source, "fedmlh", "paper"):
            mark = _sent(stopped[0], ("bytes_up",), unit)[_best_round(stopped) - 1]
            panels[0].axvline(mark, color="#888888", ls="--", lw=1.2)
            panels[0].annotate(
                "FedMLH stops",
                (mark, 0),
                xycoords=("data", "axes fraction"),
                color="#666666",
                xytext=(-3, 4),
                textcoords="offset points",
                rotation=90,
                ha="right",
                va="bottom",
                fontsize=8,
            )
        for method, title in METHODS.items():
            if runs := evidence.runs(source, method, "validation"):
                sent, best = _sent(runs[0], ("bytes_up", "bytes_down"), unit), _best_round(runs) - 1
                series = _percents(runs, "1")
                band(panels[1], sent, series, label=f"{title} @1", color=COLOURS[method], ls=DASHES["1"], lw=1.6)
                height = fmean(values[best] for values in series)
                panels[1].plot(sent[best], height, "o", color=COLOURS[method], ms=6, mec="white")
        panels[0].set(title=source.name, xlabel=f"{source.shape.unit} sent by clients", ylabel="P@k on test, %")
        panels[1].set(title="all contestants, @1", xlabel=f"{source.shape.unit} sent, both ways", xscale="log")
        panels[1].set_ylabel("P@1 on validation, %")
        for panel in panels:
            panel.set_ylim(0, None)
        panels[1].xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panels[1].xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        panels[1].xaxis.set_minor_formatter(NullFormatter())
    if evidence.trained:
        drawing.legend(*drawing.panels[0], columns=4)
    else:
        say_empty(*drawing.panels[0])
    return drawing.finish(
        "figure4",
        "Figure 4. Accuracy by bytes",
        "Left as the paper's Figure 4: what clients have sent, one way; the dashed line is FedMLH's best round, where "
        "it would be stopped (mean over seeds); test part after every round, nothing held out. Right all contestants "
        "by what is sent both ways, judged on validation, dots at their best rounds.",
    )


def draw_sensitivity(evidence: Evidence) -> Figure:
    """Draw the paper's Figure 5."""
    swept = [source for source in evidence.trained if sweep_points(evidence, source, "R")]
    drawing = Drawing(len(swept), 2, 4.2, 3.0)
    for panels, source in zip(drawing.panels, swept, strict=False):
        config = source.config
        for panel, name, own in ((panels[0], "B", config.num_buckets), (panels[1], "R", config.num_tables)):
            points = {**sweep_points(evidence, source, name), own: evidence.runs(source, "fedmlh", "validation")}
            sizes = sorted(points)
            fedavg = evidence.runs(source, "fedavg", "validation")
            for k, dashes in DASHES.items():
                values = [_mean_precision(points[size], k) for size in sizes]
                panel.plot(sizes, values, "o" + dashes, color=COLOURS["fedmlh"], label=f"FedMLH @{k}", ms=4)
            for k, dashes in DASHES.items() if fedavg else ():
                level = _mean_precision(fedavg, k)
                panel.axhline(level, color=COLOURS["fedavg"], ls=dashes, lw=1, label=f"FedAvg @{k}")
            panel.axvline(own, color="#888888", lw=0.8)
            panel.set(xscale="log", xlabel=f"{name} (the paper's: {own:,})", ylim=(0, None), title=source.name)
            label_sizes(panel.xaxis, sizes)
        panels[0].set_ylabel("P@k on test, %")
    if swept:
        drawing.legend(drawing.panels[0][0], columns=6)
    else:
        say_empty(*drawing.panels[0])
    return drawing.finish(
        "figure5",
        "Figure 5. Sensitivity to the buckets B and the tables R",
        "As the paper's Figure 5 (whose text swaps the two panels). Test part at the round chosen on validation; one "
        "seed, except for the paper's own size (grey line), which is the mean over all seeds; FedAvg, which has "
        "neither, as level lines.",
    )


def sweep_points(evidence: Evidence, source: Source, name: str) -> dict[int, list[dict[str, Any]]]:
    """Return the runs of a sweep by size; the paper's own size is not among them."""
    methods = [job.method for job in evidence.jobs if job.kind == "sweep" and job.source.name == source.name]
    found = {
        int(method.rpartition("=")[2]): evidence.runs(source, method, "validation", "sweep")
        for method in methods
        if f"-{name}=" in method
    }
    return {size: runs for size, runs in found.items() if runs}


def _mean_precision(runs: Sequence[dict[str, Any]], k: str) -> float:
    return 100 * fmean(run["summary"]["precision"][k] for run in runs)


def _sent(run: dict[str, Any], ways: Sequence[str], unit: int) -> list[float]:
    return list(accumulate(sum(parts) / unit for parts in zip(*(run[way] for way in ways), strict=True)))


def _percents(runs: Sequence[dict[str, Any]], k: str, metric: str = "precision") -> list[list[float]]:
    return [[100 * value for value in run["curves"][metric][k]] for run in runs]


def _best_round(runs: Sequence[dict[str, Any]]) -> int:
    return round(fmean(run["summary"]["best_round"] for run in runs))
