"""Run a simulated federation from Python, by default in this process."""

import shutil
import tempfile
from pathlib import Path

from fedmlh.config import Config
from fedmlh.data.dataset import Dataset, check_dataset
from fedmlh.engines.local import live_in_process
from fedmlh.errors import UserError
from fedmlh.lock import hold, is_empty
from fedmlh.planning.choices import settle
from fedmlh.runs.folder import RunFolder
from fedmlh.runs.population import Engine
from fedmlh.runs.progress import print_rounds
from fedmlh.runs.rounds import Run, Tell, Watch, ignore
from fedmlh.runs.simulate import simulate


def run(
    config: Config | str | Path,
    dataset: Dataset,
    out: str | Path | None = None,
    *,
    engine: Engine = live_in_process,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = True,
    workers: int | None = None,
    watch: Watch = ignore,
    tell: Tell = ignore,
) -> Run:
    """Train, select the best round, test it once and keep the model, all in the folder `out`.

    config: a Config, the name of a preset, or the path of a TOML file.
    out: without it a new temporary folder, which `Run.folder` names.
    resume: continue the run in `out`; overwrite: remove the run in `out` first.
    progress: print what was chosen and a line per round, unless `watch` or `tell` is given: they are called with each
    round's record and with each remark.
    """
    if not isinstance(config, Config):
        config = Config.load(config)
    check_dataset(dataset)
    _check_functions(engine=engine, watch=watch, tell=tell)
    if resume and overwrite:
        raise UserError("resume=True continues a run, and overwrite=True removes it: choose one of them")
    if resume and out is None:
        raise UserError("resume=True needs out, the folder of the run")
    folder = Path(tempfile.mkdtemp(prefix="fedmlh-")) / "run" if out is None else Path(out)
    if overwrite:
        _remove(folder)
    RunFolder(folder).check_free(config, resume=resume)
    if progress and watch is ignore and tell is ignore:
        if resume and not (folder.is_dir() and not is_empty(folder)):
            print(f"{folder} holds no run to resume: this is a new one")
        config, reasons = settle(config, dataset)
        for reason in reasons:
            print(reason)
        watch, tell = print_rounds(config.most_rounds), print
    return simulate(
        config,
        dataset,
        folder,
        engine=engine,
        alone=live_in_process,
        resume=resume,
        workers=workers,
        watch=watch,
        tell=tell,
    )


def _check_functions(**functions: object) -> None:
    """Refuse what cannot be called."""
    for name, function in functions.items():
        if not callable(function):
            such = ", such as live_on_ray of fedmlh.engines.ray" if name == "engine" else ""
            raise UserError(f"{name} is {function!r:.60}: it must be a function{such}")


def _remove(folder: Path) -> None:
    """Remove a run, and nothing else."""
    if not folder.exists() or (folder.is_dir() and is_empty(folder)):
        return
    if not (folder / "config.toml").is_file():
        raise UserError(f"{folder} holds no run: overwrite=True removes runs only; name another out")
    with hold(folder):
        shutil.rmtree(folder)
