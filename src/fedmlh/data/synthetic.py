"""The built-in data set: made from a seed, so that the product can be tried and tested without any file.

It is shaped like extreme data, without any real data in it. Labels form a tree (topic, group, label). Their frequency
falls from a few large ones to a long tail. A point has a leading label; its other labels come mostly from the same
group. Its words are about its labels, about their groups and topics, or about nothing.

The constants below were chosen by the statistics of three real sets (tests/test_synthetic.py holds both sides), before
any model saw what comes out. OFF_TOPIC alone was set afterwards, because simple classifiers were right too often.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix
from scipy.special import ndtr, ndtri

from fedmlh.config import MAX_SYNTHETIC
from fedmlh.data.dataset import Dataset, Labels, Split
from fedmlh.errors import UserError
from fedmlh.randomness import generator

#: Spread of the log of the frequencies of labels, of words without and with a meaning. Each curve is a log-normal's
#: quantiles: like real curves it bends down all the way, while the tail of a power function is straight.
LABEL_SKEW = 1.9
BACKGROUND_SKEW = 2.3
MEANING_SKEW = 1.15
#: Labels (words) per point are 1 + a Poisson number whose rate is gamma with this shape.
LENGTH_SHAPE = 3.5
#: A group has this many times the labels of a point; groups lie in about this many topics.
GROUP_FACTOR = 4.0
NUM_TOPICS = 16
#: Where a point's further labels come from: the leading label's group, its topic, else anywhere.
FROM_GROUP = 0.7
FROM_TOPIC = 0.2
#: What a word is about: nothing, a label's topic, its group, else the label itself …
ABOUT_NOTHING = 0.35
ABOUT_TOPIC = 0.1
ABOUT_GROUP = 0.3
#: … and how often that label is the leading one (else it is any of the point's labels).
ABOUT_LEAD = 0.7
#: Share of points whose words are about another point's labels: real titles mislead too, so even the best model errs.
OFF_TOPIC = 0.2
#: Words of each topic, group and label, the first ones used more often.
VOCABULARY = 6
#: How often draws that repeat a label or word are drawn again; then the point stays shorter.
REDRAWS = 10


def synthesize(
    *,
    num_points: int = 5000,
    num_test: int = 1000,
    num_features: int = 5000,
    num_labels: int = 2000,
    labels_per_point: float = 5.0,
    words_per_point: float = 20.0,
    seed: int = 0,
) -> Dataset:
    """Draw training and test points of one random world.

    Every label has a training point; the means per point hold roughly.
    """
    _check_sizes(num_points, num_test, num_features, num_labels, labels_per_point, words_per_point)
    tree = _grow_tree(num_points, num_labels, labels_per_point, generator(seed, "synthetic tree"))
    rng = generator(seed, "synthetic labels")
    leads = tree.draw(np.zeros(num_points + num_test, np.int64), num_labels, rng)
    Y = _draw_labels(tree, leads, num_points, labels_per_point, rng)
    X = _draw_words(tree, leads, Y, num_features, words_per_point, generator(seed, "synthetic words"))
    _weigh_words(X, num_points)
    # Neighbours in the tree must not be neighbours in number: a hash family may treat those alike.
    numbers = generator(seed, "synthetic numbers").permutation(num_labels)
    Y = csr_matrix((Y.data, numbers[Y.indices].astype(np.int32), Y.indptr), shape=Y.shape)
    Y.sort_indices()
    topics = np.empty(num_labels, np.int64)
    topics[numbers] = np.arange(num_labels) // tree.topic_size
    return Dataset(
        name="synthetic",
        train=Split(X[:num_points], Y[:num_points]),
        test=Split(X[num_points:], Y[num_points:]),
        labels=Labels(
            tuple(str(label) for label in range(num_labels)),
            tuple(f"topic {topic} / label {label}" for label, topic in enumerate(topics)),
        ),
        notes=(f"made from seed {seed}, no real data",),
    )


def _check_sizes(
    num_points: int, num_test: int, num_features: int, num_labels: int, labels_per_point: float, words_per_point: float
) -> None:
    if min(num_points, num_test, num_features, num_labels) < 1:
        raise UserError("synthetic data needs at least one training point, test point, feature and label")
    if max(num_points, num_test, num_features, num_labels) > MAX_SYNTHETIC:
        raise UserError(f"synthetic data has at most {MAX_SYNTHETIC:,} points, features and labels: ask for fewer")
    if not 1 <= labels_per_point <= num_labels:
        raise UserError(
            f"synthetic data: {labels_per_point:g} labels per point should be 1 to {num_labels:,} (all labels)"
        )
    if not 1 <= words_per_point <= num_features:
        raise UserError(
            f"synthetic data: {words_per_point:g} words per point need as many features; there are {num_features:,}"
        )
    if num_labels > num_points * labels_per_point:
        raise UserError(
            f"synthetic data: {num_points:,} points with {labels_per_point:g} labels each cannot show "
            f"{num_labels:,} labels: ask for more points or fewer labels"
        )


@dataclass(frozen=True)
class _Tree:
    """Labels in the order of the tree: a group (topic) is a block of consecutive labels."""

    frequency: np.ndarray  # [p], expected training points of each label
    group_size: int
    topic_size: int

    def draw(self, start: np.ndarray, size: int | np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Draw one label from each block [start, start + size), by frequency."""
        cumulated = np.concatenate([[0.0], np.cumsum(self.frequency)])
        end = np.minimum(start + size, len(self.frequency))
        low, high = cumulated[start], cumulated[end]
        drawn = np.searchsorted(cumulated, low + rng.random(len(start)) * (high - low), side="right") - 1
        # Rounding may reach the first label of the next block.
        labels: np.ndarray = np.clip(drawn, start, end - 1)
        return labels


