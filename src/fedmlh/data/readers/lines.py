"""Lines `l1,l2 f:v f:v`: a plain parser that names what is wrong, and a fast one with the same results.

`parse_fast` accepts exactly what `parse_plain` accepts, with the same values, and returns None otherwise. So only a
block of lines with a mistake in it is read in the slow way, to name the line.
"""

import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fedmlh.data.limits import MAX_FEATURES, MAX_LABELS
from fedmlh.data.matrix import build_indptr
from fedmlh.data.readers.files import MAX_LINE, check_line
from fedmlh.errors import BadLine

BLOCK_BYTES = 1 << 20
NUMBER = re.compile(rb"[0-9.eE+-]+")
COMMENT = re.compile(rb"#[^\n]*")


@dataclass(frozen=True)
class Grammar:
    """The difference between the two line formats, and the limits of ids."""

    num_features: int = MAX_FEATURES
    num_labels: int = MAX_LABELS
    #: svmlight: '#' starts a comment, and a blank line is no point.
    svmlight: bool = False


@dataclass(frozen=True)
class ParsedRows:
    """Points as a text file gives them, before they become a `RawPart`: duplicates and zeros are still there."""

    labels: np.ndarray  # int32, point after point
    label_counts: np.ndarray  # int32 [n]
    features: np.ndarray  # int32
    values: np.ndarray  # float32
    feature_counts: np.ndarray  # int32 [n]

    def __len__(self) -> int:
        return len(self.label_counts)

    @property
    def nbytes(self) -> int:
        """Return the memory that the arrays take."""
        return sum(array.nbytes for array in vars(self).values())

    @classmethod
    def join(cls, blocks: list["ParsedRows"]) -> "ParsedRows":
        """Join consecutive blocks."""

        def stack(name: str, dtype: type) -> np.ndarray:
            return np.concatenate([np.zeros(0, dtype), *(getattr(block, name) for block in blocks)])

        return cls(
            stack("labels", np.int32),
            stack("label_counts", np.int32),
            stack("features", np.int32),
            stack("values", np.float32),
            stack("feature_counts", np.int32),
        )

    @property
    def label_indptr(self) -> np.ndarray:
        """Return where each point's labels start."""
        return build_indptr(self.label_counts)

    @property
    def feature_indptr(self) -> np.ndarray:
        """Return where each point's features start."""
        return build_indptr(self.feature_counts)


def read_blocks(path: Path, file: BinaryIO, lineno: int) -> Iterator[tuple[int, bytes]]:
    """Yield the rest of a file, from line `lineno` on, in blocks of whole lines, each with its first line's number."""
    while block := file.read(BLOCK_BYTES):
        rest = file.readline(MAX_LINE + 1)
        check_line(path, lineno + block.count(b"\n"), len(block) - block.rfind(b"\n") - 1 + len(rest))
        block += rest
        yield lineno, block
        lineno += block.count(b"\n")


def parse_block(path: Path, lineno: int, block: bytes, grammar: Grammar) -> ParsedRows:
    """Parse a block whose first line is number `lineno`; raise BadLine if a line is wrong."""
    rows = parse_fast(block, grammar)
    return parse_plain(path, lineno, block, grammar) if rows is None else rows


def quote(token: bytes) -> str:
    """Quote a piece of a bad line for a message."""
    text = token.decode("utf-8", "replace")
    return repr(text if len(text) <= 40 else text[:40] + "…")


def parse_whole(token: bytes, what: str, limit: int) -> int:
    """Parse a whole number below `limit`."""
    if not token.isdigit():
        raise ValueError(f"{what} {quote(token)} is not a whole number from 0")
    # A number of thousands of digits is not worth the conversion, which Python refuses.
    if len(token.lstrip(b"0")) > 18 or int(token) >= limit:
        raise ValueError(f"{what} {quote(token)} is not below {limit:,}")
    return int(token)


def parse_value(token: bytes) -> float:
    """Parse a finite decimal number that fits a 32-bit float."""
    try:
        value = float(token) if NUMBER.fullmatch(token) else float("nan")
    except ValueError:
        value = float("nan")
    if value != value:
        raise ValueError(f"value {quote(token)} is not a number")
    with np.errstate(over="ignore"):
        if not np.isfinite(np.float32(value)):
            raise ValueError(f"value {quote(token)} is too large for a 32-bit float")
    return value


def parse_line(line: bytes, grammar: Grammar) -> tuple[list[int], list[int], list[float]]:
    """Parse labels, features and values of one line; a ValueError says what is wrong with it."""
    tokens = [token for token in line.replace(b"\t", b" ").split(b" ") if token]
    labels, features, values = [], [], []
    if tokens and b":" not in tokens[0]:
        labels = [parse_whole(token, "label", grammar.num_labels) for token in tokens.pop(0).split(b",")]
    for token in tokens:
        name, colon, value = token.partition(b":")
        if not colon:
            raise ValueError(f"{quote(token)} should be feature:value")
        if name == b"qid":
            raise ValueError("qid is for ranking data and has no meaning here: take it out")
        features.append(parse_whole(name, "feature", grammar.num_features))
        values.append(parse_value(value))
    return labels, features, values


