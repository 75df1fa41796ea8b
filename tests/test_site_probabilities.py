"""A model trained by real sites has probabilities of their own points: the same as in one process."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from command_line import call
from fedmlh.data.source import open_dataset
from fedmlh.evaluation.calibration import LEAST_POINTS
from fedmlh.federated.messages import Reason, Rejected, ReportHeader, pack, unpack
from fedmlh.runs.model_folder import load_bundle
from fedmlh.serving.predictor import Model
from fedmlh.sites.federation import Federation
from fedmlh.sites.flower.loopback import create_loopback, replay_loopback
from fedmlh.sites.flower.training import train_federation
from grid_here import Change, GridHere, act_as_flower
from tiny import TINY

CONFIG = TINY.replace(
    synthetic_points=600, validation_fraction=0.5, num_clients=3, clients_per_round=3, quorum=2, partition="iid",
    rounds=2, label_key="name",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _as_in_flower(monkeypatch: pytest.MonkeyPatch) -> None:
    act_as_flower(monkeypatch)


def train(folder: Path, change: Change = lambda client, kind, reply: reply, **settings: object) -> Federation:
    config = CONFIG.replace(**settings)
    federation = create_loopback(config, open_dataset(config), folder)
    train_federation(federation, GridHere(federation, change))
    return federation


def summary(federation: Federation) -> dict[str, object]:
    return dict(json.loads((federation.run.path / "summary.json").read_text()))


def test_sites_give_the_curve_that_one_process_gives(tmp_path: Path) -> None:
    federation = train(tmp_path / "fed")
    figures = summary(federation)
    assert figures["calibration"]["sites"] == 3
    held_out = [row["held_out"] for row in figures["clients"]]
    assert min(held_out) >= LEAST_POINTS
    assert figures["calibration"]["points"] == sum(points // 2 for points in held_out)
    assert 0 < figures["calibration"]["error"] < 0.5
    data = open_dataset(CONFIG)
    assert replay_loopback(federation, data, tmp_path / "replay")
    curve, again = (load_bundle(path / "model").curve for path in (federation.run.path, tmp_path / "replay"))
    assert curve is not None
    assert again is not None
    assert curve == again
    assert curve.points == sum(points - points // 2 for points in held_out)
    shown = json.loads((tmp_path / "replay" / "summary.json").read_text())["calibration"]
    assert shown["points"] == figures["calibration"]["points"]
    assert shown["error"] == pytest.approx(figures["calibration"]["error"], abs=0.05)
    for predicted in Model.load(federation.run.path).predict(data.test.X[:5], 6):
        assert all(0 < label["probability"] <= 1 for label in predicted)


def test_sites_of_few_points_add_nothing_and_the_server_uses_its_own(tmp_path: Path) -> None:
    sizes: dict[int, int] = {}

    def note(client: int, kind: str, reply: bytes) -> bytes:
        if kind == "evaluate":
            content = json.loads(bytes(unpack(ReportHeader, reply, 2**20)[1]))
            sizes[client] = content["sums"]["points"][0]
            assert ("histogram" in content) == (sizes[client] >= LEAST_POINTS)
        return reply

    some = train(tmp_path / "some", note, partition="dirichlet", dirichlet_alpha=0.3, rounds=1, seed=2)
    large = [points for points in sizes.values() if points >= LEAST_POINTS]
    assert 0 < len(large) < len(sizes)
    assert summary(some)["calibration"]["sites"] == len(large)
    assert load_bundle(some.run.model).curve.points == sum(points - points // 2 for points in large)
    none = train(tmp_path / "none", note, validation_fraction=0.2, rounds=1)
    assert max(sizes.values()) < LEAST_POINTS
    assert "sites" not in summary(none)["calibration"]
    assert load_bundle(none.run.model).curve.points == len(none.server_points().dataset.train) / 2


def test_a_hostile_or_an_older_site_is_named_and_the_others_give_the_curve(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(client: int, kind: str, reply: bytes) -> bytes:
        if kind == "evaluate" and client == 0:
            header, payload = unpack(ReportHeader, reply, 2**20)
            content = json.loads(bytes(payload))
            content["histogram"]["fit"]["hits"] = [2**40] * 32
            return pack(header, json.dumps(content).encode())
        if kind == "evaluate" and client == 1:
            raise Rejected(Reason.MALFORMED, "header field 'edges' is missing or unknown")
        return reply

    federation = train(tmp_path / "fed", change, rounds=1)
    said = capsys.readouterr().out
    assert "no evaluation from site site-0: malformed: not the sums of a site (ValueError)\n" in said
    assert re.search("no evaluation from site site-1: malformed: .*; install the same version of fedmlh at", said)
    assert [row["site"] for row in summary(federation)["clients"]] == ["site-2"]
    assert summary(federation)["calibration"]["sites"] == 1


@pytest.mark.slow
def test_a_rehearsal_over_tls_ends_with_a_curve_and_predictions_have_probabilities(
    tmp_path: Path,
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(CONFIG.to_toml())
    assert call("federation", "rehearse", config, "--sites", 3, "--out", tmp_path / "real") == 0
    curve, again = (load_bundle(tmp_path / "real" / part / "model").curve for part in ("run", "replay"))
    assert curve is not None
    assert curve == again
    twin = train(tmp_path / "twin")
    assert np.array_equal(load_bundle(twin.run.model).weights, load_bundle(tmp_path / "real/run/model").weights)
    assert load_bundle(twin.run.model).curve == curve
    points = open_dataset(CONFIG).test.X[:5]
    for predicted in Model.load(tmp_path / "real" / "run").predict(points):
        assert all(0 < label["probability"] <= 1 for label in predicted)
