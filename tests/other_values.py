"""Another valid value for any setting of a config."""

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from fedmlh.config import SETTINGS, Config, Setting
from fedmlh.errors import UserError
from fedmlh.parts import list_names

#: Settings that can be changed only together with others, which are of the same section.
TOGETHER: dict[str, dict[str, Any]] = {
    "pooled": {"clients_per_round": 1, "quorum": 1},
    "budget_mib": {"sizes": "auto"},
}
#: Values of texts, about which their type says nothing.
_TEXTS = {"name": "other", "data": "/elsewhere", "label_seeds": "paper", "feature_seeds": "paper"}
_CODEC = "fp16"


def change(config: Config, name: str) -> Config | None:
    """Return the config with another value of a setting, if possible of this one alone; None if there is none."""
    setting, before = SETTINGS[name], getattr(config, name)
    for value in _propose(setting, before):
        try:
            changed = config.replace(**{name: value}, **TOGETHER.get(name, {}))
        except UserError:
            continue
        if getattr(changed, name) != before:
            return changed
    return None


def _propose(setting: Setting, value: Any) -> Iterator[Any]:
    if setting.part:
        names = list_names(setting.part)
        yield from ([name] for name in names) if isinstance(value, tuple) else names
    elif get_origin(setting.type) is Literal:
        yield from get_args(setting.type)
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value - 1)
    elif isinstance(value, float):
        yield from (0.9 * value, value + 0.1, (setting.at_least + setting.at_most) / 2)
    elif isinstance(value, tuple):
        yield (*value[:-1], value[-1] + 1)
    else:
        yield _TEXTS.get(setting.name, _CODEC)
