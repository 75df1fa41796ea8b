"""One client that lies moves the model by no more than an honest one could, whatever it sends and claims.

The attacks are those of experiments/poison.py, which measures what they cost on real data.
"""

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from fedmlh.config import Config
from fedmlh.data.source import open_dataset
from fedmlh.engines.run import run
from fedmlh.federated.aggregate import LIMIT
from fedmlh.federated.codecs import make_codec
from fedmlh.federated.messages import BroadcastHeader, UpdateHeader, pack, unpack
from fedmlh.federated.participation import list_refused
from fedmlh.federated.server import Server, ServerState
from fedmlh.federated.task import Task
from tiny import TINY

CONFIG = TINY.replace(partition="iid", num_clients=10, clients_per_round=4, rounds=6, learning_rate=0.01)
DATA = open_dataset(CONFIG)
CPU = torch.device("cpu")


def load_experiment() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(Path(__file__).parent.parent / "experiments")
        return importlib.import_module("poison")


POISON = load_experiment()


def model_after(config: Config, attack: str, out: Path) -> np.ndarray:
    from safetensors.numpy import load

    done = run(config, DATA, out, engine=POISON.poison(attack), workers=1)
    newest = max((done.folder / "checkpoint").glob("round-??????"))
    return load((newest / "model.safetensors").read_bytes())["model"]


@pytest.mark.parametrize(
    "attack", [name for name in POISON.ATTACKS if name not in ("nothing", "flip at honest length")]
)
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_attack_04_a_poisoned_client_moves_the_model_no_further_than_honest_ones(
    attack: str, optimizer: str, tmp_path: Path
) -> None:
    config = CONFIG if optimizer == "adam" else CONFIG.replace(optimizer="sgd", learning_rate=0.5)
    start = Task(config, DATA.num_features, DATA.num_labels).initial(config.seed).numpy()
    honest, poisoned = (model_after(config, name, tmp_path / name[:4]) for name in ("nothing", attack))
    assert not np.array_equal(honest, poisoned)
    # Six rounds with one poisoned update in four at the most: several honest ones' worth, not a thousand.
    assert np.linalg.norm(poisoned - start) < 6 * np.linalg.norm(honest - start)


class Lab:
    """A server whose clients answer with whatever vectors a test puts into their mouths."""

    def __init__(self, max_examples: dict[int, int] | None = None, **settings: Any) -> None:
        config = CONFIG.replace(**{"num_clients": 4, "clients_per_round": 4} | settings)
        self.task = Task(config, DATA.num_features, DATA.num_labels)
        self.server = Server(self.task, max_examples or dict.fromkeys(range(4), 30), CPU)

    @property
    def size(self) -> int:
        return self.task.stack.num_parameters

    def round(self, state: ServerState, vectors: dict[int, np.ndarray], examples: dict[int, int] | None = None) -> Any:
        """Run one round in which these clients send these changes."""
        codec = make_codec(self.task.config.update_codec)

        def exchange(sampled: list[int], outbox: Any) -> Any:
            for client in sampled:
                header, _ = unpack(BroadcastHeader, outbox(client), 10**9)
                reply = UpdateHeader(
                    header.run,
                    header.config,
                    header.round,
                    header.attempt,
                    client,
                    self.task.config.update_codec,
                    (examples or {}).get(client, 30),
                    1.0,
                )
                values = torch.from_numpy(vectors[client].astype(np.float32))
                yield client, pack(reply, codec.encode(values, np.random.default_rng(0)))

        return self.server.run_round(state, exchange)


def test_attack_05_no_site_outweighs_the_others_whatever_it_claims() -> None:
    claims = {0: 40, 1: 45, 2: 50, 3: 2**31 - 1}
    lab = Lab(claims, weighting="examples")
    vectors = {client: np.full(lab.size, 0.01 if client == 3 else 0.0) for client in claims}
    start = lab.server.begin()
    state, report = lab.round(start, vectors, claims)
    share = float((state.model - start.model).mean()) / 0.01
    assert report.accepted == [0, 1, 2, 3]
    assert share == pytest.approx(2 / 4, abs=0.01)


