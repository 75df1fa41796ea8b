"""Commands that prepare a config before a run."""

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from fedmlh.cli.options import FormatOption, PartsOption, SetOption, configure
from fedmlh.cli.terminal import console, print_json, print_terms
from fedmlh.config import explain_settings
from fedmlh.display import count
from fedmlh.errors import UserError

if TYPE_CHECKING:
    from fedmlh.oneround.forecast import Forecast, Occurrences
    from fedmlh.planning.plan import Plan

_BARE: dict[str, Any] = {"box": None, "pad_edge": False, "padding": (0, 1, 0, 0)}  # narrow enough for 80 characters


def plan(
    labels: Annotated[int | None, typer.Option(help="number of labels (p)")] = None,
    points: Annotated[int | None, typer.Option(help="number of training points (N); needs --positives")] = None,
    positives: Annotated[
        int | None, typer.Option(help="number of labels that all training points carry together")
    ] = None,
    features: Annotated[int | None, typer.Option(help="number of features (d)")] = None,
    nonzeros: Annotated[
        float | None, typer.Option(help="average number of features per point; needed for one round")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="data folder that gives all of the above; its test part is not read")
    ] = None,
    data_format: FormatOption = "auto",
    budget: Annotated[
        str | None,
        typer.Option(help="size of the largest model to send, e.g. 2MiB; without it 4 to 48 MiB, by the data"),
    ] = None,
    clients: Annotated[
        int | None, typer.Option(help="number of clients (K); without it 10, or S if that is more")
    ] = None,
    clients_per_round: Annotated[int | None, typer.Option(help="number of clients in a round (S)")] = None,
    rounds: Annotated[int | None, typer.Option(help="number of training rounds (T)")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print as JSON, sizes in bytes")] = False,
    parts: PartsOption = None,
) -> None:
    """Propose the sizes of a model for a number of labels and a budget, and show what they cost.

    Also show what training in one round costs. Its bytes are estimates: on
    seven data sets they were right within a factor of 1.5 with --data, and
    within 2.5 from totals.
    """
    from fedmlh.oneround.forecast import Occurrences
    from fedmlh.planning.plan import make_plan, plan_one_round
    from fedmlh.sizing import parse_size

    totals = {"labels": labels, "points": points, "positives": positives, "features": features, "nonzeros": nonzeros}
    known = {f"--{name}": value is not None for name, value in totals.items()}
    found, repeated = None, None
    if data is not None:
        for name, is_known in known.items():
            if is_known:
                raise UserError(f"{name} follows from --data: leave out one of the two")
        found = _count(data, data_format, quiet=as_json)
        points, positives = found.points, int(found.labels.sum())
        features, labels = len(found.features), len(found.labels)
        repeated = int((found.features > 1).sum())
    elif labels is None:
        raise UserError("the number of labels is not known: give --labels, or name a data folder with --data")
    source = {"data": "" if data is None else str(data), "data_format": data_format}
    made = make_plan(
        labels,
        num_points=points,
        num_positives=positives,
        num_features=features,
        num_repeated=repeated,
        budget=None if budget is None else parse_size(budget),
        num_clients=clients,
        clients_per_round=clients_per_round,
        rounds=rounds,
        **source,
    )
    if points and positives is not None and features and nonzeros is not None:
        found = Occurrences.assume(points, features, nonzeros, labels, positives)
    once = None
    if found is not None and features:
        once = plan_one_round(found, features, labels, num_clients=made.chosen.config.num_clients, **source)
    method = None if found is None else _choose_method(found)
    if as_json:
        _print_values(made, once, method)
        return
    if method is not None:
        console.print(f"recommended takes {method}", soft_wrap=True)
        console.print()
    _show_rounds(made)
    if once is None:
        *others, last = [name for name, is_known in known.items() if not is_known]
        named = f"{', '.join(others)} and {last}" if others else last
        console.print(f"give {named}, or --data, to see what one round costs", soft_wrap=True)
    else:
        _show_once(once)


def _count(folder: Path, data_format: str, *, quiet: bool) -> "Occurrences":
    from fedmlh.data.readers.formats import load
    from fedmlh.oneround.forecast import Occurrences

    with nullcontext() if quiet or not console.is_terminal else console.status("reading data"):
        dataset = load(folder, data_format=data_format, training_only=True)
    return Occurrences.of(dataset)


