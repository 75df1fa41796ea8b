"""The model folder: all that is needed to turn points into labels, sealed, in safetensors and JSON.

Nothing here imports torch, so that a model can be asked without it.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save as save_arrays

from fedmlh.config import Config
from fedmlh.data.dataset import Dataset, Labels
from fedmlh.data.text import TextFeatures
from fedmlh.errors import UserError
from fedmlh.evaluation.calibration import Curve
from fedmlh.federated.task import Seeds, Task
from fedmlh.oneround.linear import Linear
from fedmlh.oneround.terms import Terms
from fedmlh.storage import Sealed, write_sealed
from fedmlh.tensors import look_through, view_arrays
from fedmlh.untrusted import MOST_BINARY, MOST_JSON, MOST_TOML, parse_json, read_bytes

#: The arrays of a linear model.
_LINEAR = ("starts", "columns", "levels", "scales")
#: The file of the curve, which models of points that nobody held out do not have.
_CURVE = "calibration.json"
#: The most bytes that a file of weights has beside them.
_MOST_HEADER = 2**12


@dataclass(frozen=True)
class Networks:
    """Networks that correct a linear model: their scores are added to its own with a weight."""

    task: Task
    seeds: Seeds
    weights: np.ndarray  # float16 [P]
    weight: float


@dataclass(frozen=True)
class Bundle:
    """A trained model with the agreement it was trained under and the names of its labels."""

    task: Task
    seeds: Seeds
    weights: np.ndarray | Linear  # of networks, float32 [P], or of one round
    labels: Labels
    text: TextFeatures | None
    #: The fingerprint of the data that it was trained on.
    data: str
    #: Where svmlight input counts features from, if the training data was of that kind.
    first_feature: int | None
    #: Of one round: the terms, which decide the slot of each feature.
    terms: Terms | None = None
    #: Of one round: the networks beside the linear model, if there are any.
    networks: Networks | None = None
    #: Turns scores into probabilities; None if no points were held out.
    curve: Curve | None = None


def save_bundle(
    folder: Path,
    task: Task,
    seeds: Seeds,
    weights: np.ndarray | Linear,
    dataset: Dataset,
    terms: Terms | None = None,
    networks: Networks | None = None,
    curve: Curve | None = None,
) -> None:
    """Write the model that a run has trained on a data set."""
    about = (dataset.labels, dataset.text, dataset.fingerprint, dataset.first_feature)
    write_bundle(folder, Bundle(task, seeds, weights, *about, terms, networks, curve))


def write_bundle(folder: Path, bundle: Bundle) -> None:
    """Write the folder in one step."""
    labels, text, weights = bundle.labels, bundle.text, bundle.weights
    about = {
        "num_features": bundle.task.num_features,
        "num_labels": bundle.task.num_labels,
        "seeds": _write_seeds(bundle.seeds),
        "text": None if text is None else text.to_json(),
        "data": bundle.data,
        "first_feature": bundle.first_feature,
    }
    files = {
        "config.toml": bundle.task.config.to_toml().encode(),
        "labels.json": json.dumps({"keys": labels.keys, "names": labels.names}).encode(),
    }
    if bundle.curve is not None:
        files[_CURVE] = json.dumps(bundle.curve.to_json()).encode()
    if bundle.networks is not None:
        networks = bundle.networks
        about["networks"] = {"seeds": _write_seeds(networks.seeds), "weight": networks.weight}
        files["networks.toml"] = networks.task.config.to_toml().encode()
        files["networks.safetensors"] = save_arrays({"weights": networks.weights})
    if isinstance(weights, Linear):
        assert bundle.terms is not None
        arrays = {name: getattr(weights, name) for name in _LINEAR}
        files |= {"weights.safetensors": save_arrays(arrays), "terms.bin": bundle.terms.encode()}
    else:
        files["weights.safetensors"] = save_arrays({"weights": weights})
    write_sealed(folder, {"model.json": json.dumps(about).encode(), **files})


def have_same_weights(mine: Path, theirs: Path, root: Path | None = None) -> bool:
    """Say whether two model folders hold the same weights, to the bit; no link is followed from `root` to theirs."""

    def is_same(name: str) -> bool:
        size = (mine / name).stat().st_size
        other = theirs / name
        return other.stat().st_size == size and read_bytes(other, size, root) == read_bytes(mine / name, size)

    names, others = ({path.name for path in folder.glob("*.safetensors")} for folder in (mine, theirs))
    return names == others and all(map(is_same, names))


def load_bundle(folder: Path, root: Path | None = None) -> Bundle:
    """Read a model folder, or raise UserError for anything wrong with it; no link is followed below `root`.

    The weights stay in their files, which are mapped into memory.
    """
    sealed = Sealed(folder, root)
    try:
        about = parse_json(sealed.read("model.json", MOST_JSON))
        config = Config.from_toml(sealed.read("config.toml", MOST_TOML).decode(), f"{folder / 'config.toml'}")
        task = Task(config, int(about["num_features"]), int(about["num_labels"]))
        seeds = _read_seeds(about["seeds"], task)
        names = parse_json(sealed.read("labels.json", MOST_JSON))
        labels = Labels(tuple(names["keys"]), tuple(names["names"]))
        text = None if about["text"] is None else TextFeatures.from_json(about["text"])
        terms, networks = None, None
        weights: np.ndarray | Linear
        if config.training == "one-round":
            weights, terms = _load_linear(sealed, task, seeds)
            if "networks" in about:
                networks = _load_networks(sealed, task, about["networks"], folder)
        else:
            weights = _load_weights(sealed, "weights.safetensors", task, np.float32)
        curve = Curve.from_json(parse_json(sealed.read(_CURVE, MOST_TOML))) if _CURVE in sealed.digests else None
        if (len(labels.keys), len(labels.names)) != (task.num_labels, task.num_labels):
            raise ValueError(f"labels.json does not name {task.num_labels:,} labels")
        if not all(isinstance(name, str) for name in (*labels.keys, *labels.names)):
            raise ValueError("labels.json holds a name that is not text")
        if not isinstance(about["data"], str) or about["first_feature"] not in (None, 0, 1):
            raise ValueError("data or first_feature in model.json")
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UserError(f"{folder} is not a model of fedmlh ({type(error).__name__}: {error})") from None
    return Bundle(task, seeds, weights, labels, text, about["data"], about["first_feature"], terms, networks, curve)


def _write_seeds(seeds: Seeds) -> dict[str, Any]:
    return {"run": seeds.run, "labels": seeds.labels, "features": seeds.features}


def _read_seeds(about: Any, task: Task) -> Seeds:
    seeds = Seeds(about["run"], tuple(about["labels"]), tuple(about["features"]))
    if not task.accepts(seeds):
        raise ValueError("seeds do not fit the model's sizes")
    return seeds


def _load_weights(sealed: Sealed, name: str, task: Task, kind: type[np.floating[Any]]) -> np.ndarray:
    weights = view_arrays(sealed.map(name, 4 * task.stack.num_parameters + _MOST_HEADER))["weights"]
    fits = weights.shape == (task.stack.num_parameters,) and weights.dtype == kind
    if not fits or not all(np.isfinite(part).all() for part in look_through(weights)):
        raise ValueError(f"{name} does not fit the model's sizes")
    return weights


def _load_networks(sealed: Sealed, task: Task, about: Any, folder: Path) -> Networks:
    """Return the networks beside a linear model."""
    config = Config.from_toml(sealed.read("networks.toml", MOST_TOML).decode(), f"{folder / 'networks.toml'}")
    beside = Task(config, task.num_features, task.num_labels)
    weight = float(about["weight"])
    if config.method != "fedmlh" or not math.isfinite(weight):
        raise ValueError("networks that cannot correct this linear model")
    weights = _load_weights(sealed, "networks.safetensors", beside, np.float16)
    return Networks(beside, _read_seeds(about["seeds"], beside), weights, weight)


def _load_linear(sealed: Sealed, task: Task, seeds: Seeds) -> tuple[Linear, Terms]:
    terms = Terms.decode(memoryview(sealed.read("terms.bin", MOST_BINARY)), task.num_features)
    arrays = view_arrays(sealed.map("weights.safetensors", MOST_BINARY))
    starts, columns, levels, scales = (arrays[name] for name in _LINEAR)
    weights = Linear(starts, columns, levels, scales, task.num_tables * task.num_outputs)
    if len(weights.scales) != terms.slots(seeds).count + 1 or not weights.sound:
        raise ValueError("weights do not fit the model's sizes")
    return weights, terms
