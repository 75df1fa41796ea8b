"""The methods of a comparison: which runs belong to each, and its name."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedmlh.comparison.settings import list_differing
from fedmlh.config import SETTINGS, Config
from fedmlh.errors import UserError
from fedmlh.runs.folder import FREE_ON_RESUME, FinishedRun, RunFolder
from fedmlh.storage import FORMAT_VERSION, write_atomically
from fedmlh.untrusted import MOST_JSON, parse_json, read_text

_PLAN = "comparison.json"
#: A name holds at most this many settings, and values of at most this length.
_MOST_NAMED, _LONGEST_VALUE = 2, 24
#: Settings that tell methods apart: those that a resumed run must keep.
_BOUND = [name for name in SETTINGS if name not in {*FREE_ON_RESUME, "seed"}]


@dataclass(frozen=True)
class Method:
    """Runs that differ only in the seed."""

    name: str
    config: Config  # of the first run; sizes and budget_mib as they were set, where that is known
    runs: tuple[FinishedRun, ...]  # by seed

    @property
    def seeds(self) -> list[int]:
        """Return the seed of each run."""
        return [run.config.seed for run in self.runs]


@dataclass(frozen=True)
class Entry:
    """A method as the user asked for it."""

    name: str
    folder: str  # of its runs, less the seed
    config: Config


@dataclass(frozen=True)
class Plan:
    """The methods and seeds of a comparison; a file in its folder holds them."""

    entries: tuple[Entry, ...]
    seeds: tuple[int, ...]

    def folders(self, out: Path) -> dict[Path, tuple[Entry, int]]:
        """Return the folders of all runs with the method and seed of each, one seed after another."""
        return {out / f"{entry.folder}-seed{seed}": (entry, seed) for seed in self.seeds for entry in self.entries}

    def write(self, out: Path) -> None:
        """Put the plan into the comparison's folder."""
        methods = [
            {"name": entry.name, "folder": entry.folder, "settings": entry.config.as_dict()} for entry in self.entries
        ]
        content = {"format_version": FORMAT_VERSION, "seeds": self.seeds, "methods": methods}
        write_atomically(out / _PLAN, (json.dumps(content, indent=1) + "\n").encode())

    @classmethod
    def read(cls, out: Path) -> "Plan | None":
        """Return the plan in a folder, if there is one."""
        try:
            content = parse_json(read_text(out / _PLAN, MOST_JSON))
            entries = tuple(_read_entry(method) for method in content["methods"])
            return cls(entries, tuple(int(seed) for seed in content["seeds"]))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{out / _PLAN} is damaged ({type(error).__name__}: {error})") from None


def _read_entry(method: Mapping[str, Any]) -> Entry:
    name, folder = method["name"], method["folder"]
    if not isinstance(name, str) or not isinstance(folder, str) or Path(folder).name != folder:
        raise ValueError("a method without a name or a folder")
    return Entry(name, folder, Config.from_mapping(method["settings"], _PLAN))


def find_runs(folder: Path) -> list[Path]:
    """Return a run folder as it is, and a comparison's folder as the finished runs in it."""
    if (folder / "config.toml").exists():
        return [folder]
    plan = Plan.read(folder)
    planned = [] if plan is None else [path for path in plan.folders(folder) if (path / "summary.json").exists()]
    return planned or sorted(path.parent for path in folder.glob("*/summary.json")) or [folder]


def gather(folders: Sequence[RunFolder]) -> list[Method]:
    """Read runs, and group those that differ only in the seed, in the order in which they are named."""
    runs = [folder.read() for folder in folders]
    if len({tuple(run.summary["precision"]) for run in runs}) > 1:
        raise UserError("these runs were measured at different k (top_k): report them separately")
    plans = {out: Plan.read(out) for out in {folder.path.parent for folder in folders}}
    members: dict[Any, list[FinishedRun]] = {}
    asked: dict[Any, Entry] = {}
    for run in runs:
        out, plan = run.folder.path.parent, plans[run.folder.path.parent]
        planned = None if plan is None else plan.folders(out).get(run.folder.path)
        key: Any = tuple(getattr(run.config, name) for name in _BOUND)
        if planned is not None:
            key = out, planned[0].folder
            asked[key] = planned[0]
        members.setdefault(key, []).append(run)
    for same in members.values():
        same.sort(key=lambda run: run.config.seed)
        seeds = [run.config.seed for run in same]
        if len(set(seeds)) < len(seeds):
            raise UserError(
                f"a run was given twice, or two runs with seed {max(seeds, key=seeds.count)} and the same settings"
            )
    own = _name_by_config([same[0] for key, same in members.items() if key not in asked])
    methods: list[Method] = []
    for key, same in members.items():
        entry, config = asked.get(key), same[0].config
        name = next(own) if entry is None else entry.name
        # A run keeps only the sizes that followed from its budget.
        if entry is not None and entry.config.sizes == "auto":
            config = replace(config, sizes="auto", budget_mib=entry.config.budget_mib)
        note = " (best round on test)" if config.selection == "paper" else ""
        methods.append(Method(f"{name}{note}", config, tuple(same)))
    return _make_unique(methods)


def _name_by_config(runs: Sequence[FinishedRun]) -> Iterator[str]:
    """Yield a name for each of these runs, which have different settings."""
    for run in runs:
        name = run.config.name or run.config.method
        sharing = [other for other in runs if (other.config.name or other.config.method) == name]
        here = next(place for place, other in enumerate(sharing) if other is run)
        yield f"{name}{_tell_apart(sharing, here)}"


def _tell_apart(runs: Sequence[FinishedRun], here: int) -> str:
    """Return what tells one of these runs apart from the others of its name."""
    configs = [run.config for run in runs]
    if len(runs) == 1:
        return ""
    if len({config.method for config in configs}) == len(runs):
        return f", {configs[here].method}"
    differing = [pair for pair in list_differing(configs, _BOUND) if pair[0] not in ("name", "selection")]
    if len(differing) <= _MOST_NAMED and all(len(shown[here]) <= _LONGEST_VALUE for _, shown in differing):
        return "".join(f", {name} {shown[here]}" for name, shown in differing)
    return ", " + re.sub(r"-seed\d+$", "", runs[here].folder.path.name)


def _make_unique(methods: list[Method]) -> list[Method]:
    """Add numbers to the names of methods that still have the same name."""
    names = [method.name for method in methods]
    for place, method in enumerate(methods):
        if names.count(method.name) > 1:
            methods[place] = replace(method, name=f"{method.name} ({names[: place + 1].count(method.name)})")
    return methods
