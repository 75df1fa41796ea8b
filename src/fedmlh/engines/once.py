"""A run of one round, whatever engine reaches the clients: counts, sums, the linear solution, tested and kept."""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from scipy.sparse import csr_matrix

from fedmlh.config import Config
from fedmlh.data.dataset import Dataset, Split
from fedmlh.data.division import divide
from fedmlh.engines.device import pick_device
from fedmlh.engines.loop import Run, Tell, Watch, ignore, tell_division, tell_notes
from fedmlh.engines.population import Engine, Population
from fedmlh.engines.suspects import find_impossible
from fedmlh.errors import UserError
from fedmlh.evaluation.costs import peak_memory_bytes, reset_peak_memory
from fedmlh.evaluation.evaluate import Evaluator, LabelCounts, Values, selection_score
from fedmlh.federated.messages import Reason, Rejected
from fedmlh.federated.participation import Attempt, Refusal
from fedmlh.federated.task import Task
from fedmlh.lock import hold
from fedmlh.model.decoder import Decoder
from fedmlh.oneround.budget import choose_slots
from fedmlh.oneround.choose import POWERS, RIDGES, Choice, Chooser, Problem
from fedmlh.oneround.exchange import COUNTS, SUMS, Counts, Desk, Respondent, Terms, asks_for_buckets, spread
from fedmlh.oneround.linear import Linear, compress, index_type
from fedmlh.oneround.model import LinearRanker, SlotFeatures
from fedmlh.oneround.points import Slots, add_one
from fedmlh.oneround.solve import NotPositive, Solver, block_columns, check_memory
from fedmlh.oneround.sums import Adder, Sums, check_room
from fedmlh.oneround.wire import encode_sums
from fedmlh.runs.folder import RunFolder
from fedmlh.runs.journal import Journal
from fedmlh.serving.bundle import save_bundle
from fedmlh.sizing import choose_sizes

#: How clients are reached: whom to ask, and the message for each, to replies in any order.
Ask = Callable[[Sequence[int], "Post"], Iterable[tuple[int, bytes | Rejected]]]

#: Validation points that choose λ and the power, and test points by which the loss of leaving out weights is measured.
_MOST_CHOOSING, _MOST_COMPARED = 4096, 1024


class Post:
    """The messages of one part of the exchange."""

    def __init__(self, attempt: int, write: Callable[[int], bytes]) -> None:
        #: Round and attempt, as the participation log counts them: each part is an attempt.
        self.place = (1, attempt)
        self.write = write

    def __call__(self, client: int) -> bytes:
        """Return the message for a client, which counts as sent."""
        return self.write(client)


