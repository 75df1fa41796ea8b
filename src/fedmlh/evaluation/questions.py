"""Evaluation at the sites: a model goes out, sums over a site's held-out points come back, and no point does.

Sums are those of evaluation/metrics.py. Which labels are frequent only the server can say, so that a site counts none
as frequent: what does not depend on it (precision, recall, nDCG) can be read from the sums of one site or of several.
Beside them stand the sums of users' metrics (evaluation/own.py).
"""

import json
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from torch import Tensor

from fedmlh.errors import UserError
from fedmlh.evaluation.metrics import GROUPS, METRICS, ONE, Metrics, Sums, add_sums
from fedmlh.evaluation.own import AddedMetrics, OwnSums
from fedmlh.federated.codecs import make_codec
from fedmlh.federated.messages import QuestionHeader, Reason, Rejected, ReportHeader, pack, unpack
from fedmlh.federated.task import Seeds, Task
from fedmlh.randomness import generator

_CODEC = "fp32"
#: The most bytes of a report of our metrics.
_MOST_REPORT = 64 * 1024
#: Users' metrics where there are none.
_NONE = AddedMetrics((), (), 0)


@dataclass(frozen=True)
class Report:
    """What a site measured, of the model of which round: that of the question, or the site's best one alone."""

    sums: Sums
    round: int
    own: OwnSums = field(default_factory=dict)


def ask(task: Task, seeds: Seeds, run: str, round_index: int, client: int, model: Tensor | None) -> bytes:
    """What a site is sent to measure the model of a round, or without one the best that it trains alone."""
    header = QuestionHeader(
        run,
        task.fingerprint,
        round_index,
        client,
        seeds.run,
        list(seeds.labels),
        list(seeds.features),
        int(model is None),
    )
    if model is None:
        return pack(header, b"")
    return pack(header, make_codec(_CODEC).encode(model.cpu(), generator(seeds.run, "question")))


def read_question(message: bytes, task: Task, client: int) -> tuple[QuestionHeader, Seeds, Tensor | None]:
    """Header, seeds and model of a question to this client, or Rejected; no model: it is about the client alone."""
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
        return header, seeds, None
    try:
        model = codec.decode(payload, size, generator(seeds.run, "question"))
    except ValueError as error:
        raise Rejected(Reason.SIZE, str(error)) from None
    if not task.stack.fits(model):
        raise Rejected(Reason.NON_FINITE, "the model contains NaN or infinity")
    return header, seeds, model


def write_report(question: QuestionHeader, report: Report) -> bytes:
    """What a site answers."""
    header = ReportHeader(question.run, question.config, question.round, question.client, question.alone)
    content = {name: value for name, value in vars(report).items() if name != "own" or value}
    return pack(header, json.dumps(content).encode())


def largest_report(own: AddedMetrics) -> int:
    """Return the most bytes of what a report says."""
    return _MOST_REPORT + own.most_bytes


def read_report(
    message: bytes,
    question: QuestionHeader,
    ks: tuple[int, ...],
    max_points: int,
    rounds: int,
    own: AddedMetrics = _NONE,
) -> Report:
    """The report that answers a question, of at most so many points and rounds, or Rejected."""
    header, payload = unpack(ReportHeader, message, largest_report(own))
    if vars(header) != {name: getattr(question, name) for name in vars(header)}:
        raise Rejected(Reason.ROUND, "the report answers another question")
    try:
        values = json.loads(bytes(payload))
        sums, round_index = values["sums"], values["round"]
        if values.keys() != {"sums", "round", *(["own"] if own.names else [])} or type(round_index) is not int:
            raise ValueError("fields of a report")
        if not (1 <= round_index <= rounds if question.alone else round_index == question.round):
            raise ValueError("a round that nobody asked for")
        _check(sums, ks, max_points)
        own.check(values.get("own", {}))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, UserError) as error:
        raise Rejected(Reason.MALFORMED, f"not the sums of a site ({type(error).__name__})") from None
    return Report(sums, round_index, values.get("own", {}))


def _check(sums: Sums, ks: tuple[int, ...], max_points: int) -> None:
    """Refuse sums that no ranking of so many points can give.

    A site knows no frequencies, so that all labels are in one group and all weigh 1: psp counts hits, and psp_best the
    most hits that the true labels allow.
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
    """A number of each k never falls with k, and grows by at most `most` from one k to the next."""
    for (before, low), (after, high) in pairwise([(0, 0), *zip(ks, numbers, strict=True)]):
        if not low <= high <= low + (after - before) * most:
            raise ValueError("more or less than the first k")


def _check_place(k: int, points: int, hits: int, best: int, found: dict[str, int]) -> None:
    """What the sums of one k say of each other; a rounded share of a point is off by less than 1."""
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
