"""Models of every kind with drawn weights, as runs would leave them, and points to ask them about."""

from dataclasses import replace

import numpy as np
import torch
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from scipy.sparse import random as random_sparse

from fedmlh.config import Config
from fedmlh.data.dataset import Labels
from fedmlh.data.text import TextFeatures
from fedmlh.evaluation.calibration import NUM_BINS, Curve, Scale
from fedmlh.federated.task import Task
from fedmlh.model.losses import Loss
from fedmlh.oneround.linear import compress
from fedmlh.oneround.terms import Counts, Terms
from fedmlh.parts import register
from fedmlh.runs.model_folder import Bundle, Networks

D, P, N = 40, 30, 12
BASE = Config(
    num_tables=3,
    num_buckets=8,
    feature_dim=16,
    hidden_sizes=(5,),
    num_clients=2,
    clients_per_round=2,
    label_map="murmur3",
)
TEXTS = [
    "The cat sat on the mat",
    "a dog chased the cat",
    "",
    "Tokyo 2020: 東京 games",
    "the THE mat!",
    "no such words qq",
]


def draw_points(seed: int, d: int = D) -> csr_matrix:
    X = csr_matrix(random_sparse(N, d, 0.2, format="csr", random_state=seed), dtype=np.float32)
    X.data *= np.random.default_rng(seed).choice([-1, 1, 3], len(X.data)).astype(np.float32)
    return X


def make_bundle(
    config: Config,
    seed: int,
    *,
    d: int = D,
    text: TextFeatures | None = None,
    beside: bool | Config = False,
    limit: int = 10,
    weigh: bool = True,
) -> Bundle:
    """Make a model with drawn weights, as a run would leave one; `beside` are networks beside one of one round."""
    rng = np.random.default_rng(seed)
    task = Task(config, d, P)
    seeds, labels = task.draw_seeds(), Labels(tuple(f"key-{n}" for n in range(P)), tuple(f"name {n}" for n in range(P)))
    terms, networks = None, None
    if config.training == "one-round":
        frequencies = rng.integers(0, 4, d)
        terms = Terms(Counts(6, frequencies), limit, weigh)
        slots, outputs = terms.slots(seeds).count + 1, task.num_tables * task.num_outputs
        drawn = rng.normal(size=(slots, outputs)).astype(np.float32)
        block = np.arange(outputs)
        weights = compress(lambda columns: drawn[:, columns], iter([block]), np.ones(slots), (outputs, drawn.size // 2))
        if beside:
            other = Task(BASE.replace(seed=9) if beside is True else beside, d, P)
            half = rng.normal(size=other.stack.num_parameters).astype(np.float16)
            networks = Networks(other, other.draw_seeds(), half, 0.3)
    else:
        weights = rng.normal(size=task.stack.num_parameters).astype(np.float32)
    return Bundle(task, seeds, weights, labels, text, "drawn", None, terms, networks)


def calibrate(bundle: Bundle) -> Bundle:
    """Give a model a curve, so that its labels have probabilities."""
    edges = tuple(np.linspace(-5, 5, NUM_BINS + 1).tolist())
    return replace(bundle, curve=Curve(Scale("plain", edges), 99, (100,) * NUM_BINS, tuple(range(0, 3 * NUM_BINS, 3))))


def name_labels(bundle: Bundle, names: list[str], keys: list[str] | None = None) -> Bundle:
    """Give the first labels of a model other names, and keys of their own only if some are given."""
    named = (*names, *bundle.labels.names[len(names) :])
    return replace(bundle, labels=Labels(named if keys is None else (*keys, *bundle.labels.keys[len(keys) :]), named))


OWN_LOSS = "twice"


def register_loss() -> str:
    """Register a loss that is only known in torch."""
    likelihood = torch.nn.functional.logsigmoid
    register("loss", OWN_LOSS, Loss(lambda logits, positives: logits.sum(), lambda logits: 2 * likelihood(logits)))
    return OWN_LOSS


LABEL_MAPS = ["murmur3", "universal", "balanced", "identity"]
FEATURE_MAPS = ["none", "shared", "per-table"]
DECODINGS = ["log-probs", "logits", "probs"]
LOSSES = ["bce", "softmax", "balanced-bce", "balanced-softmax", OWN_LOSS]
#: How points come: as features, or as texts that become features in one of two ways.
FORMS = {"features": None, "hashing": TextFeatures.hashing(50), "tfidf": TextFeatures.fit_tfidf(TEXTS)}
kinds = st.fixed_dictionaries(
    {
        "label_map": st.sampled_from(LABEL_MAPS),
        "label_key": st.sampled_from(["id", "name"]),
        "decoding": st.sampled_from(DECODINGS),
        "loss": st.sampled_from(LOSSES),
        "feature_map": st.sampled_from(FEATURE_MAPS),
        "feature_signed": st.booleans(),
        "normalize": st.booleans(),
        "hidden_sizes": st.sampled_from([(), (5,), (6, 4), (4, 3, 5)]),
        "num_tables": st.integers(1, 3),
        "num_buckets": st.sampled_from([2, 8, P]),
    }
)


def make_config(kind: dict[str, object], **more: object) -> Config:
    register_loss()
    if kind["label_map"] in ("balanced", "identity"):
        kind = {**kind, "label_key": "id"}
    return BASE.replace(**kind, **more)
