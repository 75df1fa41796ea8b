"""Networks beside the linear model of one round: sums of scores, bytes, what is kept, and resuming after a stop."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmlh.config import Config
from fedmlh.engines.run import run
from fedmlh.entropy import coding
from fedmlh.errors import UserError
from fedmlh.federated.messages import BroadcastHeader, RequestHeader, claims, pack
from fedmlh.model.kernels.plain import label_scores, top_labels
from fedmlh.model.ranking import Ranker
from fedmlh.model.stack import Stack
from fedmlh.oneround.corrected import CorrectedRanker, decode_networks, encode_networks, shorten
from fedmlh.oneround.model import LinearRanker
from fedmlh.runs.folder import RunFolder
from fedmlh.runs.model_folder import load_bundle
from fedmlh.runs.one_round import correcting
from fedmlh.runs.one_round.revise import revise
from fedmlh.serving.predictor import Model
from once import BASE, DATA, VARIANTS, differing

CORRECTED = VARIANTS["corrected"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corrected") / "run"
    run(CORRECTED, DATA, folder)
    return folder


@pytest.fixture(scope="module")
def alone(finished: Path) -> Path:
    """Run the same without networks."""
    run(CORRECTED.replace(correct=0, budget_mib=0.0), DATA, finished.parent / "alone")
    return finished.parent / "alone"


@pytest.mark.parametrize(("tables", "buckets"), [(1, 3000), (3, 70), (2, 9)])
def test_both_scores_are_added_for_every_label(tables: int, buckets: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many tables and buckets either has, against label scores that are added one by one."""
    rng = np.random.default_rng(0)
    own = np.arange(3000)[None] if tables == 1 else rng.integers(0, buckets, (tables, 3000))
    stack = Stack(4, 5, (3,), 40)
    beside = Ranker(stack, torch.from_numpy(rng.integers(0, 40, (4, 3000))), "bce", "logits")
    both = CorrectedRanker(LinearRanker(torch.from_numpy(own), buckets), beside)
    linear, networks = torch.randn(tables, 20, buckets), torch.randn(4, 20, 40)
    monkeypatch.setattr(Ranker, "score", lambda self, model, features: networks)
    labels, values = both.decoder(both.add(linear, both.score(torch.empty(0), ()), 0.3), 7)
    exact = label_scores(linear.double(), torch.from_numpy(own))
    exact += 0.3 * label_scores(networks.double(), beside.buckets)
    expected, scores = top_labels(exact, 7)
    assert np.array_equal(labels, expected)
    assert np.allclose(values, scores, atol=1e-5)


def test_networks_are_kept_and_sent_in_about_a_byte_per_parameter() -> None:
    rng = np.random.default_rng(0)
    model = torch.cat([torch.tensor([1.0, 1e9, -1e9, 1 / 3, 0.0]), torch.from_numpy(rng.normal(0, 0.1, 9000)).float()])
    short = shorten(model)
    assert torch.equal(short, shorten(short))
    assert short[:3].tolist() == [1.0, 63488.0, -63488.0]
    assert torch.equal(short.half().float(), short)
    assert torch.all(torch.abs(short[3:] - model[3:]) <= model[3:].abs() / 32 + 2.0**-18)
    payload = memoryview(encode_networks(short))
    assert len(payload) < len(model)
    assert torch.equal(decode_networks(payload, len(model)), short)


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_networks_that_are_none_are_refused(data: st.DataObject) -> None:
    payload = bytearray(encode_networks(shorten(torch.linspace(-2, 2, 300))))
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(len(payload) - 2, len(payload)))
    try:
        found = decode_networks(memoryview(bytes(payload[:cut])), 300)
    except ValueError:
        return
    assert torch.isfinite(found).all()
    assert torch.equal(found.half().float(), found)


def test_infinite_parameters_are_refused() -> None:
    infinite = coding.encode(np.full(5, 31), np.zeros(5, np.uint8)) + coding.encode(
        np.zeros(5, np.int64), np.full(5, 31, np.uint8)
    )
    with pytest.raises(ValueError, match="not finite"):
        decode_networks(memoryview(infinite), 5)


def test_the_run_counts_every_message_of_both(finished: Path, alone: Path) -> None:
    summary, records = RunFolder(finished).read_summary(), RunFolder(finished).read_metrics()
    correction = summary["correction"]
    assert correction["weight"] > 0
    assert correction["validation_gain"] > 0
    assert [record["round"] for record in records] == [1, 2, 3]
    assert summary["rounds"] == 3
    for way in ("bytes_up", "bytes_down"):
        assert summary[way] == sum(record[way] for record in records)
        assert correction[way] == sum(record[way] for record in records[1:]) > 0
    # Every client is sent the networks at the end, in two bytes per parameter.
    assert 0 < summary["delivered"]["networks_bytes"] < correction["num_parameters"]
    before = RunFolder(alone).read_summary()
    more = records[0]["bytes_down"] - before["bytes_down"]
    assert more - BASE.num_clients * summary["delivered"]["networks_bytes"] in range(1, 100 * BASE.num_clients)
    assert records[0]["bytes_up"] == before["bytes_up"]


def test_the_model_folder_gives_what_the_run_measured(finished: Path, alone: Path) -> None:
    summary, model = RunFolder(finished).read_summary(), Model.load(finished)
    assert model.evaluate(DATA)["precision"] == summary["precision"]
    assert "networks" in model.score_meaning
    both = load_bundle(finished / "model")
    assert both.networks.weight == summary["correction"]["weight"]
    assert both.weights.encode() == load_bundle(alone / "model").weights.encode()