def _choose_method(found: "Occurrences") -> str:
    """Return how `recommended` would train on such data."""
    from fedmlh.config import Config
    from fedmlh.planning.choices import settle_method
    from fedmlh.planning.plan import PRESET

    _, (reason,) = settle_method(Config.load(PRESET), found.features, found.points, len(found.labels))
    return reason


def _print_values(made: "Plan", once: "Forecast | None", method: str | None) -> None:
    from fedmlh.planning.plan import ONCE, write_command

    values: dict[str, Any] = {
        "method": method,
        "budget": made.budget,
        "chosen": made.chosen.figures,
        "reasons": made.reasons,
        "candidates": [candidate.figures for candidate in made.candidates],
        "command": made.command,
        "one_round": None,
    }
    if once is not None:
        command = write_command(ONCE, once.config)
        values["one_round"] = {**once.figures, "reasons": once.reasons, "command": command}
    print_json(values, indent=2)


def _show_rounds(made: "Plan") -> None:
    table = Table("", **_BARE)
    for head in ("R", "B", "inputs", "hidden", "model", "up", "down", "total", "collision", "positives", "P@k"):
        table.add_column(head, justify="right")
    for row in made.candidates:
        taken = row is made.chosen
        sizes = [row.config.num_tables, row.config.num_buckets, row.config.feature_dim, *row.config.hidden_sizes]
        table.add_row(
            "→" if taken else "",
            *(f"{size:,}" for size in sizes),
            *map(_mib, (row.model_bytes, row.bytes_up, row.bytes_down, row.bytes_total)),
            f"{row.collision_probability:.1e}",
            "–" if row.positives is None else f"{row.positives:,.1f}",
            "" if taken else f"{round(row.gain, 1) + 0.0:+.1f}",
            style="bold" if taken else None,
        )
    console.print(table)
    config = made.chosen.config
    terms = {
        "R": "number of tables; B: buckets per table; inputs, hidden: sizes of the network of each table",
        "model": "its size in MiB, as are the next three",
        "up, down": f"most that {count(config.clients_per_round, 'client')} of a round send, and receive on average",
        "total": f"both over {count(config.rounds, 'round')}",
        "collision": "probability that some two labels share a bucket in every table",
        "positives": "expected number of points in the bucket of a label of mean frequency",
        "P@k": "percentage points that this budget costs or gains, roughly",
    }
    print_terms(terms.items())
    for reason in made.reasons:
        console.print(reason, soft_wrap=True)
    console.print(made.command, soft_wrap=True)


def _show_once(once: "Forecast") -> None:
    from fedmlh.planning.plan import ONCE, write_command

    console.print()
    table = Table(**_BARE)
    for head in ("one round: slots", "outputs", "model", "up, each", "up, all", "down, all", "total", "to solve"):
        table.add_column(head, justify="right")
    outputs = f"{once.num_outputs:,}" if once.num_tables == 1 else f"{once.num_tables} × {once.num_outputs:,}"
    costs = (once.model_bytes, once.bytes_up_client, once.bytes_up, once.bytes_down, once.bytes_up + once.bytes_down)
    table.add_row(f"{once.slots:,}", outputs, *map(_mib, (*costs, once.solution_bytes)))
    console.print(table)
    terms = {
        "model": "its largest size in MiB, as are the other columns",
        "up, down": f"what each of {count(once.config.num_clients, 'client')} sends, what all send, and what they "
        f"receive: estimates for clients with similar data, less where their data differ",
        "to solve": "memory that the server needs",
    }
    print_terms(terms.items())
    for reason in once.reasons:
        console.print(reason, soft_wrap=True)
    console.print(write_command(ONCE, once.config), soft_wrap=True)


def _mib(size: int) -> str:
    cost = size / 2**20
    return f"{cost:,.2f}" if cost < 100 else f"{cost:,.0f}"


def show_config(
    config: Annotated[
        str | None,
        typer.Argument(
            metavar="CONFIG",
            help="a preset or a TOML file; without it all settings are explained",
        ),
    ] = None,
    settings: SetOption = None,
    parts: PartsOption = None,
) -> None:
    """Explain all settings by section, or print a complete config as TOML, ready to be saved and changed."""
    if config is not None:
        print(configure(config, settings).to_toml(), end="")
    elif settings:
        raise UserError("--set changes a config: name one, e.g. fedmlh config recommended --set rounds=20")
    else:
        print(explain_settings(), end="")
