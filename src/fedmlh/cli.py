"""The command line: parses, calls, prints."""

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from fedmlh.cli_federation import federation_app, site_app
from fedmlh.config import Config, parse_setting, presets
from fedmlh.errors import UserError

app = typer.Typer(
    help="Federated extreme classification: FedMLH and FedAvg, from data files to a model one can query.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
data_app = typer.Typer(help="Get, look at, convert and make data sets.", no_args_is_help=True, rich_markup_mode="rich")
app.add_typer(data_app, name="data")
app.add_typer(federation_app, name="federation")
app.add_typer(site_app, name="site")

console = Console()
errors = Console(stderr=True)


class Interrupted(Exception):
    """Ctrl-C during a run, which can be resumed."""


ConfigArgument = Annotated[
    str, typer.Argument(metavar="CONFIG", help=f"a preset ({', '.join(presets())}) or a TOML file")
]
DataOption = Annotated[Path | None, typer.Option(help="data folder; without it the built-in synthetic data is used")]
RoundsOption = Annotated[int | None, typer.Option(help="synchronization rounds at most")]
SeedOption = Annotated[int | None, typer.Option(help="seed of all random choices")]
DeviceOption = Annotated[str | None, typer.Option(help="auto, cpu or cuda")]
SetOption = Annotated[list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="set any config field")]
OutOption = Annotated[
    Path | None, typer.Option(help="folder to write; without it one under runs/, named by the set-up")
]
ResumeOption = Annotated[bool, typer.Option("--resume", help="go on with the run in --out")]
TestOption = Annotated[bool, typer.Option("--test-every-round", help="also write test metrics for every round")]
FormatOption = Annotated[str, typer.Option("--format", help="auto, npz, xmc, svmlight or text")]


@app.command()
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
) -> None:
    """Train one model federatedly and measure it."""
    from fedmlh.runs.folder import RunFolder

    options = _find_engine(engine, ray_address)

    flags = {"rounds": rounds, "seed": seed, "device": device, "test_every_round": test_every_round}
    chosen = _configure(config, settings, data=data, algorithm=algorithm, **flags)
    out = out or Path("runs") / f"{chosen.name}-{chosen.algorithm}-seed{chosen.seed}"
    RunFolder(out).check(chosen, resume=resume)
    with _resumable():
        _run(chosen, _open(chosen), out, resume, **options)
        _print_report([out], out / "report.html")


@app.command()
def compare(
    config: ConfigArgument,
    data: DataOption = None,
    rounds: RoundsOption = None,
    seed: SeedOption = None,
    seeds: Annotated[int, typer.Option(min=1, help="how many seeds, from --seed upwards")] = 1,
    device: DeviceOption = None,
    settings: SetOption = None,
    out: OutOption = None,
    resume: ResumeOption = False,
    test_every_round: TestOption = False,
) -> None:
    """Train FedMLH and FedAvg on the same partition, sampling and seeds, and set them side by side."""
    flags = {"rounds": rounds, "seed": seed, "device": device, "test_every_round": test_every_round}
    chosen = _configure(config, settings, data=data, **flags)
    out = out or Path("runs") / f"{chosen.name}-compare"
    if out.exists() and not resume and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is not empty: pass --resume to go on with that comparison, or choose another --out")
    folders = []
    with _resumable():
        dataset = _open(chosen)
        for number in range(chosen.seed, chosen.seed + seeds):
            for algorithm in ("fedmlh", "fedavg"):
                folders.append(out / f"{algorithm}-seed{number}")
                _run(chosen.replace(algorithm=algorithm, seed=number), dataset, folders[-1], resume)
        _print_report(folders, out / "report.html")


@app.command()
def replay(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="run folder with its participation.jsonl")],
    data: Annotated[Path | None, typer.Option(help="data folder; without it the data of the run")] = None,
    out: Annotated[Path | None, typer.Option(help="folder to write; without it RUN-replay")] = None,
) -> None:
    """Repeat a run in process with just the clients that counted in it, and see whether its model comes out again."""
    from fedmlh.engines.replay import read_log
    from fedmlh.engines.replay import replay as repeat
    from fedmlh.runs.folder import RunFolder

    original, copy = RunFolder(folder), RunFolder(out or folder.with_name(f"{folder.name}-replay"))
    config, log = read_log(original)
    if data is not None:
        config = config.replace(data=str(data.resolve()))
    copy.check(config, resume=False)
    dataset = _open(config)
    with _progress(f"replay of {folder.name}", config.rounds) as watch:
        repeat(config, log, dataset, copy.path, watch=watch, tell=_tell)
    models = [place.model / "weights.safetensors" for place in (original, copy)]
    if not models[0].is_file():
        console.print(f"{folder} has not finished: there is no model to compare with", markup=False, highlight=False)
    elif models[0].read_bytes() == models[1].read_bytes():
        console.print(f"{len(log)} attempts, and the same model to the bit", markup=False, highlight=False)
    else:
        console.print("the replay ends with another model than the run", markup=False, highlight=False)
        raise typer.Exit(1)


