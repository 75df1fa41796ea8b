"""A trained model in use: points or texts in, labels with their names out."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from scipy.sparse import csr_matrix
from torch import Tensor

from fedmlh.data.dataset import Dataset
from fedmlh.errors import UserError
from fedmlh.evaluation.evaluate import Evaluator, LabelCounts, Values
from fedmlh.lock import is_empty
from fedmlh.model.losses import find_loss
from fedmlh.runs.model_folder import Bundle, load_bundle, write_bundle


class Prediction(TypedDict):
    """A label that the model proposes, as a plain dict; the higher the score, the likelier the label."""

    key: str
    name: str
    score: float


class Model:
    """A trained model, ready to predict."""

    def __init__(self, bundle: Bundle, device: str = "cpu") -> None:
        self.bundle = bundle
        self.device = device
        self._features, self._ranker = bundle.make_tools(device)
        self._weights = bundle.weights.to(device) if isinstance(bundle.weights, Tensor) else bundle.weights

    @classmethod
    def load(cls, folder: str | Path, device: str = "cpu") -> "Model":
        """Return the model of a run folder, or of a model folder that was copied out of one."""
        folder = root = Path(folder)
        if not folder.is_dir():
            raise UserError(f"{folder} is not a folder: name a run folder, or the model folder inside one")
        if (folder / "config.toml").is_file() and not os.path.lexists(folder / "manifest.json"):
            if not (folder / "model").is_dir():
                raise UserError(f"{folder} holds no model yet: finish the run first (resume=True, --resume)")
            folder = folder / "model"
        return cls(load_bundle(folder, root), device)

    def save(self, folder: str | Path) -> None:
        """Write the model into a new folder, which `Model.load` and `fedmlh predict` read."""
        target = Path(folder)
        if target.exists() and not (target.is_dir() and is_empty(target)):
            raise UserError(f"{target} is not empty: name a new folder")
        write_bundle(target, self.bundle)

    def __reduce__(self) -> tuple[Any, ...]:
        return Model, (self.bundle, self.device)

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
        balanced = find_loss(config.loss).known is not None and config.loss_tau > 0
        end = "higher is likelier" + (", beyond what its frequency alone says" if balanced else "")
        if self.bundle.task.identity:
            return f"score: the model's {what} of the label, mean over tables; {end}"
        return f"score: mean {what} of the label's {tables} buckets, which other labels share; {end}"

    def predict(self, points: Sequence[str] | csr_matrix | np.ndarray, k: int = 5) -> list[list[Prediction]]:
        """Return the k best labels of each point.

        points: texts if the model was trained on text; else rows of raw features, as any scipy sparse matrix or numpy
        array.
        """
        return list(self.predict_stream(points, k))

    def predict_stream(self, points: Sequence[str] | csr_matrix | np.ndarray, k: int = 5) -> Iterator[list[Prediction]]:
        """Yield the k best labels of one point after another."""
        keys, names = self.bundle.labels.keys, self.bundle.labels.names
        for columns, scores in self.rank(points, k):
            yield [
                {"key": keys[column], "name": names[column], "score": float(score)}
                for column, score in zip(columns, scores, strict=True)
            ]

    def rank(
        self, points: Sequence[str] | csr_matrix | np.ndarray, k: int = 5
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield for each point the numbers of its k best labels, best first, and their scores."""
        if type(k) is not int or k < 1:
            raise UserError(f"k is {k!a}: ask for at least 1 label")
        with np.errstate(over="ignore"):  # a number too large for single precision becomes infinity, and is refused
            X = self._vectorize(points) if _is_text(points) else csr_matrix(points, dtype=np.float32)
        if not np.isfinite(X.data).all():
            raise UserError("the points contain NaN or infinity: prepare them in the same way as the training data")
        if X.shape[1] != self.bundle.task.num_features:
            raise UserError(
                f"the points have {X.shape[1]:,} features, the model was trained on {self.bundle.task.num_features:,}: "
                f"prepare them in the same way as the training data"
            )
        most = min(k, len(self.bundle.labels))
        for _, labels, scores in self._ranker.rank(self._weights, self._features.apply(X), most):
            for row, values in zip(labels, scores, strict=True):
                found = row >= 0
                yield row[found], values[found]

    def evaluate(self, dataset: Dataset) -> Values:
        """Return every metric on the test part of a data set that has the model's features and labels."""
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
        counts = LabelCounts.of(dataset.train)
        evaluator = Evaluator(bundle.task.config, counts, self._features, self._ranker)
        examined = evaluator.examine(self._weights, evaluator.prepare(dataset.test))
        return {**examined.values, **examined.by_label}

    def _vectorize(self, texts: Any) -> Any:
        if isinstance(texts, str):
            raise UserError("predict takes a list of texts: put a single text in brackets, [text]")
        if self.bundle.text is None:
            raise UserError("this model was trained on prepared features, not on text: pass rows of features instead")
        if not all(isinstance(text, str) for text in texts):
            raise UserError("not all of the texts are strings")
        return self.bundle.text.transform(list(map(str, texts)))


def _is_text(points: object) -> bool:
    return isinstance(points, str | Sequence) or (isinstance(points, np.ndarray) and points.dtype.kind in "OSU")
