"""Features of raw text; a model keeps them, so that a query is read in the same way as the training text."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from fedmlh.errors import UserError

#: Words are runs of two or more letters and digits.
TOKEN = re.compile(r"[^\W_]{2,}")
DEFAULT_DIM = 2**18
KINDS = ("hashing", "tfidf")


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
        vectorizer = build_tfidf(min_df=2)
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

    def transform(self, texts: Sequence[str]) -> csr_matrix:
        """Turn texts into features [n, num_features]: float32, canonical CSR."""
        if not len(texts):
            return csr_matrix((0, self.num_features), dtype=np.float32)
        X = csr_matrix(self._vectorizer.transform(texts), dtype=np.float32)
        X.sum_duplicates()
        X.eliminate_zeros()
        return X

    @cached_property
    def _vectorizer(self) -> Any:
        if self.kind == "tfidf":
            vectorizer = build_tfidf(vocabulary=self.vocabulary)
            vectorizer.idf_ = np.array(self.idf, np.float32)
            return vectorizer
        # scikit-learn takes a second to import, which a command that reads no text should not pay.
        from sklearn.feature_extraction.text import HashingVectorizer

        return HashingVectorizer(
            n_features=self.num_features,
            analyzer=find_words,
            alternate_sign=False,
            norm="l2",
            dtype=np.float32,
        )

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


def build_tfidf(**settings: Any) -> Any:
    """Make the vectorizer that fits a vocabulary, or works with a given one."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(analyzer=find_words, norm="l2", dtype=np.float32, **settings)


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
