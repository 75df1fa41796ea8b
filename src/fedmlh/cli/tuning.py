"""The command that searches settings for a user's data."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn
from rich.table import Table

from fedmlh.cli.options import DeviceOption, PartsOption, SetOption, check_begun
from fedmlh.cli.terminal import console, print_terms, progress, resumable, tell
from fedmlh.config import parse_setting
from fedmlh.display import count
from fedmlh.errors import UserError, how_to_install
from fedmlh.lock import hold, is_empty
from fedmlh.sizing import parse_size
from fedmlh.storage import FORMAT_VERSION, write_atomically
from fedmlh.untrusted import MOST_JSON, parse_json, read_text

if TYPE_CHECKING:
    from fedmlh.tuning.search import Row, Search


def tune(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="data folder; its test part is not read")],
    out: Annotated[Path | None, typer.Option(help="folder to write; without it runs/NAME-tune")] = None,
    labels: Annotated[str, typer.Option(help="hashed, identity (one output per label) or both")] = "both",
    training: Annotated[str, typer.Option(help="rounds (networks), one-round (a linear model) or both")] = "both",
    trials: Annotated[int, typer.Option(min=1, max=100_000, help="number of trials to train, over both sides")] = 30,
    minutes: Annotated[
        float | None, typer.Option(min=0.01, help="begin no round after this time; --resume continues")
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(help="size of the largest model to send, e.g. 2MiB; without it 4 to 48 MiB, by the data"),
    ] = None,
    bytes_per_round: Annotated[
        str | None, typer.Option(help="most bytes that all clients of a round send and receive, e.g. 5MiB")
    ] = None,
    clients: Annotated[int | None, typer.Option(help="number of clients (K); without it as in the preset")] = None,
    clients_per_round: Annotated[int | None, typer.Option(help="number of clients in a round of networks (S)")] = None,
    rounds: Annotated[int | None, typer.Option(help="largest number of rounds of networks")] = None,
    seed: Annotated[int, typer.Option(min=0, help="seed of the search and of every trial")] = 0,
    jobs: Annotated[int, typer.Option(min=1, max=1024, help="number of trials at a time, each in its own process")] = 1,
    device: DeviceOption = None,
    start: Annotated[
        str | None,
        typer.Option(metavar="CONFIG", help="config of the first trials; without it the preset recommended"),
    ] = None,
    settings: SetOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="continue the search in --out")] = False,
    parts: PartsOption = None,
) -> None:
    """Search for settings that suit your data, judged on validation points only.

    There are two sides: networks in rounds, and a linear model in one round.
    The first trial of each side has the settings of the preset recommended.
    Trials that fall behind are stopped early. Pass best.toml to fedmlh run;
    trials.csv and tune.html show what was tried.
    """
    try:
        import optuna  # noqa: F401
    except ImportError:
        raise UserError(f"tune needs Optuna, which is not installed: {how_to_install('tune')}") from None
    from fedmlh.data.source import open_dataset
    from fedmlh.tuning.goal import Goal, Wish
    from fedmlh.tuning.page import write_page
    from fedmlh.tuning.results import find_best, write_results
    from fedmlh.tuning.search import Search
    from fedmlh.tuning.workers import work_apart, work_here

    wish = Wish(
        labels=labels,
        training=training,
        start=start,
        settings=tuple(parse_setting(setting) for setting in settings or []),
        clients=clients,
        clients_per_round=clients_per_round,
        rounds=rounds,
        seed=seed,
        device=device,
        budget=None if budget is None else parse_size(budget),
        bytes_per_round=None if bytes_per_round is None else parse_size(bytes_per_round),
    )
    source = str(data.resolve())
    config = next(iter(wish.configs(source).values()))
    named = out is not None
    out = out or Path("runs") / f"{data.resolve().name.lstrip('.')}-tune"
    if resume:
        check_begun(out, "search", named=named)
    how = "--resume continues the search, and the trial that was cut off"
    with resumable(how), hold(out):
        _check_folder(out, resume)
        dataset = open_dataset(config, training_only=True)
        goal = Goal.of(wish, dataset, source)
        _check_same(out / "tune.json", goal.settings)
        for note in goal.notes:
            tell(note)
        with _progress(trials) as show:

            def ended(search: "Search", row: "Row") -> None:
                rows = search.rows()
                write_results(rows, out)
                show(row, rows)

            search = Search(goal, out, trials, minutes=minutes, ended=ended)
            if jobs == 1:
                work_here(search, dataset)
            else:
                work_apart(search, config, jobs)
        rows = search.rows()
        if find_best(rows) is None:
            raise UserError(
                f"no trial has finished within {minutes:g} minutes: pass --resume with more --minutes"
                if search.is_time_over
                else "no trial has finished: trials.csv says why"
            )
        write_results(rows, out)
        write_page(rows, goal, out / "tune.html")
        _print_best(rows, out, data)


def _check_folder(out: Path, resume: bool) -> None:
    there = (out / "tune.json").exists()
    if resume and not there and not is_empty(out):
        raise UserError(f"{out} holds no search to resume: choose another --out")
    if not resume and not is_empty(out):
        hint = "pass --resume to continue that search, or " if there else ""
        raise UserError(f"{out} is not empty: {hint}choose another --out")


def _check_same(path: Path, settings: dict[str, Any]) -> None:
    """Write what a search depends on, or refuse to continue a search that depends on something else."""
    wanted = json.loads(json.dumps({"format_version": FORMAT_VERSION, **settings}))
    if not path.exists():
        write_atomically(path, (json.dumps(wanted, indent=1) + "\n").encode())
        return
    try:
        before = parse_json(read_text(path, MOST_JSON))
        names = [name for name in {**before, **wanted} if before.get(name) != wanted.get(name)]
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is damaged ({type(error).__name__}: {error})") from None
    if names:
        name = names[0]
        raise UserError(
            f"{path.parent} holds a search with {name} = {before.get(name)!r:.60}, this one has "
            f"{wanted.get(name)!r:.60}: resume with the same settings and data, or choose another --out"
        )


@contextmanager
def _progress(trials: int) -> Iterator[Callable[["Row", list["Row"]], None]]:
    """Show a line per trial, and on a terminal a bar as well."""
    from fedmlh.tuning.results import find_best

    def describe(row: "Row", rows: list["Row"]) -> str:
        best = find_best(rows)
        so_far = "" if best is None else f"; best so far {best.name} {100 * (best.score or 0):.1f}"
        return f"{_describe(row)}{so_far}"

    with progress(BarColumn(), MofNCompleteColumn()) as bar:
        job = bar.add_task("trials", total=trials)

        def show(row: "Row", rows: list["Row"]) -> None:
            tell(describe(row, rows))
            bar.update(job, completed=sum(other.rounds > 0 and not other.reason for other in rows))

        yield show


def _describe(row: "Row") -> str:
    from fedmlh.tuning.results import MIB, show_precision

    if row.reason:
        return f"trial {row.name}: {row.state}, not trained: {row.reason}"
    figures = f"{show_precision(row)}, mean {100 * (row.score or 0):.1f}"
    cost = f"{row.bytes_total / MIB:,.2f} MiB in {count(row.rounds, 'round')}"
    return f"trial {row.name}: {row.state}, {figures}, {cost}"


def _print_best(rows: list["Row"], out: Path, data: Path) -> None:
    from fedmlh.tuning.results import MIB, rank

    ranked = rank(rows)
    shown = ranked[:5] + [row for row in ranked[5:] if row.number == 0]
    ks = list(ranked[0].precision or {})
    table = Table("validation", *(f"P@{k}" for k in ks), "mean", "MiB", "rounds")
    for row in shown:
        values = [f"{100 * value:.1f}" for value in (*(row.precision or {}).values(), row.score or 0.0)]
        name = f"{row.name}, the preset" if row.number == 0 else row.name
        table.add_row(name, *values, f"{row.bytes_total / MIB:,.2f}", str(row.rounds))
    console.print(table)
    terms = {
        "P@k": "share of the first k labels that are right, mean over validation points; mean: over all k",
        "MiB": "encoded messages of all rounds, both ways",
    }
    print_terms(terms.items())
    console.print(f"page: {out / 'tune.html'}", soft_wrap=True)
    console.print(f"fedmlh run {out / 'best.toml'} --data {data}", soft_wrap=True)
