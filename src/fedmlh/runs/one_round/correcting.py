"""Networks that are trained beside the linear model of one round; their scores are added to its own if that helps."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from fedmlh.data.dataset import Split
from fedmlh.errors import UserError
from fedmlh.evaluation.evaluate import Evaluator, HashedSplit, Values, make_network_tools, selection_score
from fedmlh.federated.server import Server
from fedmlh.federated.task import Seeds, Task
from fedmlh.hashing.features import FeatureMap
from fedmlh.model.ranking import Ranker, best_labels
from fedmlh.oneround.choose import Choice
from fedmlh.oneround.corrected import CorrectedFeatures, CorrectedRanker, shorten
from fedmlh.runs.checkpoint import Checkpoints, Progress
from fedmlh.runs.events import EventLog
from fedmlh.runs.folder import RunFolder
from fedmlh.runs.one_round.closing import Closing, pick_points
from fedmlh.runs.one_round.correction import Correction, renumber
from fedmlh.runs.remarks import describe_resumed
from fedmlh.runs.rounds import Clients, Judge, Tell, Watch, is_patience_over, run_rounds

#: Weights of the networks' logits beside the linear model's scores, where a score of 1 means that the label is there:
#: from nearly nothing to networks that decide alone.
WEIGHTS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.3, 1.0)
#: The mean of P@k must rise by this much, or the linear model stays alone.
_LEAST_GAIN = 0.001

#: Makes the clients of a task for as long as the context lasts.
Reach = Callable[[Task, Seeds], AbstractContextManager[Clients]]


class Beside(Evaluator):
    """Judges networks by what they add to the scores of a linear model on validation points."""

    def __init__(self, closing: Closing, features: FeatureMap, ranker: Ranker, linear: Tensor) -> None:
        """Take the networks' feature map and ranker, and the scores of the linear model.  # [R, n, B]"""
        super().__init__(closing.task.config, closing.frequencies, features, ranker)
        self.linear = linear
        self.both = CorrectedRanker(closing.ranker, ranker)

    def evaluate(self, model: Any, points: HashedSplit) -> Values:
        """Return the metrics of both together, with the weight that suits this model best."""
        return self.judge(self.weigh(model, points)[1], points.Y)

    def weigh(self, model: Tensor, points: HashedSplit) -> tuple[float, np.ndarray]:
        """Return the best weight, and the labels that it ranks first.  # [n, k]"""
        ranked: dict[float, list[np.ndarray]] = {weight: [] for weight in WEIGHTS}
        for begin in range(0, len(points), self.both.batch_size):
            rows = slice(begin, min(begin + self.both.batch_size, len(points)))
            networks = self.both.score(model, tuple(part[rows] for part in points.features))
            excluded = None if points.excluded is None else points.excluded[rows]
            for weight, found in ranked.items():
                scores = self.both.add(self.linear[:, rows], networks, weight)
                found.append(best_labels(self.both.decoder, scores, max(self.ks), excluded)[0])
        labels = {weight: np.concatenate(found) for weight, found in ranked.items()}
        best = max(labels, key=lambda weight: selection_score(self.judge(labels[weight], points.Y)))
        return best, labels[best]


@dataclass(frozen=True)
class Corrector:
    """Trains networks beside a linear model."""

    closing: Closing
    reach: Reach
    max_examples: Mapping[int, int]
    folder: RunFolder
    watch: Watch
    tell: Tell
    events: EventLog

    @property
    def task(self) -> Task:
        """The task of the networks."""
        return self.closing.task.networks

    def correct(self, choice: Choice, validation: Split, record: dict[str, Any]) -> Correction:
        """Train networks, and return them with the weight that is best beside the linear model of this choice.

        `record` is that of the linear model's round.
        """
        closing, points, config = self.closing, pick_points(validation), self.task.config
        self.tell(
            f"networks beside it, in at most {config.rounds} rounds: {config.num_tables} tables of "
            f"{config.num_buckets:,} buckets, {config.feature_dim:,} features, hidden {config.hidden_sizes[0]}"
        )
        server = Server(self.task, self.max_examples, closing.device)
        features, ranker = make_network_tools(self.task, server.seeds, closing.dataset.labels, closing.device)
        beside = Beside(closing, features, ranker, choice.scores)
        prepared = beside.prepare(points)
        with self.reach(self.task, server.seeds) as clients:
            progress = self._train(server, clients, Judge(beside, "validation", prepared, "precision"), record)
        model = shorten(progress.best_model)
        weight, labels = beside.weigh(model, prepared)
        gain = selection_score(beside.judge(labels, points.Y)) - choice.score
        if gain < _LEAST_GAIN:
            weight, labels = 0.0, choice.labels
            self.tell("the networks do not help on validation: the linear model stays alone")
        else:
            self.tell(
                f"the networks of round {progress.best_round + 1} are added with weight {weight:g}: "
                f"{100 * gain:+.1f} points of mean P@k on validation"
            )
        evaluator = Evaluator(
            closing.task.config, closing.frequencies, CorrectedFeatures(closing.features, features), beside.both
        )
        return Correction(
            self.task, server.seeds, beside.both, features, evaluator, model, weight, gain, labels, progress
        )

    def _train(self, server: Server, clients: Clients, judge: Judge, record: dict[str, Any]) -> Progress:
        identity = f"{server.run} {self.closing.dataset.fingerprint}"
        checkpoints = Checkpoints(
            self.folder.checkpoints / "networks",
            identity,
            self.task.stack,
            server.device,
            self.task.config.num_clients,
        )
        progress, problems = checkpoints.load()
        if progress is not None and progress.server.round > self.task.config.rounds:
            raise UserError(
                f"{self.folder.path} has finished {progress.server.round} rounds of networks already, more than "
                f"correct = {self.task.config.rounds}"
            )
        for problem in problems:
            self.tell(problem)
        if progress is not None:
            config = self.task.config
            over = is_patience_over(progress, config.patience)
            self.tell(f"networks beside it: {describe_resumed(progress.server.round, config.rounds, over=over)}")

        def save(progress: Progress) -> None:
            checkpoints.save(progress)
            self.folder.write_metrics([record, *map(renumber, progress.history)])

        return run_rounds(
            server,
            clients,
            judge,
            lambda record: self.watch(renumber(record)),
            save,
            progress,
            self.events.follow(record["round"]),
        )
