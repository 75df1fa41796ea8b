"""One client that lies moves the model by no more than an honest one could, whatever it sends and claims.

The attacks are those of experiments/poison.py, which measures what they cost on real data.
"""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from fedmlh.config import Config
from fedmlh.data.source import open_dataset
from fedmlh.engines.simulation import run
from fedmlh.federated.aggregate import LIMIT
from fedmlh.federated.codecs import make_codec
from fedmlh.federated.messages import BroadcastHeader, UpdateHeader, pack, unpack
from fedmlh.federated.server import Server, ServerState
from fedmlh.federated.tally import Outbox
from fedmlh.federated.task import Task
from tiny import TINY

CONFIG = TINY.replace(partition="iid", num_clients=10, clients_per_round=4, rounds=6, learning_rate=0.01)
DATA = open_dataset(CONFIG)
CPU = torch.device("cpu")


def load_experiment() -> ModuleType:
    path = Path(__file__).parent.parent / "experiments" / "poison.py"
    spec = importlib.util.spec_from_file_location("poison", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


POISON = load_experiment()


def model_after(config: Config, attack: str, out: Path) -> np.ndarray:
    from safetensors.numpy import load

    done = run(config, DATA, out, engine=POISON.poison(attack), workers=1)
    newest = max((done.folder / "checkpoint").glob("round-??????"))
    return load((newest / "model.safetensors").read_bytes())["model"]


@pytest.mark.parametrize(
    "attack",
    [
        pytest.param(name, marks=[] if name == "values × 1e6" else pytest.mark.xfail(strict=True, reason="attack 4"))
        for name in POISON.ATTACKS
        if name not in ("nothing", "flip at honest length")
    ],
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
        """One round in which these clients send these changes."""
        codec = make_codec(self.task.config.update_codec)

        def exchange(sampled: list[int], outbox: Outbox) -> Any:
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


@pytest.mark.xfail(strict=True, reason="attack 5")
def test_attack_05_no_site_outweighs_the_others_whatever_it_claims() -> None:
    claims = {0: 40, 1: 45, 2: 50, 3: 2**31 - 1}
    lab = Lab(claims, weighting="examples")
    vectors = {client: np.full(lab.size, 0.01 if client == 3 else 0.0) for client in claims}
    start = lab.server.begin()
    state, report = lab.round(start, vectors, claims)
    share = float((state.model - start.model).mean()) / 0.01
    assert report.accepted == [0, 1, 2, 3]
    assert share == pytest.approx(2 / 4, abs=0.01)


@pytest.mark.xfail(strict=True, reason="attack 9")
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


@pytest.mark.xfail(strict=True, reason="attack 10")
def test_attack_10_updates_that_cancel_do_not_make_fedexp_leap() -> None:
    lab = Lab(server_optimizer="fedexp", clip="off")
    x = np.random.default_rng(0).normal(0, 0.1, lab.size)
    small = np.full(lab.size, 1e-3)
    start = lab.server.begin()
    state, _ = lab.round(start, {0: x, 1: -x, 2: small, 3: small})
    moved = (state.model - start.model).numpy()
    mean = (2 * small) / 4
    assert float(np.dot(moved, mean) / np.dot(mean, mean)) == pytest.approx(4 / 2, rel=1e-3)
