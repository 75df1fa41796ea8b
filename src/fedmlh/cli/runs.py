"""Commands that train, repeat and report runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TimeRemainingColumn

from fedmlh.cli.options import (
    ConfigArgument,
    DeviceOption,
    PartsOption,
    RoundsOption,
    SeedOption,
    SetOption,
    check_begun,
    check_target,
    configure,
    refuse_idle_correct,
)
from fedmlh.cli.sweeps import as_file_name, check_methods, list_once, make_methods, parse_sweeps
from fedmlh.cli.terminal import console, errors, open_data, print_report, progress, resumable, tell
from fedmlh.config import Config, parse_setting
from fedmlh.display import count
from fedmlh.errors import UserError, how_to_install
from fedmlh.lock import hold, is_empty
from fedmlh.runs.progress import show_precision

if TYPE_CHECKING:
    from fedmlh.data.dataset import Dataset

DataOption = Annotated[Path | None, typer.Option(help="data folder; without it the built-in synthetic data is used")]
OutOption = Annotated[
    Path | None, typer.Option(help="folder to write; without it one under runs/, named after the config")
]
ResumeOption = Annotated[bool, typer.Option("--resume", help="continue the run in --out")]
TestOption = Annotated[bool, typer.Option("--test-every-round", help="also write test metrics for every round")]


def run(
    config: ConfigArgument,
    data: DataOption = None,
    algorithm: Annotated[str | None, typer.Option(help="fedmlh or fedavg")] = None,
    rounds: RoundsOption = None,
    seed: SeedOption = None,
    device: DeviceOption = None,
    settings: SetOption = None,
    out: OutOption = None,
    resume: ResumeOption = False,
    test_every_round: TestOption = False,
    engine: Annotated[str, typer.Option(help="where clients train: local (this process) or ray (a cluster)")] = "local",
    ray_address: Annotated[
        str | None, typer.Option(help="address of the Ray cluster; without it one is started on this machine")
    ] = None,
    parts: PartsOption = None,
) -> None:
    """Train one model over simulated clients and measure it."""
    from fedmlh.runs.folder import RunFolder

    options = _find_engine(engine, ray_address)

    flags: dict[str, Any] = {"rounds": rounds, "seed": seed, "device": device, "test_every_round": test_every_round}
    chosen = configure(config, settings, data=data, algorithm=algorithm, **flags)
    method = [] if chosen.training == "auto" else [chosen.method]
    named = out is not None
    out = out or Path("runs") / "-".join([as_file_name(chosen.name), *method, f"seed{chosen.seed}"])
    if resume:
        check_begun(out, "run", named=named)
    RunFolder(out).check_free(chosen, resume=resume)
    with resumable():
        _run(chosen, open_data(chosen), out, resume, **options)
        print_report([out], out / "report.html")


def compare(
    configs: Annotated[
        list[str],
        typer.Argument(
            metavar="CONFIG...", help="one preset or TOML file, for FedMLH against FedAvg, or several to compare"
        ),
    ],
    data: DataOption = None,
    rounds: RoundsOption = None,
    seed: SeedOption = None,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="number of seeds, from --seed upwards")] = 1,
    device: DeviceOption = None,
    settings: SetOption = None,
    sweeps: Annotated[
        list[str] | None,
        typer.Option(
            "--sweep", metavar="NAME=A,B,…", help="compare each config with these values of a setting; may be repeated"
        ),
    ] = None,
    out: OutOption = None,
    resume: ResumeOption = False,
    test_every_round: TestOption = False,
    parts: PartsOption = None,
) -> None:
    """Train FedMLH and FedAvg, or several configs, on the same points and seeds, and show them side by side."""
    from fedmlh.comparison.methods import Plan
    from fedmlh.runs.remarks import Remark

    flags: dict[str, Any] = {"rounds": rounds, "device": device, "test_every_round": test_every_round or None}
    fixed = [name for name, value in flags.items() if value is not None]
    fixed += [parse_setting(setting)[0] for setting in settings or []]
    swept = parse_sweeps(sweeps or [], fixed)
    entries = make_methods(
        configs, swept, lambda config, more: configure(config, settings, data=data, seed=seed, more=more, **flags)
    )
    refuse_idle_correct([*fixed, *swept], [entry.config for entry in entries])
    first = entries[0].config
    plan = Plan(tuple(entries), tuple(range(first.seed, first.seed + seeds)))
    named = out is not None
    out = out or Path("runs") / f"{as_file_name(first.name)}-compare"
    if resume:
        check_begun(out, "comparison", named=named)
    with resumable(), hold(out):
        if not resume and not is_empty(out):
            raise UserError(f"{out} is not empty: pass --resume to continue that comparison, or choose another --out")
        dataset = open_data(first)
        remarks = check_methods(entries, dataset)
        plan.write(out)
        for line in list_once(remarks):
            tell(line)
        said = {line for lines in remarks.values() for line in lines}

        def tell_new(line: str) -> None:
            if line not in said:
                tell(line)
            if isinstance(line, Remark):
                said.add(line)

        for folder, (entry, seed) in plan.folders(out).items():
            title = f"{entry.name}, seed {seed}"
            _run(entry.config.replace(seed=seed), dataset, folder, resume, title=title, tell=tell_new)
        print_report(list(plan.folders(out)), out / "report.html", tables=True)


def replay(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="run folder with its participation.jsonl")],
    data: Annotated[Path | None, typer.Option(help="data folder; without it the data of the run")] = None,
    out: Annotated[Path | None, typer.Option(help="folder to write; without it RUN-replay")] = None,
    parts: PartsOption = None,
) -> None:
    """Repeat a run in one process with exactly the clients that counted in it, and check that its model is the same."""
    from fedmlh.engines.replay import check_data, explain_difference, read_log
    from fedmlh.engines.replay import replay as repeat
    from fedmlh.runs.folder import RunFolder
    from fedmlh.runs.model_folder import have_same_weights

    original, copy = RunFolder(folder), RunFolder(out or folder.with_name(f"{folder.name}-replay"))
    config, log = read_log(original)
    if data is not None:
        config = config.replace(data=str(data.resolve()))
    copy.check_free(config, resume=False)
    dataset = open_data(config)
    check_data(original, dataset)
    with _progress(f"replay of {folder.name}", config.most_rounds) as watch:
        repeat(config, log, dataset, copy.path, watch=watch, tell=tell)
    if not (original.model / "weights.safetensors").is_file():
        console.print(f"{folder} has not finished: there is no model to compare with")
    elif have_same_weights(copy.model, original.model, folder):
        console.print(f"{count(len(log), 'attempt')}, and the same model to the bit")
    else:
        why = explain_difference(original, copy)
        console.print(f"the replay ends with another model than the run: {why}", soft_wrap=True)
        raise typer.Exit(1)


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="folders of finished runs")],
    out: Annotated[Path, typer.Option(help="the HTML file to write")] = Path("report.html"),
    parts: PartsOption = None,
) -> None:
    """Write a self-contained HTML report of finished runs, with their curves as PNG and their figures as CSV."""
    from fedmlh.comparison.methods import find_runs

    check_target(out)
    print_report([run for folder in runs for run in find_runs(folder)], out, beside=f"{out.stem}-", tables=True)


def _find_engine(name: str, address: str | None) -> dict[str, Any]:
    """Return the options that have `run` use the engine of that name."""
    if name not in ("local", "ray"):
        raise UserError(f"there is no engine '{name}': choose local or ray")
    if name == "local":
        if address is not None:
            raise UserError("--ray-address has no effect on the local engine: pass --engine ray as well")
        return {}
    try:
        from fedmlh.engines.ray import live_on_ray
    except ImportError:
        raise UserError(f"the Ray engine needs Ray, which is not installed: {how_to_install('ray')}") from None
    return {"engine": partial(live_on_ray, address=address)}


def _run(
    config: Config,
    dataset: "Dataset",
    out: Path,
    resume: bool,
    title: str = "",
    tell: Callable[[str], None] = tell,
    **options: Any,
) -> None:
    from fedmlh.engines.run import run as simulate
    from fedmlh.planning.choices import settle
    from fedmlh.runs.folder import RunFolder

    config, reasons = settle(config, dataset)
    for reason in reasons:
        tell(reason)
    title = title or f"{config.method} seed {config.seed}"
    with _progress(title, config.most_rounds, RunFolder(out).count_rounds()) as watch:
        simulate(config, dataset, out, resume=resume, watch=watch, tell=tell, **options)


@contextmanager
def _progress(title: str, rounds: int, finished: int = 0) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Show a bar on a terminal, and a line per round elsewhere; `finished` rounds were done before."""
    with progress(BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()) as bar:
        job = bar.add_task(title, total=rounds, completed=finished)

        def watch(record: dict[str, Any]) -> None:
            if not errors.is_terminal:
                tell(f"round {record['round']} of at most {rounds}, {title}: {show_precision(record)}")
            bar.update(job, completed=record["round"], description=f"{title}  {show_precision(record)}")

        yield watch