@app.command("eval")
def evaluate(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="run or model folder")],
    data: Annotated[Path | None, typer.Option(help="data folder; without it the data of the run")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print all metrics as JSON")] = False,
) -> None:
    """Measure a trained model on the test part of a data set."""
    from fedmlh.serving.predictor import Model

    model = Model.load(folder)
    config = model.bundle.task.config
    dataset = _open(config.replace(data=str(data)) if data else config)
    if data is None and dataset.fingerprint != model.bundle.data:
        raise UserError(
            "the model's own data is not at hand (it has changed, or came from Python): pass it with --data"
        )
    values = model.evaluate(dataset)
    if as_json:
        print(json.dumps(values, indent=2))
        return
    table = Table("test part", *(f"@{k}" for k in config.top_k))
    for metric, by_k in values.items():
        table.add_row(metric, *(f"{100 * value:.2f} %" for value in by_k.values()))
    console.print(table)


@app.command()
def predict(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="run or model folder")],
    text: Annotated[list[str] | None, typer.Option(help="a text to label; may be given several times")] = None,
    points: Annotated[Path | None, typer.Option("--input", help="points in any format that training reads")] = None,
    first_feature: Annotated[
        int | None, typer.Option(min=0, max=1, help="svmlight input: 0 or 1, where the file itself does not tell")
    ] = None,
    top: Annotated[int, typer.Option(min=1, max=10_000, help="labels a point")] = 5,
    out: Annotated[Path | None, typer.Option(help="write JSON lines to this file instead of the terminal")] = None,
) -> None:
    """Label points or text with a trained model."""
    from fedmlh.data.formats import read_points
    from fedmlh.serving.predictor import Model
    from fedmlh.storage import write_atomically

    if (text is None) == (points is None):
        raise UserError('say what to label: either --text "…" or --input FILE')
    if out is not None:
        _check_target(out)
    model = Model.load(folder)
    if points is None:
        source = text
    else:
        source = read_points(
            points,
            text=model.bundle.text is not None,
            num_features=model.bundle.task.num_features,
            first_feature=model.bundle.first_feature if first_feature is None else first_feature,
        )
    if text is not None and out is None:
        for line, predictions in zip(text, model.predict(text, top), strict=True):
            console.print(line, style="bold", markup=False, highlight=False, soft_wrap=True)
            for label in predictions:
                console.print(f"  {label.score:8.3f}  {label.name}  ({label.key})", markup=False, highlight=False)
        console.print(model.score_meaning, style="dim", soft_wrap=True)
        return
    lines = (
        json.dumps({"point": number, "labels": [vars(label) for label in labels]}, ensure_ascii=False)
        for number, labels in enumerate(model.predict_stream(source, top))
    )
    if out is not None:
        write_atomically(out, "".join(line + "\n" for line in lines).encode())
    else:
        for line in lines:
            print(line)
    errors.print(model.score_meaning, style="dim", soft_wrap=True)


