"""Checks of a setting's value: its type, its range, or the name of a part."""

import types
from typing import Any, Literal, get_args, get_origin

from fedmlh.config.section import Setting
from fedmlh.display import is_printable
from fedmlh.errors import UserError
from fedmlh.parts import check

_LARGEST = 2**53


def check_value(setting: Setting, value: Any) -> Any:
    """Return the value in the setting's own type, or refuse it and say what it should be."""
    hint, name, value = setting.type, setting.name, _make_plain(value)
    if setting.part:
        return _name_parts(setting, value)
    if get_origin(hint) is Literal:
        if value not in get_args(hint) or not isinstance(value, str):
            raise UserError(f"{name} is {show(value)}: choose one of {', '.join(get_args(hint))}")
        return value
    if hint is bool:
        if not isinstance(value, bool):
            raise UserError(f"{name} is {show(value)}: say true or false")
        return value
    if hint is str:
        if not isinstance(value, str) or not is_printable(value):
            raise UserError(f"{name} is {show(value)}: it must be text without control characters")
        return value
    if get_origin(hint) is types.UnionType and isinstance(value, str):
        return value
    if hint in (int, float):
        return _number(setting, value, whole=hint is int)
    if isinstance(value, int) and not isinstance(value, bool):
        value = (value,)
    if not isinstance(value, list | tuple):
        raise UserError(f"{name} is {show(value)}: it must be a list of whole numbers, e.g. {name}=150,150")
    if len(value) > setting.count:
        raise UserError(f"{name} is a list of {len(value):,} numbers: it may have at most {setting.count:,}")
    return tuple(_number(setting, part, whole=True) for part in value)


def _name_parts(setting: Setting, value: Any) -> str | tuple[str, ...]:
    """Return the name of a known part, or several names if the setting takes a list."""
    if isinstance(value, str) and value in setting.also:
        return value
    kind, also = setting.part, setting.also
    try:
        if setting.type is str:
            return check(kind, value, also)
        names = [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value
        if not isinstance(names, list | tuple):
            raise ValueError(f"say names, e.g. {setting.name}=first,second")
        if len(names) > setting.count:
            raise ValueError(f"these are {len(names):,} names: it may have at most {setting.count:,}")
        return tuple(dict.fromkeys(check(kind, name) for name in names))
    except ValueError as error:
        raise UserError(f"{setting.name} is {show(value)}: {error}") from None


def show(value: Any) -> str:
    """Return a value for a message, cut short; a value that nests too deep or has too many digits is not shown."""
    try:
        return f"{value!r:.60}"
    except (RecursionError, ValueError):
        return "too large or too deep to show"


def _make_plain(value: Any) -> Any:
    """Return a number or an array of NumPy's as plain Python values, anything else as it is."""
    return value.tolist() if hasattr(value, "dtype") and hasattr(value, "tolist") else value


def _number(setting: Setting, value: Any, *, whole: bool) -> int | float:
    value = _make_plain(value)
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise UserError(f"{setting.name} is {show(value)}: it must be a {'whole ' if whole else ''}number")
    low, high = setting.at_least, setting.at_most
    low, high = -_LARGEST if low is None else low, _LARGEST if high is None else high
    # Compared before it is converted or shown: a whole number may be too large for a float.
    if not low <= value <= high:
        shown = "far too large" if isinstance(value, int) and abs(value) >= 2**63 else str(value)
        raise UserError(f"{setting.name} is {shown}: it must be from {low:,} to {high:,}")
    return value if whole else float(value)
