"""The in-process engine: all clients on this machine, on its CPU cores or its one GPU."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from fedmlh.config import Config
from fedmlh.data.dataset import Dataset
from fedmlh.data.division import Division, divide
from fedmlh.engines.loop import Judge, Watch, run_rounds
from fedmlh.errors import UserError
from fedmlh.evaluation.costs import reset_peak_memory
from fedmlh.evaluation.evaluate import Evaluator, LabelCounts
from fedmlh.federated.client import Assignment, Client, Memory
from fedmlh.federated.messages import Reason, Rejected
from fedmlh.federated.server import Server
from fedmlh.federated.sharing import add_points, encode_points
from fedmlh.federated.task import Seeds, Task
from fedmlh.model.threads import one_thread
from fedmlh.runs.checkpoint import Checkpoints, Progress
from fedmlh.runs.folder import RunFolder
from fedmlh.runs.summary import summarize
from fedmlh.serving.bundle import save_bundle
from fedmlh.sizing import choose_sizes


@dataclass(frozen=True)
class Run:
    """A finished run: its figures, and the folder in which it lies."""

    summary: dict[str, Any]
    folder: Path


def run(
    config: Config,
    dataset: Dataset,
    out: str | Path,
    *,
    resume: bool = False,
    workers: int | None = None,
    watch: Watch = lambda record: None,
    tell: Callable[[str], None] = lambda line: None,
) -> Run:
    """Train, select the best round, test it once and keep the model, all in the folder `out`."""
    config, reasons = choose_sizes(config, dataset.num_features, dataset.num_labels)
    for reason in reasons:
        tell(reason)
    folder = RunFolder(Path(out))
    folder.check(config, resume=resume)
    reset_peak_memory()
    if dataset.site_names and config.partition != "folder":
        tell(f"the data comes from {len(dataset.site_names)} sites; partition '{config.partition}' deals it out anew")
    device = pick_device(config.device)
    task = Task(config, dataset.num_features, dataset.num_labels)
    division = divide(dataset.train, config)
    shared = encode_points(division.shared) if len(division.shared) else b""
    clients = {}
    for number, shard in division.shards.items():
        X, Y = add_points(shard.X, shard.Y, shared)
        clients[number] = Client(task, number, X, Y, dataset.labels, device)
    server = Server(task, {number: len(client) for number, client in clients.items()}, device, shared)
    # All now, not each when it is first sampled: what stays would lie between what a round needs, and memory would grow
    # with every new client.
    for client in clients.values():
        client.prepare(server.seeds)
    evaluator = Evaluator(task, server.seeds, dataset.labels, LabelCounts.of(dataset.train), device)
    test = evaluator.prepare(dataset.test)
    if config.selection == "paper":
        judge = Judge(evaluator, "test", test, "precision_paper")
    else:
        watched = test if config.test_every_round else None
        judge = Judge(evaluator, "validation", evaluator.prepare(division.validation), "precision", watched)

    checkpoints = Checkpoints(folder.checkpoints, f"{server.run} {dataset.fingerprint}", task.stack, device)
    progress, problems = checkpoints.load()
    if progress is not None and progress.server.round > config.rounds:
        raise UserError(
            f"{out} has finished {progress.server.round} rounds already, more than rounds = {config.rounds}"
        )
    folder.open(config)
    for problem in problems:
        tell(f"{problem}; going on from the checkpoint before it")
    if progress is not None:
        folder.write_metrics(progress.history)

    def save(progress: Progress) -> None:
        checkpoints.save(progress)
        folder.write_metrics(progress.history)

    local = LocalClients(clients, workers or os.cpu_count() or 1, _make_trainer(task, clients, server.seeds, device))
    progress = run_rounds(server, local.exchange, local.memories, judge, watch, save, progress)
    summary = summarize(task, progress, evaluator.evaluate(progress.best_model, test))
    if config.selection == "validation":
        summary["clients"] = _compare_clients(server, local, division, judge, progress, tell)
        if config.partition == "folder":
            for row in summary["clients"]:
                row["site"] = dataset.site_names[row["client"]]
    save_bundle(folder.model, task, server.seeds, progress.best_model, dataset)
    folder.write_summary(summary)
    return Run(summary, folder.path)


class Trainer(Protocol):
    """Trains several clients as one computation."""

    def train(
        self,
        models: Sequence[Tensor],
        clients: Sequence[int],
        orders: Sequence[np.ndarray],
        corrections: Sequence[Tensor],  # one a client, or none at all
    ) -> list[tuple[Tensor, float]]:
        """New parameters and mean loss of each."""


class LocalClients:
    """Clients in this process: side by side with one thread each, so that workers cannot change a bit, or all at once.

    All at once is for a GPU: `trainer` then trains everyone who was sampled together.
    """

    def __init__(self, clients: Mapping[int, Client], workers: int, trainer: Trainer | None = None) -> None:
        self.clients = clients
        self.workers = workers
        self.trainer = trainer
        self.memories: dict[int, Memory] = {}

    def exchange(
        self, sampled: Sequence[int], broadcast: Callable[[int], bytes]
    ) -> Iterator[tuple[int, bytes | Rejected]]:
        """Train the sampled clients; replies come as they finish."""
        if self.trainer is not None:
            yield from self._exchange_at_once(self.trainer, sampled, broadcast)
            return
        pool = ThreadPoolExecutor(min(self.workers, len(sampled)))
        with one_thread():
            try:
                for done in as_completed([pool.submit(self._answer, client, broadcast) for client in sampled]):
                    yield done.result()
            finally:
                # All replies have come, or nobody wants them any more: either way there is nothing to wait for.
                pool.shutdown(wait=False, cancel_futures=True)

    def _answer(self, number: int, broadcast: Callable[[int], bytes]) -> tuple[int, bytes | Rejected]:
        try:
            reply, memory = self.clients[number].answer(broadcast(number), self.memories.get(number, Memory()))
        except Rejected as refusal:
            return number, refusal
        except Exception as error:  # one client's failure must not end the run: it is named in the round's record
            return number, Rejected(Reason.FAILED, f"{type(error).__name__}: {error}")
        self.memories[number] = memory
        return number, reply

    def _exchange_at_once(
        self, trainer: Trainer, sampled: Sequence[int], broadcast: Callable[[int], bytes]
    ) -> Iterator[tuple[int, bytes | Rejected]]:
        accepted: dict[int, Assignment] = {}
        for number in sampled:
            try:
                memory = self.memories.get(number, Memory())
                accepted[number] = self.clients[number].accept(broadcast(number), memory)
            except Rejected as refusal:
                yield number, refusal
        if not accepted:
            return
        works = list(accepted.values())
        corrections = [work.correction for work in works if work.correction is not None]
        trained = trainer.train(
            [work.model for work in works], list(accepted), [work.orders for work in works], corrections
        )
        for (number, work), (model, loss) in zip(accepted.items(), trained, strict=True):
            reply, self.memories[number] = self.clients[number].reply(work, model, loss)
            yield number, reply


def _make_trainer(task: Task, clients: Mapping[int, Client], seeds: Seeds, device: torch.device) -> Trainer | None:
    if device.type != "cuda":
        return None
    try:
        from fedmlh.model.kernels.cuda import CudaTrainer
    except ImportError:  # no triton: one client after the other, in plain torch
        return None
    shards = {number: client.prepare(seeds) for number, client in clients.items()}
    return CudaTrainer(task.stack, task.recipe, shards, device, tf32=task.config.gpu_precision == "tf32")


def pick_device(name: str) -> torch.device:
    """The device of that name; auto takes a GPU where there is one."""
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise UserError("device is 'cuda', but torch finds no GPU here: use --device cpu")
    return torch.device("cuda" if available and name != "cpu" else "cpu")


def _compare_clients(
    server: Server,
    local: LocalClients,
    division: Division,
    judge: Judge,
    progress: Progress,
    tell: Callable[[str], None],
) -> list[dict[str, Any]]:
    """What the selected model gives each client on its held-out points, and what it would reach alone.

    Alone: the same initial model, as many rounds at most, the best round on those same points; nothing holds it back
    to a common model, and points that everyone was given it has as well.
    """
    config, evaluator = server.task.config, judge.evaluator
    parts = {number: rows for number, rows in division.held_out.items() if number in division.shards}
    rows = []
    for number, values in evaluator.evaluate_parts(progress.best_model, judge.points, parts).items():
        row: dict[str, Any] = {
            "client": number,
            "examples": len(division.shards[number]),
            "held_out": len(parts[number]),
            "precision": values["precision"],
        }
        if config.local_baseline:
            tell(f"training client {number} alone")
            changes = {"clients_per_round": 1, "quorum": 1, "correction": "none", "prox_mu": 0.0}
            single = replace(server.task, config=config.replace(**changes))
            client = local.clients[number].under(single)
            own = Judge(
                evaluator, "validation", evaluator.prepare(division.validation.take(parts[number])), "precision"
            )
            trainer = _make_trainer(single, {number: client}, server.seeds, server.device)
            alone = LocalClients({number: client}, 1, trainer)
            lonely = Server(single, {number: server.max_examples[number]}, server.device)
            ended = run_rounds(lonely, alone.exchange, alone.memories, own)
            row["precision_alone"] = ended.history[ended.best_round - 1]["validation"]["precision"]
            row["best_round_alone"] = ended.best_round
        rows.append(row)
    return rows
