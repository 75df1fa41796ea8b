"""A trained model in use: points or texts in, labels with their names out; with numpy alone."""

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypedDict

import numpy as np

from fedmlh.data.dataset import Dataset, check_dataset
from fedmlh.errors import RESUME, UserError
from fedmlh.hashing.rows import Rows
from fedmlh.lock import is_empty
from fedmlh.runs.model_folder import Bundle, load_bundle, write_bundle
from fedmlh.serving.ranking import rank_labels
from fedmlh.serving.scores import Part, count_at_once, open_parts
from fedmlh.serving.why import Reasons, find_reasons, leave_features_out, leave_words_out

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

    from fedmlh.evaluation.evaluate import Examined, Values

    #: Texts, or rows of features: dense, or any sparse matrix of scipy's.
    Points: TypeAlias = Sequence[str] | np.ndarray | csr_matrix | Rows

_LARGEST_BATCH = 1024
_WHERE = "name a run folder, or the model folder inside one"


class Prediction(TypedDict):
    """A label that the model proposes, as a plain dict; the higher the score, the likelier the label."""

    key: str
    name: str
    score: float
    #: How likely the label is true; None if the model has no curve, since no points were held out.
    probability: float | None


class Ranked(NamedTuple):
    """The best labels of a point, best first."""

    #: Whether the model knows anything of the point.
    is_known: bool
    columns: np.ndarray
    #: NaN if the features are so large that a score is no number.
    scores: np.ndarray


class Explained(Prediction, Reasons):
    """A proposed label with the reasons for it."""


