"""Names of settings in files and on the command line: the name alone, or section and name."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from fedmlh.config.settings import SECTIONS, SETTINGS
from fedmlh.config.values import show
from fedmlh.errors import UserError

#: The setting `algorithm` is another word for other settings, by its value. FedMLH changes none of them.
_ALGORITHM: dict[str, dict[str, Any]] = {"fedmlh": {}, "fedavg": {"label_map": "identity", "num_tables": 1}}
#: Values that files of earlier versions hold.
_FORMER_ALGORITHM = {"one-round": {"training": "one-round"}}
#: Settings of earlier versions that have no effect any more, with the value that older files hold.
_RETIRED = {"max_update_rms": 10.0}


def _list_names() -> dict[str, str]:
    """Return the setting of each valid name; after its section, a name may leave out `<section>_`."""
    names = {name: name for name in SETTINGS}
    for name, setting in SETTINGS.items():
        names[f"{setting.section.name}.{name}"] = name
        names[f"{setting.section.name}.{name.removeprefix(setting.section.name + '_')}"] = name
    return names


NAMES = _list_names()


def flatten(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return values by the names of their settings, from sections or none; refuse unknown names and second values."""
    found: dict[str, Any] = {}
    said: dict[str, str] = {}
    algorithm: dict[str, Any] = {}
    for name, value in _walk(values):
        if name == "algorithm":
            algorithm = _translate(value, source)
        elif name in _RETIRED:
            if value != _RETIRED[name]:
                raise UserError(f"{source}: {name} is no longer a setting: remove it (clip has replaced it)")
        else:
            setting = NAMES.get(name)
            if setting is None:
                raise UserError(f"{source}: {_explain_unknown(name, value)}")
            if setting in found:
                raise UserError(f"{source}: {setting} is set twice, as {said[setting]} and as {name}: keep one of them")
            found[setting], said[setting] = value, name
    return found | algorithm


def _walk(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if name in SECTIONS and isinstance(value, Mapping):
            for inner, own in value.items():
                yield f"{name}.{inner}", own
        else:
            yield name, value


def _translate(algorithm: Any, source: str) -> dict[str, Any]:
    known = _ALGORITHM | _FORMER_ALGORITHM
    if not isinstance(algorithm, str) or algorithm not in known:
        raise UserError(f"{source}: algorithm is {show(algorithm)}: choose one of {', '.join(_ALGORITHM)}")
    return known[algorithm]


def _explain_unknown(name: str, value: Any) -> str:
    if name in SECTIONS:
        example = next(setting for setting in SETTINGS.values() if setting.section.name == name)
        return f"there is no setting '{name}': it is a section, so name one of its settings, e.g. {name}.{example.name}"
    what, known = ("section", list(SECTIONS)) if isinstance(value, Mapping) else ("setting", [*NAMES, "algorithm"])
    near = difflib.get_close_matches(name[:80], known, n=1, cutoff=0.6)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return f"there is no {what} '{name:.80}'{hint}"
