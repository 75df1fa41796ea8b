"""The model folder: all that is needed to turn points into labels, sealed, in safetensors and JSON."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from fedmlh.config import Config
from fedmlh.data.dataset import Dataset, Labels
from fedmlh.data.text import TextFeatures
from fedmlh.errors import UserError
from fedmlh.evaluation.evaluate import Features, Ranks
from fedmlh.federated.task import Seeds, Task
from fedmlh.model.ranking import Ranker
from fedmlh.oneround.exchange import Terms
from fedmlh.oneround.linear import Linear
from fedmlh.oneround.model import LinearRanker, SlotFeatures
from fedmlh.storage import Sealed, write_sealed
from fedmlh.untrusted import MOST_BINARY, MOST_JSON, MOST_TOML, parse_json

#: The arrays of a linear model.
_LINEAR = ("starts", "columns", "levels", "scales")
#: The most bytes that a file of weights has beside them.
_MOST_HEADER = 2**12


@dataclass(frozen=True)
class Bundle:
    """A trained model with the agreement it was trained under and the names of its labels."""

    task: Task
    seeds: Seeds
    weights: Tensor | Linear  # of networks [P], or of one round
    labels: Labels
    text: TextFeatures | None
    #: Names the data it was trained on.
    data: str
    #: Where svmlight input counts features from, if the training data was of that kind.
    first_feature: int | None
    #: Of one round: what decides where a feature goes.
    terms: Terms | None = None

    def make_tools(self, device: str | torch.device) -> tuple[Features, Ranks]:
        """Return what makes raw features what the model sees, and what ranks labels with its weights."""
        buckets = torch.from_numpy(self.task.label_map(self.seeds, self.labels.keys).buckets)
        if self.terms is not None:  # sparse weights are multiplied on the CPU
            return SlotFeatures(self.terms.slots(self.seeds)), LinearRanker(buckets, self.task.num_outputs)
        config = self.task.config
        ranker = Ranker(self.task.stack, buckets.to(device), config.loss, config.decoding)
        return self.task.feature_map(self.seeds), ranker


def save_bundle(
    folder: Path, task: Task, seeds: Seeds, weights: Tensor | Linear, dataset: Dataset, terms: Terms | None = None
) -> None:
    """Write the folder in one step."""
    labels, text = dataset.labels, dataset.text
    about = {
        "num_features": task.num_features,
        "num_labels": task.num_labels,
        "seeds": {"run": seeds.run, "labels": seeds.labels, "features": seeds.features},
        "text": None if text is None else text.to_json(),
        "data": dataset.fingerprint,
        "first_feature": dataset.first_feature,
    }
    files = {
        "model.json": json.dumps(about).encode(),
        "config.toml": task.config.to_toml().encode(),
        "labels.json": json.dumps({"keys": labels.keys, "names": labels.names}).encode(),
    }
    if isinstance(weights, Linear):
        assert terms is not None
        arrays = {name: getattr(weights, name) for name in _LINEAR}
        files |= {"weights.safetensors": save_arrays(arrays), "terms.bin": terms.encode()}
    else:
        files["weights.safetensors"] = save_tensors({"weights": weights.cpu().contiguous()})
    write_sealed(folder, files)


def load_bundle(folder: Path, root: Path | None = None) -> Bundle:
    """Read a model folder; whatever is wrong with it becomes a UserError. No link is followed below `root`."""
    sealed = Sealed(folder, root)
    try:
        about = parse_json(sealed.read("model.json", MOST_JSON))
        config = Config.from_toml(sealed.read("config.toml", MOST_TOML).decode(), f"{folder / 'config.toml'}")
        task = Task(config, int(about["num_features"]), int(about["num_labels"]))
        seeds = Seeds(about["seeds"]["run"], tuple(about["seeds"]["labels"]), tuple(about["seeds"]["features"]))
        names = parse_json(sealed.read("labels.json", MOST_JSON))
        labels = Labels(tuple(names["keys"]), tuple(names["names"]))
        text = None if about["text"] is None else TextFeatures.from_json(about["text"])
        if not task.accepts(seeds):
            raise ValueError("seeds do not fit the model's sizes")
        weights, terms = (_load_linear if config.algorithm == "one-round" else _load_network)(sealed, task, seeds)
        if (len(labels.keys), len(labels.names)) != (task.num_labels, task.num_labels):
            raise ValueError(f"labels.json does not name {task.num_labels:,} labels")
        if not all(isinstance(name, str) for name in (*labels.keys, *labels.names)):
            raise ValueError("labels.json holds a name that is not text")
        if not isinstance(about["data"], str) or about["first_feature"] not in (None, 0, 1):
            raise ValueError("data or first_feature in model.json")
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, SafetensorError) as error:
        raise UserError(f"{folder} is not a model of fedmlh ({type(error).__name__}: {error})") from None
    return Bundle(task, seeds, weights, labels, text, about["data"], about["first_feature"], terms)


def _load_network(sealed: Sealed, task: Task, seeds: Seeds) -> tuple[Tensor, None]:
    largest = 4 * task.stack.num_parameters + _MOST_HEADER
    weights = load_tensors(sealed.read("weights.safetensors", largest))["weights"]
    if not task.stack.fits(weights):
        raise ValueError("weights do not fit the model's sizes")
    return weights, None


def _load_linear(sealed: Sealed, task: Task, seeds: Seeds) -> tuple[Linear, Terms]:
    terms = Terms.decode(memoryview(sealed.read("terms.bin", MOST_BINARY)), task.num_features)
    arrays = load_arrays(sealed.read("weights.safetensors", MOST_BINARY))
    starts, columns, levels, scales = (arrays[name] for name in _LINEAR)
    weights = Linear(starts, columns, levels, scales, task.num_tables * task.num_outputs)
    if len(weights.scales) != terms.slots(seeds).count + 1 or not weights.sound:
        raise ValueError("weights do not fit the model's sizes")
    return weights, terms