@app.command()
def plan(
    labels: Annotated[int, typer.Option(help="labels p")],
    points: Annotated[int | None, typer.Option(help="training points N; with --positives")] = None,
    positives: Annotated[int | None, typer.Option(help="labels that all training points carry together")] = None,
    features: Annotated[int | None, typer.Option(help="features d of the data")] = None,
    budget: Annotated[
        str | None, typer.Option(help="largest model to send, e.g. 2MiB; without it 400 bytes a label, 1 to 48 MiB")
    ] = None,
    delta: Annotated[float, typer.Option(help="probability allowed for labels that no table tells apart")] = 0.01,
    clients_per_round: Annotated[int | None, typer.Option(help="clients S in a round")] = None,
    rounds: Annotated[int | None, typer.Option(help="synchronization rounds T")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print as JSON, sizes in bytes")] = False,
) -> None:
    """Propose tables, buckets and widths for a number of labels and a budget, with what they cost."""
    from fedmlh.planning import make_plan
    from fedmlh.sizing import parse_size

    made = make_plan(
        labels,
        num_points=points,
        num_positives=positives,
        num_features=features,
        budget=None if budget is None else parse_size(budget),
        delta=delta,
        clients_per_round=clients_per_round,
        rounds=rounds,
    )
    if as_json:
        rows = [candidate.figures for candidate in made.candidates]
        chosen = {**made.chosen.figures, "command": made.chosen.command}
        print(
            json.dumps({"budget": made.budget, "chosen": chosen, "reasons": made.reasons, "candidates": rows}, indent=2)
        )
        return
    table = Table("", box=None, pad_edge=False, padding=(0, 1, 0, 0))  # narrow enough for 80 characters
    for head in ("R", "B", "inputs", "hidden", "model", "up", "down", "total", "collision", "positives"):
        table.add_column(head, justify="right")
    for row in made.candidates:
        taken = row is made.chosen
        sizes = [row.config.num_tables, row.config.num_buckets, row.config.feature_dim, *row.config.hidden_sizes]
        costs = [size / 2**20 for size in (row.model_bytes, row.bytes_up, row.bytes_down, row.bytes_total)]
        table.add_row(
            "→" if taken else "",
            *(f"{size:,}" for size in sizes),
            *(f"{cost:,.2f}" if cost < 100 else f"{cost:,.0f}" for cost in costs),
            f"{row.collision_probability:.1e}",
            "–" if row.positives is None else f"{row.positives:,.1f}",
            style="bold" if taken else None,
        )
    console.print(table)
    config = made.chosen.config
    console.print(
        f"MiB: model; up and down, what {config.clients_per_round} clients and the server send a round; total, "
        f"{config.rounds} rounds. collision: probability that no table tells some pair of labels apart. positives: "
        f"expected in the bucket of a label of mean frequency.",
        style="dim",
        highlight=False,
    )
    for reason in made.reasons:
        console.print(reason, markup=False, highlight=False, soft_wrap=True)
    console.print(made.chosen.command, markup=False, highlight=False, soft_wrap=True)


@app.command("config")
def show_config(config: ConfigArgument, settings: SetOption = None) -> None:
    """Print a complete config with an explanation of every field, ready to be saved and changed."""
    print(_configure(config, settings).to_toml(), end="")


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="folders of finished runs")],
    out: Annotated[Path, typer.Option(help="the HTML file to write")] = Path("report.html"),
) -> None:
    """Write a self-contained HTML report of finished runs."""
    _check_target(out)
    _print_report([run for folder in runs for run in _expand(folder)], out)


@app.command()
def reproduce(
    only: Annotated[
        list[str] | None,
        typer.Option(help="table1 … table8, figure1 … figure5 or theory; may be given several times; default: all"),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="folder that holds the data sets; without it the built-in synthetic data")
    ] = None,
    scale: Annotated[str, typer.Option(help="quick: minutes on two cores; full: as much as the paper")] = "quick",
    seeds: Annotated[int | None, typer.Option(min=1, help="how many seeds; default: 2 quick, 3 full")] = None,
    device: DeviceOption = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="processes side by side; default: as cores and memory allow")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="folder to write, or to go on with; default: runs/reproduction-SCALE")
    ] = None,
) -> None:
    """Measure the paper's tables, figures and theorems again, and set them beside what it printed."""
    from fedmlh.reproduction.plan import SCALES
    from fedmlh.reproduction.report import reproduce as write_reproduction
    from fedmlh.reproduction.sources import find_sources

    if scale not in SCALES:
        raise UserError(f"--scale {scale}: choose one of {', '.join(SCALES)}")
    out = out or Path("runs") / f"reproduction-{scale}"
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
        _fail("stopped; the same command goes on from here", 130)
    failed = {name: why for name, why in written.missing.items() if why.startswith("failed")}
    for name, why in written.missing.items():
        _tell(f"{name}: {why}")
    console.print(f"report: {written.page}", markup=False, highlight=False, soft_wrap=True)
    if failed:
        _fail(f"{len(failed)} measurements failed; the same command tries them again", 1)


@data_app.command("info")
def data_info(
    folder: Annotated[Path, typer.Argument(help="data folder")],
    data_format: FormatOption = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="print as JSON")] = False,
) -> None:
    """Counts, label frequencies, and the share of positives that rare labels carry."""
    from fedmlh.data.statistics import describe

    dataset = _open(Config(data=str(folder), data_format=data_format))  # type: ignore[arg-type]
    values = describe(dataset)
    if as_json:
        print(json.dumps(values, indent=2))
        return
    table = Table(dataset.name, "")
    for name, value in _flatten(values):
        table.add_row(name.replace("_", " "), value)
    console.print(table)
    for note in dataset.notes:
        console.print(f"note: {note}", markup=False, highlight=False)


