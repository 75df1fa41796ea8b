"""Arguments and options of several commands, and what becomes of them."""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from fedmlh.cli.terminal import tell
from fedmlh.config import Config, parse_setting, presets
from fedmlh.errors import UserError
from fedmlh.lock import is_empty
from fedmlh.parts import load_parts
from fedmlh.sizing import SIZED, list_open


def check_config(named: str | list[str] | None) -> str | list[str] | None:
    """Refuse a name that is nearly that of a preset, and name the preset."""
    for name in [named] if isinstance(named, str) else named or []:
        near = difflib.get_close_matches(name[:80], presets(), n=1, cutoff=0.6)
        if near and name not in presets() and not Path(name).is_file():
            raise UserError(f"'{name}' is neither a preset nor a TOML file; did you mean '{near[0]}'?")
    return named


ConfigArgument = Annotated[
    str,
    typer.Argument(metavar="CONFIG", help=f"a preset ({', '.join(presets())}) or a TOML file", callback=check_config),
]
RoundsOption = Annotated[int | None, typer.Option(help="synchronization rounds at most")]
SeedOption = Annotated[int | None, typer.Option(help="seed of all random choices")]
DeviceOption = Annotated[str | None, typer.Option(help="auto, cpu or cuda")]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="FIELD=VALUE", help="set any setting, by its name or as section.name (fedmlh config)"
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
        help="Python file that registers parts of your own; it is executed",
    ),
]
FormatOption = Annotated[
    str, typer.Option("--format", help="auto, npz, xmc, svmlight, text, or the name of a reader of your own")
]


def configure(
    config: str,
    settings: list[str] | None,
    *,
    data: Path | None = None,
    more: Mapping[str, Any] | None = None,
    **flags: Any,
) -> Config:
    """Return the named config with --set, the flags and what is `more` on top; a flag not given is None or False."""
    changes = dict(parse_setting(setting) for setting in settings or [])
    changes |= {name: value for name, value in flags.items() if value is not None and value is not False}
    changes |= more or {}
    if data is not None:
        changes["data"] = str(data)
    chosen = Config.load(config).replace(**changes)
    idle = [name for name in changes if name in SIZED and name in list_open(chosen)]
    if idle:
        raise UserError(f"{idle[0]} has no effect with sizes 'auto': add --set sizes=given and a learning_rate")
    # Absolute, so that config.toml means the same wherever it is run again.
    return chosen.replace(data=str(Path(chosen.data).resolve())) if chosen.data else chosen


def check_begun(out: Path, what: str, *, named: bool) -> None:
    """Refuse to resume where nothing was begun; if the user named the folder, say that it becomes a new one."""
    if out.is_dir() and not is_empty(out):
        return
    if not named:
        raise UserError(
            f"{out} holds no {what} to resume: name its folder with --out, or leave --resume out to begin a new one"
        )
    tell(f"{out} holds no {what} to resume: this is a new one")


def check_target(path: Path) -> None:
    """Before work is done for it: can the file be written at all?"""
    if path.is_dir():
        raise UserError(f"{path} is a folder: name a file")
    if not path.parent.is_dir():
        raise UserError(f"{path.parent} is not a folder: make it first, or name another file than {path}")
