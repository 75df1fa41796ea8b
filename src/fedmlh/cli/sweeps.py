"""The methods that `fedmlh compare` compares: every config with every combination of the swept values."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmlh.comparison.settings import show_value
from fedmlh.config import SETTINGS, Config, parse_setting, presets
from fedmlh.errors import UserError

if TYPE_CHECKING:
    from fedmlh.comparison.methods import Entry
    from fedmlh.data.dataset import Dataset

#: In characters of up to four bytes, with room for method and seed: file systems allow 255 bytes.
_LONGEST_NAME = 50
#: Settings with which the first config decides for all: never to be swept, or unless they are.
_COMMON = {
    how: [name for name, setting in SETTINGS.items() if (setting.common or setting.section.common) == how]
    for how in ("always", "unless swept")
}
#: Settings that decide which client holds which points.
_DIVISION = [
    *(name for name, setting in SETTINGS.items() if setting.section.name in ("clients", "validation")),
    "shared_fraction",
]

#: Makes the config that an argument names, with these settings on top.
Configure = Callable[[str, Mapping[str, Any]], Config]


def parse_sweeps(sweeps: Sequence[str], fixed: Sequence[str]) -> dict[str, list[Any]]:
    """Return the values of each swept setting; `fixed` settings were given a value by another option."""
    found: dict[str, list[Any]] = {}
    for text in sweeps:
        said, equals, raw = text.partition("=")
        parts = [part.strip() for part in _split(raw)]
        if not equals or not said.strip() or not all(parts):
            raise UserError(f"--sweep {text}: write name=value,value,…, e.g. --sweep num_tables=4,8,16")
        (name, *_), values = zip(*(parse_setting(f"{said}={part}") for part in parts), strict=True)
        if name == "seed":
            raise UserError(
                "--sweep seed: results are averaged over seeds, not compared; set their number with --seeds"
            )
        if name == "name" or name in _COMMON["always"]:
            raise UserError(f"--sweep {name}: methods that differ in {name} cannot be compared; set one value for all")
        if name in fixed or name in found:
            raise UserError(f"{name} is swept, and given a second time: give it once")
        if any(value in values[:place] for place, value in enumerate(values)):
            raise UserError(f"--sweep {text}: a value is named twice")
        found[name] = list(values)
    return found


def _split(raw: str) -> list[str]:
    """Split a text at commas that are not inside brackets: [64,64],[128] are two lists."""
    parts, depth = [""], 0
    for character in raw:
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def make_methods(configs: Sequence[str], swept: Mapping[str, list[Any]], configure: Configure) -> "list[Entry]":
    """Return every config with every combination of swept values; one config alone means FedMLH and FedAvg."""
    from fedmlh.comparison.methods import Entry

    if len(configs) == 1 and not swept:
        chosen = configure(configs[0], {})
        if chosen.training == "one-round":
            raise UserError(
                "compare needs a second config beside one-round: name one, e.g. recommended, or --sweep a setting"
            )
        if chosen.is_fedavg:
            raise UserError(f"{configs[0]} is FedAvg, which has no tables for FedMLH: name a second config")
        pair = {name: chosen.replace(algorithm=name, training="rounds") for name in ("fedmlh", "fedavg")}
        return [Entry(name, name, config) for name, config in pair.items()]
    combinations = [dict(zip(swept, values, strict=True)) for values in product(*swept.values())]
    shared = [name for names in _COMMON.values() for name in names if name not in swept]
    common: dict[str, Any] = {}
    entries: list[Entry] = []
    for config, base in zip(configs, _name_configs(configs), strict=True):
        for combination in combinations:
            several = combination.items() if len(combinations) > 1 else ()
            parts = [base, *(f"{field} {show_value(value)}" for field, value in several)]
            chosen = _apply(configure, config, {**common, **combination}, ", ".join(parts))
            entries.append(Entry(", ".join(parts), _find_folder(parts, entries), chosen))
            common = common or {name: getattr(chosen, name) for name in shared}
    return entries


def _apply(configure: Configure, config: str, changes: Mapping[str, Any], name: str) -> Config:
    try:
        return configure(config, changes)
    except UserError as error:
        raise UserError(f"{name}: {str(error).removeprefix('settings: ')}") from None


def _name_configs(configs: Sequence[str]) -> list[str]:
    """Return a name for each config: its own, or that of its file if it has none or another config has the same."""
    named = [Config.load(config).name for config in configs]
    bases = [
        Path(config).stem if config not in presets() and (name in ("", "custom") or named.count(name) > 1) else name
        for config, name in zip(configs, named, strict=True)
    ]
    twice = next((base for base in bases if bases.count(base) > 1), None)
    if twice is not None:
        raise UserError(f"two of the configs are named {twice}: give each its own name (name = …)")
    return bases


def _find_folder(parts: Sequence[str], entries: "Sequence[Entry]") -> str:
    """Return a name for the folders of a method that no other method has."""
    swept = (part.replace(", ", "_").replace(" ", "-") for part in parts[1:])
    folder = as_file_name("-".join([parts[0], *swept]))
    taken = {entry.folder.casefold() for entry in entries}
    return folder if folder.casefold() not in taken else f"{folder[: _LONGEST_NAME - 5]}-{len(entries)}"


def as_file_name(name: str) -> str:
    """Turn the name of a config into one that a folder can have, and that never leads to another folder."""
    kept = (character if character.isalnum() or character in " ._-" else "_" for character in name)
    return "".join(kept).lstrip(".")[:_LONGEST_NAME]


def check_methods(entries: "Sequence[Entry]", dataset: "Dataset") -> dict[str, list[str]]:
    """Refuse, before anything is trained, what a run would refuse once it knows the data.

    Return for each method the remarks that each of its runs would begin with.
    """
    from fedmlh.data.division import divide
    from fedmlh.federated.task import Task
    from fedmlh.planning.choices import settle
    from fedmlh.runs.remarks import describe_data, describe_settings

    divisions, remarks = set(), dict[str, list[str]]()
    for entry in entries:
        try:
            config, lines = settle(entry.config, dataset)
            task = Task(config, dataset.num_features, dataset.num_labels)
            division = tuple(getattr(config, name) for name in _DIVISION)
            if division not in divisions and len(entries) > 1:
                divide(dataset.train, config)
            divisions.add(division)
            remarks[entry.name] = [*lines, *describe_data(dataset, config.partition), *describe_settings(task)]
        except UserError as error:
            raise UserError(f"{entry.name}: {error}") from None
    return remarks


def list_once(remarks: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield each line once; a line that does not hold for all methods stands below the names of its methods."""
    groups: dict[tuple[str, ...], list[str]] = {tuple(remarks): []}
    for line in dict.fromkeys(line for lines in remarks.values() for line in lines):
        groups.setdefault(tuple(name for name, lines in remarks.items() if line in lines), []).append(line)
    for names, lines in groups.items():
        if len(names) < len(remarks):
            yield f"{'; '.join(names)}:"
        yield from (line if len(names) == len(remarks) else f"  {line}" for line in lines)