def parse_plain(path: Path, lineno: int, block: bytes, grammar: Grammar) -> ParsedRows:
    """Parse line by line, in Python, as the reference; `BadLine` names the first line that is wrong."""
    labels: list[int] = []
    features: list[int] = []
    values: list[float] = []
    counts: list[tuple[int, int]] = []
    for number, raw in enumerate(block.removesuffix(b"\n").split(b"\n"), start=lineno):
        line = raw.removesuffix(b"\r")
        if grammar.svmlight:
            line = line.partition(b"#")[0]
            if not line.strip(b" \t"):
                continue
        try:
            row = parse_line(line, grammar)
        except ValueError as problem:
            raise BadLine(path, number, str(problem)) from None
        labels += row[0]
        features += row[1]
        values += row[2]
        counts.append((len(row[0]), len(row[1])))
    per_row = np.array(counts, np.int32).reshape(-1, 2)
    return ParsedRows(
        np.array(labels, np.int32),
        per_row[:, 0],
        np.array(features, np.int32),
        np.array(values, np.float64).astype(np.float32),
        per_row[:, 1],
    )


# Classes of bytes. Those from SPACE on end a token.
DIGIT, IN_VALUE, BAD, SPACE, COMMA, COLON, NEWLINE = range(7)
# What lies between two neighbouring separators.
NOTHING, FIRST_LABEL, NEXT_LABEL, FEATURE, VALUE, WRONG = range(6)


def tabulate_classes() -> np.ndarray:
    """Return the class of each byte [256]."""
    table = np.full(256, BAD, np.uint8)
    for kind, members in (
        (DIGIT, b"0123456789"),
        (IN_VALUE, b".eE+-"),
        (SPACE, b" \t"),
        (COMMA, b","),
        (COLON, b":"),
        (NEWLINE, b"\n"),
    ):
        table[list(members)] = kind
    return table


def tabulate_tokens() -> np.ndarray:
    """Return what a token is, by (is it there, separator before, separator after) [2 * 8 * 8]."""
    table = np.full((2, 8, 8), WRONG, np.uint8)
    gaps = (SPACE, NEWLINE)
    for before in gaps:
        for after in gaps:
            table[0, before, after] = NOTHING
        table[1, before, [SPACE, NEWLINE, COMMA]] = FIRST_LABEL
        table[1, before, COLON] = FEATURE
    table[1, COMMA, [SPACE, NEWLINE, COMMA]] = NEXT_LABEL
    table[1, COLON, gaps] = VALUE
    return table.ravel()


CLASSES = tabulate_classes()
TOKENS = tabulate_tokens()
TO_SPACES = bytes.maketrans(b",:\n\t", b"    ")


def parse_fast(block: bytes, grammar: Grammar) -> ParsedRows | None:
    """Parse a good block as `parse_plain` does, many times as fast; return None for a block with a mistake."""
    if not block.endswith(b"\n"):
        block += b"\n"
    if b"\r" in block:
        block = block.replace(b"\r\n", b"\n")
    if grammar.svmlight and b"#" in block:
        block = COMMENT.sub(b"", block)

    classes = CLASSES[np.frombuffer(block, np.uint8)]
    if (classes == BAD).any():
        return None
    ends = np.flatnonzero(classes >= SPACE)
    after = classes[ends]
    before = np.concatenate([[np.uint8(NEWLINE)], after[:-1]])
    there = np.diff(ends, prepend=-1) > 1
    tokens = TOKENS[(there.view(np.uint8) << 6) | (before << 3) | after]
    if (tokens == WRONG).any():
        return None
    # A sign, point or exponent has its place in a value only.
    if (tokens[np.searchsorted(ends, np.flatnonzero(classes == IN_VALUE))] != VALUE).any():
        return None

    newlines = np.flatnonzero(after == NEWLINE)
    is_token = np.flatnonzero(tokens != NOTHING)
    kinds = tokens[is_token]
    starts_line = np.concatenate([[0], np.searchsorted(is_token, newlines, side="right")])
    first = np.flatnonzero(kinds == FIRST_LABEL)
    may_be_first = np.zeros(len(kinds) + 1, bool)
    may_be_first[starts_line] = True
    if not may_be_first[first].all():
        return None

    numbers = read_numbers(block.translate(TO_SPACES))
    if numbers is None or len(numbers) != len(kinds):
        return None
    is_feature = kinds == FEATURE
    is_label = (kinds == FIRST_LABEL) | (kinds == NEXT_LABEL)
    features, labels = numbers[is_feature], numbers[is_label]
    if features.max(initial=0) >= grammar.num_features or labels.max(initial=0) >= grammar.num_labels:
        return None
    with np.errstate(over="ignore"):
        values = numbers[kinds == VALUE].astype(np.float32)
    if not np.isfinite(values).all():
        return None

    feature_counts = np.diff(build_indptr(is_feature)[starts_line]).astype(np.int32)
    label_counts = np.diff(build_indptr(is_label)[starts_line]).astype(np.int32)
    if grammar.svmlight:
        is_point = (feature_counts > 0) | (label_counts > 0)
        feature_counts, label_counts = feature_counts[is_point], label_counts[is_point]
    return ParsedRows(labels.astype(np.int32), label_counts, features.astype(np.int32), values, feature_counts)


def read_numbers(text: bytes) -> np.ndarray | None:
    """Parse numbers between blanks as float64; return None if one is malformed."""
    if not text.strip():
        return np.zeros(0)
    with warnings.catch_warnings():
        # Older versions of numpy warn of what does not parse, newer ones raise.
        warnings.simplefilter("error", DeprecationWarning)
        try:
            return np.fromstring(text, dtype=np.float64, sep=" ")
        except (ValueError, DeprecationWarning):
            return None
