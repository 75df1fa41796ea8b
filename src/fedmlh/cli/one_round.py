"""The commands that add clients to finished runs of one round, and take them out."""

from pathlib import Path
from typing import Annotated

import typer

from fedmlh.cli.options import FormatOption, PartsOption
from fedmlh.cli.runs import OutOption
from fedmlh.cli.terminal import open_data, print_report, tell
from fedmlh.errors import UserError

one_round_app = typer.Typer(
    help="Add clients to a finished run of one round, or take them out: the result the other set of clients gives.",
    no_args_is_help=True,
)
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="folder of a finished run of one-round")]


@one_round_app.command()
def add(
    run: RunArgument,
    data: Annotated[list[Path], typer.Option(help="data folder whose training part is a client's; may be repeated")],
    data_format: FormatOption = "auto",
    out: OutOption = None,
    parts: PartsOption = None,
) -> None:
    """Add clients, each from a data folder of its own, under the terms of the run."""
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
    out: OutOption = None,
    parts: PartsOption = None,
) -> None:
    """Take clients out; the folder RUN, which still holds their sums, is left as it is."""
    from fedmlh.runs.folder import RunFolder
    from fedmlh.runs.one_round.revise import revise

    if len(set(clients)) < len(clients):
        raise UserError("a client is named twice")
    dataset = open_data(RunFolder(run).read_config())
    target = out or run.with_name(f"{run.name}-less")
    revise(run, dataset, target, remove=clients, tell=tell)
    print_report([target], target / "report.html")
