"""The part of a run's page about single labels and points: the worst and the best labels, and example predictions."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedmlh.comparison.markup import make_table
from fedmlh.comparison.settings import IDLE
from fedmlh.comparison.terms import MEANINGS
from fedmlh.display import escape_html
from fedmlh.evaluation.proposals import AVERAGES
from fedmlh.runs.folder import FinishedRun

_HEAD = (
    "label",
    "training points",
    "test points",
    "proposed",
    "precision",
    "recall",
    "F1",
    "average rank",
    "most confused with",
)


def show_labels_and_examples(runs: Sequence[FinishedRun]) -> str:
    """Return the part for the page of one run; a page of several runs has none, nor that of an older run."""
    if len(runs) > 1 or "proposals" not in runs[0].summary:
        return ""
    content = runs[0].folder.read_examples()
    return "" if content is None else _show_labels(content, runs[0].summary["proposals"]) + _show_examples(content)


def _show_labels(content: Mapping[str, Any], proposals: Mapping[str, Any]) -> str:
    """Return the worst and the best labels of a run, with the averages of F1 over all."""
    f1 = ", ".join(f"{name} <b>{100 * proposals[key]:.1f} %</b>" for name, key in AVERAGES.items())
    rule = escape_html(proposals["rule"])
    parts = [f'<h2>Labels</h2><p class="note">Proposed for each test point: {rule}. This gives {f1}.</p>']
    least = content["least_points"]
    for title, order in (("worst", "lowest"), ("best", "highest")):
        rows = [_make_row(label) for label in content[title]]
        if not rows:
            continue
        caption = f"The {len(rows)} labels with the {order} F1, among those with at least {least} test points"
        opened = " open" if title == "worst" else ""
        table = f'<div class="wide labels">{make_table(_HEAD, rows)}</div>'
        parts.append(f"<details{opened}><summary>{caption}</summary>{table}</details>")
    if len(parts) == 1:
        parts.append(f'<p class="note">No label has {least} test points or more.</p>')
    terms = [("F1", "f1"), ("average rank", "average_rank"), ("most confused with", "confused_with")]
    parts += [f'<p class="term"><b>{name}</b>: {escape_html(MEANINGS[key])}</p>' for name, key in terms]
    return "".join(parts)


def _make_row(label: Mapping[str, Any]) -> tuple[str, ...]:
    partner = IDLE
    if label["confused_with"] is not None:
        partner = f"{label['confused_with']} ({label['confused_times']:,}\u00a0×)"
    counts = (f"{label[name]:,}" for name in ("training_points", "test_points", "proposed"))
    shares = (f"{100 * label[name]:.0f} %" for name in ("precision", "recall", "f1"))
    return label["name"], *counts, *shares, f"{label['average_rank']:.1f}", partner


def _show_examples(content: Mapping[str, Any]) -> str:
    """Return example predictions of a run."""
    examples = content["examples"]
    if not examples:
        return ""
    note = (
        "Test points, evenly spread from the worst to the best. ✓ marks labels that the point has; those in grey stand "
        "first, but are not proposed."
    )
    return f'<h2>Examples</h2><p class="note">{note}</p>{"".join(map(_show_example, examples))}'


def _show_example(example: Mapping[str, Any]) -> str:
    title = f"Point {example['point']:,}" + ("" if example["id"] is None else f", {example['id']}")
    text = "" if example["text"] is None else f"<blockquote>{escape_html(example['text'])}</blockquote>"
    more = f" and {example['more_true']:,} more" if example["more_true"] else ""
    true = (escape_html("; ".join(example["true"])) or "no label") + more
    items = []
    for label in example["labels"]:
        score = f"{label['score']:.3f}" if label["probability"] is None else f"{100 * label['probability']:.1f} %"
        kind = "" if label["proposed"] else ' class="idle"'
        mark = "✓" if label["true"] else ""
        items.append(f"<tr{kind}><td>{score}</td><td>{mark}</td><td>{escape_html(label['name'])}</td></tr>")
    ranked = f'<table class="ranked">{"".join(items)}</table>'
    return f'<div class="example"><h3>{escape_html(title)}</h3>{text}<p><b>Its labels:</b> {true}</p>{ranked}</div>'
