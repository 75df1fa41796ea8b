"""Sites count scores in bins: what they send adds up to what one process counts, and is checked at the door."""

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from fedmlh.evaluation.calibration import LEAST_POINTS, NUM_BINS, Scale, calibrate, halve
from fedmlh.evaluation.histograms import Bins, Histogram
from fedmlh.evaluation.metrics import Metrics
from fedmlh.evaluation.questions import Question, Report, ask, read_question, read_report, write_report
from fedmlh.federated.messages import QuestionHeader, Reason, Rejected, ReportHeader, pack, unpack
from fedmlh.federated.task import Task
from tiny import TINY

P = 60
KS = (1, 3)
QUESTION = QuestionHeader("run", "config", 7, 1, 0, [], [], 0)
TASK = Task(TINY.replace(decoding="logits"), 60, P)


def draw(seed: int, n: int) -> tuple[np.ndarray, np.ndarray, csr_matrix]:
    """Return 50 ranked labels of points, their scores, and labels that are true the more likely the higher they are."""
    rng = np.random.default_rng(seed)
    scores = -np.sort(-rng.normal(0, 2, (n, P)), axis=1)
    labels = np.argsort(rng.random((n, P)), axis=1)
    rows, places = np.nonzero(rng.random((n, P)) < 1 / (1 + np.exp(2 - scores)))
    Y = csr_matrix((np.ones(len(rows), np.float32), (rows, labels[rows, places])), shape=(n, P))
    return labels[:, :50], scores[:, :50], Y


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(LEAST_POINTS, 90), min_size=1, max_size=5), st.integers(0, 2**32))
def test_histograms_of_sites_add_up_to_what_one_process_counts(sizes: list[int], seed: int) -> None:
    labels, scores, Y = draw(seed, sum(sizes))
    order = np.random.default_rng(seed).permutation(sum(sizes))
    rows_by_site = [np.sort(rows) for rows in np.split(order, np.cumsum(sizes)[:-1])]
    bins = Bins(Scale.fit("plain", scores), P)
    counted = [bins.count(labels[rows], scores[rows], Y[rows]) for rows in rows_by_site]
    whole = None
    for part in counted:
        assert part is not None
        whole = part if whole is None else whole + part
    assert whole is not None
    fits = halve(len(labels), rows_by_site)
    curve, figures = calibrate("plain", labels, scores, Y, {}, fits)
    if len(labels) >= 2 * LEAST_POINTS:
        assert whole.fit == curve
        assert whole.judge.points == figures["calibration"]["points"] == np.count_nonzero(~fits)
    assert sum(whole.fit.counts) == 50 * whole.fit.points
    assert sum(whole.judge.counts) == 5 * whole.judge.points
    assert whole.fit.points + whole.judge.points == sum(sizes)


def test_sites_of_few_points_are_halved_together() -> None:
    """Each of them alone would only have points that fit, and none that judge."""
    assert halve(60, [np.array([place]) for place in range(60)]).sum() == 30
    many, few = np.arange(0, 120, 2), np.arange(1, 20, 2)
    fits = halve(120, [many, few])
    assert fits[many].tolist() == [True, False] * 30
    assert not fits[few].any()


@pytest.mark.parametrize(("points", "sent"), [(0, False), (49, False), (50, True)])
def test_a_site_of_fewer_than_50_points_sends_no_histogram(points: int, sent: bool) -> None:
    labels, scores, Y = draw(0, 60)
    bins = Bins(Scale.fit("plain", scores), P)
    assert (bins.count(labels[:points], scores[:points], Y[:points]) is not None) == sent


def test_the_error_of_counts_is_near_that_of_the_points() -> None:
    labels, scores, Y = draw(1, 4000)
    histogram = Bins(Scale.fit("plain", scores), P).count(labels, scores, Y)
    assert histogram is not None
    _, exact = calibrate("plain", labels, scores, Y, {})
    assert histogram.figures["points"] == 2000
    assert histogram.figures["error"] == pytest.approx(exact["calibration"]["error"], abs=0.01)
    # Where no label is true that should be, the error is the mean probability.
    nothing = Histogram(histogram.fit, type(histogram.fit)(*list(vars(histogram.judge).values())[:3], (0,) * NUM_BINS))
    chances = histogram.fit.apply(scores[1::2, :5])
    assert nothing.figures["error"] == pytest.approx(chances.mean(), abs=0.01)


def ask_with_bins(bins: Bins | None) -> tuple[bytes, Question]:
    message = ask(TASK, TASK.draw_seeds(), "run", 7, 1, TASK.stack.initial(1), bins)
    return message, read_question(message, TASK, 1)


