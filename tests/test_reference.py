"""Algorithm 2 written a second time, in plain numpy and float64 from the paper, with the product beside it.

The reference takes from the product only what is drawn at random: the first model, who is sampled and in which order
a client goes through its points. Hash seeds are given in the config, and everything else is spelled out here.
"""

import itertools

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

from federation import Federation
from fedmlh.config import Config
from fedmlh.data.dataset import Labels
from fedmlh.model.ranking import Ranker
from fedmlh.randomness import generator

CPU = torch.device("cpu")
P, B, R, D, HASHED = 40, 8, 3, 30, 12
SIZES = (7, 12, 9, 13)  # points of the K = 4 clients: none a multiple of the batch, so last batches are short
ROUNDS, EPOCHS, BATCH = 3, 2, 5
LABEL_SEEDS, FEATURE_SEEDS = (7, 1000, 4_000_000_000), (101, 5, 77)
HIDDEN = {"linear": (), "one layer": (9,), "two layers": (9, 6)}
#: algorithm, feature map; FedAvg has one table, so a map a table is one map
KINDS = [("fedmlh", "shared"), ("fedmlh", "per-table"), ("fedmlh", "none"), ("fedavg", "per-table")]
#: loss, weighting
MEANS = [("bce", "uniform"), ("bce", "examples"), ("softmax", "uniform")]


pytestmark = pytest.mark.usefixtures("one_thread")


def murmur3_of_int(key, seed):
    """Return MurmurHash3_32 of the four bytes of one non-negative integer."""
    mask = 0xFFFFFFFF
    k = key * 0xCC9E2D51 & mask
    k = (k << 15 | k >> 17) & mask
    h = seed ^ (k * 0x1B873593 & mask)
    h = (h << 13 | h >> 19) & mask
    h = (h * 5 + 0xE6546B64 & mask) ^ 4
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        h = (h ^ h >> shift) * factor & mask
    return h


def make_points(seed=0):
    """Make dense X [n, d] (every third entry, both signs) and Y [n, p] per client, with a bare point of each kind."""
    rng = np.random.default_rng(seed)
    clients = []
    for n in SIZES:
        X = rng.normal(size=(n, D)).astype(np.float32) * (rng.random((n, D)) < 0.35)
        Y = rng.random((n, P)) < 0.12
        Y[0], X[1] = False, 0
        clients.append((X, Y))
    return clients


def hash_labels(Y, buckets, num_buckets):
    """Follow lines 4-7: z[j, n, i] is the union over the labels l with h_j(l) = i of y[n, l]."""
    Z = np.zeros((len(buckets), len(Y), num_buckets))
    for j, n, label in itertools.product(range(len(buckets)), range(len(Y)), range(Y.shape[1])):
        if Y[n, label]:
            Z[j, n, buckets[j][label]] = 1
    return Z


def hash_features(X, seeds, dim):
    """Sum the values of colliding features; without seeds, return the features as they are."""
    if not seeds:
        return [X.astype(np.float64)]
    hashed = []
    for seed in seeds:
        to = np.zeros((X.shape[1], dim))
        for feature in range(X.shape[1]):
            to[feature, murmur3_of_int(feature, seed) % dim] = 1
        hashed.append(X.astype(np.float64) @ to)
    return hashed


def bce(logits, z):
    prob = 1 / (1 + np.exp(-logits))
    return -(z * np.log(prob) + (1 - z) * np.log(1 - prob)).mean(), (prob - z) / z.size


def softmax(logits, z):
    log_prob = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    total, value, grad = z.sum(axis=1), 0.0, np.zeros_like(z)
    for n in range(len(z)):
        if total[n] > 0:
            target = z[n] / total[n]
            value -= target @ log_prob[n] / len(z)
            grad[n] = (np.exp(log_prob[n]) - target) / len(z)
    return value, grad


def forward(weights, x):
    """Return the activations of every layer, logits last; `weights` alternates W [in, out] and b [out]."""
    layers = [x]
    for i in range(0, len(weights), 2):
        out = layers[-1] @ weights[i] + weights[i + 1]
        layers.append(out if i == len(weights) - 2 else np.maximum(out, 0))
    return layers


