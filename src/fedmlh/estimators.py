"""FedMLH and FedAvg as scikit-learn classifiers: fit trains a simulated federation, predict uses its model."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np
from scipy.sparse import csr_matrix, issparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import assert_all_finite, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from fedmlh.config import Config
from fedmlh.data.dataset import Dataset, Split
from fedmlh.data.memory import LabelTable, check_lengths, check_texts, number_sites, to_labels
from fedmlh.data.text import TextFeatures
from fedmlh.engines.run import run
from fedmlh.errors import UserError
from fedmlh.planning.choices import CLIENTS, SAMPLED, settle
from fedmlh.serving.predictor import Model

#: Without sites, a client has at least this many points.
_POINTS_PER_CLIENT = 50
#: The most probabilities that are returned as one array.
_MOST_PROBABILITIES = 1 << 27
_CHECKS: Mapping[str, Any] = {"accept_sparse": "csr", "dtype": np.float64}


class FedMLHClassifier(ClassifierMixin, BaseEstimator):
    """A classifier for few or very many labels, trained by a simulated federation.

    Points are rows of numbers (dense or sparse) or texts. y holds one label per point, a list of labels per point, or
    is a matrix of 0 and 1 with a column per label.

    Parameters
    ----------
    config : a preset, a TOML file or a fedmlh.Config.
    settings : a dict of settings on top of it, like {"rounds": 20} (`fedmlh config` lists them all).
    random_state : the seed of the run; the same seed gives the same model, to the bit.
    out : a folder for the run with its checkpoints and report figures; without it nothing is kept on disk.
    verbose : whether to print what was chosen, and a line per round.
    """

    def __init__(
        self,
        config: str | Path | Config = "recommended",
        *,
        settings: Mapping[str, Any] | None = None,
        random_state: Any = 0,
        out: str | Path | None = None,
        verbose: bool = False,
    ) -> None:
        self.config = config
        self.settings = settings
        self.random_state = random_state
        self.out = out
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sites: Any = None) -> Self:
        """Train on points and their labels; `sites` names the site that owns each point.

        Without sites, the config's partition distributes the points over clients.
        """
        with _python_words():
            features, text = self._read_points(X, y)
            table = self._read_labels(y, features.shape[0])
            owners, names = (None, ()) if sites is None else number_sites(sites, features.shape[0])
            train = Split(features, table.Y, None, owners)
            # A run tests its model, which is of no interest here: one training point serves as the test part.
            dataset = Dataset("memory", train, train.take(np.zeros(1, np.int64)), table.catalogue, text, (), names)
            config, _ = settle(self._configure(len(train), sites is not None), dataset)
            with _place(self.out) as folder:
                self.run_ = run(config, dataset, folder, tell=self._say, watch=self._say_round)
                self.model_ = Model.load(self.run_.folder)
        return self

    def predict(self, X: Any) -> Any:
        """Return the likeliest label of each point, or, if points have several, all of at least 50 % in y's form."""
        check_is_fitted(self, "model_")
        if self.single_label_:
            best = np.array([column for (column,), _ in self._rank(X, 1)], np.int64)
            return self.classes_[best]
        lists = [
            [int(column) for column, chance in zip(columns, self._find_chances(scores), strict=True) if chance >= 0.5]
            for columns, scores in self._rank(X, len(self.classes_))
        ]
        if self.label_form_ == "lists":
            names = self.classes_.tolist()
            return [[names[column] for column in columns] for columns in lists]
        counts = np.array([0, *map(len, lists)]).cumsum()
        places = np.array([column for columns in lists for column in columns], np.int64)
        Y = csr_matrix((np.ones(len(places), np.int64), places, counts), shape=(len(lists), len(self.classes_)))
        Y.sort_indices()
        return Y if self.label_form_ == "sparse" else Y.toarray()

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of every label for each point; rows sum to 1 if points have one label.  # [n, p]"""
        X, num_points = self._prepare(X)
        num_labels = len(self.classes_)
        if num_points * num_labels > _MOST_PROBABILITIES:
            raise ValueError(
                f"{num_points:,} points times {num_labels:,} labels are too many probabilities for one array: use "
                f"predict_top(X, k), or pass fewer points at a time"
            )
        found = np.zeros((num_points, num_labels))
        for row, (columns, scores) in enumerate(self._rank(X, num_labels)):
            found[row, columns] = self._find_chances(scores)
        return found / found.sum(axis=1, keepdims=True) if self.single_label_ else found

    def predict_top(self, X: Any, k: int = 5) -> list[list[dict[str, Any]]]:
        """Return the k likeliest labels of each point, best first, each with its score and probability."""
        check_is_fitted(self, "model_")
        names = self.classes_.tolist()  # plain Python values, which JSON accepts
        return [
            [
                {"label": names[column], "score": float(score), "probability": float(chance)}
                for column, score, chance in zip(columns, scores, self._find_chances(scores), strict=True)
            ]
            for columns, scores in self._rank(X, k)
        ]

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of points whose likeliest label is one of theirs (accuracy, or P@1 with several labels)."""
        if self.single_label_:
            return float(super().score(X, y, sample_weight))
        table = to_labels(y, None if issparse(y) or isinstance(y, np.ndarray) else tuple(self.classes_))
        hits = [table.Y[row, columns[0]] > 0 for row, (columns, _) in enumerate(self._rank(X, 1))]
        return float(np.average(hits, weights=sample_weight))

    def __sklearn_tags__(self) -> Any:
        """Return what the estimator accepts."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.classifier_tags.multi_label = True
        return tags

    def _configure(self, num_points: int, by_site: bool) -> Config:
        """Return the config of the run; few points are given to fewer clients."""
        state = self.random_state
        seed = int(state) if isinstance(state, int | np.integer) else int(check_random_state(state).randint(2**31 - 1))
        config = self._load_config().replace(**{"seed": seed, **(self.settings or {})})
        clients = max(1, min(CLIENTS, num_points // _POINTS_PER_CLIENT))
        if by_site or config.num_clients or clients == CLIENTS:
            return config
        # So few held-out points cannot tell whether networks beside a linear model help.
        few = {"num_clients": clients, "clients_per_round": min(clients, SAMPLED), "partition": "iid", "correct": 0}
        return config.replace(**{name: value for name, value in few.items() if name not in (self.settings or {})})

    def _load_config(self) -> Config:
        """Return the config without the settings on top of it."""
        return self.config if isinstance(self.config, Config) else Config.load(self.config)

    def _read_points(self, X: Any, y: Any) -> tuple[csr_matrix, TextFeatures | None]:
        if _holds_texts(X):
            self.text_: TextFeatures | None = TextFeatures.hashing()
            return self.text_.transform(check_texts(X, "X")), self.text_
        self.text_ = None
        return self._to_matrix(validate_data(self, X, **_CHECKS, ensure_min_samples=2)), None

    def _read_labels(self, y: Any, num_points: int) -> LabelTable:
        if y is None:
            raise ValueError("This FedMLHClassifier requires y to be passed, but the target y is None")
        if hasattr(y, "__array__") and not hasattr(y, "columns"):
            y = np.asarray(y)
        if _is_flat(y):
            y = column_or_1d(y, warn=True)
            if y.dtype.kind == "f":
                assert_all_finite(y, input_name="y")
            check_classification_targets(y)
            classes, columns = np.unique(y, return_inverse=True)
            table = LabelTable(to_labels(columns.tolist()).Y, tuple(classes.tolist()), single=True)
            self.classes_, self.label_form_ = classes, "flat"
        else:
            table = to_labels(y)
            self.classes_ = np.array(table.classes)
            self.label_form_ = "sparse" if issparse(y) else "matrix" if hasattr(y, "shape") else "lists"
        self.single_label_ = table.single
        check_lengths(num_points, table.Y.shape[0])
        return table

    def _prepare(self, X: Any) -> tuple[Any, int]:
        """Return points in the form that the model takes, and how many there are."""
        check_is_fitted(self, "model_")
        if isinstance(X, _Ready):
            return X, X.matrix.shape[0]
        if self.text_ is not None:
            if _holds_rows(X):
                raise ValueError("this model was fitted on texts: give a list of texts")
            with _python_words():
                matrix = self.text_.transform(check_texts(X, "X"))
        else:
            matrix = self._to_matrix(validate_data(self, X, **_CHECKS, reset=False))
        return _Ready(matrix), matrix.shape[0]

    @staticmethod
    def _to_matrix(X: Any) -> csr_matrix:
        with np.errstate(over="ignore"):
            found = csr_matrix(X, dtype=np.float32, copy=True)
        if not np.isfinite(found.data).all():
            raise ValueError("Input X contains infinity or a value too large for dtype('float32').")
        found.sum_duplicates()
        found.eliminate_zeros()
        return found

    def _rank(self, X: Any, k: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the columns and scores of the k best labels of each point."""
        ready, _ = self._prepare(X)
        yield from self.model_.rank(ready.matrix, k)

    def _find_chances(self, scores: np.ndarray) -> np.ndarray:
        """Return probabilities; of a model that too few points judged, ones that only rise with the score."""
        curve = self.model_.bundle.curve
        return 1 / (1 + np.exp(-np.clip(scores, -50, 50))) if curve is None else curve.apply(scores)

    def _say(self, line: str) -> None:
        if self.verbose:
            print(line)

    def _say_round(self, record: dict[str, Any]) -> None:
        values = (record.get("validation") or record.get("test") or {}).get("precision", {})
        shown = "/".join(f"{100 * value:.1f}" for value in values.values())
        self._say(f"round {record['round']}: P@{'/'.join(values)} {shown} %")


class FedAvgClassifier(FedMLHClassifier):
    """A classifier as FedMLHClassifier, with plain FedAvg: one network with an output per label, trained in rounds."""

    def _load_config(self) -> Config:
        """Return the config of the same model under FedAvg, without the settings on top of it."""
        return super()._load_config().replace(training="rounds", algorithm="fedavg")


@dataclass(frozen=True)
class _Ready:
    """Points that have been checked."""

    matrix: csr_matrix


@contextmanager
def _place(out: str | Path | None) -> Iterator[Path]:
    """Yield the folder of the run, or a temporary one that is removed in the end."""
    if out is not None:
        yield Path(out)
        return
    with TemporaryDirectory(prefix="fedmlh-") as folder:
        yield Path(folder) / "run"


@contextmanager
def _python_words() -> Iterator[None]:
    """Turn a UserError into the ValueError that users of scikit-learn expect."""
    try:
        yield
    except UserError as error:
        raise ValueError(str(error)) from None


def _holds_texts(X: Any) -> bool:
    """Say whether points are texts."""
    if isinstance(X, np.ndarray):
        return X.ndim == 1 and len(X) > 0 and isinstance(X[0], str)
    return isinstance(X, list | tuple) and len(X) > 0 and isinstance(X[0], str)


def _holds_rows(X: Any) -> bool:
    """Say whether points are rows of features."""
    if isinstance(X, list | tuple):
        return len(X) > 0 and isinstance(X[0], list | tuple | np.ndarray)
    return getattr(X, "ndim", 1) > 1


def _is_flat(y: Any) -> bool:
    """Say whether labels are one per point."""
    if issparse(y) or hasattr(y, "columns"):
        return False
    if isinstance(y, np.ndarray):
        # An array of lists of labels holds objects.
        return (y.ndim == 1 and not (len(y) and isinstance(y[0], list | tuple | set))) or (
            y.ndim == 2 and y.shape[1] == 1
        )
    return not any(isinstance(entry, list | tuple | set | frozenset | np.ndarray) for entry in list(y)[:1])
