"""The settings in which runs differ, as far as they have an effect."""

from collections.abc import Iterator, Sequence
from typing import Any

from fedmlh.config import SETTINGS, Config
from fedmlh.sizing import SIZED

#: Shown for a setting that has no effect.
IDLE = "–"
#: Settings that say how large the tables are.
_SIZES = [name for name in SIZED if SETTINGS[name].section.name == "task"]


def list_differing(configs: Sequence[Config], names: Sequence[str] = ()) -> Iterator[tuple[str, list[str]]]:
    """Yield each setting, of those named or of all, in which configs differ, with its value in each as text."""
    idle = [_find_idle(config) for config in configs]
    for name, setting in SETTINGS.items():
        if not setting.compared or (names and name not in names):
            continue
        used = {getattr(config, name) for config, without in zip(configs, idle, strict=True) if name not in without}
        # A setting that only some methods use is worth a line if it was set, or says how large the tables are.
        alone = any(name in without for without in idle) and (used - {setting.default} or name in _SIZES)
        if len(used) > 1 or (used and alone):
            shown = zip(configs, idle, strict=True)
            yield name, [IDLE if name in without else show_value(getattr(config, name)) for config, without in shown]


def show_value(value: Any) -> str:
    """Return the value of a setting as tables and names show it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value) or '""'


def _find_idle(config: Config) -> set[str]:
    """Return the settings that have no effect on a run."""
    return {name for name, setting in SETTINGS.items() if setting.is_idle(config)}