class Model:
    """A trained model, ready to predict."""

    def __init__(self, bundle: Bundle) -> None:
        if not isinstance(bundle, Bundle):
            raise UserError(f"Model({bundle!r:.60}) makes no model: load one with Model.load(folder)")
        self.bundle = bundle

    @classmethod
    def load(cls, folder: str | Path) -> "Model":
        """Load the model of a run folder, or a model folder that was copied out of one."""
        folder = root = Path(folder)
        if not folder.is_dir():
            raise UserError(f"{folder} is not a folder: {_WHERE}")
        if (folder / "config.toml").is_file() and not os.path.lexists(folder / "manifest.json"):
            if not (folder / "model").is_dir():
                raise UserError(f"{folder} holds no model yet: to finish its run, {RESUME}")
            folder = folder / "model"
        elif not os.path.lexists(folder / "manifest.json"):
            raise UserError(f"{folder} holds no model: {_WHERE}")
        return cls(load_bundle(folder, root))

    def save(self, folder: str | Path) -> None:
        """Write the model into a new folder, which `Model.load` and `fedmlh predict` read."""
        target = Path(folder)
        if target.exists() and not (target.is_dir() and is_empty(target)):
            raise UserError(f"{target} is not empty: name a new folder")
        write_bundle(target, self.bundle)

    def __reduce__(self) -> tuple[Any, ...]:
        return Model, (self.bundle,)

    def __repr__(self) -> str:
        task = self.bundle.task
        return f"<Model {task.config.method}: {task.num_features:,} features, {task.num_labels:,} labels>"

    @property
    def score_meaning(self) -> str:
        """Return what a score means, in one sentence."""
        tables = self.bundle.task.num_tables
        if self.bundle.terms is not None:
            what = (
                "answer for the label" if self.bundle.task.identity else f"mean answer for the label's {tables} buckets"
            )
            more = " and the networks' mean logit" if self.bundle.networks is not None else ""
            return f"score: the linear model's {what}{more}, made larger for rare labels; higher is likelier"
        names = {"log-probs": "log-probability", "probs": "probability", "logits": "logit"}
        config = self.bundle.task.config
        what = names[config.decoding]
        balanced = config.loss.startswith("balanced-") and config.loss_tau > 0
        end = "higher is likelier" + (", beyond what its frequency alone says" if balanced else "")
        if self.bundle.task.identity:
            return f"score: the model's {what} of the label, mean over tables; {end}"
        return f"score: mean {what} of the label's {tables} buckets, which other labels share; {end}"

    @property
    def probability_meaning(self) -> str:
        """Say in one sentence where probabilities are from."""
        curve = self.bundle.curve
        if curve is None:
            return "probability: none, the scores are not calibrated (no points were held out)"
        return f"probability: how often labels with such a score were true, on {curve.points:,} held-out points"

    def predict(self, points: "Points", k: int = 5, threshold: float = 0.0) -> list[list[Prediction]]:
        """Return the k best labels of each point; with a threshold, only those that are at least that probable.

        Points are texts if the model was trained on text, else rows of raw features. A text without a word that
        the model knows has no labels; networks alone take every word for known.
        """
        return list(self.predict_stream(points, k, threshold))

    def predict_stream(self, points: "Points", k: int = 5, threshold: float = 0.0) -> Iterator[list[Prediction]]:
        """Yield what `predict` returns, for one point after another."""
        if isinstance(threshold, bool) or not isinstance(threshold, Real) or not 0 <= threshold <= 1:
            raise UserError(f"threshold is {threshold!a:.60}: it must be a number from 0 to 1")
        if threshold and self.bundle.curve is None:
            raise UserError("this model has no probabilities, since no points were held out: set no threshold")
        of_text = _is_text(points)
        for ranked in self.rank_rows(self.read(points), k):
            labels = self.name(ranked) if ranked.is_known or not of_text else []
            yield [label for label in labels if not threshold or (label["probability"] or 0.0) >= threshold]

    def rank(self, points: "Points", k: int = 5) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield for each point the numbers of its k best labels, best first, and their scores."""
        for ranked in self.rank_rows(self.read(points), k):
            yield ranked.columns, ranked.scores

    def rank_rows(self, rows: Rows, k: int) -> Iterator[Ranked]:
        """Yield what `rank` does, of points that were read; say also whether the model knows anything of a point."""
        if isinstance(k, bool) or not isinstance(k, Integral) or k < 1:
            raise UserError(f"k is {k!a:.60}: it must be a whole number of at least 1")
        most = min(int(k), len(self.bundle.labels))
        size = min(_LARGEST_BATCH, count_at_once(self._parts))
        for begin in range(0, len(rows), size):
            some = rows.take(begin, min(begin + size, len(rows)))
            seen = [part.scorer.find(some) for part in self._parts]
            # Only the linear model's features are known to occur in training: networks take any word.
            known = np.any([np.diff(features.starts) > 0 for features in seen[0]], axis=0)
            scores = [part.scorer.score(features) for part, features in zip(self._parts, seen, strict=True)]
            sound = np.all([np.isfinite(found).all(axis=(0, 2)) for found in scores], axis=0)
            for found in scores:
                found[:, ~sound] = 0
            columns, values = rank_labels(self._parts, scores, most)
            values[~sound] = np.nan
            yield from map(Ranked._make, zip(known, columns, values, strict=True))

    def read(self, points: "Points") -> Rows:
        """Return points as rows of raw features; refuse those that the model cannot know."""
        with np.errstate(over="ignore"):  # a number too large for single precision becomes infinity, and is refused
            rows = self._read_texts(points) if _is_text(points) else _read_numbers(points)
        if not np.isfinite(rows.values).all():
            raise UserError("the points contain NaN or infinity: prepare them in the same way as the training data")
        if rows.width != self.bundle.task.num_features:
            raise UserError(
                f"the points have {rows.width:,} features, the model was trained on {self.bundle.task.num_features:,}: "
                f"prepare them in the same way as the training data"
            )
        return rows

    def explain(self, points: "Points", k: int = 5, threshold: float = 0.0) -> Iterator[list[Explained]]:
        """Yield what `predict` returns, for one point after another, each label with the reasons for it."""
        rows, keys = self.read(points), self.bundle.labels.keys
        place = {key: column for column, key in enumerate(keys)}
        for number, labels in enumerate(self.predict_stream(points, k, threshold)):
            if _is_text(points):
                words, others = leave_words_out(str(points[number]))  # type: ignore[index]
                without = self.read(others)
            else:
                words, without = leave_features_out(rows.take(number, number + 1))
            both = Rows.join([rows.take(number, number + 1), without])
            columns = [place[label["key"]] for label in labels]
            reasons = find_reasons(self._parts, words, both, columns, self.bundle.labels.names)
            yield [{**label, **why} for label, why in zip(labels, reasons, strict=True)]

    def evaluate(self, dataset: Dataset, device: str = "cpu") -> "Values":
        """Return every metric on the test part of a data set that has the model's features and labels."""
        examined = self.examine(dataset, device=device)
        return {**examined.values, **examined.by_label}

    def examine(
        self, dataset: Dataset, *, threshold: float | None = None, top: int | None = None, device: str = "cpu"
    ) -> "Examined":
        """Return all metrics on the test part of a data set, with figures of each label and what each point got.

        Labels are proposed if they are at least that probable, at most `top` per point; see evaluation/proposals.py.
        """
        from fedmlh.evaluation.evaluate import Evaluator, LabelCounts
        from fedmlh.evaluation.proposals import Rule
        from fedmlh.runs.model_tools import make_tools

        check_dataset(dataset)
        bundle = self.bundle
        if (dataset.num_features, dataset.labels.keys) != (bundle.task.num_features, bundle.labels.keys):
            raise UserError(
                f"{dataset.name} has {dataset.num_features:,} features and {dataset.num_labels:,} labels, the model "
                f"{bundle.task.num_features:,} and {bundle.task.num_labels:,}, or the labels differ: "
                f"pass the data that the model was trained on"
            )
        if dataset.text is not None and bundle.text is not None and dataset.text.to_json() != bundle.text.to_json():
            raise UserError(
                f"the text of {dataset.name} became features in another way than the model's training text: evaluate "
                f"on the data that it was trained on, or train with text_features=hashing, which fits any text"
            )
        features, ranker, model = make_tools(bundle, device)
        evaluator = Evaluator(bundle.task.config, LabelCounts.of(dataset.train), features, ranker)
        rule = Rule.of(bundle.curve, max(evaluator.ks), threshold, top)
        return evaluator.examine(model, evaluator.prepare(dataset.test), bundle.curve, rule)

    @cached_property
    def _parts(self) -> list[Part]:
        return open_parts(self.bundle)

    def name(self, ranked: Ranked) -> list[Prediction]:
        """Return ranked labels with their names and probabilities; refuse scores that are no numbers."""
        _, columns, scores = ranked
        if not np.isfinite(scores).all():
            raise UserError("the features are so large that scores are no numbers: prepare them as the training data")
        labels, curve = self.bundle.labels, self.bundle.curve
        chances: list[Any] = [None] * len(scores) if curve is None else curve.apply(scores).tolist()
        return [
            {"key": labels.keys[column], "name": labels.names[column], "score": score, "probability": chance}
            for column, score, chance in zip(columns.tolist(), scores.tolist(), chances, strict=True)
        ]

    def _read_texts(self, texts: Any) -> Rows:
        if isinstance(texts, str):
            raise UserError("predict takes a list of texts: put a single text in brackets, [text]")
        if self.bundle.text is None:
            raise UserError("this model was trained on prepared features, not on text: pass rows of features instead")
        if not all(isinstance(text, str) for text in texts):
            raise UserError("not all of the texts are strings")
        return self.bundle.text.read(list(map(str, texts)))


def _is_text(points: object) -> bool:
    return isinstance(points, str | Sequence) or (isinstance(points, np.ndarray) and points.dtype.kind in "OSU")


def _read_numbers(points: Any) -> Rows:
    """Return rows of numbers, whatever holds them."""
    if isinstance(points, Rows):
        return points
    if hasattr(points, "tocoo"):
        found = points.tocoo()
        owners, columns, values, shape = found.row, found.col, found.data, found.shape
    else:
        dense = np.atleast_2d(_make_dense(points))
        owners, columns = np.nonzero(dense)
        values, shape = dense[owners, columns], dense.shape
    return Rows.gather(owners.astype(np.int64), columns.astype(np.int64), values, shape)


def _make_dense(points: Any) -> np.ndarray:
    """Return points as an array of numbers; refuse what is none, such as a Dataset or a generator."""
    dense = np.asarray(points)
    if dense.ndim and dense.dtype.kind in "biuf":
        return dense
    try:
        if dense.ndim and dense.dtype.kind == "O":
            return dense.astype(np.float64)
    except (TypeError, ValueError):
        pass
    raise UserError(
        f"predict takes a list of texts, or rows of features (an array, or a sparse matrix such as dataset.test.X), "
        f"not a {type(points).__name__}"
    )