@dataclass
class Exchange:
    """What was asked and answered so far, on disk as it comes."""

    desk: Desk
    ask: Ask
    folder: Path
    tell: Tell
    bytes_up: int = 0
    bytes_down: int = 0
    #: Who took part in which part.
    log: list[Attempt] = field(default_factory=list)

    def collect(
        self, part: str, clients: Sequence[int], payload: bytes, read: Callable[[int, bytes], Any]
    ) -> Iterator[tuple[int, Any]]:
        """Yield what each client says; those whose answer lies on disk already are not asked again."""
        known: set[int] = set()
        refused: list[Refusal] = []
        sent: list[int] = []  # appended to by the engine's threads, so not a running sum
        with Journal(self.folder / f"{part}.bin") as journal:
            for client, message in journal.read():
                if client in clients and client not in known:
                    content = self._take(client, message, read, known, [])
                    if content is not None:
                        known.add(client)
                        yield client, content
            missing = [client for client in clients if client not in known]
            self.bytes_down += sum(len(self.desk.request(part, client, payload)) for client in known)
            replies = self.ask(missing, self._write(part, payload, sent)) if missing else ()
            for asked, (client, reply) in enumerate(replies, 1):
                content = self._take(client, reply, read, known, refused)
                if content is not None and isinstance(reply, bytes):
                    journal.append(client, reply)
                    known.add(client)
                    yield client, content
                if asked * 10 // len(missing) > (asked - 1) * 10 // len(missing):
                    self.tell(f"{part}: {len(known):,} of {len(clients):,} clients have answered")
            journal.sync()
        self.bytes_down += sum(sent)
        answered = {entry.client for entry in refused} | known
        refused += [Refusal(client, Reason.LATE, "no reply came") for client in clients if client not in answered]
        refused.sort(key=lambda entry: entry.client)
        self.log.append(Attempt(1, len(self.log), list(clients), sorted(known), refused))

    def refuse(self, clients: Collection[int], reason: Reason, detail: str) -> None:
        """Write down that what these clients said last does not count after all."""
        last = self.log[-1]
        accepted = [client for client in last.accepted if client not in clients]
        refused = [*last.refused, *(Refusal(client, reason, detail) for client in clients)]
        refused.sort(key=lambda entry: entry.client)
        self.log[-1] = replace(last, accepted=accepted, refused=refused)

    def _write(self, part: str, payload: bytes, sent: list[int]) -> Post:
        def write(client: int) -> bytes:
            message = self.desk.request(part, client, payload)
            sent.append(len(message))
            return message

        return Post(len(self.log), write)

    def _take(
        self,
        client: int,
        reply: bytes | Rejected,
        read: Callable[[int, bytes], Any],
        known: set[int],
        refused: list[Refusal],
    ) -> Any:
        try:
            if isinstance(reply, Rejected):
                raise reply
            self.bytes_up += len(reply)
            if client in known:
                raise Rejected(Reason.DUPLICATE, "it has answered already")
            return read(client, reply)
        except Rejected as refusal:
            refused.append(Refusal(client, refusal.reason, refusal.detail))
            return None


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
    config, reasons = choose_sizes(config, dataset.num_features, dataset.num_labels)
    for reason in reasons:
        tell(reason)
    folder = RunFolder(Path(out))
    with hold(folder.path):
        folder.check(config, resume=resume)
        reset_peak_memory()
        check_room(len(dataset.train), config.point_bits)
        folder.open(config)
        tell_notes(dataset, tell)
        division = divide(dataset.train, config)
        tell_division(dataset, division, config.partition, tell)
        task = Task(config, dataset.num_features, dataset.num_labels)
        sizes = {number: len(shard) for number, shard in division.shards.items()}
        desk = Desk(task, sizes, dataset.fingerprint)
        population = Population(task, desk.seeds, division.shards, b"", dataset.labels, pick_device(config.device))
        with engine(population, workers) as clients:
            # A population of respondents answers any message; what a round of training adds is not needed here.
            exchange = Exchange(desk, cast(Ask, clients.exchange), folder.checkpoints, tell)
            frequencies = LabelCounts.of(dataset.train)
            work = Work(exchange, dataset, division.validation, frequencies, population.device, tell)
            summary, record = work.finish(folder)
        watch(record)
        return Run(summary, folder.path)


