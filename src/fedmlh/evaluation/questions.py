"""Evaluation at the sites: a model goes out, and sums over a site's held-out points come back; points never leave.

The sums are those of evaluation/metrics.py. Only the server knows which labels are frequent, so a site counts no label
as frequent. Metrics that do not depend on this (precision, recall, nDCG) follow from the sums of one or more sites.
The sums of users' metrics (evaluation/own.py) come along, and a histogram of scores (evaluation/histograms.py).
"""

import json
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from torch import Tensor

from fedmlh.errors import UserError
from fedmlh.evaluation.calibration import find_form
from fedmlh.evaluation.histograms import Bins, Histogram, sends_histogram
from fedmlh.evaluation.metrics import GROUPS, METRICS, ONE, Metrics, Sums, add_sums
from fedmlh.evaluation.own import AddedMetrics, OwnSums
from fedmlh.federated.codecs import make_codec
from fedmlh.federated.messages import QuestionHeader, Reason, Rejected, ReportHeader, pack, unpack
from fedmlh.federated.task import Seeds, Task
from fedmlh.randomness import generator

_CODEC = "fp32"
#: The most bytes of a report of our metrics.
_MOST_REPORT = 64 * 1024
#: Stands for users' metrics if there are none.
_NONE = AddedMetrics((), (), 0)


@dataclass(frozen=True)
class Report:
    """What a site measured, and the round of the model: that of the question, or the best round of training alone."""

    sums: Sums
    round: int
    own: OwnSums = field(default_factory=dict)
    histogram: Histogram | None = None


@dataclass(frozen=True)
class Question:
    """What a site is asked: about this model, or without a model about the best that it trains alone."""

    header: QuestionHeader
    seeds: Seeds
    model: Tensor | None
    bins: Bins | None


def ask(
    task: Task,
    seeds: Seeds,
    run: str,
    round_index: int,
    client: int,
    model: Tensor | None,
    bins: Bins | None = None,
) -> bytes:
    """Return the question that has a site measure this model, or without a model the best that it trains alone.

    With bins, the site counts the scores of the model by them.
    """
    edges = b"" if bins is None else bins.encode()
    header = QuestionHeader(
        run,
        task.fingerprint,
        round_index,
        client,
        seeds.run,
        list(seeds.labels),
        list(seeds.features),
        int(model is None),
        len(edges),
    )
    if model is None:
        return pack(header, b"")
    return pack(header, make_codec(_CODEC).encode(model.cpu(), generator(seeds.run, "question")) + edges)


def read_question(message: bytes, task: Task, client: int) -> Question:
    """Return a question to this client; raise Rejected if it is not valid."""
    codec, size = make_codec(_CODEC), task.stack.num_parameters
    header, payload = unpack(QuestionHeader, message, codec.size(size))
    if header.config != task.fingerprint:
        raise Rejected(Reason.CONFIG, f"the server trains under {header.config!a}")
    if header.client != client:
        raise Rejected(Reason.CLIENT, f"the question is for client {header.client}")
    seeds = Seeds(header.seed, tuple(header.label_seeds), tuple(header.feature_seeds))
    if not task.accepts(seeds):
        raise Rejected(Reason.RANGE, "the hash seeds do not fit the task")
    if header.alone and not task.config.local_baseline:
        raise Rejected(Reason.CONFIG, "training alone was not agreed on")
    if header.alone and len(payload):
        raise Rejected(Reason.SIZE, "a model came with a question about the client alone")
    if header.alone:
        return Question(header, seeds, None, None)
    cut = len(payload) - min(header.edges, len(payload))
    try:
        model = codec.decode(payload[:cut], size, generator(seeds.run, "question"))
        form, edges = find_form(task.config.decoding), payload[cut:]
        bins = Bins.decode(form, edges, task.num_labels) if header.edges else None
    except ValueError as error:
        raise Rejected(Reason.SIZE, str(error)) from None
    if not task.stack.fits(model):
        raise Rejected(Reason.NON_FINITE, "the model contains NaN or infinity")
    return Question(header, seeds, model, bins)


def write_report(question: QuestionHeader, report: Report) -> bytes:
    """Return the answer of a site to a question."""
    header = ReportHeader(question.run, question.config, question.round, question.client, question.alone)
    content: dict[str, Any] = {"sums": report.sums, "round": report.round}
    if report.own:
        content["own"] = report.own
    if report.histogram is not None:
        content["histogram"] = report.histogram.to_json()
    return pack(header, json.dumps(content).encode())


