"""What one round gives each client, and what the client would have alone."""

from pathlib import Path

import pytest

from fedmlh import run
from fedmlh.data.division import divide
from once import BASE, DATA


def test_rows_of_clients_add_up_to_the_validation_part(tmp_path: Path) -> None:
    summary = run(BASE, DATA, tmp_path / "run").summary
    rows = summary["clients"]
    total = sum(row["held_out"] for row in rows)
    for k, value in summary["validation"]["precision"].items():
        assert sum(row["held_out"] * row["precision"][k] for row in rows) / total == pytest.approx(value)
    sizes = {client: len(shard) for client, shard in divide(DATA.train, BASE).shards.items()}
    assert {row["client"]: row["examples"] for row in rows}.items() <= sizes.items()
    assert all("precision_alone" not in row for row in rows)


def test_a_client_that_has_all_points_is_as_good_alone(tmp_path: Path) -> None:
    """And most of several are not."""
    one = BASE.replace(num_clients=1, clients_per_round=1, partition="iid", local_baseline=True)
    (row,) = run(one, DATA, tmp_path / "one").summary["clients"]
    assert row["precision_alone"] == row["precision"]
    rows = run(BASE.replace(local_baseline=True), DATA, tmp_path / "six").summary["clients"]
    assert sum(row["precision_alone"]["3"] < row["precision"]["3"] for row in rows) >= 3