def test_attack_09_a_value_pushed_round_after_round_never_leaves_what_the_codec_can_carry() -> None:
    lab = Lab(broadcast_codec="fp16", clip="off")
    push = np.zeros(lab.size)
    push[0] = LIMIT
    state = lab.server.begin()
    for _ in range(80):
        state, report = lab.round(state, dict.fromkeys(range(4), push))
    assert float(state.model.abs().max()) <= LIMIT
    assert report.clamped == 1
    _, payload = unpack(BroadcastHeader, lab.server.broadcast(state, 0, 0), 10**9)
    sent = make_codec("fp16").decode(payload, lab.size, np.random.default_rng(0))
    assert bool(torch.isfinite(sent).all())


def test_attack_10_updates_that_cancel_do_not_make_fedexp_leap() -> None:
    lab = Lab(server_optimizer="fedexp", clip="off")
    x = np.random.default_rng(0).normal(0, 0.1, lab.size)
    small = np.full(lab.size, 1e-3)
    start = lab.server.begin()
    state, _ = lab.round(start, {0: x, 1: -x, 2: small, 3: small})
    moved = (state.model - start.model).numpy()
    mean = (2 * small) / 4
    assert float(np.dot(moved, mean) / np.dot(mean, mean)) == pytest.approx(4 / 2, rel=1e-3)


def test_a_first_round_with_an_update_that_stands_out_is_repeated_once_and_says_so() -> None:
    lab = Lab()
    rng = np.random.default_rng(1)
    honest = {client: rng.normal(0, 0.004, lab.size) for client in range(4)}
    start = lab.server.begin()
    quiet, report = lab.round(start, honest)
    assert (report.attempts, report.refused, report.clipped) == (1, [], {})
    state, report = lab.round(start, {**honest, 2: 100 * honest[2]})
    assert report.attempts == 2
    assert [(entry["client"], entry["attempt"]) for entry in list_refused(report.told)] == [(2, 0)]
    assert report.log[0].refused == []
    assert 2 in report.log[0].accepted
    ((client, factor),) = report.clipped.items()
    assert client == 2
    # In the second attempt it counts at three times the usual length.
    assert factor == pytest.approx(3 / 100, rel=0.1)
    assert float((state.model - quiet.model).norm()) < 2 * float((quiet.model - start.model).norm())


def test_with_one_attempt_only_a_first_round_counts_whatever_stands_out() -> None:
    """Or one client could keep the run from beginning."""
    lab = Lab(max_attempts=1)
    vectors = {client: np.full(lab.size, 1.0 if client == 2 else 0.004) for client in range(4)}
    state, report = lab.round(lab.server.begin(), vectors)
    assert (state.round, report.attempts) == (1, 1)


def test_a_poisoned_run_continues_after_a_stop_to_the_same_bits(tmp_path: Path) -> None:
    """What is usual is part of the checkpoint."""

    class Stop(Exception):
        pass

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 3:
            raise Stop

    engine = POISON.poison("flip × 50")
    told: list[str] = []
    whole = run(CONFIG, DATA, tmp_path / "whole", engine=engine, workers=1, tell=told.append)
    with pytest.raises(Stop):
        run(CONFIG, DATA, tmp_path / "cut", engine=engine, workers=1, watch=stop)
    cut = run(CONFIG, DATA, tmp_path / "cut", engine=engine, workers=1, resume=True)
    records = [(done.folder / "participation.jsonl").read_bytes() for done in (whole, cut)]
    weights = [(done.folder / "model" / "weights.safetensors").read_bytes() for done in (whole, cut)]
    assert records[0] == records[1]
    assert weights[0] == weights[1]
    lines = (whole.folder / "metrics.jsonl").read_text().splitlines()
    assert any("updates of client 0 were too long" in line for line in told)
    assert any(entry["client"] == 0 for line in lines for entry in json.loads(line)["clipped"])
