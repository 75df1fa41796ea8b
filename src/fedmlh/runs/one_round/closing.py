"""From sums to a model: choose λ and the power, solve, cut the solution down, measure the model and write it."""

import time
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

import numpy as np
import torch

from fedmlh.data.dataset import Dataset, Split
from fedmlh.evaluation.calibration import BEST, Curve, calibrate
from fedmlh.evaluation.costs import peak_memory_bytes
from fedmlh.evaluation.evaluate import Evaluator, Examined, LabelCounts, selection_score
from fedmlh.evaluation.label_recall import list_bands
from fedmlh.federated.task import Seeds, Task
from fedmlh.hashing.labels import LabelMap
from fedmlh.model.ranking import Decoder, best_labels
from fedmlh.oneround.choose import POWERS, RIDGES, Choice, Chooser, Problem, fold, split_rows
from fedmlh.oneround.corrected import Corrected
from fedmlh.oneround.exchange import asks_for_buckets, spread
from fedmlh.oneround.linear import Linear, compress, index_type
from fedmlh.oneround.model import LinearRanker, SlotFeatures
from fedmlh.oneround.points import Slots, add_one
from fedmlh.oneround.solve import Solver, block_columns
from fedmlh.oneround.sums import Sums
from fedmlh.oneround.terms import Terms
from fedmlh.runs.folder import RunFolder
from fedmlh.runs.labels_and_examples import describe_test
from fedmlh.runs.model_folder import save_bundle
from fedmlh.runs.one_round.correction import Correction
from fedmlh.runs.rounds import Tell

#: Validation points that choose λ and the power, and test points by which the loss of leaving out weights is measured.
_MOST_CHOOSING, _MOST_COMPARED = 2048, 1024


@dataclass(frozen=True)
class Solved:
    """The solution for a choice, cut down to a model."""

    choice: Choice
    model: Linear
    #: Of the compared test points, before weights are left out.
    scores: np.ndarray  # float32 [n, R·B]