@data_app.command("convert")
def data_convert(
    source: Annotated[Path, typer.Argument(help="data folder to read")],
    target: Annotated[Path, typer.Argument(help="folder to write")],
    to: Annotated[str, typer.Option(help="npz, xmc or svmlight")] = "npz",
    data_format: FormatOption = "auto",
) -> None:
    """Write a data set in another format."""
    from fedmlh.data.convert import write

    write(_open(Config(data=str(source), data_format=data_format)), target, to)  # type: ignore[arg-type]
    console.print(f"wrote {target}", markup=False, highlight=False)


@data_app.command("fetch")
def data_fetch(
    name: Annotated[str | None, typer.Argument(help="a listed data set; without it they are listed")] = None,
    to: Annotated[Path | None, typer.Option(help="folder to write; without it data/NAME")] = None,
    source: Annotated[
        Path | None, typer.Option("--from", help="the archive, or the folder it was unpacked to, if it is here already")
    ] = None,
) -> None:
    """Get a public data set: download or take the archive, convert it and check its counts."""
    from fedmlh.data.catalog import CATALOG, find
    from fedmlh.data.fetch import fetch

    if name is None:
        table = Table("data set")
        for head in ("training", "test", "features", "labels"):
            table.add_column(head, justify="right")
        for listed in CATALOG.values():
            counts = (f"{size:,}" for size in vars(listed.counts).values())
            table.add_row(f"{listed.name}{' *' if listed.in_paper else ''}", *counts)
        console.print(table)
        console.print("* in the paper, and the name of a preset")
        return
    entry = find(name)
    with _transfer(entry.name) as watch:
        fetched = fetch(entry, to, source, watch)
    sizes = ", ".join(f"{size:,} {what}" for what, size in vars(fetched.counts).items())
    lines = [f"{entry.title} is in {fetched.folder} ({sizes})"]
    if fetched.archive is not None:
        lines.append(f"{fetched.archive} is no longer needed (SHA-256 {fetched.sha256})")
    lines.append(f"next: fedmlh run {entry.name if entry.in_paper else 'recommended'} --data {fetched.folder}")
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


@data_app.command("synth")
def data_synth(
    target: Annotated[Path, typer.Argument(help="folder to write")],
    points: Annotated[int, typer.Option(min=10, help="training points")] = 5000,
    features: Annotated[int, typer.Option(min=10, help="features d")] = 5000,
    labels: Annotated[int, typer.Option(min=10, help="labels p")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="the data follow from it")] = 0,
    to: Annotated[str, typer.Option(help="npz, xmc or svmlight")] = "npz",
) -> None:
    """Make a synthetic data set that behaves like real extreme data."""
    from fedmlh.data.convert import write
    from fedmlh.data.synthetic import synthesize

    write(synthesize(num_points=points, num_features=features, num_labels=labels, seed=seed), target, to)
    console.print(f"wrote {target}", markup=False, highlight=False)


def main() -> None:
    """Entry point: a user's mistake is one sentence and exit code 2."""
    try:
        app()
    except UserError as error:
        _fail(str(error), 2)
    except MemoryError as error:
        _fail(f"not enough memory ({error}): use a smaller model or data set", 2)
    except OSError as error:
        _fail(f"{error.filename or 'file system'}: {error.strerror or error}", 2)
    except Interrupted:
        print("fedmlh: stopped; the last finished round is kept: --resume goes on from it", file=sys.stderr, flush=True)
        # Clients in the middle of their training would keep a normal exit waiting for minutes.
        os._exit(130)


def _fail(sentence: str, code: int) -> NoReturn:
    print(f"fedmlh: {' '.join(sentence.split())}", file=sys.stderr)
    sys.exit(code)


def _configure(config: str, settings: list[str] | None, *, data: Path | None = None, **flags: Any) -> Config:
    """The config that was named, with --set and then the flags on top; a flag that was not given is None or False."""
    changes = dict(parse_setting(setting) for setting in settings or [])
    changes |= {name: value for name, value in flags.items() if value is not None and value is not False}
    if data is not None:
        changes["data"] = str(data)
    chosen = Config.load(config).replace(**changes)
    # Absolute, so that config.toml means the same wherever it is run again.
    return chosen.replace(data=str(Path(chosen.data).resolve())) if chosen.data else chosen


