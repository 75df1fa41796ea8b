"""Evaluation at a site and over all sites, once the best round is known."""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
from torch import Tensor

from fedmlh.engines.local import live_in_process
from fedmlh.errors import UserError
from fedmlh.evaluation.evaluate import Evaluator, LabelCounts, Values
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
    """Return the metrics on a site's held-out points of the model that was sent, or of the best it trains alone."""
    agreement, task = site.agreement, site.agreement.task
    if task.config.training == "one-round":
        raise Rejected(Reason.CONFIG, "sites measure networks only")
    header, seeds, model = read_question(message, task, site.client_id)
    if len(site.points.held_out) == 0:
        raise Rejected(Reason.EXAMPLES, "this site holds no points out")
    none_frequent = LabelCounts(np.zeros(len(agreement.labels), np.int64), 1)
    evaluator = Evaluator.of_task(task, seeds, agreement.labels, none_frequent, CPU)
    points, round_index = evaluator.prepare(site.points.held_out), header.round
    if model is None:
        train, labels = site.points.train, site.points.labels
        judge = Judge(evaluator, "validation", points, "precision")
        population = Population(task, seeds, {site.client_id: train}, b"", labels, CPU)
        ended = train_alone(population, site.client_id, judge, live_in_process)
        model, round_index = ended.best_model, ended.best_round
    sums, own = evaluator.measure(model, points)
    return write_report(header, Report(sums, round_index, own))


def compare_sites(federation: Federation, server: Server, sites: GridSites, progress: Progress) -> dict[str, Any]:
    """Return a row per site that answers: the selected model on the site's held-out points, and the site alone."""
    config, own = federation.agreement.config, AddedMetrics.of(server.task)
    enrolments = {client_id: entry for client_id, entry in federation.enrolments().items() if client_id in sites.nodes}
    sent, received = 0, 0

    def measure(asked: list[int], model: Tensor | None, deadline: float) -> dict[int, Report]:
        questions: dict[int, QuestionHeader] = {}

        def write(client: int) -> bytes:
            nonlocal sent
            message = ask(server.task, server.seeds, server.run, progress.best_round, client, model)
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
                points = enrolment.held_out
                reports[client_id] = read_report(reply, questions[client_id], config.top_k, points, config.rounds, own)
            except Rejected as refusal:
                print(f"fedmlh: no evaluation from site {enrolment.site}: {refusal}", flush=True)
        return reports

    holding_out = [client_id for client_id, enrolment in enrolments.items() if enrolment.held_out > 0]
    together = measure(holding_out, progress.best_model, config.deadline)
    # A site that trains alone does the work of all rounds, and gets the deadline of a round for each of them.
    alone = measure(sorted(together), None, config.deadline * config.rounds) if config.local_baseline else {}
    if not together:
        return {}
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
    return {
        "clients": rows,
        **{f"{metric}_at_sites": values for metric, values in total.items()},
        "evaluation_bytes_up": received,
        "evaluation_bytes_down": sent,
    }


def _summarize(reports: Sequence[Report], own: AddedMetrics) -> Values:
    """Return precision and every metric of a user over the points of all reports."""
    total = reduce(add_sums, [report.sums for report in reports])
    return {"precision": summarize_sums(total)["precision"], **own.values([report.own for report in reports])}
