"""Evaluation at a site and over all sites, once the best round is known."""

from typing import Any

import numpy as np

from fedmlh.deployment.federation import Federation
from fedmlh.deployment.site import CPU, Site
from fedmlh.engines.alone import train_alone
from fedmlh.engines.flower.grid import GridSites
from fedmlh.engines.loop import Judge
from fedmlh.evaluation.evaluate import Evaluator, LabelCounts
from fedmlh.evaluation.metrics import add_sums, summarize_sums
from fedmlh.evaluation.report import Report, ask, read_question, read_report, write_report
from fedmlh.federated.client import Client
from fedmlh.federated.messages import QuestionHeader, Reason, Rejected, unpack
from fedmlh.federated.server import Server
from fedmlh.runs.checkpoint import Progress


def answer_question(site: Site, message: bytes) -> bytes:
    """What the model that was sent gives this site on its held-out points, and what the site would reach alone."""
    agreement, task = site.agreement, site.agreement.task
    header, seeds, model = read_question(message, task, site.number)
    if len(site.points.held_out) == 0:
        raise Rejected(Reason.EXAMPLES, "this site holds no points out")
    none_frequent = LabelCounts(np.zeros(len(agreement.labels), np.int64), 1)
    evaluator = Evaluator(task, seeds, agreement.labels, none_frequent, CPU)
    points = evaluator.prepare(site.points.held_out)
    report = Report(evaluator.measure(model, points))
    if task.config.local_baseline:
        train, labels = site.points.train, site.points.labels
        judge = Judge(evaluator, "validation", points, "precision")
        ended = train_alone(
            task, site.number, lambda task: Client(task, site.number, train.X, train.Y, labels, CPU), judge
        )
        report = Report(report.together, evaluator.measure(ended.best_model, points), ended.best_round)
    return write_report(header, report)


def compare_sites(federation: Federation, server: Server, sites: GridSites, progress: Progress) -> dict[str, Any]:
    """A row for each site that answers: the selected model on its own points, and what it would reach alone."""
    agreement, enrolments = federation.agreement, federation.all_enrolments()
    asked = [number for number, enrolment in enrolments.items() if enrolment.held_out > 0]
    questions: dict[int, QuestionHeader] = {}

    def write(client: int) -> bytes:
        task, best = server.task, progress.best_round
        message = ask(task, server.seeds, server.run, best, client, progress.best_model)
        questions[client], _ = unpack(QuestionHeader, message, len(message))
        return message

    rows, together = [], None
    for number, reply in sites.ask("evaluate", asked, write, quorum=0):
        enrolment = enrolments[number]
        row: dict[str, Any] = {
            "client": number,
            "site": enrolment.site,
            "examples": enrolment.examples,
            "held_out": enrolment.held_out,
        }
        try:
            if isinstance(reply, Rejected):
                raise reply
            report = read_report(reply, questions[number], agreement.config.top_k, enrolment.held_out)
        except Rejected as refusal:
            print(f"fedmlh: no evaluation from site {enrolment.site}: {refusal}", flush=True)
            continue
        together = report.together if together is None else add_sums(together, report.together)
        row["precision"] = summarize_sums(report.together)["precision"]
        if report.alone is not None:
            row["precision_alone"] = summarize_sums(report.alone)["precision"]
            row["best_round_alone"] = report.best_round_alone
        rows.append(row)
    if together is None:
        return {}
    values = {"precision_at_sites": summarize_sums(together)["precision"]}
    return {"clients": sorted(rows, key=lambda row: int(row["client"])), **values}
