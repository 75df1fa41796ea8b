"""Features of raw text; a model keeps them, so that a query is read in the same way as the training text."""

import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from fedmlh.errors import UserError
from fedmlh.hashing.murmur import hash_strings
from fedmlh.hashing.rows import Rows

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

#: Words are runs of two or more letters and digits.
TOKEN = re.compile(r"[^\W_]{2,}")
DEFAULT_DIM = 2**18
KINDS = ("hashing", "tfidf")
#: Different words that are held at once while texts are read.
_WORDS_AT_ONCE = 1 << 16


@dataclass(frozen=True)
class TextFeatures:
    """Words and word pairs as an L2-normed row, either hashed or weighed by a fitted vocabulary.

    `hashing` learns nothing from the data; federations use it. `tfidf` keeps the vocabulary and the document
    frequencies of the training text, and publishes them with the model: it is for central and simulated runs only.
    """

    kind: str
    num_features: int
    vocabulary: tuple[str, ...] = ()
    idf: tuple[float, ...] = ()

    def __repr__(self) -> str:
        return f"<text features: {self.kind}, {self.num_features:,}>"

    @classmethod
    def hashing(cls, dim: int = DEFAULT_DIM) -> "TextFeatures":
        """Return features by hashing: each word and pair adds to one of `dim` features."""
        if isinstance(dim, bool) or not isinstance(dim, int) or not 1 <= dim < 2**31:
            raise UserError(f"text dimension {dim!r} should be a whole number from 1 below 2,147,483,648")
        return cls("hashing", dim)

    @classmethod
    def fit_tfidf(cls, texts: Sequence[str]) -> "TextFeatures":
        """Fit tf-idf features to training text; a word or pair counts if at least two texts have it."""
        from sklearn.feature_extraction.text import TfidfVectorizer

        vectorizer = TfidfVectorizer(analyzer=find_words, dtype=np.float32, min_df=2)
        try:
            vectorizer.fit(texts)
        except ValueError:
            raise UserError(
                "no word occurs in two of the training texts, so tf-idf has nothing to fit: use text_features 'hashing'"
            ) from None
        return cls(
            "tfidf",
            len(vectorizer.idf_),
            tuple(vectorizer.get_feature_names_out().tolist()),
            tuple(vectorizer.idf_.tolist()),
        )

    def transform(self, texts: Sequence[str]) -> "csr_matrix":
        """Turn texts into features [n, num_features]: float32, canonical CSR."""
        from scipy.sparse import csr_matrix

        rows = self.read(texts)
        return csr_matrix((rows.values, rows.columns, rows.starts), shape=(len(rows), self.num_features))

    def read(self, texts: Sequence[str]) -> Rows:
        """Turn texts into features [n, num_features], with numpy alone."""
        return Rows.join([Rows.empty(0, self.num_features), *self._read_blocks(texts)])

    def _read_blocks(self, texts: Sequence[str]) -> Iterator[Rows]:
        """Yield the rows of some texts after another, so that memory holds the words of a few."""
        columns: list[np.ndarray] = []
        words: dict[str, int] = {}
        places, counts = array("I"), array("q")
        for number, text in enumerate(texts, 1):
            before = sum(map(len, columns)) + len(places)
            for word in find_words(text):
                places.append(words.setdefault(word, len(words)))
                if len(words) == _WORDS_AT_ONCE:
                    columns.append(self._find_columns(words)[places])
                    words, places = {}, array("I")
            counts.append(sum(map(len, columns)) + len(places) - before)
            if before + counts[-1] >= _WORDS_AT_ONCE or number == len(texts):
                yield self._weigh(np.concatenate([*columns, self._find_columns(words)[places]]), np.array(counts))
                columns, words, places, counts = [], {}, array("I"), array("q")

    def _weigh(self, found: np.ndarray, counts: np.ndarray) -> Rows:
        """Return the rows of texts with that many words each, whose features are given one after the other."""
        owners, known = np.repeat(np.arange(len(counts)), counts), found >= 0
        shape = (len(counts), self.num_features)
        rows = Rows.gather(owners[known], found[known], np.ones(np.count_nonzero(known)), shape)
        if self.kind == "tfidf":
            rows = replace(rows, values=rows.values * np.array(self.idf, np.float32)[rows.columns])
        return rows.scaled_to_one()

    def _find_columns(self, words: dict[str, int]) -> np.ndarray:
        """Return the feature of each word, -1 where it has none."""
        if self.kind == "tfidf":
            return np.array([self._places.get(word, -1) for word in words], np.int64)
        # The absolute value of the hash as a signed number: what scikit-learn's FeatureHasher takes.
        signed = hash_strings(list(words), 0).view(np.int32).astype(np.int64)
        return np.asarray(np.abs(signed) % self.num_features)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {word: place for place, word in enumerate(self.vocabulary)}

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` needs to make these features again."""
        if self.kind == "hashing":
            return {"kind": self.kind, "dim": self.num_features}
        return {"kind": self.kind, "vocabulary": list(self.vocabulary), "idf": list(self.idf)}

    @classmethod
    def from_json(cls, content: object) -> "TextFeatures":
        """Read what `to_json` returned; refuse a damaged or foreign description."""
        kind = content.get("kind") if isinstance(content, dict) else None
        if not isinstance(content, dict) or kind not in KINDS:
            raise UserError(f"text features: the kind should be one of {', '.join(KINDS)}, is {kind!r:.40}")
        expected = {"kind", "dim"} if kind == "hashing" else {"kind", "vocabulary", "idf"}
        if set(content) != expected:
            raise UserError(f"text features {kind}: the fields should be {', '.join(sorted(expected))}")
        if kind == "hashing":
            return cls.hashing(content["dim"])
        words, idf = content["vocabulary"], content["idf"]
        if not isinstance(words, list) or not all(isinstance(word, str) and word for word in words):
            raise UserError("text features tfidf: the vocabulary should be a list of words")
        if not words or len(set(words)) != len(words):
            raise UserError("text features tfidf: the vocabulary is empty or lists a word twice")
        if not isinstance(idf, list) or not all(isinstance(x, float) and 0 < x < 1e30 for x in idf):
            raise UserError("text features tfidf: idf should be a list of positive numbers")
        if len(idf) != len(words):
            raise UserError(f"text features tfidf: {len(words):,} words, but {len(idf):,} weights")
        return cls("tfidf", len(words), tuple(words), tuple(idf))


def find_words(text: str) -> Iterator[str]:
    """Yield the words of a text and the pairs of neighbours, in small letters.

    One after another: as a list they would take fifty times the memory of a long text.
    """
    before = None
    for found in TOKEN.finditer(text.lower()):
        word = found[0]
        yield word
        if before is not None:
            yield f"{before} {word}"
        before = word
