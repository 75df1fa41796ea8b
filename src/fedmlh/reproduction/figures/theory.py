"""Figures of theory: observations as dots, predictions as lines."""

from collections.abc import Iterator
from typing import Any

from fedmlh.reproduction.evidence import Evidence
from fedmlh.reproduction.figures.drawing import SERIES, Drawing, Figure, label_sizes, say_empty
from fedmlh.reproduction.sources import Source


def draw_lemma1(evidence: Evidence) -> Figure:
    """Draw the positives of a label's bucket over B."""
    drawing = Drawing(1, len(evidence.sources), 3.6, 3.0)
    for panel, source, rows in _fill_panels(drawing, evidence, "lemma1"):
        sizes = [row["B"] for row in rows]
        panel.plot(sizes, [row["label"] for row in rows], color="#666666", ls=":", label="the label itself")
        panel.plot(sizes, [row["exact"] for row in rows], color=SERIES[0], label="exact expectation")
        panel.plot(sizes, [row["bound"] for row in rows], color=SERIES[1], ls="--", label="paper's bound")
        panel.errorbar(
            sizes, [row["observed"] for row in rows], [row["spread"] for row in rows], fmt="o", ms=4, color="black",
            label="observed",
        )  # fmt: skip
        panel.set(xscale="log", yscale="log", title=source.name, xlabel="B")
        label_sizes(panel.xaxis, sizes)
    drawing.panels[0][0].set_ylabel("positives, mean over labels")
    drawing.legend(drawing.panels[0][0], columns=4)
    return drawing.finish(
        "figure-lemma1",
        "Lemma 1. A bucket has many more positives than a label",
        "Mean over labels of the positives of the bucket that a label falls into; bars are the spread over hash "
        "functions.",
    )


def draw_lemma2(evidence: Evidence) -> Figure:
    """Draw the pairs of labels that collide in all tables, over R and B."""
    drawing = Drawing(1, len(evidence.sources), 3.6, 3.0)
    for panel, source, rows in _fill_panels(drawing, evidence, "lemma2"):
        for tables, colour in zip(sorted({row["R"] for row in rows}), SERIES, strict=False):
            own = [row for row in rows if row["R"] == tables]
            sizes = [row["B"] for row in own]
            panel.plot(sizes, [row["expected_pairs"] for row in own], color=colour, label=f"R = {tables}")
            seen = [row for row in own if row["observed_pairs"] > 0]
            panel.plot([row["B"] for row in seen], [row["observed_pairs"] for row in seen], "o", color=colour, ms=4)
        panel.axhline(1, color="#888888", ls="--", lw=0.8)
        panel.set(xscale="log", yscale="log", title=source.name, xlabel="B")
        sizes = sorted({row["B"] for row in rows})
        label_sizes(panel.xaxis, sizes)
    drawing.panels[0][0].set_ylabel("pairs that collide in all tables")
    drawing.legend(drawing.panels[0][-1], columns=6)
    return drawing.finish(
        "figure-lemma2",
        "Lemma 2. With enough tables every pair of labels is told apart",
        "Lines: expected pairs, p(p − 1) / 2Bᴿ, which bounds the chance that there is any (below the dashed line); "
        "dots: mean over hash functions, none where no pair was ever seen.",
    )


def draw_theorem1(evidence: Evidence) -> Figure:
    """Draw errors over positives, with both axes logarithmic."""
    drawing = Drawing(1, 2, 3.8, 3.0)
    found = evidence.one("embed", evidence.sources[0])
    for panel, (name, title) in zip(drawing.panels[0], (("mean", "centre"), ("covariance", "spread")), strict=True):
        if found is None:
            say_empty(panel)
            continue
        panel.plot(found["positives"], found[name]["bound"], color=SERIES[0], label="least possible, ∝ 1/n₁")
        panel.plot(found["positives"], found[name]["observed"], "o", color="black", ms=4, label="observed")
        title += f": fitted n₁^{found[name]['rate']:.2f}"
        panel.set(xscale="log", yscale="log", title=title, xlabel="n₁, positives of the class")
    drawing.panels[0][0].set_ylabel("mean square error")
    drawing.legend(drawing.panels[0][0], columns=4)
    return drawing.finish(
        "figure-theorem1",
        "Theorem 1. What is learned about a class is as uncertain as 1/n₁",
        "Simulated normal embeddings: errors of the sample mean and covariance, and the least that an unbiased "
        "estimate can have.",
    )


def draw_theorem2(evidence: Evidence) -> Figure:
    """Draw the divergence between clients over B."""
    drawing = Drawing(1, len(evidence.sources), 3.6, 3.0)
    for panel, source, rows in _fill_panels(drawing, evidence, "theorem2"):
        sizes = [row["B"] for row in rows]
        panel.plot(sizes, [row["labels"] for row in rows], color="#666666", ls="--", label="labels, before hashing")
        for name, title, colour in (("sums", "buckets, summed", SERIES[0]), ("unions", "buckets, unions", SERIES[1])):
            values, spread = [row[name] for row in rows], [row[f"{name}_spread"] for row in rows]
            panel.errorbar(sizes, values, spread, fmt="o-", ms=4, color=colour, label=title)
        panel.set(xscale="log", title=source.name, xlabel="B", ylim=(0, None))
        label_sizes(panel.xaxis, sizes)
    drawing.panels[0][0].set_ylabel("KL between clients, nats")
    drawing.legend(drawing.panels[0][0], columns=4)
    return drawing.finish(
        "figure-theorem2",
        "Theorem 2. Hashing brings clients' label distributions closer",
        "Mean over neighbouring clients, counts smoothed before hashing; bars are the spread over hash functions.",
    )


def _fill_panels(
    drawing: Drawing, evidence: Evidence, about: str
) -> Iterator[tuple[Any, Source, list[dict[str, Any]]]]:
    """Yield panel, set and rows for each set that was measured; mark the other panels as empty."""
    for panel, source in zip(drawing.panels[0], evidence.sources, strict=True):
        rows = evidence.hashed(source, about)
        if rows:
            yield panel, source, rows
        else:
            say_empty(panel)
