"""Evaluation at a site and over all sites, once the best round is known."""

from functools import reduce
from typing import Any

import numpy as np
from torch import Tensor

from fedmlh.engines.local import live_in_process
from fedmlh.evaluation.evaluate import Evaluator, LabelCounts
from fedmlh.evaluation.metrics import add_sums, summarize_sums
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
    """What the model that was sent gives this site on its held-out points, or what the site would reach alone."""
    agreement, task = site.agreement, site.agreement.task
    if task.config.training == "one-round":
        raise Rejected(Reason.CONFIG, "sites measure networks only")
    header, seeds, model = read_question(message, task, site.number)
    if len(site.points.held_out) == 0:
        raise Rejected(Reason.EXAMPLES, "this site holds no points out")
    none_frequent = LabelCounts(np.zeros(len(agreement.labels), np.int64), 1)
    evaluator = Evaluator.of_task(task, seeds, agreement.labels, none_frequent, CPU)
    points, number = evaluator.prepare(site.points.held_out), header.round
    if model is None:
        train, labels = site.points.train, site.points.labels
        judge = Judge(evaluator, "validation", points, "precision")
        population = Population(task, seeds, {site.number: train}, b"", labels, CPU)
        ended = train_alone(population, site.number, judge, live_in_process)
        model, number = ended.best_model, ended.best_round
    return write_report(header, Report(evaluator.measure(model, points), number))


def compare_sites(federation: Federation, server: Server, sites: GridSites, progress: Progress) -> dict[str, Any]:
    """A row for each site that answers: the selected model on its own points, and what it would reach alone."""
    config = federation.agreement.config
    enrolments = {number: entry for number, entry in federation.enrolments().items() if number in sites.nodes}
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
        for number, reply in sites.ask("evaluate", asked, write, quorum=0, deadline=deadline):
            enrolment = enrolments[number]
            try:
                if isinstance(reply, Rejected):
                    raise reply
                received += len(reply)
                reports[number] = read_report(reply, questions[number], config.top_k, enrolment.held_out, config.rounds)
            except Rejected as refusal:
                print(f"fedmlh: no evaluation from site {enrolment.site}: {refusal}", flush=True)
        return reports

    holding_out = [number for number, enrolment in enrolments.items() if enrolment.held_out > 0]
    together = measure(holding_out, progress.best_model, config.deadline)
    # Alone a site does the work of all rounds, and may take as long for each as for one of the federation's.
    alone = measure(sorted(together), None, config.deadline * config.rounds) if config.local_baseline else {}
    if not together:
        return {}
    rows = []
    for number, report in sorted(together.items()):
        enrolment = enrolments[number]
        row: dict[str, Any] = {
            "client": number,
            "site": enrolment.site,
            "examples": enrolment.examples,
            "held_out": enrolment.held_out,
            "precision": summarize_sums(report.sums)["precision"],
        }
        if number in alone:
            row["precision_alone"] = summarize_sums(alone[number].sums)["precision"]
            row["best_round_alone"] = alone[number].round
        rows.append(row)
    total = reduce(add_sums, [report.sums for report in together.values()])
    return {
        "clients": rows,
        "precision_at_sites": summarize_sums(total)["precision"],
        "evaluation_bytes_up": received,
        "evaluation_bytes_down": sent,
    }
