"""What a config leaves open follows from the data: clients, method, sizes; and the run says so."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from fedmlh.config import Config
from fedmlh.data.dataset import Dataset, Split
from fedmlh.data.division import divide
from fedmlh.data.synthetic import synthesize
from fedmlh.engines.run import run
from fedmlh.errors import UserError
from fedmlh.oneround import budget
from fedmlh.planning.choices import settle
from fedmlh.runs import folder
from fedmlh.sizing import list_open

RECOMMENDED = Config.load("recommended")
DATA = synthesize(num_points=400, num_features=120, num_labels=80, seed=3)


def with_sites(count: int) -> Dataset:
    """Return the same points, as they would come from this many folders."""
    owners = np.arange(len(DATA.train)) % count
    train = Split(DATA.train.X, DATA.train.Y, DATA.train.excluded, owners)
    return replace(DATA, train=train, site_names=tuple(f"site-{number}" for number in range(count)))


def test_recommended_gives_every_point_to_exactly_one_client() -> None:
    settled, reasons = settle(RECOMMENDED, DATA)
    assert (settled.partition, settled.num_clients, settled.clients_per_round) == ("dirichlet", 10, 4)
    division = divide(DATA.train, settled)
    assert division.reached == division.total == sum(map(len, division.shards.values()))
    assert len(division.validation) + division.total == len(DATA.train)
    assert any("each point goes to one client" in reason for reason in reasons)


@pytest.mark.parametrize(("sites", "sampled"), [(3, 3), (10, 10), (14, 10)])
def test_site_folders_are_the_clients(sites: int, sampled: int) -> None:
    settled, reasons = settle(RECOMMENDED, with_sites(sites))
    assert (settled.partition, settled.num_clients, settled.clients_per_round) == ("folder", sites, sampled)
    assert any("the data's sites" in reason for reason in reasons)


def test_what_is_set_stays() -> None:
    told = {"partition": "iid", "num_clients": 7, "clients_per_round": 6, "training": "rounds", "loss_tau": 0.1}
    settled, _ = settle(RECOMMENDED.replace(**told), with_sites(3))
    assert {name: getattr(settled, name) for name in told} == told
    once, _ = settle(RECOMMENDED.replace(num_clients=100, training="one-round", correct=3), DATA)
    assert (once.num_clients, once.clients_per_round, once.training, once.correct) == (100, 4, "one-round", 3)
    paper = Config.load("eurlex-4k")
    assert settle(paper, DATA) == (paper, [])


def test_nothing_is_left_open() -> None:
    assert {"training", "partition", "num_clients", "hidden_sizes", "loss_tau"} <= list_open(RECOMMENDED)
    for changes in ({}, {"training": "rounds"}, {"algorithm": "fedavg"}, {"training": "one-round"}):
        settled, reasons = settle(RECOMMENDED.replace(**changes), DATA)
        assert not list_open(settled)
        assert settle(settled, DATA) == (settled, [])
        assert len(reasons) >= 3


@pytest.mark.parametrize("training", ["auto", "one-round"])
def test_slots_are_no_more_than_a_server_solves_for_in_minutes(
    monkeypatch: pytest.MonkeyPatch, training: str, tmp_path: Path
) -> None:
    config = RECOMMENDED.replace(training=training, correct=0)
    occurring = int(np.count_nonzero(np.bincount(DATA.train.X.indices, minlength=DATA.num_features)))
    for most, chosen in ((occurring, 0), (occurring - 1, occurring - 1)):
        monkeypatch.setattr(budget, "MOST_SLOTS", most)
        monkeypatch.setattr(folder, "MOST_SLOTS", most)
        settled, reasons = settle(config, DATA)
        assert settled.feature_slots == chosen
        assert any("(feature_slots)" in line for line in reasons) == bool(chosen)
        assert settle(config.replace(training="rounds"), DATA)[0].feature_slots == 0
        # What the data decided is no other setting when the run is resumed.
        run(config, DATA, tmp_path / str(chosen), progress=False)
        run(config, DATA, tmp_path / str(chosen), progress=False, resume=True)
    with pytest.raises(UserError, match="feature_slots"):
        run(config.replace(feature_slots=5), DATA, tmp_path / str(chosen), progress=False, resume=True)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"algorithm": "fedavg"}, "FedAvg is trained in rounds"),
        ({"selection": "paper"}, "selection 'paper' chooses among rounds"),
        ({"shared_fraction": 0.1}, "one round shares no points"),
        ({"pooled": True}, "pooled trains one client"),
        ({"feature_slots": 8}, "documents are so long"),
    ],
)
def test_networks_are_trained_in_rounds_where_one_round_does_not_suit(changes: dict[str, object], reason: str) -> None:
    settled, reasons = settle(RECOMMENDED.replace(**changes), DATA)
    assert settled.training == "rounds"
    assert any(line.startswith("networks in rounds: ") and reason in line for line in reasons)


def test_long_documents_are_trained_on_in_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MOST_PAIRS", 10_000)
    short = synthesize(num_points=400, num_features=600, num_labels=80, seed=3)
    words = np.random.default_rng(0).random(short.train.X.shape) < 0.5
    long = replace(short, train=Split(csr_matrix(words.astype(np.float32)), short.train.Y))
    assert settle(RECOMMENDED, short)[0].training == "one-round"
    assert settle(RECOMMENDED, long)[0].training == "rounds"


def test_a_run_of_recommended_is_resumed_by_the_same_words(tmp_path: Path) -> None:
    config = RECOMMENDED.replace(correct=2, budget_mib=0.2)
    first = run(config, DATA, tmp_path / "run")
    assert first.summary["algorithm"] == "one-round"
    again = run(config.replace(correct=3), DATA, tmp_path / "run", resume=True)
    assert again.summary["correction"]["rounds"] == 3


def test_nothing_needs_validation_points_that_there_are_not() -> None:
    settled, _ = settle(RECOMMENDED.replace(validation_fraction=0.0), DATA)
    assert (settled.training, settled.correct) == ("one-round", 0)
    assert not list_open(settled)