def backward(weights, layers, grad):
    grads = [None] * len(weights)
    for i in range(len(weights) - 2, -1, -2):
        grads[i], grads[i + 1] = layers[i // 2].T @ grad, grad.sum(axis=0)
        grad = (grad @ weights[i].T) * (layers[i // 2] > 0)
    return grads


def sgd(lr):
    return lambda weights, grads: [w - lr * g for w, g in zip(weights, grads, strict=True)]


def adam(lr, beta1=0.9, beta2=0.999, eps=1e-8):
    state = {"t": 0, "m": None, "v": None}

    def step(weights, grads):
        if state["m"] is None:
            state["m"], state["v"] = [0.0] * len(weights), [0.0] * len(weights)
        state["t"] += 1
        moved = []
        for i, (w, g) in enumerate(zip(weights, grads, strict=True)):
            m = state["m"][i] = beta1 * state["m"][i] + (1 - beta1) * g
            v = state["v"][i] = beta2 * state["v"][i] + (1 - beta2) * g**2
            m_hat, v_hat = m / (1 - beta1 ** state["t"]), v / (1 - beta2 ** state["t"])
            moved.append(w - lr * m_hat / (np.sqrt(v_hat) + eps))
        return moved

    return step


def device_train(weights, x, z, orders, config):
    """Follow DeviceTrain: train one sub-model on one client, with its own optimizer; return weights and mean loss."""
    loss = {"bce": bce, "softmax": softmax}[config.loss]
    step = {"sgd": sgd, "adam": adam}[config.optimizer](config.learning_rate)
    for order in orders:
        total = 0.0
        for begin in range(0, len(order), config.batch_size):
            rows = order[begin : begin + config.batch_size]
            layers = forward(weights, x[rows])
            value, grad = loss(layers[-1], z[rows])
            weights = step(weights, backward(weights, layers, grad))
            total += value * len(rows)
    return weights, total / len(order)


def reference_round(models, points, sampled, orders, config):
    """Follow lines 10-18 for R sub-models: every sampled client trains each of them, and each is averaged."""
    share = [len(orders[k][0]) if config.weighting == "examples" else 1 for k in sampled]
    share = np.array(share) / sum(share)
    averaged, losses = [], []
    for j, weights in enumerate(models):
        trained = []
        for k in sampled:
            features, Z = points[k]
            new, value = device_train(weights, features[j % len(features)], Z[j], orders[k], config)
            trained.append(new)
            losses.append(value)
        averaged.append([sum(s * w for s, w in zip(share, parts, strict=True)) for parts in zip(*trained, strict=True)])
    return averaged, np.mean(losses)


def label_scores(models, features, buckets, loss, decoding):
    """Return the mean over tables of what the label's bucket scores, one label at a time.  # -> [n, p]"""
    per_table = []
    for j, weights in enumerate(models):
        s = forward(weights, features[j % len(features)])[-1]
        if decoding == "log-probs":
            s = -np.log1p(np.exp(-s)) if loss == "bce" else s - np.log(np.exp(s).sum(axis=1, keepdims=True))
        per_table.append(s)
    n, p = len(features[0]), len(buckets[0])
    scores = np.zeros((n, p))
    for i, label in itertools.product(range(n), range(p)):
        scores[i, label] = sum(s[i, table[label]] for s, table in zip(per_table, buckets, strict=True)) / len(buckets)
    return scores


class Pair:
    """One set-up, ready to run in both."""

    def __init__(self, kind, hidden, loss, optimizer, weighting):
        algorithm, feature_map = kind
        self.config = config = Config(
            seed=3,
            num_clients=len(SIZES),
            clients_per_round=2,
            rounds=ROUNDS,
            local_epochs=EPOCHS,
            batch_size=BATCH,
            weighting=weighting,
            label_seeds=LABEL_SEEDS,
            feature_seeds=FEATURE_SEEDS,
            num_tables=R,
            num_buckets=B,
            feature_map=feature_map,
            feature_dim=HASHED,
            hidden_sizes=hidden,
            loss=loss,
            optimizer=optimizer,
            learning_rate=0.01 if optimizer == "adam" else 1.0,
        ).replace(algorithm=algorithm)
        clients = make_points()
        feature_seeds = {"none": (), "shared": FEATURE_SEEDS[:1], "per-table": FEATURE_SEEDS}[feature_map]
        if algorithm == "fedavg":
            self.buckets, width = [list(range(P))], P
        else:
            self.buckets, width = [[murmur3_of_int(label, s) % B for label in range(P)] for s in LABEL_SEEDS], B
        self.points = [
            (hash_features(X, feature_seeds, HASHED), hash_labels(Y, self.buckets, width)) for X, Y in clients
        ]

        self.fed = Federation(config, [(csr_matrix(X), csr_matrix(Y.astype(np.float32))) for X, Y in clients])
        self.task, self.server = self.fed.task, self.fed.server

    def split(self, model):
        """Return the product's flat model as float64 weights of one sub-model after another."""
        views = [view.numpy().astype(np.float64) for view in self.task.stack.views(model)]
        return [[view[j] for view in views] for j in range(len(self.buckets))]

    def rounds(self):
        """Yield after each round the product's model and loss, and the reference's models and loss."""
        models = self.split(self.fed.state.model)
        for t in range(1, ROUNDS + 1):
            sampled = self.server.sample(t, 0)
            orders = {}
            for k in sampled:
                rng = generator(self.config.seed, "local training", t, 0, k)
                orders[k] = [rng.permutation(SIZES[k]) for _ in range(EPOCHS)]
            models, loss = reference_round(models, self.points, sampled, orders, self.config)
            (report,) = self.fed.rounds(1)
            assert report.accepted == sampled
            yield self.fed.state.model, report.loss, models, loss

    def ranking(self, model, k, decoding):
        """Return the product's top k for every point of client 0: labels, scores."""
        seeds = self.server.seeds
        buckets = torch.from_numpy(self.task.label_map(seeds, Labels.numbered(P).keys).buckets)
        features = self.task.feature_map(seeds).apply(csr_matrix(make_points()[0][0]))
        ranker = Ranker(self.task.stack, buckets, self.config.loss, decoding)
        ((_, labels, scores),) = ranker.rank(model, features, k)
        return labels, scores


def test_the_case_is_a_hard_one():
    """Labels that share all buckets (so that ties are real), points whose labels merge, both signs of a feature."""
    buckets = np.array([[murmur3_of_int(label, s) % B for label in range(P)] for s in LABEL_SEEDS])
    assert len(np.unique(buckets, axis=1).T) < P
    _, Y = make_points()[1]
    assert hash_labels(Y, buckets, B).sum() < R * Y.sum()
    X = make_points()[1][0]
    assert (X > 0).any()
    assert (X < 0).any()


def flatten(models):
    return np.concatenate([w.ravel() for weights in models for w in weights])


def assert_ranked(labels, values, scores, tolerance):
    """Compare the top k with the brute-force one: exactly where scores differ by more than rounding or not at all."""
    k, decided = labels.shape[1], 0
    for i, row in enumerate(scores):
        best = sorted(range(len(row)), key=lambda label, row=row: (-row[label], label))
        np.testing.assert_allclose(values[i], row[best[:k]], atol=tolerance)
        np.testing.assert_allclose(row[labels[i]], row[best[:k]], atol=tolerance)
        gaps = -np.diff(row[best[: k + 1]])
        if all(gap == 0 or gap > 2 * tolerance for gap in gaps):
            assert labels[i].tolist() == best[:k]
            decided += 1
    assert decided > len(scores) / 2


@pytest.mark.parametrize(("loss", "weighting"), MEANS)
@pytest.mark.parametrize("hidden", HIDDEN.values(), ids=HIDDEN.keys())
@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_sgd_gives_the_reference_model_after_every_round(kind, hidden, loss, weighting):
    pair = Pair(kind, hidden, loss, "sgd", weighting)
    before = flatten(pair.split(pair.server.begin().model))
    for model, product_loss, models, reference_loss in pair.rounds():
        product = flatten(pair.split(model))
        np.testing.assert_allclose(product, flatten(models), rtol=0, atol=5e-7)
        assert product_loss == pytest.approx(reference_loss, rel=1e-5)
    assert np.abs(product - before).max() > 0.1
    features = pair.points[0][0]
    for decoding in ("log-probs", "logits"):
        expected = label_scores(models, features, pair.buckets, loss, decoding)
        assert_ranked(*pair.ranking(model, 5, decoding), expected, tolerance=2e-5)


@pytest.mark.parametrize(("loss", "weighting"), MEANS)
@pytest.mark.parametrize("hidden", HIDDEN.values(), ids=HIDDEN.keys())
@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_adam_gives_the_reference_model_up_to_what_it_amplifies(kind, hidden, loss, weighting):
    """Compare most weights closely, and the rest within a hundredth of one step.

    Adam divides a gradient by its own size. A gradient that is all rounding error therefore moves a weight by up to
    the learning rate per step.
    """
    pair = Pair(kind, hidden, loss, "adam", weighting)
    before = flatten(pair.split(pair.server.begin().model))
    for model, product_loss, models, reference_loss in pair.rounds():
        product = flatten(pair.split(model))
        apart = np.abs(product - flatten(models))
        assert np.mean(apart > 5e-7) < 0.01
        assert apart.max() < 0.01 * pair.config.learning_rate
        assert product_loss == pytest.approx(reference_loss, rel=1e-5)
    assert np.abs(product - before).max() > 0.05
    features = pair.points[0][0]
    for decoding in ("log-probs", "logits"):
        expected = label_scores(pair.split(model), features, pair.buckets, loss, decoding)
        assert_ranked(*pair.ranking(model, 5, decoding), expected, tolerance=2e-6)