@dataclass(frozen=True)
class Work:
    """The server's work from counts to model."""

    exchange: Exchange
    dataset: Dataset
    validation: Split
    frequencies: LabelCounts
    device: torch.device
    tell: Tell

    @property
    def task(self) -> Task:
        """What is learned."""
        return self.exchange.desk.task

    def finish(self, folder: RunFolder) -> tuple[dict[str, Any], dict[str, Any]]:
        """Do all that there is to do; return summary and record."""
        started = time.perf_counter()
        config, desk = self.task.config, self.exchange.desk
        terms = self.agree()
        slots = terms.slots(desk.seeds)
        check_memory(slots.count + 1, self.task.num_tables * self.task.num_outputs)
        accepted, sums = self.gather(terms, slots)
        label_map = self.task.label_map(desk.seeds, self.dataset.labels.keys)
        mix = None if asks_for_buckets(self.task) or self.task.identity else spread(label_map)
        decoder = Decoder(torch.from_numpy(label_map.buckets), self.task.num_outputs)
        evaluator = self.evaluator(slots, decoder)
        held_out = Respondent(self.task, 0, self.validation.X, self.validation.Y, self.dataset.labels)
        held_out_sums = held_out.sum(terms, desk.seeds)
        while True:
            try:
                choice = self.choose(Problem.of(sums, config.point_bits, mix), slots, decoder, evaluator)
                whole = sums + held_out_sums
                problem = Problem.of(whole, config.point_bits, mix)
                solver = Solver(problem.system(choice.ridge), problem.cross.shape[1], self.device)
                model = self.solve(problem, choice, solver)
                break
            except NotPositive:
                accepted, sums = self.leave_out(terms, slots, accepted, sums)
        delivered = self.deliver(whole, model, len(accepted))
        trained = time.perf_counter()
        record = self.record(choice, accepted, evaluator, trained - started)
        test = evaluator.evaluate(model, evaluator.prepare(self.dataset.test))
        record["seconds_evaluation"] = time.perf_counter() - trained
        compared = self.compare(problem, choice, solver, model, slots, decoder, evaluator)
        save_bundle(folder.model, self.task, desk.seeds, model, self.dataset, terms)
        folder.write_metrics([record])
        folder.write_participation(self.exchange.log)
        summary = self.summarize(record, test, choice, model, slots) | {
            "training_points": sums.points,
            "delivered": delivered,
            "kept": compared,
        }
        folder.write_summary(summary)
        return summary, record

    def agree(self) -> Terms:
        """Freeze what the sums depend on: the counts of all points, and the number of slots."""
        config = self.task.config
        counts = Counts.of(self.validation.X)
        read = self.exchange.desk.read_counts
        for _, content in self.exchange.collect(COUNTS, sorted(self.exchange.desk.max_examples), b"", read):
            counts += content
        outputs = self.task.num_tables * self.task.num_outputs
        limit = config.feature_slots or choose_slots(counts.frequencies, counts.points, outputs)
        text = self.dataset.text
        # Features of the kind tfidf have been weighed already.
        return Terms(counts, limit, weigh=text is not None and text.kind == "hashing")

    def gather(self, terms: Terms, slots: Slots) -> tuple[list[int], Sums]:
        """Add up the sums of all clients."""
        desk, adder, accepted = self.exchange.desk, Adder(), []
        read = partial(desk.read_sums, terms=terms, num_slots=slots.count)
        for client, sums in self.exchange.collect(SUMS, sorted(desk.max_examples), terms.encode(), read):
            adder.add(sums)
            accepted.append(client)
        self.check_quorum(accepted)
        return sorted(accepted), adder.total(slots.count, desk.num_outputs)

    def leave_out(self, terms: Terms, slots: Slots, accepted: list[int], sums: Sums) -> tuple[list[int], Sums]:
        """Return which clients are left, and the sums without those that no points have."""
        read = partial(self.exchange.desk.read_sums, terms=terms, num_slots=slots.count)
        found = find_impossible(Journal(self.exchange.folder / f"{SUMS}.bin").read(), accepted, read)
        if not found:
            raise UserError(
                "the sums of all clients have no solution, though those of each client alone could be: set a larger "
                "ridge"
            )
        for client, own in found.items():
            sums -= own
            self.tell(f"client {client} is left out: no points have its sums")
        self.exchange.refuse(found, Reason.RANGE, "no points have these sums")
        accepted = [client for client in accepted if client not in found]
        self.check_quorum(accepted)
        return accepted, sums

    def check_quorum(self, accepted: list[int]) -> None:
        """Refuse to go on with too few clients."""
        if len(accepted) < self.task.config.quorum:
            reasons = "; ".join(
                f"client {entry.client}: {entry.reason}, {entry.detail}" for entry in self.exchange.log[-1].refused[-3:]
            )
            raise UserError(
                f"only {len(accepted)} clients sent sums that count, fewer than quorum = {self.task.config.quorum} "
                f"({reasons}): pass --resume, or start the federation again, to ask the others once more"
            )

    def evaluator(self, slots: Slots, decoder: Decoder) -> Evaluator:
        """Return what measures models of this run."""
        ranker = LinearRanker(decoder.buckets, decoder.num_buckets)
        return Evaluator(self.task.config, self.frequencies, SlotFeatures(slots), ranker)

    def choose(self, problem: Problem, slots: Slots, decoder: Decoder, evaluator: Evaluator) -> Choice:
        """Choose λ and the power on validation points, where they are not set."""
        config = self.task.config
        rows = _spread_rows(len(self.validation), _MOST_CHOOSING)
        points = self.validation.take(rows)

        def judge(labels: np.ndarray) -> float:
            return selection_score(_measure(evaluator, labels, points.Y))

        X = add_one(slots.apply(points.X), 1.0)
        chooser = Chooser(problem, X, points.excluded, decoder, max(config.top_k), judge, self.device)
        ridges = (config.ridge,) if config.ridge else RIDGES
        powers = (config.count_power,) if config.count_power >= 0 else POWERS
        choice = chooser.choose(ridges, powers)
        self.tell(
            f"λ {choice.ridge:g}, scores divided by count^{choice.power:g}: best on {len(rows):,} held-out points"
        )
        return choice

    def solve(self, problem: Problem, choice: Choice, solver: Solver) -> Linear:
        """Return the solution for all outputs, cut down to the size that a model may have."""
        config, num_outputs = self.task.config, problem.cross.shape[1]
        weigh, columns = problem.weigh(choice.power), problem.cross.tocsc()

        def solve(block: np.ndarray) -> np.ndarray:
            right = torch.from_numpy(columns[:, block].toarray())
            return np.asarray(solver(right).float().cpu().numpy() * weigh[block])

        size = block_columns(solver.system.size, num_outputs)
        blocks = (np.arange(begin, min(begin + size, num_outputs)) for begin in range(0, num_outputs, size))
        usage = solver.system.matrix.diagonal() - choice.ridge
        entry = 1 + np.dtype(index_type(num_outputs)).itemsize
        most = max(1, int(config.model_mib * 2**20) // entry)
        return compress(solve, blocks, usage, (num_outputs, most))

    def deliver(self, sums: Sums, model: Linear, clients: int) -> dict[str, Any]:
        """Count what clients are sent in the end: the sums, from which they can solve themselves, or the model."""
        sizes = {"sums": len(encode_sums(sums, self.task.config.point_bits)), "model": model.nbytes}
        what = min(sizes, key=lambda name: sizes[name])
        self.exchange.bytes_down += clients * sizes[what]
        return {"what": what, "bytes": sizes[what], "sums_bytes": sizes["sums"], "model_bytes": sizes["model"]}

    def compare(
        self,
        problem: Problem,
        choice: Choice,
        solver: Solver,
        model: Linear,
        slots: Slots,
        decoder: Decoder,
        evaluator: Evaluator,
    ) -> dict[str, Any]:
        """Measure what leaving out and rounding weights costs, on some test points."""
        points = self.dataset.test.take(_spread_rows(len(self.dataset.test), _MOST_COMPARED))
        k = max(self.task.config.top_k)
        X = add_one(slots.apply(points.X), 1.0)
        chooser = Chooser(problem, X, points.excluded, decoder, k, lambda labels: 0.0, self.device)
        exact = _measure(evaluator, chooser.try_ridge(choice.ridge, (choice.power,), solver).labels, points.Y)[
            "precision"
        ]
        kept = evaluator.evaluate(model, evaluator.prepare(points))["precision"]
        return {
            "weights": len(model),
            "of": len(model.scales) * model.num_outputs,
            "precision_lost": {name: exact[name] - kept[name] for name in exact},
        }

    def record(self, choice: Choice, accepted: list[int], evaluator: Evaluator, seconds: float) -> dict[str, Any]:
        """Return the line of metrics.jsonl."""
        points = self.validation.take(_spread_rows(len(self.validation), _MOST_CHOOSING))
        return {
            "round": 1,
            "attempts": len(self.exchange.log),
            "clients": accepted,
            "refused": [
                {"attempt": line.attempt, **vars(entry)} for line in self.exchange.log for entry in line.refused
            ],
            "validation": _measure(evaluator, choice.labels, points.Y),
            "bytes_up": self.exchange.bytes_up,
            "bytes_down": self.exchange.bytes_down,
            "seconds_training": seconds,
        }

    def summarize(
        self, record: dict[str, Any], test: Values, choice: Choice, model: Linear, slots: Slots
    ) -> dict[str, Any]:
        """Return the figures under the names that other runs have, and those of one round."""
        config = self.task.config
        return {
            "name": config.name,
            "algorithm": config.algorithm,
            "seed": config.seed,
            "selection": config.selection,
            "num_parameters": len(model),
            "model_bytes": model.nbytes,
            "best_round": 1,
            "rounds": 1,
            **test,
            "validation": record["validation"],
            "bytes_up": record["bytes_up"],
            "bytes_down": record["bytes_down"],
            "bytes_up_to_best": record["bytes_up"],
            "bytes_down_to_best": record["bytes_down"],
            "paper_volume_bytes": record["bytes_up"],
            "seconds_per_round": record["seconds_training"],
            "seconds_evaluation_per_round": record["seconds_evaluation"],
            "peak_memory_bytes": peak_memory_bytes(),
            "ridge": choice.ridge,
            "count_power": choice.power,
            "slots": slots.count,
        }


def _measure(evaluator: Evaluator, labels: np.ndarray, Y: csr_matrix) -> Values:
    metrics = evaluator.metrics()
    metrics.add(labels, Y)
    return metrics.values()


def _spread_rows(count: int, most: int) -> np.ndarray:
    """Return at most so many rows, evenly spread."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64)) if count else np.zeros(0, np.int64)
