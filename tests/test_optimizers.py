"""Server optimizers do what their papers say, keep what they need across a resume, and 'average' is FedAvg."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedmlh.config import Config
from fedmlh.data.source import open_dataset
from fedmlh.engines.run import run
from fedmlh.federated.optimizers import MeanDelta, find_step
from fedmlh.parts import OWN

SMALL = Config(
    synthetic_points=200, synthetic_features=60, synthetic_labels=40, num_buckets=10, num_tables=2, feature_dim=16,
    hidden_sizes=(8,), num_clients=4, clients_per_round=2, local_epochs=1, batch_size=40, rounds=4, learning_rate=0.02,
)  # fmt: skip


def draw(seed, size=20):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=size).astype(np.float32))


def walk(config, changes):
    """Return the models of successive rounds."""
    model, kept, models = draw(0), {}, []
    for change in changes:
        model, kept = find_step(config.server_optimizer)(config, model, MeanDelta(change, 1.0, 8), kept)
        models.append(model)
    return models


def test_average_moves_by_the_mean_change():
    first, second = walk(SMALL, [draw(1), draw(2)])
    torch.testing.assert_close(first, draw(0) + draw(1))
    torch.testing.assert_close(second, draw(0) + draw(1) + draw(2))


def test_momentum_zero_is_average_and_momentum_sums_fading_changes():
    changes = [draw(1), draw(2), draw(3)]
    still = walk(SMALL.replace(server_optimizer="momentum", server_momentum=0.0), changes)
    assert all(torch.equal(a, b) for a, b in zip(still, walk(SMALL, changes), strict=True))
    moved = walk(SMALL.replace(server_optimizer="momentum", server_momentum=0.5), changes)
    expected = draw(0) + changes[0] + (changes[1] + 0.5 * changes[0])
    torch.testing.assert_close(moved[1], expected)
    torch.testing.assert_close(moved[2], expected + changes[2] + 0.5 * changes[1] + 0.25 * changes[0])


@pytest.mark.parametrize("name", ["adam", "yogi", "adagrad"])
def test_adaptive_ones_follow_reddi_et_al(name):
    """Algorithm 2 of "Adaptive Federated Optimization", in float64."""
    config = SMALL.replace(server_optimizer=name, server_learning_rate=0.1, server_tau=0.01)
    changes = [draw(s) for s in (1, 2, 3)]
    x, m, v = draw(0).double().numpy(), 0.0, 0.01**2
    for change, found in zip(changes, walk(config, changes), strict=True):
        d = change.double().numpy()
        m = 0.9 * m + 0.1 * d
        v = {
            "adagrad": v + d**2,
            "yogi": v - 0.01 * d**2 * np.sign(v - d**2),
            "adam": 0.99 * v + 0.01 * d**2,
        }[name]
        x = x + 0.1 * m / (np.sqrt(v) + 0.01)
        np.testing.assert_allclose(found.numpy(), x, rtol=2e-5, atol=1e-6)


def test_fedexp_steps_further_where_updates_disagree_and_never_less_than_one():
    config = SMALL.replace(server_optimizer="fedexp", server_tau=1e-12)
    updates = [draw(s) for s in range(1, 9)]
    mean = torch.stack(updates).mean(0)
    squares = [float((u**2).sum()) for u in updates]
    model, _ = find_step("fedexp")(config, draw(0), MeanDelta(mean, float(np.mean(squares)), 8), {})
    step = float((model - draw(0)).norm() / mean.norm())
    assert step == pytest.approx(np.mean(squares) / (2 * float((mean**2).sum())), rel=1e-5)
    assert step > 1
    same, _ = find_step("fedexp")(config, draw(0), MeanDelta(mean, float((mean**2).sum()), 8), {})
    torch.testing.assert_close(same, draw(0) + mean)


def test_a_larger_tau_holds_fedexp_back():
    """Jhunjhunwala et al., eq. 7: Σ‖Δ_k‖² / 2M(‖Δ‖² + ε), here with ε as long as the mean change is."""
    mean = draw(1)
    length = float(mean.double().square().sum())
    config = SMALL.replace(server_optimizer="fedexp", server_tau=length)
    model, _ = find_step("fedexp")(config, draw(0), MeanDelta(mean, 12 * length, 8), {})
    torch.testing.assert_close(model, draw(0) + 12 / (2 * 2) * mean)


@pytest.mark.parametrize("name", OWN["server optimizer"])
def test_the_servers_learning_rate_scales_the_first_step(name):
    whole, tenth = (
        walk(SMALL.replace(server_optimizer=name, server_learning_rate=rate), [draw(1)])[0] for rate in (1.0, 0.1)
    )
    torch.testing.assert_close(tenth - draw(0), 0.1 * (whole - draw(0)), rtol=1e-4, atol=1e-6)
    assert (whole - draw(0)).norm() > 0.1


def run_model(config, folder, **how):
    """Return the last global model, and the one that was evaluated."""
    run(config, open_dataset(config), folder, **how)
    checkpoints = sorted((folder / "checkpoint").glob("round-*"))
    return checkpoints[-1]


@pytest.mark.parametrize("name", [*OWN["server optimizer"], "average of models"])
def test_a_resumed_run_has_the_same_bits(name, tmp_path):
    settings = {"model_average": 0.7} if name == "average of models" else {"server_optimizer": name}
    config = SMALL.replace(server_learning_rate=0.3, **settings)
    whole = run_model(config, tmp_path / "whole")
    run_model(config.replace(rounds=2), tmp_path / "parts")
    parts = run_model(config, tmp_path / "parts", resume=True)
    names = sorted(path.name for path in whole.glob("*.safetensors"))
    assert names == sorted(path.name for path in parts.glob("*.safetensors"))
    for file in names:
        assert (whole / file).read_bytes() == (parts / file).read_bytes()


def test_the_average_of_models_is_what_is_evaluated(tmp_path):
    """After t rounds: Σ (1 − d) d^(t − s) x_s, with x_1 standing for all before it."""
    models, decay = [], 0.6
    for rounds in (1, 2, 3):
        newest = run_model(SMALL.replace(rounds=rounds, model_average=decay), tmp_path / str(rounds))
        models.append(load_file(newest / "model.safetensors")["model"])
    plain = run_model(SMALL.replace(rounds=3), tmp_path / "plain")
    assert torch.equal(models[2], load_file(plain / "model.safetensors")["model"])  # training does not see it
    expected = decay * (decay * models[0] + (1 - decay) * models[1]) + (1 - decay) * models[2]
    found = load_file(newest / "server-average.safetensors")["model"]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert not torch.equal(found, models[2])