@dataclass(frozen=True)
class Closing:
    """Turns sums under fixed terms into a model."""

    task: Task
    seeds: Seeds
    terms: Terms
    dataset: Dataset
    frequencies: LabelCounts
    device: torch.device
    tell: Tell

    @cached_property
    def slots(self) -> Slots:
        """The slot of each feature."""
        return self.terms.slots(self.seeds)

    @cached_property
    def label_map(self) -> LabelMap:
        """The buckets of each label."""
        return self.task.label_map(self.seeds, self.dataset.labels.keys)

    @cached_property
    def decoder(self) -> Decoder:
        """From outputs to labels."""
        return Decoder(torch.from_numpy(self.label_map.buckets), self.task.num_outputs)

    @cached_property
    def features(self) -> SlotFeatures:
        """From raw features to slots."""
        return SlotFeatures(self.slots)

    @cached_property
    def ranker(self) -> LinearRanker:
        """Ranks labels with models of this run."""
        return LinearRanker(self.decoder.buckets, self.decoder.num_buckets)

    @cached_property
    def evaluator(self) -> Evaluator:
        """Measures models of this run."""
        return Evaluator(self.task.config, self.frequencies, self.features, self.ranker)

    def pose(self, sums: Sums) -> Problem:
        """Return the linear problem of these sums."""
        mix = None if asks_for_buckets(self.task) or self.task.identity else spread(self.label_map)
        return Problem.of(sums, self.task.config.point_bits, mix)

    def choose(self, sums: Sums, validation: Split) -> Choice:
        """Choose λ and the power, unless they are set, on points that the sums do not contain."""
        config, points = self.task.config, pick_points(validation)
        chooser = self.appoint(self.pose(sums), points)
        ridges = (config.ridge,) if config.ridge else RIDGES
        powers = (config.count_power,) if config.count_power >= 0 else POWERS
        choice = chooser.choose(ridges, powers)
        self.tell(f"λ {choice.ridge:g}, scores divided by count^{choice.power:g}: best on {len(points):,} points")
        return choice

    def appoint(self, problem: Problem, points: Split) -> Chooser:
        """Return what judges solutions of a problem by these points."""

        def judge(labels: np.ndarray) -> float:
            return selection_score(self.evaluator.judge(labels, points.Y))

        X = add_one(self.slots.apply(points.X), 1.0)
        return Chooser(problem, X, points.excluded, self.decoder, max(self.task.config.top_k), judge, self.device)

    def calibrate(
        self, choice: Choice, validation: Split, correction: Correction | None
    ) -> tuple[Curve | None, dict[str, Any]]:
        """Return what turns scores into probabilities, by the points that decided, and its figures."""
        points, best = pick_points(validation), min(BEST, self.task.num_labels)
        if not len(points):
            return None, {}
        helped = correction if correction is not None and correction.weight else None
        ranked = []
        for rows in split_rows(len(points), self.decoder.num_buckets * len(choice.scores)):
            linear = choice.scores[:, rows]
            decoder, scores = (self.decoder, linear) if helped is None else helped.add_scores(linear, points.X[rows])
            excluded = None if points.excluded is None else points.excluded[rows]
            ranked.append(best_labels(decoder, scores, best, excluded))
        labels, values = (np.concatenate(parts) for parts in zip(*ranked, strict=True))
        return calibrate("plain", labels, values, points.Y, list_bands(self.frequencies.counts))

    def solve(self, sums: Sums, choice: Choice) -> Solved:
        """Return the solution for all outputs, cut down to the size that a model may have."""
        problem = self.pose(sums)
        num_outputs = problem.cross.shape[1]
        solver = Solver(problem.system(choice.ridge), num_outputs, self.device)
        weigh, columns = problem.weigh(choice.power), problem.cross.tocsc()
        (X,) = self.features.apply(self.compared.X)
        scores = np.empty((X.shape[0], num_outputs), np.float32)

        def solve(block: np.ndarray) -> np.ndarray:
            right = torch.from_numpy(columns[:, block].toarray())
            weights = np.asarray(solver(right).float().cpu().numpy() * weigh[block])
            scores[:, block] = X @ weights
            return weights

        size = block_columns(solver.system.size, num_outputs)
        blocks = (np.arange(begin, min(begin + size, num_outputs)) for begin in range(0, num_outputs, size))
        usage = solver.system.matrix.diagonal() - choice.ridge
        entry = 1 + np.dtype(index_type(num_outputs)).itemsize
        most = max(1, int(self.task.config.model_mib * 2**20) // entry)
        return Solved(choice, compress(solve, blocks, usage, (num_outputs, most)), scores)

    @cached_property
    def compared(self) -> Split:
        """The test points by which the loss of leaving out weights is measured."""
        test = self.dataset.test
        return test.take(_spread_rows(len(test), _MOST_COMPARED))

    def compare(self, solved: Solved) -> dict[str, Any]:
        """Measure what leaving out and rounding weights costs, on some test points."""
        points, model, k = self.compared, solved.model, max(self.task.config.top_k)
        found = []
        for rows in split_rows(len(points), model.num_outputs):
            excluded = None if points.excluded is None else points.excluded[rows]
            scores = fold(torch.from_numpy(solved.scores[rows]), self.decoder)
            found.append(best_labels(self.decoder, scores, k, excluded)[0])
        exact = self.evaluator.judge(np.concatenate(found), points.Y)["precision"]
        kept = self.evaluator.evaluate(model, self.evaluator.prepare(points))["precision"]
        return {
            "weights": len(model),
            "of": len(model.scales) * model.num_outputs,
            "precision_lost": {name: exact[name] - kept[name] for name in exact},
        }

    def write(
        self,
        folder: RunFolder,
        solved: Solved,
        record: dict[str, Any],
        more: dict[str, Any],
        correction: Correction | None = None,
        curve: Curve | None = None,
    ) -> dict[str, Any]:
        """Test the model, write it with all figures, and return them; `record` is that of the linear model's round."""
        began, choice = time.perf_counter(), solved.choice
        model: Linear | Corrected = solved.model
        evaluator, networks, history, best = self.evaluator, None, [record], 1
        if correction is not None:
            history, more = [record, *correction.history], {**more, "correction": correction.figures}
            if correction.weight:
                model, evaluator, networks = correction.add_to(solved.model), correction.evaluator, correction.networks
                best = 1 + correction.progress.best_round
        test = evaluator.examine(model, evaluator.prepare(self.dataset.test), curve)
        record["seconds_evaluation"] = time.perf_counter() - began
        # Without points that judged it, a model is judged by the test part, which selects nothing.
        if "validation" not in record:
            record["test"] = test.values
        more = {**more, "kept": self.compare(solved)}
        # The model names its λ and power, so that it can be solved for again.
        chosen = Task(
            self.task.config.replace(ridge=choice.ridge, count_power=choice.power),
            self.task.num_features,
            self.task.num_labels,
        )
        save_bundle(folder.model, chosen, self.seeds, solved.model, self.dataset, self.terms, networks, curve)
        folder.write_metrics(history)
        folder.write_points(test.points)
        folder.write_examples(describe_test(test, self.dataset))
        summary = self.summarize(history, best, test, model, choice) | more
        folder.write_summary(summary)
        return summary

    def summarize(
        self, history: list[dict[str, Any]], best: int, test: Examined, model: Linear | Corrected, choice: Choice
    ) -> dict[str, Any]:
        """Return the figures under the names that other runs have, and those of one round."""
        config, record = self.task.config, history[0]
        up, down = ([record[name] for record in history] for name in ("bytes_up", "bytes_down"))
        return {
            "name": config.name,
            "algorithm": config.method,
            "seed": config.seed,
            "selection": config.selection,
            "num_parameters": len(model),
            "model_bytes": model.nbytes,
            "best_round": best,
            "rounds": len(history),
            **test.values,
            **test.by_label,
            "proposals": test.proposals.summarize(),
            **({"validation": record["validation"]} if "validation" in record else {}),
            "bytes_up": sum(up),
            "bytes_down": sum(down),
            "bytes_up_to_best": sum(up[:best]),
            "bytes_down_to_best": sum(down[:best]),
            "paper_volume_bytes": sum(up[:best]),
            "seconds_per_round": median(record["seconds_training"] for record in history),
            "seconds_evaluation_per_round": median(record["seconds_evaluation"] for record in history),
            "peak_memory_bytes": peak_memory_bytes(),
            "ridge": choice.ridge,
            "count_power": choice.power,
            "slots": self.slots.count,
        }


def pick_points(validation: Split) -> Split:
    """Return the points that choose, evenly spread where there are many."""
    return validation.take(pick_rows(len(validation)))


def pick_rows(count: int) -> np.ndarray:
    """Return which of `count` validation points choose."""
    return _spread_rows(count, _MOST_CHOOSING)


def _spread_rows(count: int, most: int) -> np.ndarray:
    """Return at most `most` of `count` rows, evenly spread."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64)) if count else np.zeros(0, np.int64)
