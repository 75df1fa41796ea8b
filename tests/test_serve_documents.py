"""The page on serving: its questions are answered, its settings mean something."""

import configparser
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import typer

from drawn_models import BASE, calibrate, make_bundle
from fedmlh import cli
from fedmlh.data.text import TextFeatures
from fedmlh.serving.predictor import Model
from fedmlh.web import page, project
from fedmlh.web.limits import Limits
from pages import ROOT, list_blocks
from served import serve

PAGE = ROOT / "docs" / "serving.md"
TEXT = PAGE.read_text("utf-8")
BLOCKS = list(list_blocks(PAGE))


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_every_question_of_the_page_is_answered(tmp_path: Path) -> None:
    Model(calibrate(make_bundle(BASE, 5, d=50, text=TextFeatures.hashing(50)))).save(tmp_path / "books")
    lines = [line for block in BLOCKS for line in block.code.replace("\\\n", " ").splitlines()]
    questions = [line for line in lines if line.startswith("curl ")]
    assert len(questions) == 8
    with serve({"books": tmp_path / "books"}) as client:
        for question in questions:
            words = shlex.split(question.replace("localhost:8000", f"127.0.0.1:{client.port}"))
            said = subprocess.run([*words, "--fail", "--silent"], capture_output=True, text=True, check=True).stdout
            if "/metrics" not in question:
                assert json.loads(said)


def test_options_and_limits_are_those_of_the_product() -> None:
    command = typer.main.get_command(cli.app).commands["serve"]
    options = {option for parameter in command.params for option in parameter.opts if option.startswith("--")}
    table = TEXT.split("| option | |")[1].split("\n\n")[0]
    assert set(re.findall(r"`(--[\w-]+)", table)) | set(re.findall(r"`--host`, `(--port)`", table)) == options
    limits = Limits()
    for row in (
        f"| a request | {limits.body / 1e6:g} MB",
        f"| points of a request | {project.BATCH} |",
        f"| a file on the page | {page.MOST_ROWS:,} rows; {page.MOST_CELLS:,} cells,",
        f"| files that are labelled at a time | {page.MOST_FILES};",
        f"| open connections | {limits.connections} |",
        f"| waiting requests per project | {project._WAITING} |",
        f"| bodies that are read at a time, beside 64 KiB of each | {limits.bodies >> 20} MiB",
        f"| answers that clients have not taken | {limits.answers >> 20} MiB",
        f"| head of a request | {limits.head >> 10} KiB, within {limits.head_seconds:g} seconds",
        f"| body | within {limits.body_seconds:g} seconds, no pause of more than {limits.pause_seconds:g} |",
        f"| an answer that is not taken | {limits.write_seconds:g} seconds",
        f"from 1 to {project.MOST_LABELS:,}",
        f"at most {project.MOST_EXPLAINED} labels per point and {project.MOST_WORDS} different words, "
        f"of texts with at most {project.MOST_LENGTH:,} words of {project.MOST_CHARACTERS:,} characters together |",
        f"for at most {limits.stop_seconds:g} seconds, and ends",
    ):
        assert row in TEXT, row


def test_the_unit_and_the_image_call_the_command_as_it_is() -> None:
    (unit,) = (block.code for block in BLOCKS if block.language == "ini")
    parser = configparser.ConfigParser(strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(unit)
    _, *words = shlex.split(parser["Service"]["ExecStart"])
    (image,) = (block.code for block in BLOCKS if block.language == "dockerfile")
    (entry,) = re.findall(r"^ENTRYPOINT (.*)$", image, re.MULTILINE)
    (default,) = re.findall(r"^CMD (.*)$", image, re.MULTILINE)
    for called in (words, [*json.loads(entry)[1:], *json.loads(default)]):
        assert called[0] == "serve"
        typer.main.get_command(cli.app).commands["serve"].make_context("serve", called[1:]).close()
    copied = re.findall(r"^COPY (.*) \S+$", image, re.MULTILINE)
    assert all((ROOT / name).exists() for names in copied for name in names.split())
    # Copying what the build needs: pyproject.toml names the readme and the license.
    assert {"README.md", "LICENSE", "src", "pyproject.toml", "constraints.txt"} <= set(" ".join(copied).split())
