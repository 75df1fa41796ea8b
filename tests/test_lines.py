"""The two parsers of lines `l1,l2 f:v f:v`: what they refuse, and that the fast one is the plain one."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmlh.data.readers.lines import Grammar, ParsedRows, parse_block, parse_fast, parse_plain
from fedmlh.errors import BadLine

XMC = Grammar(num_features=100, num_labels=50)
SVMLIGHT = Grammar(svmlight=True)
quick = settings(derandomize=True, deadline=None, max_examples=400)


def parse_or_none(block: bytes, grammar: Grammar) -> ParsedRows | None:
    try:
        return parse_plain(Path("x"), 1, block, grammar)
    except BadLine:
        return None


def assert_agree(block: bytes, grammar: Grammar) -> None:
    fast, plain = parse_fast(block, grammar), parse_or_none(block, grammar)
    assert (fast is None) == (plain is None), block
    if fast is not None and plain is not None:
        for name in ("labels", "label_counts", "features", "values", "feature_counts"):
            mine, reference = getattr(fast, name), getattr(plain, name)
            assert mine.dtype == reference.dtype
            np.testing.assert_array_equal(mine, reference)


numbers = st.one_of(
    st.integers(0, 10**12).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(str),
    st.decimals(allow_nan=False, allow_infinity=False, places=8).map(str),
)
ids = st.integers(0, 110).map(str)
good_lines = st.builds(
    lambda labels, pairs, gap, end: (
        ",".join(labels) + "".join(gap + f"{feature}:{value}" for feature, value in pairs) + end
    ),
    st.lists(ids, max_size=3),
    st.lists(st.tuples(ids, numbers), max_size=4),
    st.sampled_from([" ", "  ", "\t"]),
    st.sampled_from(["\n", "\r\n", " \n"]),
)
SHREDS = (
    *("0", "1", "12", "007", " ", " ", ",", ":", "\n", "\n", "\r\n", "\r", "\t", ".", "e", "-", "+", "#", "1:2"),
    *(" 3:4.5", "qid:1", "é", "1e400", "3.5e38", "99999999999", "nan", "inf", "1_0", "0x1", "\x00", "5,6 "),
)
shreds = st.sampled_from(SHREDS)


@quick
@given(st.lists(good_lines, min_size=1, max_size=6), st.sampled_from([XMC, SVMLIGHT]))
def test_fast_is_plain_on_lines_that_are_nearly_all_good(lines: list[str], grammar: Grammar) -> None:
    assert_agree("".join(lines).encode(), grammar)


@quick
@given(st.lists(shreds, min_size=1, max_size=16), st.sampled_from([XMC, SVMLIGHT]))
def test_fast_is_plain_on_shreds(pieces: list[str], grammar: Grammar) -> None:
    assert_agree("".join(pieces).encode(), grammar)


@quick
@given(st.binary(min_size=1, max_size=30))
def test_fast_is_plain_on_binary_junk(block: bytes) -> None:
    assert_agree(block, XMC)
    assert_agree(block, SVMLIGHT)


def test_a_good_line_means_what_it_says() -> None:
    rows = parse_block(Path("x"), 1, b"3,1 0:1.5 7:-2e-1\r\n\n 5:.5\n4", XMC)
    assert rows.labels.tolist() == [3, 1, 4]
    assert rows.label_counts.tolist() == [2, 0, 0, 1]
    assert rows.features.tolist() == [0, 7, 5]
    assert rows.values.tolist() == np.float32([1.5, -0.2, 0.5]).tolist()
    assert rows.feature_counts.tolist() == [2, 0, 1, 0]


def test_svmlight_skips_comments_and_blank_lines() -> None:
    rows = parse_block(Path("x"), 1, b"# first\n1 2:3 # one\n\n  \n# 9\n4 1:0\n", SVMLIGHT)
    assert rows.labels.tolist() == [1, 4]
    assert rows.features.tolist() == [2, 1]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"x 1:2", "label 'x' is not a whole number"),
        (b"-1 1:2", "label '-1' is not a whole number"),
        (b"1.0 1:2", "label '1.0' is not a whole number"),
        (b"1,,2 1:2", "label '' is not a whole number"),
        (b"1, 1:2", "label '' is not a whole number"),
        (b"50 1:2", "label '50' is not below 50"),
        (b"9" * 5000, "is not below 50"),
        (b"1 100:2", "feature '100' is not below 100"),
        (b"1 -3:2", "feature '-3' is not a whole number"),
        (b"1 1e1:2", "feature '1e1' is not a whole number"),
        (b"1 :2", "feature '' is not a whole number"),
        (b"1 3:", "value '' is not a number"),
        (b"1 3:nan", "value 'nan' is not a number"),
        (b"1 3:inf", "value 'inf' is not a number"),
        (b"1 3:1e400", "too large for a 32-bit float"),
        (b"1 3:-1e39", "too large for a 32-bit float"),
        (b"1 3:1_0", "value '1_0' is not a number"),
        (b"1 3:1.2.3", "value '1.2.3' is not a number"),
        (b"1 3:4:5", "value '4:5' is not a number"),
        (b"1 3:4,5", "value '4,5' is not a number"),
        (b"1 2 3:4", "'2' should be feature:value"),
        (b"1 3:4 5", "'5' should be feature:value"),
        (b"1,2:3", "feature '1,2' is not a whole number"),
        (b"1 qid:3 1:2", "qid is for ranking data"),
        (b"1 1:2\r\r", "value '2\\r' is not a number"),
        (b"\x00\xff\xfe", "is not a whole number"),
        ("é 1:2".encode(), "label 'é' is not a whole number"),
        (b"1 1:2 # no", "'#' should be feature:value"),
    ],
)
def test_a_bad_line_is_named(line: bytes, problem: str) -> None:
    block = b"1 2:3\n" * 3 + line + b"\n1 2:3\n"
    with pytest.raises(BadLine, match=r"^data\.txt, line 14: ") as caught:
        parse_block(Path("data.txt"), 11, block, XMC)
    assert problem in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
