"""Documents: every page is found, every link leads somewhere, every command exists, and every block of code runs."""

import re
import runpy
import tomllib
from pathlib import Path

import click
import pytest
import typer

from fedmlh import cli
from pages import ROOT, Block, check_output, drop_blocks, list_anchors, list_blocks, list_links, run_page

DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "examples" / "README.md", *DOCS]
#: Pages whose blocks are run from top to bottom.
RUN = [ROOT / "README.md", ROOT / "docs" / "python.md", ROOT / "docs" / "tutorial.md"]
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Make an empty folder to run in, a terminal of 80 columns, and scripts that find each other."""
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    return place


def test_the_index_leads_to_every_page_and_the_readme_to_the_index():
    linked = {link.partition("#")[0] for link in list_links(ROOT / "docs" / "index.md")}
    assert {page.name for page in DOCS} - {"index.md"} <= linked
    assert "docs/index.md" in list_links(ROOT / "README.md")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    links = [link for link in list_links(page) if not re.match(r"\w+:", link)]
    for link in links:
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name(page)}: there is no {link}"
        assert ROOT in (target, *target.parents), f"{name(page)}: {link} leads out of the repository"
        if anchor:
            assert anchor in list_anchors(target), f"{name(page)}: {link}: no such heading"


def test_every_example_is_listed():
    assert {script.name for script in SCRIPTS} <= set(list_links(ROOT / "examples" / "README.md"))


# Commands.


def list_commands(page: Path) -> list[str]:
    """Every command that a page names, in blocks and in the line."""
    text = page.read_text("utf-8")
    lines = "".join(block.code.replace("\\\n", " ") for block in list_blocks(page) if block.language in ("", "sh"))
    inline = re.findall(r"`([^`]+)`", drop_blocks(text))
    return [part for part in (*lines.splitlines(), *inline) if part.startswith("fedmlh ")]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_that_are_named_exist(page):
    for text in list_commands(page):
        words = re.sub(r"[][…,]", " ", text.partition("  ")[0].replace("\\|", "|")).split()[1:]
        commands = [typer.main.get_command(cli.app)]
        while words and isinstance(commands[0], click.Group) and re.fullmatch(r"[a-z][a-z|-]+", words[0]):
            asked = words.pop(0).split("|")
            assert all(word in commands[0].commands for word in asked), f"{name(page)}: {text}"
            commands = [commands[0].commands[word] for word in asked]
        known = {option for command in commands for param in command.params for option in param.opts} | {"--help"}
        used = {word for word in words if word.startswith("--")}
        assert used <= known, f"{name(page)}: {text}: no {used - known}"


def list_packages(extras: set[str]) -> set[str]:
    """Return the extras that these bring, with themselves."""
    known = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    brought = {more for extra in extras for need in known[extra] for more in re.findall(r"^fedmlh\[(\w+)\]", need)}
    return extras if brought <= extras else list_packages(extras | brought)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_what_pages_install_can_train(page):
    """Every page but that on serving then trains; without the extra `train` one can only predict."""
    if page.name == "serving.md":
        return
    for extras in re.findall(r'pip install [^\n]*"\.\[([\w,]+)\]"', page.read_text("utf-8")):
        assert "train" in list_packages(set(extras.split(","))), f"{name(page)}: .[{extras}]"


# Code.


@pytest.mark.parametrize("page", RUN, ids=name)
def test_every_block_runs_and_prints_what_the_page_says(page, folder):
    run_page(page)


@pytest.mark.parametrize("page", RUN, ids=name)
def test_what_is_not_run_says_why(page):
    """And is little: blocks that install packages."""
    kept = [block for block in list_blocks(page) if block.marker.startswith("<!-- not run")]
    assert all("install" in block.code for block in kept)


def test_the_readme_example_has_less_than_ten_lines():
    example = next(block for block in list_blocks(ROOT / "README.md") if block.language == "python")
    assert len([line for line in example.code.splitlines() if line.strip()]) < 10


BROKEN = {
    "an error in Python": ("```python\nx = 1\n1 / 0\n```\n", ZeroDivisionError),
    "a command that fails": ("```sh\nfedmlh run no-such-config\n```\n", AssertionError),
    "an option that does not exist": ("```sh\nfedmlh config --no-such-option\n```\n", AssertionError),
    "a command of another program": ("```sh\nrm -r books\n```\n", AssertionError),
    "another output": ("```python\nprint('one')\n```\n```text\ntwo\n```\n", AssertionError),
    "output in another order": ("```python\nprint('one\\ntwo')\n```\n```text\ntwo\none\n```\n", AssertionError),
    "another figure": ("```python\nprint('P@1 80.0')\n```\n```text\nP@1 60.0\n```\n", AssertionError),
    "no language": ("```\nfedmlh config\n```\n", AssertionError),
    "a marker without a reason": ("<!-- not run: -->\n```sh\nfedmlh config\n```\n", AssertionError),
    "a block without an end": ("```python\nx = 1\n", AssertionError),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_block_is_noticed(what, folder):
    text, error = BROKEN[what]
    (folder / "page.md").write_text(text)
    with pytest.raises(error):
        run_page(folder / "page.md")


def test_output_may_leave_lines_out_and_differ_a_little():
    block = Block(Path("page.md"), 1, "text", "P@1   80.0 %\n…\nscore: the mean …\n", "")
    check_output(block, "first\nP@1 78.9 %\nbetween\nscore: the mean of 4\n")
    with pytest.raises(AssertionError, match=r"page.md, line 1: was not printed.*score: the mean …"):
        check_output(block, "P@1 78.9 %\nscore: the median of 4\n")


# Examples.


@pytest.mark.parametrize("script", SCRIPTS, ids=name)
def test_examples_run(script, folder, capsys):
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out


@pytest.mark.slow
def test_the_notebook_runs_as_one(folder):
    """From its text to a notebook, executed by a kernel of its own."""
    why = "the notebook needs {}, of the extra dev"
    jupytext = pytest.importorskip("jupytext", reason=why.format("jupytext"))
    nbclient = pytest.importorskip("nbclient", reason=why.format("nbclient"))
    pytest.importorskip("ipykernel", reason=why.format("ipykernel"))
    notebook = jupytext.read(ROOT / "examples" / "notebook.py")
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(cells) > 3
    place = {"metadata": {"path": str(ROOT / "examples")}}
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3", resources=place).execute()
    assert all(cell.execution_count for cell in cells)
