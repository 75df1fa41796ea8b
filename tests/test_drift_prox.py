"""FedProx: without a pull it is FedAvg, and a strong one keeps clients where they were."""

import pytest
import torch

from federation import ALGORITHMS, BASE, POINTS, Federation
from fedmlh.errors import UserError

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_fedprox_without_a_pull_is_fedavg(algorithm, optimizer):
    config = BASE.replace(algorithm=algorithm, optimizer=optimizer, learning_rate=0.05)
    plain = Federation(config, POINTS).run(3).model
    assert torch.equal(Federation(config, POINTS, prox_mu=0.0).run(3).model, plain)
    assert not torch.equal(Federation(config, POINTS, prox_mu=0.1).run(3).model, plain)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_strong_pull_keeps_clients_at_the_global_model(algorithm):
    """They end where the pull balances the gradient, about 1 / μ of a gradient away."""
    moved = {}
    for mu in (0, 10, 100):
        config = BASE.replace(algorithm=algorithm, learning_rate=0.01, prox_mu=mu, local_epochs=100, batch_size=30)
        fed = Federation(config, POINTS)
        moved[mu] = float((fed.run(1).model - fed.server.begin().model).norm())
    assert moved[0] > 5 * moved[10] > 45 * moved[100] > 0


def test_a_pull_that_overshoots_is_refused():
    assert BASE.replace(prox_mu=2, learning_rate=0.5).prox_mu == 2
    with pytest.raises(UserError, match="overshoot the global model"):
        BASE.replace(prox_mu=4, learning_rate=0.5)
    assert BASE.replace(prox_mu=4, learning_rate=0.5, optimizer="adam").prox_mu == 4
