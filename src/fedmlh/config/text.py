"""Settings as text: TOML that explains itself, and the list of all settings."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from textwrap import wrap
from typing import Any, Literal, get_args, get_origin

from fedmlh.config.section import Section, Setting
from fedmlh.config.settings import SETTINGS
from fedmlh.parts import list_names

_WIDTH = 100


def write_toml(values: Mapping[str, Any], parts: Sequence[Mapping[str, str]]) -> str:
    """Return all settings as TOML, a table per section, with explanations, and the parts that are not fedmlh's own."""
    lines: list[str] = []
    for section, settings in _group():
        lines += [*_comment(f"{section.title} {section.meaning}"), f"[{section.name}]"]
        for setting in settings:
            lines += [*_comment(setting.help), f"{setting.name} = {_show(values[setting.name])}"]
        lines.append("")
    for part in parts:
        lines += ["# Not one of fedmlh's own parts: load its file (fedmlh.load_parts, --parts).", "[[parts]]"]
        lines += [*(f"{name} = {_show(value)}" for name, value in part.items()), ""]
    return "\n".join(lines)


def explain_settings() -> str:
    """Return all settings by section: what they mean, their defaults, and what they may be."""
    lines: list[str] = []
    for section, settings in _group():
        lines += [f"[{section.name}] {section.title}", *_indent(section.meaning, 2), ""]
        for setting in settings:
            lines += [f"  {setting.name} = {_show(setting.default)}{_show_range(setting)}", *_indent(setting.help, 6)]
        lines.append("")
    return "\n".join(lines)


def _group() -> Iterator[tuple[Section, Iterator[Setting]]]:
    return groupby(SETTINGS.values(), lambda setting: setting.section)


def _show(value: Any) -> str:
    # JSON's numbers, booleans, arrays and, without control characters, strings are valid TOML.
    return json.dumps(value, ensure_ascii=False)


def _show_range(setting: Setting) -> str:
    if get_origin(setting.type) is Literal:
        return f"   ({', '.join(get_args(setting.type))})"
    if setting.part:
        return f"   ({', '.join((*setting.also, *list_names(setting.part))) or 'none until you register one'})"
    if setting.at_least is None or setting.at_most is None:
        return ""
    low, high = (int(end) if end == int(end) else end for end in (setting.at_least, setting.at_most))
    return f"   ({low:,} to {high:,})"


def _wrap(text: str, width: int) -> list[str]:
    return wrap(text, width, break_long_words=False, break_on_hyphens=False)


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in _wrap(text, _WIDTH)]


def _indent(text: str, by: int) -> list[str]:
    return [" " * by + line for line in _wrap(text, _WIDTH - by)]
