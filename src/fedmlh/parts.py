"""Parts: everything that a config chooses by name, both our own and what users add.

Our own parts register themselves as users' parts do, when the file that holds them is first needed. Users' parts come
from Python or, on the command line, from a file (`--parts FILE.py`). Runs, models and agreements record name, origin
and hash of each part of a user, and refuse a different part of the same name.
"""

import difflib
import hashlib
import importlib
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_tb
from typing import Any, TypeVar, overload

from fedmlh.errors import UserError
from fedmlh.untrusted import read_bytes

#: The most bytes of a file of parts.
MOST_SOURCE = 1 << 22
_PACKAGE = __name__.partition(".")[0]
#: Our own parts: the file that registers each. It is imported when one of its parts is first used.
OWN: dict[str, dict[str, str]] = {
    "loss": dict.fromkeys(("bce", "softmax", "balanced-bce", "balanced-softmax"), "fedmlh.model.losses"),
    "partition": dict.fromkeys(("paper-code", "paper-text", "iid", "dirichlet", "folder"), "fedmlh.data.partition"),
    "server optimizer": dict.fromkeys(
        ("average", "momentum", "adam", "yogi", "adagrad", "fedexp"), "fedmlh.federated.optimizers"
    ),
    "aggregation": {"mean": "fedmlh.federated.aggregate"},
    "metric": {},  # ours are always measured
    "reader": {  # in the order in which they look for their files
        "npz": "fedmlh.data.readers.npz",
        **dict.fromkeys(("xmc", "svmlight"), "fedmlh.data.readers.xmc"),
        "text": "fedmlh.data.readers.jsonl",
    },
    "drift": {
        "none": "fedmlh.federated.drift.remedy",
        "scaffold": "fedmlh.federated.drift.scaffold",
        "vrl-sgd": "fedmlh.federated.drift.vrl_sgd",
    },
    "premises": {"drift": "fedmlh.federated.drift"},  # checks of a config, by what has the premises
    "label map": dict.fromkeys(("murmur3", "universal", "balanced", "identity"), "fedmlh.hashing.labels"),
    "codec": {
        **dict.fromkeys(("fp32", "fp16"), "fedmlh.federated.codecs.floats"),
        **dict.fromkeys(("int8", "int4", "int2"), "fedmlh.federated.codecs.integers"),
        "topk": "fedmlh.federated.codecs.topk",
        "sketch": "fedmlh.federated.codecs.sketch",
        "grid": "fedmlh.federated.codecs.grid",
    },
}
#: What users may add.
OPEN = ("loss", "partition", "aggregation", "metric", "reader")
#: What a part of a user must be in words, the names of its methods, and the names of its other attributes.
_SHAPES = {
    "loss": ("a fedmlh.Loss", ("value", "log_likelihood"), ("known", "kernel", "steepest")),
    "partition": ("a function (train, config, rng)", ("__call__",), ()),
    "aggregation": (
        "a class with add, merge, result and streams",
        ("__call__", "add", "merge", "result"),
        ("streams",),
    ),
    "metric": ("a class with add and values", ("__call__", "add", "values"), ()),
    "reader": ("a fedmlh.Reader", ("find", "read"), ()),
}
#: Figures of a run and of its clients in summary.json: a metric of such a name would take the place of one.
_FIGURES = frozenset(
    f"{metric}{group}"
    for metric in ("precision", "precision_paper", "recall", "ndcg", "psp")
    for group in ("", "_frequent", "_infrequent")
) | frozenset(
    "format_version name algorithm seed selection validation clients client site examples held_out training_points "
    "num_parameters model_bytes peak_memory_bytes rounds best_round best_round_alone precision_alone "
    "precision_at_sites recall_macro recall_by_count bytes_up bytes_down bytes_up_to_best bytes_down_to_best "
    "paper_volume_bytes evaluation_bytes_up evaluation_bytes_down seconds_per_round seconds_evaluation_per_round "
    "slots ridge ridge_from count_power kept delivered correction calibration proposals".split()
)
_Part = TypeVar("_Part")


@dataclass(frozen=True)
class Foreign:
    """The origin of a part that a user registered."""

    origin: str
    sha256: str


_parts: dict[tuple[str, str], Any] = {}
_foreign: dict[tuple[str, str], Foreign] = {}
#: Names and contents of the files that were loaded, by the modules that they became.
_files: dict[str, tuple[str, bytes]] = {}
#: The origin of the parts that are registered while their file is executed.
_loading: list[Foreign] = []


@overload
def register(kind: str, name: str, part: _Part) -> _Part: ...
@overload
def register(kind: str, name: str) -> Callable[[_Part], _Part]: ...
def register(kind: str, name: str, part: Any = None) -> Any:
    """Add a part under a name, as a call or as a decorator."""
    caller: Mapping[str, Any] = sys._getframe(1).f_globals

    def add(part: Any) -> Any:
        own = str(caller.get("__name__", "")).partition(".")[0] == _PACKAGE
        if kind not in OWN or not (own or kind in OPEN):
            raise UserError(f"there is no kind of part '{kind}' that can be added: choose one of {', '.join(OPEN)}")
        if not own:
            if name in OWN[kind] or name == "auto":
                raise UserError(f"the {kind} '{name}' is one of fedmlh's own: choose another name")
            if kind == "metric" and name in _FIGURES:
                raise UserError(f"the metric '{name}' has the name of a figure in summary.json: choose another name")
            _check_shape(kind, name, part)
            _foreign[kind, name] = _loading[-1] if _loading else _trace(kind, name, part, caller)
        _parts[kind, name] = part
        return part

    return add if part is None else add(part)


