"""What server and clients must agree on before they train, derived from the config and the data's sizes."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fedmlh.config import SETTINGS, Config
from fedmlh.errors import UserError
from fedmlh.federated.drift.prox import add_pull
from fedmlh.hashing.features import FeatureMap, make_feature_map
from fedmlh.hashing.labels import LabelMap, make_label_map
from fedmlh.model.recipe import Recipe
from fedmlh.model.stack import Stack
from fedmlh.randomness import generator
from fedmlh.sizing import choose_networks

if TYPE_CHECKING:
    from torch import Tensor

#: Increased when the same settings give another model than before: older results, runs and sites then do not fit.
TRAINING = 1

#: 64 GiB of float32: a larger size is more likely a typing error than a model.
MAX_PARAMETERS = 2**34


@dataclass(frozen=True)
class Seeds:
    """All the randomness that travels: the run's seed and one seed per hash function (Alg. 2, line 3)."""

    run: int
    labels: tuple[int, ...]
    features: tuple[int, ...]


@dataclass(frozen=True)
class Task:
    """The learning problem that all parties share: network shape, hash families, local training."""

    config: Config
    num_features: int  # d
    num_labels: int  # p

    def __post_init__(self) -> None:
        if not self.identity and self.config.num_buckets > self.num_labels:
            raise UserError(
                f"num_buckets is {self.config.num_buckets:,}, more than the {self.num_labels:,} labels of the data: "
                f"choose a smaller num_buckets, or set algorithm=fedavg"
            )
        if self.config.training != "one-round" and self.stack.num_parameters > MAX_PARAMETERS:
            raise UserError(
                f"these sizes make a model of {self.stack.num_parameters:,} parameters, more than any machine here "
                f"can hold: use smaller hidden_sizes, feature_dim or num_buckets"
            )

    @property
    def identity(self) -> bool:
        """Whether each label has a bucket of its own, as in FedAvg."""
        return self.config.label_map == "identity"

    @property
    def num_tables(self) -> int:
        """R; tables in which every label has a bucket of its own differ in networks only."""
        return 1 if self.config.training == "one-round" and self.identity else self.config.num_tables

    @property
    def num_outputs(self) -> int:
        """B, or p if every label has a bucket of its own."""
        return self.num_labels if self.identity else self.config.num_buckets

    @cached_property
    def stack(self) -> Stack:
        """The shape of the networks that are trained and sent."""
        return Stack(
            num_tables=self.num_tables,
            num_inputs=self.config.feature_dim if self.config.num_feature_maps else self.num_features,
            hidden=self.config.hidden_sizes,
            num_outputs=self.num_outputs,
        )

    @cached_property
    def networks(self) -> "Task":
        """The task of the networks that correct the linear model of this task."""
        config = choose_networks(self.config, self.num_features, self.num_labels)
        return Task(config, self.num_features, self.num_labels)

    def initial(self, seed: int) -> "Tensor":
        """Return the model that server and clients start from.  # [P]"""
        return self.stack.initial(seed, rare=self.config.output_bias == "rare")

    @property
    def recipe(self) -> Recipe:
        """How every client trains in the first round."""
        return self.recipe_in(1)

    def recipe_in(self, round_index: int) -> Recipe:
        """Return how every client trains in a round."""
        c = self.config
        rate = c.learning_rate * c.learning_rate_decay ** (round_index - 1)
        return add_pull(Recipe(c.loss, c.optimizer, rate, c.local_epochs, c.batch_size, loss_tau=c.loss_tau), c)

    @property
    def agreed(self) -> dict[str, Any]:
        """Return the settings on which a client's work depends, as their sections say."""
        agreed = [setting for setting in SETTINGS.values() if setting.section.is_agreed(self.config.training)]
        values = {setting.name: getattr(self.config, setting.name) for setting in agreed if not setting.implied}
        return {"algorithm": self.config.method} | values

    @cached_property
    def fingerprint(self) -> str:
        """The name of this agreement; a message made under another one is refused."""
        agreed = self.agreed | {"training": TRAINING}
        sizes = {"num_features": self.num_features, "num_outputs": self.num_outputs}
        if self.config.label_key == "id":  # by name, sites may know different labels
            sizes["num_labels"] = self.num_labels
        foreign = {part["name"]: part["sha256"] for part in self.config.foreign if part["setting"] in agreed}
        if foreign:  # parts of the same name may differ
            agreed["parts"] = foreign
        return hashlib.sha256(json.dumps(agreed | sizes, sort_keys=True).encode()).hexdigest()[:32]

    def draw_seeds(self) -> Seeds:
        """Return the server's choice of hash functions: as given, or drawn from the run's seed."""
        labels = _choose(self.config.label_seeds, self.num_tables, 0, self.config.seed, "label hash")
        features = _choose(
            self.config.feature_seeds, self.config.num_feature_maps, 101, self.config.seed, "feature hash"
        )
        return Seeds(self.config.seed, labels, features)

    def accepts(self, seeds: Seeds) -> bool:
        """Say whether seeds from outside name as many hash functions as the task has."""
        counts = (len(seeds.labels), len(seeds.features)) == (self.num_tables, self.config.num_feature_maps)
        return counts and all(type(seed) is int and 0 <= seed < 2**32 for seed in (*seeds.labels, *seeds.features))

    def label_map(self, seeds: Seeds, keys: Sequence[str]) -> LabelMap:
        """Return the tables that the seeds name, over the keys or numbers of the catalogue."""
        return make_label_map(
            self.config.label_map,
            tuple(keys) if self.config.label_key == "name" else len(keys),
            seeds.labels,
            self.config.num_buckets,
        )

    def feature_map(self, seeds: Seeds) -> FeatureMap:
        """Return the feature map that the seeds name."""
        return make_feature_map(
            self.num_features,
            self.config.feature_dim,
            seeds.features,
            signed=self.config.feature_signed,
            normalize=self.config.normalize,
        )


def _choose(given: str | tuple[int, ...], count: int, paper: int, seed: int, purpose: str) -> tuple[int, ...]:
    if isinstance(given, tuple):
        return given[:count]
    if given == "paper":
        return tuple(range(paper, paper + count))
    return tuple(int(draw) for draw in generator(seed, purpose).integers(0, 2**31, count))
