"""Models with drawn weights, as runs would leave them."""

from dataclasses import replace

import numpy as np

from fedmlh.config import Config
from fedmlh.data.dataset import Labels
from fedmlh.data.text import TextFeatures
from fedmlh.evaluation.calibration import NUM_BINS, Curve, Scale
from fedmlh.federated.task import Task
from fedmlh.oneround.linear import compress
from fedmlh.oneround.terms import Counts, Terms
from fedmlh.runs.model_folder import Bundle, Networks

#: Features and labels.
D, P = 40, 30
BASE = Config(
    num_tables=3,
    num_buckets=8,
    feature_dim=16,
    hidden_sizes=(5,),
    num_clients=2,
    clients_per_round=2,
    label_map="murmur3",
)


def make_bundle(
    config: Config, seed: int, *, d: int = D, text: TextFeatures | None = None, beside: bool = False
) -> Bundle:
    """Make a model with drawn weights, as a run would leave one."""
    rng = np.random.default_rng(seed)
    task = Task(config, d, P)
    seeds, labels = task.draw_seeds(), Labels(tuple(f"key-{n}" for n in range(P)), tuple(f"name {n}" for n in range(P)))
    terms, networks = None, None
    if config.training == "one-round":
        frequencies = rng.integers(0, 4, d)
        terms = Terms(Counts(6, frequencies), 10 if config.label_map == "murmur3" else 0, True)
        slots, outputs = terms.slots(seeds).count + 1, task.num_tables * task.num_outputs
        drawn = rng.normal(size=(slots, outputs)).astype(np.float32)
        block = np.arange(outputs)
        weights = compress(lambda columns: drawn[:, columns], iter([block]), np.ones(slots), (outputs, drawn.size // 2))
        if beside:
            other = Task(BASE.replace(seed=9), d, P)
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
