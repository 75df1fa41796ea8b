"""A run of one round on any engine: counts, sums, and the linear solution, which is tested and kept."""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Never

import torch

from fedmlh.config import Config
from fedmlh.data.dataset import Dataset, Split
from fedmlh.data.division import divide
from fedmlh.errors import RESUME, UserError
from fedmlh.evaluation.costs import reset_peak_memory
from fedmlh.evaluation.evaluate import LabelCounts
from fedmlh.federated.mail import Outbox, Reply
from fedmlh.federated.messages import Reason
from fedmlh.federated.task import Seeds, Task
from fedmlh.lock import hold
from fedmlh.model.device import pick_device
from fedmlh.oneround.budget import agree_on_terms
from fedmlh.oneround.choose import Choice
from fedmlh.oneround.desk import Desk
from fedmlh.oneround.exchange import COUNTS, SUMS, Respondent
from fedmlh.oneround.holding import asks_for_held_out
from fedmlh.oneround.result import Result
from fedmlh.oneround.solve import NotPositive, check_memory
from fedmlh.oneround.sums import Adder, Sums, check_room
from fedmlh.oneround.terms import Counts, Terms
from fedmlh.oneround.wire import encode_sums
from fedmlh.runs.events import COMPARING, SOLVING, EventFile, EventLog
from fedmlh.runs.folder import RunFolder
from fedmlh.runs.journal import Journal
from fedmlh.runs.one_round.closing import Closing, pick_points
from fedmlh.runs.one_round.collecting import OWN, Exchange
from fedmlh.runs.one_round.comparing import Compare, compare_clients
from fedmlh.runs.one_round.correcting import Corrector, Reach
from fedmlh.runs.one_round.frozen import read_terms, write_terms
from fedmlh.runs.one_round.held_out import HeldOut, choose_without_points
from fedmlh.runs.one_round.suspects import find_impossible
from fedmlh.runs.population import Engine, Population
from fedmlh.runs.remarks import describe_data, describe_division, describe_settings
from fedmlh.runs.rounds import Clients, Run, Tell, Watch, ignore
from fedmlh.storage import write_checked


def run_once(
    config: Config,
    dataset: Dataset,
    out: str | Path,
    *,
    engine: Engine,
    resume: bool = False,
    workers: int | None = None,
    watch: Watch = ignore,
    tell: Tell = ignore,
) -> Run:
    """Ask every client once, solve, test the model and keep it, all in the folder `out`."""
    folder = RunFolder(Path(out))
    with hold(folder.path):
        folder.check(config, resume=resume)
        reset_peak_memory()
        check_room(len(dataset.train), config.point_bits)
        folder.open(config)
        division = divide(dataset.train, config)
        task = Task(config, dataset.num_features, dataset.num_labels)
        remarks = (*describe_data(dataset, config.partition), *describe_division(division, config.partition))
        for remark in (*remarks, *describe_settings(task)):
            tell(remark)
        sizes = {client_id: len(shard) for client_id, shard in division.shards.items()}
        desk = Desk(task, sizes, dataset.fingerprint)
        population = Population(task, desk.seeds, division.shards, b"", dataset.labels, pick_device(config.device))
        with ExitStack() as stack:
            live = [stack.enter_context(engine(population, workers))]

            def ask(clients: Sequence[int], outbox: Outbox[Never]) -> Iterable[tuple[int, Reply]]:
                return live[0].exchange(clients, outbox)

            @contextmanager
            def reach(networks: Task, seeds: Seeds) -> Iterator[Clients]:
                # Clients that train networks replace those that answered, which return once networks are trained.
                stack.close()
                with engine(replace(population, task=networks, seeds=seeds), workers) as clients:
                    yield clients
                live[0] = stack.enter_context(engine(population, workers))

            events = EventLog(EventFile(folder.path, tell))
            exchange = Exchange(desk, ask, ask, folder.checkpoints, tell, events)
            frequencies = LabelCounts.of(dataset.train)
            work = Work(
                exchange,
                dataset,
                division.validation,
                frequencies,
                population.device,
                tell,
                reach,
                watch,
                compare_clients(dataset, division, population, tell),
            )
            sites = dataset.site_names if config.partition == "folder" else ()
            with events.record(config, sites, resumed=folder.checkpoints.is_dir()):
                return Run(work.finish(folder), folder.path)


