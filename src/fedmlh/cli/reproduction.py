"""The command that repeats the measurements of the paper."""

import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

from fedmlh.cli.options import DeviceOption
from fedmlh.cli.terminal import Terminated, console, fail, progress, tell
from fedmlh.display import count
from fedmlh.errors import UserError


def reproduce(
    only: Annotated[
        list[str] | None,
        typer.Option(help="table1 … table8, figure1 … figure5 or theory; may be given several times; default: all"),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="folder that holds the data sets; without it the built-in synthetic data")
    ] = None,
    scale: Annotated[str, typer.Option(help="quick: minutes on two cores; full: as much as the paper")] = "quick",
    seeds: Annotated[
        int | None, typer.Option(min=1, max=1000, help="number of seeds; default: 2 quick, 3 full")
    ] = None,
    device: DeviceOption = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, max=1024, help="number of processes; default: as many as cores and memory allow"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="folder to write or to continue; default: runs/reproduction-SCALE")
    ] = None,
) -> None:
    """Measure the tables, figures and theorems of the FedMLH paper again, and show them beside the printed values."""
    from fedmlh.reproduction.plan import SCALES
    from fedmlh.reproduction.report import reproduce as write_reproduction
    from fedmlh.reproduction.sources import find_sources

    if scale not in SCALES:
        raise UserError(f"--scale {scale}: choose one of {', '.join(SCALES)}")
    out = out or Path("runs") / f"reproduction-{scale}"
    if (out / "config.toml").exists():
        raise UserError(f"{out} holds a run: choose another --out")
    try:
        with _work_progress() as (begin, watch):
            written = write_reproduction(
                find_sources(data),
                SCALES[scale],
                out,
                only=only or (),
                seeds=seeds,
                device=device or "auto",
                processes=jobs,
                command=shlex.join(["fedmlh", *sys.argv[1:]]),
                begin=begin,
                watch=watch,
            )
    except KeyboardInterrupt:
        fail("stopped; the same command continues from here", 128 + signal.SIGINT)
    except Terminated:
        fail("stopped; the same command continues from here", 128 + signal.SIGTERM)
    failed = {name: why for name, why in written.missing.items() if why.startswith("failed")}
    for name, why in written.missing.items():
        tell(f"{name}: {why}")
    console.print(f"report: {written.page}", soft_wrap=True)
    if failed:
        fail(f"{count(len(failed), 'measurement')} failed; the same command tries again", 1)


@contextmanager
def _work_progress() -> Iterator[tuple[Callable[[float], None], Callable[[Any, Any, float, float], None]]]:
    """Show a bar over jobs of very different length, with the time left; on a terminal only."""
    columns = (BarColumn(), TextColumn("{task.percentage:.0f} %"), TimeRemainingColumn())
    with progress(*columns, speed_estimate_period=3600) as bar:
        work = bar.add_task("reading data", total=None)

        def watch(job: Any, outcome: Any, done: float, total: float) -> None:
            bar.update(work, completed=done, description=f"done: {job.name}")

        yield lambda total: bar.update(work, total=total, description="measuring"), watch
