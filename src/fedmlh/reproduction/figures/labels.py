"""Figures of the data: the frequencies of labels (1), and the labels of clients (2)."""

from fedmlh.reproduction.evidence import Evidence
from fedmlh.reproduction.figures.drawing import SERIES, Drawing, Figure, say_empty


def draw_frequencies(evidence: Evidence) -> Figure:
    """Draw the paper's Figure 2 (a) and (b)."""
    drawing = Drawing(1, 2, 4.2, 3.2)
    left, right = drawing.panels[0]
    described = {source.name: found for source in evidence.sources if (found := evidence.one("describe", source))}
    for (name, found), colour in zip(described.items(), SERIES, strict=False):
        for panel, values in ((left, "labels_at_most"), (right, "positives_at_most")):
            panel.plot(found["frequency"], found[values], color=colour, label=name, lw=1.8)
    left.set(title="(a) labels", ylabel="share of labels of at most this frequency")
    right.set(title="(b) positives", ylabel="share of positives they carry")
    for panel in (left, right) if described else ():
        panel.set(xscale="log", xlabel="points that carry the label, share of all", ylim=(0, 1.02))
        panel.axvline(0.01, color="#888888", ls="--", lw=0.8)
    if described:
        drawing.legend(left, columns=4)
    else:
        say_empty(left, right)
    return drawing.finish(
        "figure1",
        "Figure 1. Most labels are rare, and rare labels carry many of the positives",
        "As the paper's Figure 2 (a, b): for each frequency the share of labels that have at most this frequency, and "
        "the share of all positives that those labels carry. The dashed line is 1 %: labels to the right of it "
        "are frequent.",
    )


def draw_partition(evidence: Evidence) -> Figure:
    """Draw the paper's Figure 2 (c)."""
    described = {source.name: found for source in evidence.sources if (found := evidence.one("describe", source))}
    drawing = Drawing(len(described), 2, 4.2, 2.9)
    if not described:
        say_empty(*drawing.panels[0])
    for panels, (name, found) in zip(drawing.panels, described.items(), strict=False):
        for panel, (partition, about) in zip(panels, found["partitions"].items(), strict=True):
            clients = range(len(about["points"]))
            left = [0] * len(about["points"])
            for number, colour in zip(range(len(about["top_labels"][0])), SERIES, strict=False):
                widths = [counts[number] for counts in about["top_labels"]]
                panel.barh(clients, widths, left=left, color=colour, height=0.8)
                left = [start + width for start, width in zip(left, widths, strict=True)]
            panel.plot(about["points"], clients, "|", color="black", ms=9, mew=1.5)
            panel.set(title=f"{name}\n{partition}: {100 * about['reached']:.0f} % of points reach a client")
            panel.set(xlabel="points with each of the ten most frequent labels", yticks=clients)
            panel.invert_yaxis()
            panel.grid(axis="y", visible=False)
        panels[0].set_ylabel("client")
    return drawing.finish(
        "figure2",
        "Figure 2. What the non-iid partition gives each client",
        "As the paper's Figure 2 (c): a colour is one of the ten most frequent labels, and a bar shows how many of a "
        "client's points carry it (a point with several of them counts in each); the black tick is the client's number "
        "of points. Left: the rule of the research code, with which everything here was trained; right: the rule of "
        "the paper's text.",
    )