@dataclass(frozen=True)
class Work:
    """The server's work from counts to model."""

    exchange: Exchange
    dataset: Dataset
    validation: Split
    frequencies: LabelCounts
    device: torch.device
    tell: Tell
    #: The way to clients that train networks beside the linear model.
    reach: Reach
    watch: Watch = ignore
    compare: Compare = lambda closing, labels: {}

    @property
    def task(self) -> Task:
        """Return the task of the run."""
        return self.exchange.desk.task

    def finish(self, folder: RunFolder) -> dict[str, Any]:
        """Do all steps of the run; return the summary."""
        started = time.perf_counter()
        desk, events = self.exchange.desk, self.exchange.events
        terms = self.agree()
        closing = Closing(self.task, desk.seeds, terms, self.dataset, self.frequencies, self.device, self.tell)
        num_slots = closing.slots.count
        check_memory(num_slots + 1, self.task.num_tables * self.task.num_outputs)
        held_out = HeldOut(self.exchange, terms, num_slots) if asks_for_held_out(self.task.config) else None
        accepted, sums = self.gather(terms, num_slots, held_out)
        own = Respondent(self.task, 0, self.validation.X, self.validation.Y, self.dataset.labels)
        own_sums = own.sum(terms, desk.seeds)
        events.begin_step(SOLVING)
        while True:
            try:
                choice, ridge_from = self.choose(closing, sums, held_out)
                solved = closing.solve(sums + own_sums, choice)
                break
            except NotPositive:
                accepted, sums = self.leave_out(terms, num_slots, accepted, sums, held_out)
        points, labels = pick_points(self.validation), choice.labels
        record = {
            "round": 1,
            **self.exchange.figures,
            "clients": accepted,
            **({"validation": closing.evaluator.judge(labels, points.Y)} if len(points) else {}),
            "seconds_training": time.perf_counter() - started,
            "seconds_evaluation": 0.0,
        }
        events.finish_round(record)
        if len(points):
            self.watch(record)
        correction = None
        weight, networks = 0.0, b""
        if self.task.config.correct:
            corrector = Corrector(closing, self.reach, desk.max_examples, folder, self.watch, self.tell, events)
            correction = corrector.correct(choice, self.validation, record)
            weight, networks, labels = correction.weight, correction.payload, correction.labels
        bits = self.task.config.point_bits
        result = Result.of(sums + own_sums, solved.model, choice.ridge, choice.power, bits, weight, networks)
        self.exchange.deliver(accepted, result.encode())
        record |= self.exchange.figures
        write_checked(folder.checkpoints / f"{OWN}.bin", encode_sums(own_sums, self.task.config.point_bits))
        folder.write_participation([*self.exchange.log, *(() if correction is None else correction.log)])
        events.begin_step(COMPARING)
        more = {"training_points": sums.points, "delivered": result.figures, "ridge_from": ridge_from}
        if len(points):
            more |= {"validation": closing.evaluator.judge(labels, points.Y), **self.compare(closing, labels)}
        curve, figures = closing.calibrate(choice, self.validation, correction)
        summary = closing.write(folder, solved, record, {**more, **figures}, correction, curve)
        if not len(points):  # nothing was measured before this record
            self.watch(record)
        events.finish_round(record)  # with the delivery
        events.show_result(summary)
        if not self.task.config.keep_sums:
            self.exchange.forget()
        return summary

    def agree(self) -> Terms:
        """Freeze what the sums depend on: the counts of all points, and the number of slots."""
        frozen = read_terms(self.exchange)
        if frozen is not None:
            return frozen
        config = self.task.config
        counts, accepted = Counts.of(self.validation.X), []
        desk = self.exchange.desk
        for client_id, content in self.exchange.collect(desk.ask_counts(), sorted(desk.max_examples)):
            counts += content
            accepted.append(client_id)
        self.check_quorum(accepted, COUNTS)
        outputs = self.task.num_tables * self.task.num_outputs
        terms = agree_on_terms(counts, outputs, config.feature_slots, weigh=self.dataset.has_raw_words)
        write_terms(self.exchange, terms)
        return terms

    def choose(self, closing: Closing, sums: Sums, held_out: HeldOut | None) -> tuple[Choice, str]:
        """Choose λ and the power by the server's points if it has any; return also the origin of λ."""
        if not len(self.validation):
            return choose_without_points(closing, sums, None if held_out is None else held_out.total)
        return closing.choose(sums, self.validation), "set" if self.task.config.ridge else "validation"

    def gather(self, terms: Terms, num_slots: int, held_out: HeldOut | None) -> tuple[list[int], Sums]:
        """Add up the sums of all clients, then ask them for the held-out ones."""
        desk, accepted = self.exchange.desk, []
        adder = Adder(num_slots, desk.num_outputs)
        for client_id, sums in self.exchange.collect(desk.ask_sums(terms, num_slots), sorted(desk.max_examples)):
            adder.add(sums)
            accepted.append(client_id)
            if held_out is not None:
                held_out.note(client_id, sums)
        self.check_quorum(accepted, SUMS)
        if held_out is not None:
            held_out.collect()
        return sorted(accepted), adder.result()

    def leave_out(
        self, terms: Terms, num_slots: int, accepted: list[int], sums: Sums, held_out: HeldOut | None
    ) -> tuple[list[int], Sums]:
        """Return the clients that are left, and the sums without those that no points can have."""
        question = self.exchange.desk.ask_sums(terms, num_slots)
        found = find_impossible(Journal(self.exchange.folder / f"{SUMS}.bin").read(), accepted, question.read)
        if not found:
            raise UserError(
                "the sums of all clients have no solution, though those of each client alone could be: set a larger "
                "ridge"
            )
        for client, own in found.items():
            sums -= own
            self.tell(f"client {client} is left out: no points have its sums")
        self.exchange.refuse_sums(found, Reason.RANGE, "no points have these sums")
        accepted = [client for client in accepted if client not in found]
        self.check_quorum(accepted, SUMS)
        if held_out is not None:
            held_out.leave_out(found)
        return accepted, sums

    def check_quorum(self, accepted: list[int], part: str) -> None:
        """Refuse to continue with too few clients."""
        if len(accepted) < self.task.config.quorum:
            reasons = "; ".join(
                f"client {entry.client}: {entry.reason}, {entry.detail}"
                for entry in self.exchange.line_of(part).refused[-3:]
            )
            raise UserError(
                f"only {len(accepted)} clients sent {part} that can be used, fewer than quorum = "
                f"{self.task.config.quorum} ({reasons}): to ask the others once more, {RESUME}, or start "
                f"the federation again"
            )