def _open(config: Config) -> Any:
    from fedmlh.data.source import open_dataset

    with console.status("reading data") if console.is_terminal else _nothing():
        return open_dataset(config)


def _find_engine(name: str, address: str | None) -> dict[str, Any]:
    """The engine of that name, as `run` takes it."""
    if name not in ("local", "ray"):
        raise UserError(f"there is no engine '{name}': choose local or ray")
    if name == "local":
        if address is not None:
            raise UserError("--ray-address has no effect on the local engine: pass --engine ray as well")
        return {}
    try:
        from fedmlh.engines.ray import live_on_ray
    except ImportError:
        raise UserError("the Ray engine needs Ray, which is not installed: pip install 'fedmlh[ray]'") from None
    return {"engine": partial(live_on_ray, address=address)}


def _run(config: Config, dataset: Any, out: Path, resume: bool, **options: Any) -> None:
    from fedmlh.engines.simulation import run as simulate

    with _progress(f"{config.algorithm} seed {config.seed}", config.rounds) as watch:
        simulate(config, dataset, out, resume=resume, watch=watch, tell=_tell, **options)


@contextmanager
def _resumable() -> Iterator[None]:
    """Ctrl-C in here is told to the user; typer would turn it into a silent exit."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted from None


def _tell(line: str) -> None:
    errors.print(line, style="dim", markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _progress(title: str, rounds: int) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A bar on a terminal, nothing elsewhere."""
    if not console.is_terminal:
        yield lambda record: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        job = bar.add_task(title, total=rounds)

        def watch(record: dict[str, Any]) -> None:
            values = record.get("validation") or record["test"]
            shown = "/".join(f"{100 * value:.1f}" for value in values["precision"].values())
            bar.update(job, completed=record["round"], description=f"{title}  P@k {shown} %")

        yield watch


@contextmanager
def _work_progress() -> Iterator[tuple[Callable[[float], None], Callable[[Any, float, float], None]]]:
    """A bar over jobs of very different length, with the time left; on a terminal only."""
    if not console.is_terminal:
        yield lambda total: None, lambda job, done, total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:.0f} %"))
    with Progress(*columns, TimeRemainingColumn(), console=console, speed_estimate_period=3600) as bar:
        work = bar.add_task("reading data", total=None)

        def watch(job: Any, done: float, total: float) -> None:
            bar.update(work, completed=done, description=f"done: {job.key}")

        yield lambda total: bar.update(work, total=total, description="measuring"), watch


@contextmanager
def _transfer(title: str) -> Iterator[Callable[[str, int, int | None], None]]:
    """A bar that counts bytes on a terminal, nothing elsewhere."""
    if not console.is_terminal:
        yield lambda stage, done, total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:

        def watch(stage: str, done: int, total: int | None) -> None:
            name = f"{title}  {stage}"
            # A bar cannot forget a total, so that each stage has its own.
            if [task.description for task in bar.tasks] != [name]:
                for old in bar.task_ids:
                    bar.remove_task(old)
                bar.add_task(name, total=None)
            bar.update(bar.task_ids[0], completed=done, total=total)

        yield watch


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def _print_report(folders: list[Path], target: Path) -> None:
    from fedmlh.runs.folder import RunFolder
    from fedmlh.runs.report import write_report

    heads, rows = write_report([RunFolder(folder) for folder in folders], target)
    table = Table("test part, at the selected round", *heads)
    for row in rows:
        table.add_row(row.name, *row.cells)
    console.print(table)
    console.print(f"report: {target}", markup=False, highlight=False, soft_wrap=True)


def _expand(folder: Path) -> list[Path]:
    """A run folder as it is; a comparison's folder as the runs in it."""
    inside = sorted(path.parent for path in folder.glob("*/summary.json"))
    return inside if inside and not (folder / "config.toml").exists() else [folder]


def _check_target(path: Path) -> None:
    """Before work is done for it: can the file be written at all?"""
    if not path.parent.is_dir():
        raise UserError(f"{path.parent} is not a folder: make it first, or name another file than {path}")


def _flatten(values: dict[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Names and readable values, nested ones under their parent's name; what is empty is left out."""
    for key, value in values.items():
        name = f"{above}{key}"
        if isinstance(value, dict):
            yield from _flatten(value, f"{name}, ")
        elif isinstance(value, int | float):
            yield name, f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
