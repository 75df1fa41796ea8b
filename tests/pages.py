"""Pages of Markdown as tests see them: links, headings, blocks of code, and a way to run the blocks in page order."""

import contextlib
import importlib.util
import io
import re
import runpy
import shlex
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from command_line import call

ROOT = Path(__file__).parents[1]
#: Languages whose blocks are shown and never run: they are neither code nor output.
SHOWN = ("json", "toml")
_FENCE = re.compile(r"```(\w*)\s*$")
_MARKER = re.compile(r"<!-- (not run|needs (?P<module>\w+)): (?P<reason>\S.*) -->$")
_NUMBER = re.compile(r"(\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?)")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; the comment on the line above says where it is not run, and why."""

    page: Path
    line: int  # of its first line, from 1
    language: str
    code: str
    marker: str

    @property
    def place(self) -> str:
        return f"{self.page.name}, line {self.line}"

    @property
    def is_run(self) -> bool:
        if not self.marker:
            return True
        found = _MARKER.match(self.marker)
        assert found, f"{self.place}: {self.marker}: say <!-- not run: why --> or <!-- needs MODULE: why -->"
        return found["module"] is not None and importlib.util.find_spec(found["module"]) is not None


def list_blocks(page: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a page."""
    lines = page.read_text("utf-8").splitlines()
    start = None
    for number, line in enumerate(lines):
        if start is None and (fence := _FENCE.match(line)):
            start, language = number, fence[1]
        elif start is not None and line == "```":
            above = lines[start - 1] if start else ""
            marker = above if above.startswith("<!--") else ""
            yield Block(page, start + 2, language, "\n".join(lines[start + 1 : number]) + "\n", marker)
            start = None
    assert start is None, f"{page.name}: the block of line {start} has no end"


def drop_blocks(text: str) -> str:
    """Return a page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def list_links(page: Path) -> list[str]:
    """Return the targets of all links and pictures."""
    return re.findall(r"\]\(([^)\s]+)\)", drop_blocks(page.read_text("utf-8")))


def list_anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    found: list[str] = []
    for heading in re.findall(r"^#+ (.+)$", drop_blocks(page.read_text("utf-8")), re.MULTILINE):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")
        found.append(f"{anchor}-{found.count(anchor)}" if anchor in found else anchor)
    return set(found)


class Session:
    """What the blocks of a page leave for those below: names of Python, and a server."""

    def __init__(self, page: Path, life: contextlib.ExitStack) -> None:
        self.names: dict[str, Any] = {"__name__": "__main__", "__file__": str(page)}
        self._life = life
        self._port = 0

    def serve(self, folder: str) -> None:
        """Serve a model to the end of the page, on a free port instead of the one that is printed."""
        from served import serve  # needs the extra serve

        name = Path(folder).name
        self._port = self._life.enter_context(serve({name: Path(folder)})).port
        print(f"fedmlh: {name} at http://127.0.0.1:8000/")

    def ask(self, url: str, header: str, data: str) -> None:
        """Print what the server answers, as curl does."""
        name, _, value = header.partition(": ")
        url = url.replace("localhost:8000", f"127.0.0.1:{self._port}")
        with urllib.request.urlopen(urllib.request.Request(url, data.encode(), {name: value})) as answer:
            print(answer.read().decode())


def run_page(page: Path) -> None:
    """Run a page's blocks in order, in the current folder: Python in one namespace, `fedmlh` in this process.

    A block of text is what the block before it prints.
    """
    printed: str | None = None
    with contextlib.ExitStack() as life:
        session = Session(page, life)
        for block in list_blocks(page):
            if block.language == "text":
                if printed is not None:
                    check_output(block, printed)
            elif block.language not in SHOWN:
                printed = _run(block, session) if block.is_run else None


def _run(block: Block, session: Session) -> str:
    """Run a block, and return what it prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        if block.language == "python":
            # At its own lines of the page, so that a traceback names them.
            exec(compile("\n" * (block.line - 1) + block.code, str(block.page), "exec"), session.names)
        else:
            assert block.language == "sh", f"{block.place}: '{block.language}' is neither python, sh nor text"
            for line in block.code.replace("\\\n", " ").splitlines():
                _run_line(shlex.split(line, comments=True), f"{block.place}: {line}", session, out)
    return out.getvalue()


def _run_line(words: list[str], place: str, session: Session, out: io.StringIO) -> None:
    match words:
        case []:
            pass
        case ["fedmlh", "serve", folder]:
            session.serve(folder)
        case ["curl", url, "-H", header, "-d", data]:
            session.ask(url, header, data)
        case ["fedmlh", *arguments]:
            assert call(*arguments) == 0, f"{place}\n{out.getvalue()}"
        case ["python", script]:
            runpy.run_path(str(ROOT / script), run_name="__main__")
        case ["head", "-n", number, name]:
            print(*Path(name).read_text("utf-8").splitlines()[: int(number)], sep="\n")
        case _:
            raise AssertionError(
                f"{place}: only fedmlh, scripts, head -n and curl -H -d can be run; mark the block if it should not be"
            )


def check_output(block: Block, printed: str) -> None:
    """Hold a block of text to what was printed: its lines in this order, numbers about as they are.

    "…" stands for lines that are left out, and at the end of a line for the rest of it.
    """
    rest = iter(printed.replace("\r", "\n").splitlines())
    for wanted in block.code.splitlines():
        if wanted.strip() not in ("", "…"):
            assert any(_is_like(line, wanted) for line in rest), (
                f"{block.place}: was not printed, or not in this order: {wanted}\n{printed}"
            )


def _is_like(line: str, wanted: str) -> bool:
    """Compare words exactly, numbers to a tenth: other processors and libraries give slightly other figures."""
    line, wanted = " ".join(line.split()), " ".join(wanted.split())
    found, expected = _NUMBER.split(line), _NUMBER.split(wanted)
    if wanted.endswith("…"):
        found, expected = found[: len(expected)], [*expected[:-1], expected[-1].removesuffix("…").rstrip()]
        found[-1] = found[-1][: len(expected[-1])]
    if len(found) != len(expected) or found[::2] != expected[::2]:
        return False
    pairs = zip(map(_to_number, found[1::2]), map(_to_number, expected[1::2]), strict=True)
    return all(abs(number - like) <= 0.1 * abs(like) + 0.01 for number, like in pairs)


def _to_number(text: str) -> float:
    return float(text.replace(",", ""))
