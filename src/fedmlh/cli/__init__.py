"""The command line: parse, call, print."""

import os
import signal
from importlib.metadata import version
from typing import Annotated, NoReturn

import typer

from fedmlh.cli import (
    data,
    federation,
    models,
    one_round,
    planning,
    predict,
    reproduction,
    runs,
    serving,
    tuning,
    watching,
)
from fedmlh.cli.terminal import Interrupted, Terminated, complain, fail, terminable
from fedmlh.errors import UserError, explain_missing

app = typer.Typer(
    help="Federated extreme classification: train a model that chooses among very many labels, on data that stays with "
    "its owners. Methods are FedMLH, FedAvg, and a linear model in one round.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"fedmlh {version('fedmlh')}")
        raise typer.Exit


@app.callback()
def _begin(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    pass


# In the order in which `fedmlh --help` shows them.
app.command()(runs.run)
app.command()(runs.compare)
app.command()(runs.replay)
app.command("eval")(models.evaluate)
app.command()(predict.predict)
app.command()(serving.serve)
app.command()(watching.watch)
app.command()(planning.plan)
app.command()(tuning.tune)
app.command("config")(planning.show_config)
app.command()(runs.report)
app.command()(reproduction.reproduce)
app.add_typer(one_round.one_round_app, name="one-round")
app.add_typer(data.data_app, name="data")
app.add_typer(federation.federation_app, name="federation")
app.add_typer(federation.site_app, name="site")


def main() -> None:
    """Run the command line; a user's mistake ends in one sentence and exit code 2."""
    try:
        with terminable():
            app()
    except UserError as error:
        fail(str(error), 2)
    except ModuleNotFoundError as error:
        if (sentence := explain_missing(error.name)) is None:
            raise
        fail(sentence, 2)
    except MemoryError as error:
        fail(f"not enough memory ({error}): use a smaller model or data set", 2)
    except OSError as error:
        fail(f"{error.filename or 'file system'}: {error.strerror or error}", 2)
    except Interrupted as how:
        _leave(f"stopped; {how}", how.code)
    except Terminated:
        _leave("stopped", 128 + signal.SIGTERM)


def _leave(sentence: str, code: int) -> NoReturn:
    """End the process at once: a normal exit would wait minutes for clients in the middle of their training."""
    complain(sentence)
    os._exit(code)
