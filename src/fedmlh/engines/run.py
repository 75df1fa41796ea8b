"""The door from Python: a simulated federation, by default all in this process."""

from pathlib import Path

from fedmlh.config import Config
from fedmlh.data.dataset import Dataset
from fedmlh.engines.local import live_in_process
from fedmlh.runs.population import Engine
from fedmlh.runs.rounds import Run, Tell, Watch, ignore
from fedmlh.runs.simulate import simulate


def run(
    config: Config,
    dataset: Dataset,
    out: str | Path,
    *,
    engine: Engine = live_in_process,
    resume: bool = False,
    workers: int | None = None,
    watch: Watch = ignore,
    tell: Tell = ignore,
) -> Run:
    """Train, select the best round, test it once and keep the model, all in the folder `out`."""
    return simulate(
        config,
        dataset,
        out,
        engine=engine,
        alone=live_in_process,
        resume=resume,
        workers=workers,
        watch=watch,
        tell=tell,
    )
