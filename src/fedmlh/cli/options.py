"""Arguments and options that several commands share, and the config that they make."""

import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from fedmlh.cli.terminal import tell
from fedmlh.config import Config, parse_setting, presets
from fedmlh.errors import UserError
from fedmlh.lock import is_empty
from fedmlh.parts import load_parts
from fedmlh.sizing import SIZED, list_open

ConfigArgument = Annotated[
    str, typer.Argument(metavar="CONFIG", help=f"a preset ({', '.join(presets())}) or a TOML file")
]
RoundsOption = Annotated[int | None, typer.Option(help="largest number of training rounds")]
SeedOption = Annotated[int | None, typer.Option(help="seed of all random choices")]
DeviceOption = Annotated[str | None, typer.Option(help="where networks are trained: auto, cpu or cuda")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="change a setting (fedmlh config explains them all); may be repeated"
    ),
]


def _load_all(files: list[Path] | None) -> list[Path] | None:
    for file in files or []:
        load_parts(file)
    return files


PartsOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--parts",
        metavar="FILE.py",
        callback=_load_all,
        is_eager=True,
        help="Python file that registers your own parts; it is executed",
    ),
]
FormatOption = Annotated[
    str, typer.Option("--format", help="format of the data: auto, npz, xmc, svmlight, text, or your own reader")
]
DelimiterOption = Annotated[str | None, typer.Option(help="what stands between cells, such as , or ; or \\t")]
QuoteOption = Annotated[str | None, typer.Option(help="what cells stand in that hold a delimiter; '' for nothing")]
EscapeOption = Annotated[str | None, typer.Option(help="what stands before a quote within a cell, such as \\")]
EncodingOption = Annotated[str | None, typer.Option(help="utf-8, utf-16, cp1252, …")]
NoHeaderOption = Annotated[
    bool, typer.Option("--no-header", help="the first line is a record; columns are named by number, from 1")
]


def unescape(mark: str | None) -> str | None:
    """Return a mark as it is in files; a shell has no easy way to pass a tab or a line break."""
    return None if mark is None else mark.replace("\\t", "\t").replace("\\n", "\n")


def write_guesses(guessed: Iterable[tuple[str, str]]) -> str:
    """Write guesses as the options that say the same."""
    values = [(name, value.replace("\t", "\\t").replace("\n", "\\n")) for name, value in guessed]
    return " ".join(f"--{name} {shlex.quote(value)}" for name, value in values)


def configure(
    config: str,
    settings: list[str] | None,
    *,
    data: Path | None = None,
    more: Mapping[str, Any] | None = None,
    **flags: Any,
) -> Config:
    """Return the named config, changed by --set, by flags (None or False if not given), and by `more`.

    `more` are the settings of one method among several.
    """
    changes = dict(parse_setting(setting) for setting in settings or [])
    changes |= {name: value for name, value in flags.items() if value is not None and value is not False}
    changes |= more or {}
    if data is not None:
        changes["data"] = str(data)
    chosen = Config.load(config).replace(**changes)
    idle = [name for name in changes if name in SIZED and name in list_open(chosen)]
    if idle:
        raise UserError(f"{idle[0]} has no effect with sizes 'auto': add --set sizes=given and a learning_rate")
    if more is None:
        refuse_idle_correct(changes, [chosen])
    # Absolute, so that config.toml means the same data wherever it is run again.
    return chosen.replace(data=str(Path(chosen.data).resolve())) if chosen.data else chosen


def refuse_idle_correct(changes: Iterable[str], configs: Iterable[Config]) -> None:
    """Refuse `correct` among the changes if no method is trained in one round."""
    if "correct" in changes and all(
        config.training == "rounds" or (config.training == "auto" and config.is_fedavg) for config in configs
    ):
        raise UserError("correct has no effect in rounds: leave it out, or set training=one-round")


def check_begun(out: Path, what: str, *, named: bool) -> None:
    """Refuse to resume a folder that holds nothing; if the user named the folder, only say that the work is new."""
    if out.is_dir() and not is_empty(out):
        return
    if not named:
        raise UserError(
            f"{out} holds no {what} to resume: name its folder with --out, or leave --resume out to begin a new one"
        )
    tell(f"{out} holds no {what} to resume: this is a new one")


def check_target(path: Path) -> None:
    """Refuse a file that cannot be written, before any work is done for it."""
    if path.is_dir():
        raise UserError(f"{path} is a folder: name a file")
    if not path.parent.is_dir():
        raise UserError(f"{path.parent} is not a folder: make it first, or name another file than {path}")
