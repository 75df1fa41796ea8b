"""`fedmlh watch`: a page that shows a run as it works; it needs no package that trains."""

import contextlib
import importlib.util
import tempfile
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from fedmlh.cli.terminal import Terminated, console, tell
from fedmlh.display import escape_html
from fedmlh.errors import UserError, how_to_install


def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="folder of a run, or of a federation at its server")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="port to listen at; 0 takes a free one")] = 0,
    browser: Annotated[bool, typer.Option("--open", help="open the page in a browser")] = False,
) -> None:
    """Show a run in a browser of this machine as it works; it reads, and changes nothing."""
    if importlib.util.find_spec("starlette") is None or importlib.util.find_spec("uvicorn") is None:
        raise UserError(f"a page needs starlette and uvicorn: {how_to_install('serve')}")
    from fedmlh.runs.chronicle import Follower
    from fedmlh.web.listen import bind, show_address
    from fedmlh.web.watch import HOST, find_run, make_key, run_watch

    folder, key = find_run(run), make_key()
    begun = Follower(folder).read().beginning is not None  # a file that is none is refused here
    with bind(HOST, port) as bound, contextlib.suppress(KeyboardInterrupt, Terminated), contextlib.ExitStack() as stack:
        address = f"{show_address(bound)}{key}/"
        bound.listen()  # a browser that is quicker than the server waits
        console.print(address, soft_wrap=True)
        if not begun:
            tell(f"{folder} has no events yet: the page shows the run once it begins")
        tell("only this machine reaches the page, and only by this address; Ctrl-C ends it")
        if browser:
            webbrowser.open(stack.enter_context(_lead_to(address)))
        run_watch(folder, bound, key)


@contextlib.contextmanager
def _lead_to(address: str) -> Iterator[str]:
    """Make a file that leads a browser to an address, which other accounts would see on the browser's command line."""
    with tempfile.TemporaryDirectory(prefix="fedmlh-watch-") as folder:
        page = Path(folder) / "open.html"
        page.write_text(f'<!doctype html><meta http-equiv="refresh" content="0; url={escape_html(address)}">\n')
        yield page.as_uri()
