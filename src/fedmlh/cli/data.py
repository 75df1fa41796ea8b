"""Commands for data sets."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

from fedmlh.cli.importing import import_files
from fedmlh.cli.options import FormatOption, PartsOption
from fedmlh.cli.terminal import console, open_data, print_json, print_terms, progress
from fedmlh.config import Config

#: What `info` explains below its table.
_TERMS = {
    "pairs not scored": "points with a label that is never predicted for them (filter files)",
    "label frequency quantile": "training points of a label; quantile 0.5 is the median over labels",
    "positives": "labels of all training points together; the last rows show the share that belongs to labels which "
    "fewer than 1 %, 0.1 % or 0.01 % of the training points carry",
}

data_app = typer.Typer(
    help="Import, fetch, inspect, convert and make data sets.", no_args_is_help=True, rich_markup_mode="rich"
)


data_app.command("import")(import_files)


@data_app.command("info")
def data_info(
    folder: Annotated[Path, typer.Argument(help="data folder")],
    data_format: FormatOption = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="print as JSON")] = False,
    parts: PartsOption = None,
) -> None:
    """Show how large a data set is, how often its labels occur, and how many label entries belong to rare labels."""
    from fedmlh.data.statistics import describe

    dataset = open_data(Config(data=str(folder), data_format=data_format))
    values = describe(dataset)
    if as_json:
        print_json({**values, "fingerprint": dataset.fingerprint}, indent=2)
        return
    table = Table(dataset.name, "")
    table.add_row("fingerprint", dataset.fingerprint)
    for name, value in _flatten(values):
        table.add_row(name.replace("_", " "), value)
    console.print(table)
    print_terms(_TERMS.items())
    for note in dataset.notes:
        console.print(f"note: {note}")


@data_app.command("convert")
def data_convert(
    source: Annotated[Path, typer.Argument(help="data folder to read")],
    target: Annotated[Path, typer.Argument(help="folder to write")],
    to: Annotated[str, typer.Option(help="npz, xmc or svmlight")] = "npz",
    data_format: FormatOption = "auto",
    parts: PartsOption = None,
) -> None:
    """Write a data set in another format."""
    from fedmlh.data.readers.convert import write

    write(open_data(Config(data=str(source), data_format=data_format)), target, to)
    console.print(f"wrote {target}")


@data_app.command("fetch")
def data_fetch(
    name: Annotated[str | None, typer.Argument(help="name of a data set; without it all are listed")] = None,
    to: Annotated[Path | None, typer.Option(help="folder to write; without it data/NAME")] = None,
    source: Annotated[
        Path | None, typer.Option("--from", help="archive, or folder with its files, that you have already")
    ] = None,
) -> None:
    """Get a public data set: download its archive, or take it from --from, then convert it and check its counts."""
    from fedmlh.data.public.catalog import CATALOG, find
    from fedmlh.data.public.fetch import fetch

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
        console.print(line, soft_wrap=True)


@data_app.command("synth")
def data_synth(
    target: Annotated[Path, typer.Argument(help="folder to write")],
    points: Annotated[int, typer.Option(min=10, help="number of training points")] = 5000,
    features: Annotated[int, typer.Option(min=10, help="number of features (d)")] = 5000,
    labels: Annotated[int, typer.Option(min=10, help="number of labels (p)")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="seed of the random data")] = 0,
    to: Annotated[str, typer.Option(help="npz, xmc or svmlight")] = "npz",
) -> None:
    """Make a synthetic data set that behaves like real extreme data."""
    from fedmlh.data.readers.convert import write
    from fedmlh.data.synthetic import synthesize

    write(synthesize(num_points=points, num_features=features, num_labels=labels, seed=seed), target, to)
    console.print(f"wrote {target}")


@contextmanager
def _transfer(title: str) -> Iterator[Callable[[str, int, int | None], None]]:
    """Show a bar that counts bytes on a terminal, and nothing elsewhere."""
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with progress(*columns, transient=True) as bar:

        def watch(stage: str, done: int, total: int | None) -> None:
            name = f"{title}  {stage}"
            # A bar cannot forget its total, so each stage has its own bar.
            if [task.description for task in bar.tasks] != [name]:
                for old in bar.task_ids:
                    bar.remove_task(old)
                bar.add_task(name, total=None)
            bar.update(bar.task_ids[0], completed=done, total=total)

        yield watch


def _flatten(values: dict[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Yield names and readable values, nested ones under their parent's name; leave out what is empty."""
    for key, value in values.items():
        name = f"{above}{key}"
        if isinstance(value, dict):
            yield from _flatten(value, f"{name}, ")
        elif isinstance(value, int | float):
            yield name, f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"