def test_bins_travel_with_the_question() -> None:
    bins = Bins(Scale.fit("plain", draw(0, 60)[1]), P)
    message, question = ask_with_bins(bins)
    plain, without = ask_with_bins(None)
    assert (question.bins, without.bins) == (bins, None)
    assert question.model is not None
    assert without.model is not None
    assert (question.model == without.model).all()
    assert len(message) < len(plain) + 300
    for edges in (0, 1, len(bins.encode()) - 8, 2**40):
        header, payload = unpack(QuestionHeader, message, len(message))
        with pytest.raises(Rejected) as refusal:
            read_question(pack(QuestionHeader(**{**vars(header), "edges": edges}), payload), TASK, 1)
        assert refusal.value.reason == Reason.SIZE
    wild = np.frombuffer(bins.encode(), np.float64)
    for changed in (wild[::-1], np.full(NUM_BINS + 1, 1.0), np.where(wild == wild[3], np.nan, wild), wild * np.inf):
        with pytest.raises(ValueError, match="curve that no model has"):
            Bins.decode("plain", changed.tobytes(), P)


def report(points: int) -> tuple[Report, Bins]:
    """Return what an honest site reports."""
    labels, scores, Y = draw(2, points)
    metrics = Metrics(KS, np.zeros(P, bool), np.ones(P))
    metrics.add(labels[:, :3], Y)
    bins = Bins(Scale.fit("plain", scores), P)
    return Report(metrics.sums(), 7, {}, bins.count(labels, scores, Y)), bins


def change_report(message: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    header, payload = unpack(ReportHeader, message, 2**20)
    content = json.loads(bytes(payload))
    change(content)
    return pack(header, json.dumps(content).encode())


def read(message: bytes, bins: Bins | None) -> Report:
    return read_report(message, QUESTION, KS, max_points=200, rounds=10, bins=bins)


def test_an_honest_histogram_is_read_as_it_was_counted() -> None:
    for points in (49, 50, 51, 200):
        honest, bins = report(points)
        assert read(write_report(QUESTION, honest), bins) == honest
        assert (honest.histogram is None) == (points < 50)


HOSTILE: dict[str, Callable[[dict[str, Any]], object]] = {
    "none": lambda content: content.pop("histogram"),
    "null": lambda content: content.update(histogram=None),
    "a list": lambda content: content.update(histogram=[[1], [0]]),
    "one half": lambda content: content["histogram"].pop("judge"),
    "a third half": lambda content: content["histogram"].update(more=content["histogram"]["fit"]),
    "another scale": lambda content: content["histogram"]["fit"].update(edges=list(range(NUM_BINS + 1))),
    "more points": lambda content: content["histogram"]["fit"].update(points=10_000),
    "no hits": lambda content: content["histogram"]["judge"].pop("hits"),
    "fewer bins": lambda content: content["histogram"]["fit"]["counts"].pop(),
    "more bins": lambda content: content["histogram"]["fit"]["hits"].append(0),
    "halves": lambda content: content["histogram"]["fit"]["counts"].__setitem__(3, 0.5),
    "a truth": lambda content: content["histogram"]["judge"]["hits"].__setitem__(0, True),
    "text": lambda content: content["histogram"]["judge"]["hits"].__setitem__(0, "0"),
    "not a number": lambda content: content["histogram"]["fit"]["counts"].__setitem__(0, math.nan),
    "below zero": lambda content: content["histogram"]["fit"]["hits"].__setitem__(0, -1),
    "2^53": lambda content: content["histogram"]["fit"]["counts"].__setitem__(0, 2**53),
    "more hits than labels": lambda content: content["histogram"]["fit"].update(
        hits=[count + 1 for count in content["histogram"]["fit"]["counts"]]
    ),
    "more labels than asked": lambda content: content["histogram"]["fit"]["counts"].__setitem__(
        9, content["histogram"]["fit"]["counts"][9] + 1
    ),
    "more labels than are judged": lambda content: content["histogram"].update(judge=content["histogram"]["fit"]),
    "no labels": lambda content: content["histogram"]["judge"].update(counts=[0] * NUM_BINS, hits=[0] * NUM_BINS),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_histogram_that_no_points_give_is_refused(name: str) -> None:
    honest, bins = report(60)
    with pytest.raises(Rejected) as refusal:
        read(change_report(write_report(QUESTION, honest), HOSTILE[name]), bins)
    assert refusal.value.reason == Reason.MALFORMED


def test_a_histogram_that_was_not_asked_for_or_of_too_few_points_is_refused() -> None:
    honest, bins = report(60)
    few, _ = report(49)
    with pytest.raises(Rejected, match="malformed"):
        read(write_report(QUESTION, honest), None)
    with pytest.raises(Rejected, match="malformed"):
        read(write_report(QUESTION, Report(few.sums, 7, {}, honest.histogram)), bins)