def _grow_tree(num_points: int, num_labels: int, labels_per_point: float, rng: np.random.Generator) -> _Tree:
    curve = np.exp(LABEL_SKEW * _normal_scores(num_labels))
    # A label that chance leaves out gets one point, so that c expected points become c + exp(-c): solve for the total.
    low, high = -50.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        frequency = np.exp(middle) * curve
        if (frequency + np.exp(-frequency)).sum() < num_points * labels_per_point:
            low = middle
        else:
            high = middle
    group_size = min(num_labels, round(GROUP_FACTOR * labels_per_point))
    groups_per_topic = max(1, round(num_labels / group_size / NUM_TOPICS))
    return _Tree(rng.permutation(frequency), group_size, group_size * groups_per_topic)


def _draw_labels(
    tree: _Tree, leads: np.ndarray, num_points: int, labels_per_point: float, rng: np.random.Generator
) -> csr_matrix:
    """Draw the labels of all points [n, p], in the order of the tree."""
    num_labels = len(tree.frequency)
    left_out = np.exp(-tree.frequency).sum() / num_points
    lengths = _draw_lengths(len(leads), labels_per_point - left_out, rng)

    def draw(points: np.ndarray) -> np.ndarray:
        sizes = np.array([tree.group_size, tree.topic_size, num_labels])
        size = sizes[_choose([FROM_GROUP, FROM_TOPIC], len(points), rng)]
        return tree.draw(leads[points] // size * size, size, rng)

    pairs = _collect(np.arange(len(leads)) * num_labels + leads, lengths, num_labels, draw)

    # An unseen label joins a training point whose leading label is a neighbour in the tree.
    in_training = pairs[pairs < num_points * num_labels]
    unseen = np.flatnonzero(np.bincount(in_training % num_labels, minlength=num_labels) == 0)
    order = np.argsort(leads[:num_points], kind="stable")
    nearest = np.searchsorted(leads[order], unseen) + rng.integers(-3, 4, len(unseen))
    hosts = order[np.clip(nearest, 0, num_points - 1)]
    pairs = np.sort(np.concatenate([pairs, hosts * num_labels + unseen]))
    return _pairs_to_csr(pairs, len(leads), num_labels)


def _draw_words(
    tree: _Tree, leads: np.ndarray, Y: csr_matrix, num_words: int, words_per_point: float, rng: np.random.Generator
) -> csr_matrix:
    """Draw the words of all points [n, d], as ones."""
    words = rng.permutation(num_words)  # by rank: the most frequent first
    num_labels = Y.shape[1]
    # Rows of the table of words: topics, then groups, then labels.
    groups_at = -(-num_labels // tree.topic_size)
    labels_at = groups_at + -(-num_labels // tree.group_size)
    size = (labels_at + num_labels, VOCABULARY)
    meaning = words[_draw_ranks(MEANING_SKEW, size[0] * size[1], num_words, rng)].reshape(size)
    per_point = np.diff(Y.indptr)
    off_topic = rng.random(len(leads)) < OFF_TOPIC
    told = np.where(off_topic, rng.integers(len(leads), size=len(leads)), np.arange(len(leads)))

    def draw(points: np.ndarray) -> np.ndarray:
        points = told[points]
        any_of_its = Y.indptr[points] + (rng.random(len(points)) * per_point[points]).astype(np.int64)
        label = np.where(rng.random(len(points)) < ABOUT_LEAD, leads[points], Y.indices[any_of_its])
        about = _choose([ABOUT_NOTHING, ABOUT_TOPIC, ABOUT_GROUP], len(points), rng)
        row = np.select(
            [about == 1, about == 2],
            [label // tree.topic_size, groups_at + label // tree.group_size],
            labels_at + label,
        )
        word: np.ndarray = meaning[row, (VOCABULARY * rng.random(len(points)) ** 2).astype(np.int64)]
        of_nothing = np.flatnonzero(about == 0)
        word[of_nothing] = words[_draw_ranks(BACKGROUND_SKEW, len(of_nothing), num_words, rng)]
        return word

    lengths = _draw_lengths(len(leads), words_per_point, rng)
    return _pairs_to_csr(_collect(np.empty(0, np.int64), lengths, num_words, draw), len(leads), num_words)


def _weigh_words(X: csr_matrix, num_points: int) -> None:
    """Turn ones into inverse document frequencies (of the training points), each row of length 1; in place."""
    documents = np.bincount(X.indices[: X.indptr[num_points]], minlength=X.shape[1])
    values = (np.log((1 + num_points) / (1 + documents)) + 1)[X.indices]
    norms = np.sqrt(np.add.reduceat(values**2, X.indptr[:-1]))
    X.data = (values / np.repeat(norms, np.diff(X.indptr))).astype(np.float32)


def _collect(
    pairs: np.ndarray, lengths: np.ndarray, width: int, draw: Callable[[np.ndarray], np.ndarray]
) -> np.ndarray:
    """Draw until point i has lengths[i] different columns; a pair is point · width + column, sorted at the end."""
    complete = []
    missing = lengths - np.bincount(pairs // width, minlength=len(lengths))
    for _ in range(REDRAWS):
        points = np.repeat(np.arange(len(lengths)), missing)
        pairs = np.sort(np.concatenate([pairs, points * width + draw(points)]))
        # np.unique hashes, which is many times slower than the sort on keys as regular as these.
        pairs = pairs[np.diff(pairs, prepend=-1) > 0]
        owners = pairs // width
        counts = np.bincount(owners, minlength=len(lengths))
        missing = np.where(counts > 0, lengths - counts, 0)
        # Points that have all they need are put aside, so that a redraw costs only what is redrawn.
        short = missing[owners] > 0
        complete.append(pairs[~short])
        pairs = pairs[short]
        if not len(pairs):
            break
    return np.sort(np.concatenate([*complete, pairs]))


def _pairs_to_csr(pairs: np.ndarray, num_rows: int, width: int) -> csr_matrix:
    starts = np.searchsorted(pairs, np.arange(num_rows + 1) * width)
    columns = (pairs % width).astype(np.int32)
    return csr_matrix((np.ones(len(pairs), np.float32), columns, starts), shape=(num_rows, width))


def _draw_lengths(count: int, mean: float, rng: np.random.Generator) -> np.ndarray:
    rates = rng.gamma(LENGTH_SHAPE, max(mean - 1, 0) / LENGTH_SHAPE, count)
    return 1 + rng.poisson(rates)


def _choose(shares: list[float], count: int, rng: np.random.Generator) -> np.ndarray:
    """Choose 0, 1, … with these probabilities, and one more with the rest."""
    return np.searchsorted(np.cumsum(shares), rng.random(count), side="right")


def _draw_ranks(skew: float, count: int, num_words: int, rng: np.random.Generator) -> np.ndarray:
    """Draw ranks below num_words whose frequencies are the quantiles of a log-normal of this spread."""
    # Drawing quantiles by their size moves a normal's mean by its spread; the rank follows without a search.
    ranks: np.ndarray = (num_words * ndtr(-skew - rng.standard_normal(count))).astype(np.int64)
    np.minimum(ranks, num_words - 1, out=ranks)
    return ranks


def _normal_scores(count: int) -> np.ndarray:
    """Return the normal distribution's quantiles, from the largest to the smallest."""
    scores: np.ndarray = ndtri(1 - (np.arange(count) + 0.5) / count)
    return scores