def find(kind: str, name: str) -> Any:
    """Return the part of that name."""
    try:
        check(kind, name)
    except ValueError as error:
        raise UserError(f"there is no {kind} '{name:.80}': {error}") from None
    if (kind, name) not in _parts:
        importlib.import_module(OWN[kind][name])
    return _parts[kind, name]


def check(kind: str, name: Any, also: tuple[str, ...] = ()) -> str:
    """Return a name if a part has it; else raise a ValueError that lists the names that exist, and `also`."""
    known = list_names(kind)
    if isinstance(name, str) and name in known:
        return name
    near = difflib.get_close_matches(name[:80], known, n=1, cutoff=0.6) if isinstance(name, str) else []
    hint = f"; did you mean '{near[0]}'?" if near else ""
    if not known:
        raise ValueError(f"there is no {kind} of that name: load the file that registers it (load_parts, --parts)")
    more = ", or register your own (--parts, docs/parts.md)" if kind in OPEN else ""
    raise ValueError(f"choose one of {', '.join((*known, *also))}{more}{hint}")


def list_names(kind: str) -> list[str]:
    """Return the names of all parts of a kind, ours first."""
    return [*OWN[kind], *(name for of, name in _foreign if of == kind)]


def find_foreign(kind: str, name: str) -> Foreign | None:
    """Return where a part comes from, or None if it is ours."""
    return _foreign.get((kind, name))


def load_parts(path: Path | str) -> None:
    """Execute a file that registers parts. It is code: load only what you would run."""
    path = Path(path)
    try:
        source = read_bytes(path.resolve(), MOST_SOURCE)
    except OSError as error:
        raise UserError(f"the file of parts {path} cannot be read: {error.strerror}") from None
    load_source(path.name, source)


def load_source(file: str, source: bytes) -> None:
    """Execute the source of a file of parts, once."""
    foreign = Foreign(file, hashlib.sha256(source).hexdigest())
    name = f"{_PACKAGE}_parts_{foreign.sha256[:16]}"
    if name in sys.modules:
        return
    module = types.ModuleType(name)
    # The file becomes a module with a name, so that objects of its classes can be pickled.
    sys.modules[name] = module
    _loading.append(foreign)
    try:
        exec(compile(source, file, "exec"), module.__dict__)
    except (SyntaxError, ValueError) as error:
        del sys.modules[name]
        raise UserError(f"the file of parts {file} cannot be executed: {error}") from None
    except Exception as error:
        del sys.modules[name]
        said = error if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        raise UserError(f"the file of parts {file}, line {_find_line(error, file)}: {said}") from None
    finally:
        _loading.pop()
    _files[name] = file, source


def list_sources() -> list[tuple[str, bytes]]:
    """Return names and contents of the files that were loaded, so that another process can load them."""
    return list(_files.values())


def find_sources(recorded: Iterable[Mapping[str, str]]) -> dict[str, tuple[str, bytes]]:
    """Return the files of these parts (`Config.foreign`) by their hashes, each with its name and content."""
    loaded = {hashlib.sha256(source).hexdigest(): (file, source) for file, source in _files.values()}
    for part in recorded:
        if part["sha256"] not in loaded:
            raise UserError(
                f"the part '{part['name']}' was registered in {part['origin']}, which other processes do not execute: "
                f"put it into a file of parts (load_parts, --parts)"
            )
    return {part["sha256"]: loaded[part["sha256"]] for part in recorded}


@contextmanager
def blame(kind: str, name: str, over: str = "") -> Iterator[None]:
    """Turn an error in a user's part into a UserError that names the part, the line and its input (`over`)."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:
        foreign = find_foreign(kind, name)
        if foreign is None:
            raise
        where = f"{foreign.origin}, line {_find_line(error, foreign.origin)}"
        said = f"the {kind} '{name}' failed ({where}): {type(error).__name__}: {error}"
        raise UserError(f"{over}: {said}" if over else said) from error


def _check_shape(kind: str, name: str, part: Any) -> None:
    """Refuse a part that cannot be of its kind."""
    what, methods, values = _SHAPES[kind]
    if not all(callable(getattr(part, method, None)) for method in methods) or not all(
        hasattr(part, value) for value in values
    ):
        raise UserError(f"the {kind} '{name}' must be {what} (docs/parts.md)")


def _find_line(error: BaseException, file: str) -> int:
    """Return the last line of `file` in the traceback of an error; 0 if there is none."""
    lines = [line for frame, line in walk_tb(error.__traceback__) if Path(frame.f_code.co_filename).name == file]
    return lines[-1] if lines else 0


def _trace(kind: str, name: str, part: Any, caller: Mapping[str, Any]) -> Foreign:
    """Return origin and hash of a part that is registered from Python: those of its file, or of its own source."""
    file = caller.get("__file__")
    if file and Path(file).is_file():
        return Foreign(Path(file).name, hashlib.sha256(Path(file).read_bytes()).hexdigest())
    pieces = [value for value in (part, *getattr(part, "__dict__", {}).values()) if callable(value)]
    try:
        source = "\n".join(inspect.getsource(piece) for piece in pieces)
    except (OSError, TypeError):
        source = ""
    if not source:
        raise UserError(f"the {kind} '{name}' has no source that could be recorded: put it into a file")
    return Foreign("interactive", hashlib.sha256(source.encode()).hexdigest())