@pytest.mark.parametrize("partition", [{"partition": "iid"}, {"partition": "dirichlet", "dirichlet_alpha": 0.05}])
def test_the_linear_part_does_not_depend_on_the_partition(
    finished: Path, tmp_path: Path, partition: dict[str, Any]
) -> None:
    run(CORRECTED.replace(num_clients=4, clients_per_round=2, **partition), DATA, tmp_path / "run")
    weights = [(folder / "model" / "weights.safetensors").read_bytes() for folder in (finished, tmp_path / "run")]
    assert weights[0] == weights[1]


def test_networks_that_do_not_help_are_left_out(alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correcting, "_LEAST_GAIN", 1.0)
    said: list[str] = []
    summary = run(CORRECTED, DATA, tmp_path / "run", tell=said.append).summary
    before = RunFolder(alone).read_summary()
    assert any("stays alone" in line for line in said)
    assert summary["correction"]["weight"] == 0
    assert summary["best_round"] == 1
    assert summary["rounds"] == 3
    assert summary["precision"] == before["precision"]
    assert summary["validation"] == before["validation"]
    assert summary["delivered"]["networks_bytes"] == 0
    # What was sent in vain was sent.
    assert summary["bytes_up"] > before["bytes_up"] == summary["bytes_up_to_best"]
    one, two = tmp_path / "run" / "model", alone / "model"
    assert (one / "weights.safetensors").read_bytes() == (two / "weights.safetensors").read_bytes()
    assert not (one / "networks.safetensors").exists()


class Killed(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("life", [1, 2, 3])
def test_a_run_that_was_stopped_between_rounds_ends_as_if_it_had_not_been(
    finished: Path, tmp_path: Path, life: int
) -> None:
    seen = []

    def watch(record: dict[str, Any]) -> None:
        seen.append(record["round"])
        if len(seen) == life:
            raise Killed

    with pytest.raises(Killed):
        run(CORRECTED, DATA, tmp_path / "run", watch=watch)
    run(CORRECTED, DATA, tmp_path / "run", resume=True, watch=lambda record: seen.append(record["round"]))
    assert differing(finished, tmp_path / "run") == []
    assert seen == [*range(1, life + 1), 1, *range(max(2, life + 1), 4)]  # no round of networks was trained twice


def test_networks_can_be_trained_beside_a_finished_run(finished: Path, alone: Path, tmp_path: Path) -> None:
    shutil.copytree(alone, tmp_path / "run")
    run(CORRECTED, DATA, tmp_path / "run", resume=True)
    assert differing(finished, tmp_path / "run") == []


def test_fewer_rounds_than_there_are_cannot_be_resumed(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "run")
    with pytest.raises(UserError, match="has finished 2 rounds of networks already, more than correct = 1"):
        run(CORRECTED.replace(correct=1), DATA, tmp_path / "run", resume=True)


def test_without_a_client_networks_are_left_out(finished: Path, alone: Path, tmp_path: Path) -> None:
    said: list[str] = []
    summary = revise(finished, DATA, tmp_path / "less", remove=[1], tell=said.append).summary
    expected = revise(alone, DATA, tmp_path / "expected", remove=[1]).summary
    assert any("networks" in line for line in said)
    assert summary["precision"] == expected["precision"]
    assert summary["num_parameters"] == expected["num_parameters"]


def test_a_message_is_read_by_what_it_claims_to_be() -> None:
    broadcast = pack(BroadcastHeader("r", "c", 1, 0, 0, "initial", 0, [], [], []), b"x")
    request = pack(RequestHeader("r", "c", 0, "counts", "", 0, [], []), b"")
    assert claims(BroadcastHeader, broadcast)
    assert not claims(BroadcastHeader, request)
    for broken in (b"", broadcast[:20], b"\xff" * 200, broadcast[:10] + b"[]" + broadcast[12:], bytes(100)):
        assert not claims(BroadcastHeader, broken)


def test_rounds_of_networks_follow_the_one_round() -> None:
    assert CORRECTED.most_rounds == 3
    assert BASE.most_rounds == 1
    assert Config.load("recommended").most_rounds == 41
    assert Config.load("recommended").replace(training="rounds").most_rounds == 40


def test_networks_in_a_folder_must_fit(finished: Path, tmp_path: Path) -> None:
    """Sealed again by somebody who changed them: one sentence, no traceback."""
    from fedmlh.storage import write_sealed

    files = {path.name: path.read_bytes() for path in (finished / "model").iterdir() if path.name != "manifest.json"}
    about = json.loads(files["model.json"])
    for place, change in enumerate(
        (
            {"networks.safetensors": files["networks.safetensors"][:-2]},
            {"networks.toml": files["config.toml"]},
            {"model.json": json.dumps(about | {"networks": about["networks"] | {"weight": "x"}}).encode()},
            {"model.json": json.dumps(about | {"networks": about["networks"] | {"weight": float("nan")}}).encode()},
            {"model.json": json.dumps(about | {"networks": {"weight": 1.0}}).encode()},
        )
    ):
        write_sealed(tmp_path / str(place), files | change)
        with pytest.raises(UserError, match="is not a model of fedmlh"):
            load_bundle(tmp_path / str(place))
