"""Why a model proposes a label: what each word adds to its score, and how each table voted."""

from collections import Counter
from collections.abc import Sequence
from typing import TypedDict

import numpy as np

from fedmlh.data.text import TOKEN
from fedmlh.hashing.rows import Rows
from fedmlh.serving.scores import Part, count_at_once

#: Labels in the same bucket that are named.
_MOST_NAMED = 5


class Contribution(TypedDict):
    """What the score loses when a word, or a feature, is left out of this point."""

    word: str
    adds: float


class Vote(TypedDict):
    """What one table says: the score of the label's bucket, its rank among the buckets, and who shares it."""

    table: int
    bucket: int
    score: float
    rank: int
    buckets: int
    shared_with: list[str]
    labels_in_bucket: int


class Reasons(TypedDict):
    """Why one label was proposed."""

    words: list[Contribution]
    tables: list[Vote]


def leave_words_out(text: str) -> tuple[list[str], list[str]]:
    """Return the words of a text, each once, and the text without each of them."""
    tokens = TOKEN.findall(text.lower())
    words = list(dict.fromkeys(tokens))
    return words, [" ".join(token for token in tokens if token != word) for word in words]


def measure_words(texts: Sequence[str]) -> tuple[int, int, int]:
    """Return how many words texts have, how many different ones (counted per text), and of how many characters."""
    length = different = characters = 0
    for text in texts:
        counts = Counter(found[0] for found in TOKEN.finditer(text.lower()))
        length += counts.total()
        different += len(counts)
        characters += sum(len(word) * number for word, number in counts.items())
    return length, different, characters


def leave_features_out(point: Rows) -> tuple[list[str], Rows]:
    """Return the features of one point by number, and the point without each of them."""
    count = len(point.columns)
    kept = ~np.eye(count, dtype=bool)
    owners, places = np.nonzero(kept)
    shape = (count, point.width)
    return [str(column) for column in point.columns], Rows.gather(
        owners, point.columns[places].astype(np.int64), point.values[places], shape
    )


def find_reasons(
    parts: Sequence[Part], words: Sequence[str], rows: Rows, labels: Sequence[int], names: Sequence[str]
) -> list[Reasons]:
    """Return the reasons for some labels of one point; `rows` are the point, and the point without each word."""
    point, kept = _score_buckets(parts, rows, labels)
    asked = [pair for part, tables in zip(parts, point, strict=True) for pair in zip(tables, part.buckets, strict=True)]
    found: list[Reasons] = []
    for place, label in enumerate(labels):
        whole = sum(part.weight * tables[:, :, place].mean(axis=0) for part, tables in zip(parts, kept, strict=True))
        adds = np.asarray(whole[0] - whole[1:], np.float64)
        order = np.argsort(-np.abs(adds), kind="stable")
        votes = [_vote(table, scores, buckets, label, names) for table, (scores, buckets) in enumerate(asked, 1)]
        found.append({"words": [{"word": words[i], "adds": float(adds[i])} for i in order], "tables": votes})
    return found


def _score_buckets(
    parts: Sequence[Part], rows: Rows, labels: Sequence[int]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return what each part gives the first row, and what it gives all rows in the buckets of some labels.

    Some rows at a time: a model may have millions of buckets, and the scores of all rows would fill the memory.
    """
    size = count_at_once(parts)
    point: list[np.ndarray] = []  # [R, B] of each part
    kept = [np.empty((len(part.buckets), len(rows), len(labels)), np.float32) for part in parts]
    for begin in range(0, len(rows), size):
        some = rows.take(begin, min(begin + size, len(rows)))
        for part, mine in zip(parts, kept, strict=True):
            scores = part.scorer.score(part.scorer.find(some))  # [R, n, B]
            if begin == 0:
                point.append(scores[:, 0].copy())
            mine[:, begin : begin + size] = np.take_along_axis(scores, part.buckets[:, None, labels], axis=2)
    return point, kept


def _vote(table: int, scores: np.ndarray, buckets: np.ndarray, label: int, names: Sequence[str]) -> Vote:
    """Say what a table gives a label.  # scores [B], buckets [p]"""
    bucket = int(buckets[label])
    together = np.flatnonzero(buckets == bucket)
    return {
        "table": table,
        "bucket": bucket,
        "score": float(scores[bucket]),
        "rank": 1 + int(np.count_nonzero(scores > scores[bucket])),
        "buckets": len(scores),
        "shared_with": [names[other] for other in together[together != label][:_MOST_NAMED]],
        "labels_in_bucket": len(together),
    }
