"""`fedmlh serve`: models answer over HTTP; it needs no package that trains."""

import contextlib
import os
import re
from typing import Annotated

import typer

from fedmlh.cli.terminal import Terminated, tell
from fedmlh.errors import UserError, how_to_install

#: An origin as browsers write it: they compare letters, and name no usual port.
_ORIGIN = re.compile(r"(?!http://.*:80$|https://.*:443$)[a-z][a-z0-9+.-]*://[a-z0-9.:_\[\]-]+")


def serve(
    models: Annotated[list[str], typer.Argument(metavar="MODEL…", help="run or model folders, or ID=FOLDER")],
    host: Annotated[str, typer.Option(help="address to listen at; others than loopback are open to the network")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="port to listen at; 0 takes a free one")] = 8000,
    workers: Annotated[int, typer.Option(min=1, max=256, help="processes that answer")] = 1,
    names: Annotated[
        list[str] | None, typer.Option("--name", help="a host name by which clients reach the server; may be repeated")
    ] = None,
    origins: Annotated[
        list[str] | None,
        typer.Option("--allow-origin", help="an origin whose pages may ask, as https://example.org; may be repeated"),
    ] = None,
    language: Annotated[str, typer.Option(help="language of texts and labels, as Annif's clients are told")] = "und",
) -> None:
    """Serve trained models over HTTP: a page, JSON, and the interface of Annif."""
    for origin in origins or ():
        if not _ORIGIN.fullmatch(origin):
            raise UserError(
                f"--allow-origin {origin!a:.80} is no origin as browsers write it: give scheme and host in small "
                f"letters, and a port only if it is not the usual one, as https://example.org"
            )
    # Before numpy is imported: a question is too small to gain from threads, and several workers would fight for cores.
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        raise UserError(f"{error.name} is not installed: {how_to_install('serve')}") from None
    from fedmlh.web.listen import bind
    from fedmlh.web.service import Service, name_projects, run_service

    service = Service(name_projects(models), host, tuple(names or ()), tuple(origins or ()), language, workers=workers)
    # Ctrl-C and SIGTERM stop the server gracefully, which is no error.
    with bind(host, port) as bound, contextlib.suppress(KeyboardInterrupt, Terminated):
        run_service(service, bound)
    tell("stopped")
