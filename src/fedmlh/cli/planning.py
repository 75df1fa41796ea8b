"""The commands that settle a config before a run."""

from typing import Annotated

import typer
from rich.table import Table

from fedmlh.cli.options import ConfigArgument, SetOption, configure
from fedmlh.cli.terminal import console, print_json


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
        print_json({"budget": made.budget, "chosen": chosen, "reasons": made.reasons, "candidates": rows}, indent=2)
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
        f"MiB: model; up, what {config.clients_per_round} clients send a round, and down, what they are sent on "
        f"average, before deflating; total, {config.rounds} rounds. collision: probability that no table tells some "
        f"pair of labels apart. positives: expected in the bucket of a label of mean frequency.",
        style="dim",
    )
    for reason in made.reasons:
        console.print(reason, soft_wrap=True)
    console.print(made.chosen.command, soft_wrap=True)


def show_config(config: ConfigArgument, settings: SetOption = None) -> None:
    """Print a complete config with an explanation of every field, ready to be saved and changed."""
    print(configure(config, settings).to_toml(), end="")
