"""What the page of a run shows of single labels and points of the test part: `labels_and_examples.json`.

- worst, best: the labels with the lowest and the highest F1, of those with at least `least_points` test points;
- examples: points from the worst to the best, evenly spread, with the labels that they have and those ranked first.

Texts of examples stay in the run folder and on its page; the model folder has none.
"""

from typing import Any

import numpy as np

from fedmlh.data.dataset import Dataset
from fedmlh.data.originals import pick_originals
from fedmlh.evaluation.evaluate import Examined
from fedmlh.evaluation.label_figures import LEAST_POINTS
from fedmlh.runs.summary import is_number

_MOST_LABELS, _MOST_EXAMPLES = 20, 8
_MOST_CHARACTERS, _MOST_GIVEN = 600, 20
_FIGURES = ("training_points", "test_points", "proposed", "precision", "recall", "f1", "average_rank")


def describe_test(tested: Examined, dataset: Dataset) -> dict[str, Any]:
    """Return the content of the file for a model that was tested on a data set."""
    names, labels = dataset.labels.names, tested.labels

    def describe(label: int) -> dict[str, Any]:
        partner = int(labels.confused_with[label])
        return {
            "name": names[label],
            **{figure: getattr(labels, figure)[label].item() for figure in _FIGURES},
            "confused_with": None if partner < 0 else names[partner],
            "confused_times": int(labels.confused_times[label]),
        }

    worst, best = labels.pick(_MOST_LABELS)
    return {
        "least_points": LEAST_POINTS,
        "worst": [describe(label) for label in worst],
        "best": [describe(label) for label in best],
        "examples": _describe_examples(tested, dataset),
    }


def _describe_examples(tested: Examined, dataset: Dataset) -> list[dict[str, Any]]:
    names, proposals, points = dataset.labels.names, tested.proposals, tested.proposals.list_points()
    rows = points[np.unique(np.linspace(0, len(points) - 1, min(_MOST_EXAMPLES, len(points))).astype(int))]
    originals = pick_originals(dataset, rows.tolist())
    examples = []
    for row in rows.tolist():
        original, true = originals.get(row), proposals.list_true(row)
        text = None if original is None else original.text
        if text is not None and len(text) > _MOST_CHARACTERS:
            text = f"{text[:_MOST_CHARACTERS]}…"
        labels = [
            {"name": names[label], "true": label in true, "probability": chance, "score": score, "proposed": proposed}
            for label, chance, score, proposed in proposals.list_ranked(row)
        ]
        examples.append(
            {
                "point": row,
                "id": None if original is None else original.id,
                "text": text,
                "true": [names[label] for label in true[:_MOST_GIVEN]],
                "more_true": max(0, len(true) - _MOST_GIVEN),
                "labels": labels,
            }
        )
    return examples


def check_description(content: Any) -> dict[str, Any]:
    """Return what a file holds; raise KeyError, TypeError or ValueError if a page cannot show it."""
    labels = [*content["worst"], *content["best"]]
    ranked = [label for example in content["examples"] for label in example["labels"]]
    texts = [label["name"] for label in (*labels, *ranked)]
    texts += [name for example in content["examples"] for name in example["true"]]
    texts += [example[part] for example in content["examples"] for part in ("id", "text") if example[part] is not None]
    texts += [label["confused_with"] for label in labels if label["confused_with"] is not None]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("a name that is not text")
    numbers = [content["least_points"]]
    numbers += [label[figure] for label in labels for figure in (*_FIGURES, "confused_times")]
    numbers += [example[name] for example in content["examples"] for name in ("point", "more_true")]
    numbers += [label["score"] for label in ranked]
    numbers += [label["probability"] for label in ranked if label["probability"] is not None]
    if not all(is_number(number) for number in numbers):
        raise ValueError("a figure is not a number")
    if not all(isinstance(label[mark], bool) for label in ranked for mark in ("true", "proposed")):
        raise TypeError("a mark that is not true or false")
    return dict(content)