def largest_report(own: AddedMetrics) -> int:
    """Return the most bytes that the content of a report takes."""
    return _MOST_REPORT + own.most_bytes


def read_report(
    message: bytes,
    question: QuestionHeader,
    ks: tuple[int, ...],
    max_points: int,
    rounds: int,
    own: AddedMetrics = _NONE,
    bins: Bins | None = None,
) -> Report:
    """Return the report that answers a question; raise Rejected if it is not valid, or claims too many points.

    `bins` are those of the question; a site of few points answers without a histogram.
    """
    header, payload = unpack(ReportHeader, message, largest_report(own))
    if vars(header) != {name: getattr(question, name) for name in vars(header)}:
        raise Rejected(Reason.ROUND, "the report answers another question")
    try:
        values = json.loads(bytes(payload))
        sums, round_index = values["sums"], values["round"]
        if type(round_index) is not int:
            raise ValueError("a round that is no number")
        if not (1 <= round_index <= rounds if question.alone else round_index == question.round):
            raise ValueError("a round that nobody asked for")
        _check(sums, ks, max_points)
        (points,) = sums["points"]
        counted = bins is not None and sends_histogram(points)
        if values.keys() != {"sums", "round", *(["own"] if own.names else []), *(["histogram"] if counted else [])}:
            raise ValueError("fields of a report")
        own.check(values.get("own", {}))
        histogram = bins.read(values["histogram"], points) if bins is not None and counted else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, UserError) as error:
        raise Rejected(Reason.MALFORMED, f"not the sums of a site ({type(error).__name__})") from None
    return Report(sums, round_index, values.get("own", {}), histogram)


def _check(sums: Sums, ks: tuple[int, ...], max_points: int) -> None:
    """Refuse sums that no ranking of at most `max_points` points can give.

    A site knows no frequencies: all labels are in one group and weigh 1. So psp counts hits, and psp_best the most hits
    that the true labels allow.
    """
    shape = {name: len(numbers) for name, numbers in Metrics(ks, np.zeros(1, bool), np.ones(1)).sums().items()}
    if {name: len(numbers) for name, numbers in sums.items()} != shape or sums["k"] != list(ks):
        raise ValueError("names or k")
    add_sums(sums, sums)  # refuses what are not whole numbers from 0
    (points,) = sums["points"]
    if not 0 < points <= max_points:
        raise ValueError("points")
    used = [group for group in GROUPS if any(any(sums[f"{metric}_{group}"]) for metric in METRICS)]
    if len(used) > 1:
        raise ValueError("groups of labels")
    group = used[0] if used else GROUPS[0]
    found = {metric: sums[f"{metric}_{group}"] for metric in METRICS}
    if any(number % ONE for number in (*found["psp"], *sums["psp_best"])):
        raise ValueError("weights")
    hits, best = ([number // ONE for number in numbers] for numbers in (found["psp"], sums["psp_best"]))
    _check_growth(hits, ks, points)
    _check_growth(best, ks, points)
    if found["recall"] != sorted(found["recall"]):
        raise ValueError("a recall that falls")
    for place, k in enumerate(ks):
        _check_place(k, points, hits[place], best[place], {metric: found[metric][place] for metric in METRICS})


def _check_growth(numbers: list[int], ks: tuple[int, ...], most: int) -> None:
    """Refuse numbers that fall with k, or grow by more than `most` per step of k."""
    for (before, low), (after, high) in pairwise([(0, 0), *zip(ks, numbers, strict=True)]):
        if not low <= high <= low + (after - before) * most:
            raise ValueError("more or less than the first k")


def _check_place(k: int, points: int, hits: int, best: int, found: dict[str, int]) -> None:
    """Refuse sums of one k that contradict each other; a rounded share of a point is off by less than 1."""
    precision, paper, recall, ndcg = (found[metric] for metric in ("precision", "precision_paper", "recall", "ndcg"))
    least = ONE / np.log2(k + 1) / np.sum(1 / np.log2(np.arange(2, k + 2)))  # nDCG of a hit at the last place
    possible = (
        hits <= best
        and abs(precision * k - hits * ONE) <= k * points
        and precision <= paper <= min(hits, points) * ONE
        and recall <= paper
        and hits * least - points <= ndcg <= min(hits, points) * ONE
        and (min(paper, recall, ndcg) > 0) == (max(paper, recall, ndcg) > 0) == (hits > 0)
        and (k > 1 or precision == paper == ndcg)
    )
    if not possible:
        raise ValueError("metrics that contradict each other")
