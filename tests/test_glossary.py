"""The glossary has few words, each of them in use, and the words that it replaces are gone."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "glossary.md"
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *(page for page in sorted((ROOT / "docs").glob("*.md")) if page != PAGE),
]
#: How each form of a replaced word is found; a word that is not listed has no other forms.
FORMS = {
    "deal": r"deal(s|ing)?",
    "go on": r"(go|goes|going|went|gone) on",
}


def read_rows(heading: str) -> list[list[str]]:
    """Return the cells of the table under a heading of the page."""
    section = PAGE.read_text("utf-8").partition(f"| {heading} |")[2].partition("\n#")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines()[2:] if line]


WORDS = [word for word, _ in read_rows("word")]
REPLACED = [word.strip() for words, _ in read_rows("we do not say") for word in words.split(",")]


def list_texts(path: Path) -> Iterator[str]:
    """Yield what people read in a file of Python: docstrings, comments, and strings of more than one word."""
    source = path.read_text("utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield node.value
    comments = [
        token.string.lstrip("#: ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    ]
    yield " ".join(comments)


def list_names(path: Path) -> Iterator[str]:
    """Yield the names that a file of Python gives or uses; a function also as `def name`."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                yield node.name
                yield f"def {node.name}"
            case ast.Name():
                yield node.id
            case ast.arg():
                yield node.arg
            case ast.Attribute():
                yield node.attr


TEXTS = [(path, " ".join(text.split())) for path in SOURCES for text in list_texts(path)]
TEXTS += [(page, " ".join(page.read_text("utf-8").split())) for page in PAGES]


def test_the_glossary_is_short_and_sorted() -> None:
    assert 20 <= len(WORDS) <= 40
    assert sorted(WORDS, key=str.casefold) == WORDS
    assert len(set(WORDS)) == len(WORDS)
    assert all(meaning and word not in meaning.split()[:3] for word, meaning in read_rows("word"))


@pytest.mark.parametrize("word", WORDS)
def test_each_word_is_in_use(word: str) -> None:
    if "_" in word:
        assert any(word in list_names(path) for path in SOURCES)
    else:
        form = re.compile(rf"(?<!\w){re.escape(word)}(e?s|d|ing)?(?!\w)", re.IGNORECASE)
        assert any(form.search(text) for _, text in TEXTS)


@pytest.mark.parametrize("word", [word for word in REPLACED if "`" not in word])
def test_a_replaced_word_is_gone(word: str) -> None:
    # Also as a part of a name, such as deal_in_turn in an example.
    form = re.compile(rf"(?<![^\W_]){FORMS.get(word, re.escape(word))}(?![^\W_])", re.IGNORECASE)
    found = [f"{path.relative_to(ROOT)}: {text[max(0, hit.start() - 30) : hit.end() + 30]}"
             for path, text in TEXTS for hit in form.finditer(text)]  # fmt: skip
    assert found == []


@pytest.mark.parametrize("name", [word.strip("`") for word in REPLACED if "`" in word])
def test_a_replaced_name_is_gone(name: str) -> None:
    assert [str(path.relative_to(ROOT)) for path in SOURCES if name in list_names(path)] == []
