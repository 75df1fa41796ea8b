"""Commands that add clients to finished runs of one round, and take clients out."""

from pathlib import Path
from typing import Annotated

import typer

from fedmlh.cli.options import FormatOption, PartsOption
from fedmlh.cli.terminal import open_data, print_report, tell
from fedmlh.errors import UserError

one_round_app = typer.Typer(
    help="Add clients to a finished run of one-round, or take clients out; the result is the same model as that of a "
    "run with the new set of clients.",
    no_args_is_help=True,
)
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="folder of a finished run of one-round")]


@one_round_app.command()
def add(
    run: RunArgument,
    data: Annotated[
        list[Path], typer.Option(help="data folder whose training part becomes a new client; may be repeated")
    ],
    data_format: FormatOption = "auto",
    out: Annotated[Path | None, typer.Option(help="folder to write; without it RUN-more")] = None,
    parts: PartsOption = None,
) -> None:
    """Add clients, each from its own data folder, with the settings of the run."""
    from fedmlh.runs.folder import RunFolder
    from fedmlh.runs.one_round.revise import read_client, revise

    dataset = open_data(RunFolder(run).read_config())
    points = [read_client(folder, dataset, data_format) for folder in data]
    target = out or run.with_name(f"{run.name}-more")
    revise(run, dataset, target, add=points, tell=tell)
    print_report([target], target / "report.html")


@one_round_app.command()
def remove(
    run: RunArgument,
    clients: Annotated[list[int], typer.Argument(metavar="CLIENT...", help="numbers of the clients to take out")],
    out: Annotated[Path | None, typer.Option(help="folder to write; without it RUN-less")] = None,
    parts: PartsOption = None,
) -> None:
    """Take clients out; the folder RUN stays as it is, and still holds their sums."""
    from fedmlh.runs.folder import RunFolder
    from fedmlh.runs.one_round.revise import revise

    if len(set(clients)) < len(clients):
        raise UserError("a client is named twice: name each once")
    dataset = open_data(RunFolder(run).read_config())
    target = out or run.with_name(f"{run.name}-less")
    revise(run, dataset, target, remove=clients, tell=tell)
    print_report([target], target / "report.html")
