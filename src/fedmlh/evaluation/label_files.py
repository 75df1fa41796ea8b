"""Figures of each label, and points whose proposed labels are not theirs, as CSV or JSON lines."""

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedmlh.data.dataset import Labels
from fedmlh.data.originals import Original
from fedmlh.evaluation.label_figures import LabelFigures
from fedmlh.evaluation.proposals import Proposals, Rule


def format_labels(figures: LabelFigures, labels: Labels, rule: Rule) -> str:
    """Return a CSV table with a row per label, in the order of the catalogue; its header names the rule."""
    head = ("key", "name", "training_points", "test_points", f"proposed ({rule})", "precision", "recall", "f1")
    columns = (
        labels.keys,
        labels.names,
        figures.training_points.tolist(),
        figures.test_points.tolist(),
        figures.proposed.tolist(),
        figures.precision.tolist(),
        figures.recall.tolist(),
        figures.f1.tolist(),
        ["" if math.isnan(rank) else rank for rank in figures.average_rank.tolist()],
        ["" if label < 0 else labels.keys[label] for label in figures.confused_with.tolist()],
        ["" if label < 0 else labels.names[label] for label in figures.confused_with.tolist()],
        figures.confused_times.tolist(),
    )
    more = ("average_rank", "confused_with_key", "confused_with_name", "confused_times")
    return _format_csv([(*head, *more), *zip(*columns, strict=True)])


def format_misses(
    proposals: Proposals, rows: Iterable[int], labels: Labels, originals: Mapping[int, Original], *, as_csv: bool
) -> str:
    """Return these points with the labels that they have and those that are proposed, a row or a line per point.

    Ids and texts have a place only if some of the points have them.
    """
    known = {"id": any(point.id is not None for point in originals.values()), "text": bool(originals)}
    about = [name for name, there in known.items() if there]
    misses = (_describe(proposals, int(row), labels, originals.get(int(row)), about) for row in rows)
    if not as_csv:
        return "".join(json.dumps(miss, ensure_ascii=False) + "\n" for miss in misses)
    head = ("point", *about, "f1")
    lines: list[Sequence[Any]] = [(*head, "given", f"proposed ({proposals.rule})")]
    for miss in misses:
        given = "; ".join(label["name"] for label in miss["given"])
        proposed = "; ".join(f"{label['name']} ({_show_chance(label)})" for label in miss["proposed"])
        lines.append((*(miss[name] for name in head), given, proposed))
    return _format_csv(lines)


def _describe(
    proposals: Proposals, row: int, labels: Labels, original: Original | None, about: Iterable[str]
) -> dict[str, Any]:
    def name(label: int) -> dict[str, Any]:
        return {"key": labels.keys[label], "name": labels.names[label]}

    return {
        "point": row,
        **{part: getattr(original, part, None) for part in about},
        "f1": float(proposals.point_f1[row]),
        "given": [name(label) for label in proposals.list_true(row)],
        "proposed": [
            {**name(label), "score": score, "probability": chance}
            for label, chance, score, proposed in proposals.list_ranked(row)
            if proposed
        ],
    }


def _show_chance(label: Mapping[str, Any]) -> str:
    return f"{label['score']:.3f}" if label["probability"] is None else f"{label['probability']:.3f}"


def _format_csv(lines: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()
