"""Test points as people know them: their ids and texts, read again from the files when they are to be shown.

A run keeps features only: texts would take memory during training.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from fedmlh.errors import UserError

if TYPE_CHECKING:
    from fedmlh.data.dataset import Dataset


class Original(NamedTuple):
    """A point before it became features."""

    id: str | None
    text: str


def pick_originals(dataset: "Dataset", rows: Sequence[int]) -> dict[int, Original]:
    """Return the originals of these test points, by row.

    Points without texts, and those whose files are gone or have changed since, are left out.
    """
    if dataset.originals is None or dataset.text is None or not len(rows):
        return {}
    wanted = set(map(int, rows))
    try:
        found = {row: point for row, point in enumerate(dataset.originals()) if row in wanted}
    except (OSError, UserError):
        return {}
    within = [row for row in found if row < len(dataset.test)]
    if not within:
        return {}
    # Other texts become other features.
    differ = dataset.text.transform([found[row].text for row in within]) != dataset.test.X[within]
    counts = np.diff(differ.tocsr().indptr)
    return {row: _make_whole(found[row]) for row, count in zip(within, counts, strict=True) if not count}


def _make_whole(point: Original) -> Original:
    r"""Write halves of characters, which no file can hold, as escapes such as \ud800."""
    own, text = (None if part is None else part.encode(errors="backslashreplace").decode() for part in point)
    return Original(own, text or "")
