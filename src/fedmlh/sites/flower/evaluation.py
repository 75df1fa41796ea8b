"""Evaluation at a site and over all sites, once the best round is known."""

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any

import numpy as np
from torch import Tensor

from fedmlh.engines.local import live_in_process
from fedmlh.errors import UserError
from fedmlh.evaluation.calibration import Curve
from fedmlh.evaluation.evaluate import Evaluator, LabelCounts, Values
from fedmlh.evaluation.histograms import Bins
from fedmlh.evaluation.metrics import add_sums, summarize_sums
from fedmlh.evaluation.own import AddedMetrics
from fedmlh.evaluation.questions import Report, ask, read_question, read_report, write_report
from fedmlh.federated.messages import QuestionHeader, Reason, Rejected, unpack
from fedmlh.federated.server import Server
from fedmlh.runs.baseline import train_alone
from fedmlh.runs.checkpoint import Progress
from fedmlh.runs.population import Population
from fedmlh.runs.rounds import Judge
from fedmlh.sites.federation import Federation
from fedmlh.sites.flower.grid import GridSites
from fedmlh.sites.site import CPU, Site


def answer_question(site: Site, message: bytes) -> bytes:
    """Return the metrics on a site's held-out points of the model that was sent, or of the best it trains alone.

    A histogram of the scores of the model that was sent comes along, if the site has enough points for one.
    """
    agreement, task = site.agreement, site.agreement.task
    if task.config.training == "one-round":
        raise Rejected(Reason.CONFIG, "sites measure networks only")
    question = read_question(message, task, site.client_id)
    model, round_index = question.model, question.header.round
    if len(site.points.held_out) == 0:
        raise Rejected(Reason.EXAMPLES, "this site holds no points out")
    none_frequent = LabelCounts(np.zeros(len(agreement.labels), np.int64), 1)
    evaluator = Evaluator.of_task(task, question.seeds, agreement.labels, none_frequent, CPU)
    points, histogram = evaluator.prepare(site.points.held_out), None
    if model is not None and question.bins is not None:
        histogram = question.bins.count(*evaluator.rank_best(model, points), points.Y)
    if model is None:
        train, labels = site.points.train, site.points.labels
        judge = Judge(evaluator, "validation", points, "precision")
        population = Population(task, question.seeds, {site.client_id: train}, b"", labels, CPU)
        ended = train_alone(population, site.client_id, judge, live_in_process)
        model, round_index = ended.best_model, ended.best_round
    sums, own = evaluator.measure(model, points)
    return write_report(question.header, Report(sums, round_index, own, histogram))


def compare_sites(
    federation: Federation, server: Server, sites: GridSites, judge: Judge, progress: Progress
) -> tuple[dict[str, Any], Curve | None]:
    """Return a row per site that answers: the selected model on the site's held-out points, and the site alone.

    Return also the curve of the points of all sites that sent a histogram, if any did.
    """
    config, own = federation.agreement.config, AddedMetrics.of(server.task)
    enrolments = {client_id: entry for client_id, entry in federation.enrolments().items() if client_id in sites.nodes}
    sent, received = 0, 0

    def measure(asked: list[int], model: Tensor | None, deadline: float, bins: Bins | None = None) -> dict[int, Report]:
        questions: dict[int, QuestionHeader] = {}

        def write(client: int) -> bytes:
            nonlocal sent
            message = ask(server.task, server.seeds, server.run, progress.best_round, client, model, bins)
            questions[client], _ = unpack(QuestionHeader, message, len(message))
            sent += len(message)
            return message

        reports = {}
        nonlocal received
        for client_id, reply in sites.ask("evaluate", asked, write, quorum=0, deadline=deadline):
            enrolment = enrolments[client_id]
            try:
                if isinstance(reply, Rejected):
                    raise reply
                received += len(reply)
                limits = config.top_k, enrolment.held_out, config.rounds
                reports[client_id] = read_report(reply, questions[client_id], *limits, own, bins)
            except Rejected as refusal:
                # A site that cannot read the question most likely has another version.
                odd = isinstance(reply, Rejected) and reply.reason == Reason.MALFORMED
                remedy = "; install the same version of fedmlh at server and site" if odd else ""
                print(f"fedmlh: no evaluation from site {enrolment.site}: {refusal}{remedy}", flush=True)
        return reports

    holding_out = [client_id for client_id, enrolment in enrolments.items() if enrolment.held_out > 0]
    bins = judge.choose_bins(config, progress.best_model)
    together = measure(holding_out, progress.best_model, config.deadline, bins)
    # A site that trains alone does the work of all rounds, and gets the deadline of a round for each of them.
    alone = measure(sorted(together), None, config.deadline * config.rounds) if config.local_baseline else {}
    if not together:
        return {}, None
    rows = []
    for client_id, report in sorted(together.items()):
        enrolment = enrolments[client_id]
        row: dict[str, Any] = {
            "client": client_id,
            "site": enrolment.site,
            "examples": enrolment.examples,
            "held_out": enrolment.held_out,
            **_summarize([report], own),
        }
        if client_id in alone:
            row |= {f"{metric}_alone": values for metric, values in _summarize([alone[client_id]], own).items()}
            row["best_round_alone"] = alone[client_id].round
        rows.append(row)
    try:
        total = _summarize(list(together.values()), own)
    except UserError as problem:  # a run must not end because the sums of sites give no value together
        print(f"fedmlh: no figures over all sites: {problem}", flush=True)
        total = {}
    figures = {
        "clients": rows,
        **{f"{metric}_at_sites": values for metric, values in total.items()},
        "evaluation_bytes_up": received,
        "evaluation_bytes_down": sent,
    }
    histograms = [report.histogram for report in together.values() if report.histogram is not None]
    if not histograms:
        return figures, None
    whole = reduce(add, histograms)
    return {**figures, "calibration": {**whole.figures, "sites": len(histograms)}}, whole.fit


def _summarize(reports: Sequence[Report], own: AddedMetrics) -> Values:
    """Return precision and every metric of a user over the points of all reports."""
    total = reduce(add_sums, [report.sums for report in reports])
    return {"precision": summarize_sums(total)["precision"], **own.values([report.own for report in reports])}
