"""The one form that data has inside the product, whatever files it came from."""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmlh.data.originals import Original
from fedmlh.data.text import DEFAULT_DIM, TextFeatures
from fedmlh.display import count
from fedmlh.errors import UserError

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


@dataclass(frozen=True)
class Labels:
    """The label catalogue: a stable key for each label (its id at the source) and the name people read."""

    keys: tuple[str, ...]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.keys)

    def __repr__(self) -> str:
        shown = ", ".join(name if len(name) <= 20 else f"{name[:19]}…" for name in self.names[:3])
        return f"<{len(self):,} labels: {shown}{', …' if len(self) > 3 else ''}>"

    @classmethod
    def numbered(cls, count: int) -> "Labels":
        """Return numbers as the labels of a source that does not name them."""
        numbers = tuple(str(number) for number in range(count))
        return cls(numbers, numbers)


@dataclass(frozen=True)
class Split:
    """Points ready for use. Features X [n, d] are float32, labels Y [n, p] are ones; both are canonical CSR."""

    X: "csr_matrix"
    Y: "csr_matrix"
    #: Pairs (point, label) that are never scored [n, p]: the reciprocal pairs of the LF data sets.
    excluded: "csr_matrix | None" = None
    #: If the data comes in one folder per site: the number of the site that owns each point [n].
    sites: np.ndarray | None = None

    def __len__(self) -> int:
        return int(self.X.shape[0])

    def __repr__(self) -> str:
        return f"<{len(self):,} points, {self.X.shape[1]:,} features, {self.Y.shape[1]:,} labels>"

    def take(self, rows: np.ndarray) -> "Split":
        """Return the given points, in the given order."""
        return Split(
            self.X[rows],
            self.Y[rows],
            None if self.excluded is None else self.excluded[rows],
            None if self.sites is None else self.sites[rows],
        )


@dataclass(frozen=True)
class Dataset:
    """A training and a test part that agree in features and labels."""

    name: str
    train: Split
    test: Split
    labels: Labels
    #: How raw text became X; None if the features came prepared.
    text: TextFeatures | None = None
    #: Remarks of the reader for the user (duplicates summed, …).
    notes: tuple[str, ...] = ()
    #: Names of the sites that `Split.sites` numbers, if there are any.
    site_names: tuple[str, ...] = ()
    #: Number of the first feature in svmlight files (0 or 1); None for other data.
    first_feature: int | None = None
    #: Gives the test points as texts, in their order; None if they were none or nobody can read them again.
    originals: Callable[[], Iterable[Original]] | None = None

    def __post_init__(self) -> None:
        for part, split in (("training", self.train), ("test", self.test)):
            for name, matrix in (("features", split.X), ("labels", split.Y)):
                if not _is_sound(matrix) or (name == "labels" and np.any(matrix.data != 1)):
                    raise UserError(
                        f"{self.name}: the {name} of the {part} part must be a scipy csr_matrix of finite float32 with "
                        f"sorted, distinct indices (sum_duplicates, eliminate_zeros), labels all 1"
                    )
            if split.X.shape[0] != split.Y.shape[0]:
                raise UserError(
                    f"{self.name}: the {part} part has {split.X.shape[0]:,} rows of features "
                    f"but {split.Y.shape[0]:,} rows of labels"
                )
            if split.Y.shape[1] != len(self.labels):
                raise UserError(
                    f"{self.name}: the {part} part has {split.Y.shape[1]:,} label columns, "
                    f"the label catalogue names {len(self.labels):,}"
                )
        if self.train.X.shape[1] != self.test.X.shape[1]:
            raise UserError(
                f"{self.name}: the training part has {self.train.X.shape[1]:,} features, "
                f"the test part {self.test.X.shape[1]:,}"
            )

    @classmethod
    def from_texts(
        cls,
        texts: Iterable[str],
        labels: Any,
        *,
        sites: Any = None,
        test: Any = 0.2,
        seed: int = 0,
        name: str = "memory",
        text_features: str = "hashing",
        text_dim: int = DEFAULT_DIM,
    ) -> "Dataset":
        """Make a data set of texts and their labels.

        labels: a list of labels per text, one label per text, or a matrix of 0 and 1 with a column per label.
        sites: the name of the site that owns each text; each site becomes a client of its own.
        test: the share of texts that become the test part, or (texts, labels) of one.
        text_features: "hashing" needs no vocabulary; "tfidf" fits one on the training texts.
        """
        from fedmlh.data.memory import from_texts

        return from_texts(texts, labels, sites, test, seed, name, text_features, text_dim)

    @classmethod
    def from_arrays(
        cls, X: Any, Y: Any, *, sites: Any = None, test: Any = 0.2, seed: int = 0, name: str = "memory"
    ) -> "Dataset":
        """Make a data set of features and labels: numpy arrays, scipy matrices or data frames.

        X: a matrix of numbers, a row per point. Y: a matrix of 0 and 1 with a column per label, a list of labels per
        point, or one label per point. sites, test: as in `from_texts`.
        """
        from fedmlh.data.memory import from_arrays

        return from_arrays(X, Y, sites, test, seed, name)

    def __repr__(self) -> str:
        sites = f", {count(len(self.site_names), 'site')}" if self.site_names else ""
        return (
            f"<Dataset {self.name!r}: {len(self.train):,} training and {len(self.test):,} test points, "
            f"{count(self.num_features, 'feature')}, {count(self.num_labels, 'label')}{sites}>"
        )

    @cached_property
    def fingerprint(self) -> str:
        """Return a name for the content, so that a run is not resumed on other data."""
        digest = hashlib.sha256(repr(self.labels.keys).encode())
        for split in (self.train, self.test):
            for matrix in (split.X, split.Y, split.excluded):
                if matrix is not None:
                    for array in (matrix.data, matrix.indices, matrix.indptr, np.array(matrix.shape)):
                        digest.update(array.tobytes())
            if split.sites is not None:
                digest.update(split.sites.tobytes())
        return digest.hexdigest()[:16]

    @property
    def num_features(self) -> int:
        """Return d, the number of features before any hashing."""
        return int(self.train.X.shape[1])

    @property
    def num_labels(self) -> int:
        """Return p, the number of labels."""
        return len(self.labels)

    @property
    def has_raw_words(self) -> bool:
        """Whether features are hashed words, which nobody has weighed or selected; those of tf-idf have been."""
        return self.text is not None and self.text.kind == "hashing"


def check_dataset(data: object) -> None:
    """Refuse what is not a Dataset, such as the path of one."""
    if not isinstance(data, Dataset):
        raise UserError(
            f"{data!r:.60} is not a Dataset: pass fedmlh.load(path), Dataset.from_texts(…) or Dataset.from_arrays(…)"
        )


def _is_sound(matrix: "csr_matrix") -> bool:
    from scipy.sparse import csr_matrix

    plain = isinstance(matrix, csr_matrix) and matrix.dtype == np.float32
    return plain and bool(matrix.has_canonical_format) and bool(np.isfinite(matrix.data).all())
