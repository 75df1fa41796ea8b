"""The features and the ranker of a stored model, for whole data sets, with torch."""

from typing import Any

import torch

from fedmlh.evaluation.evaluate import Features, Ranks, make_network_tools
from fedmlh.oneround.corrected import Corrected, CorrectedFeatures, CorrectedRanker
from fedmlh.oneround.linear import Linear
from fedmlh.oneround.model import LinearRanker, SlotFeatures
from fedmlh.runs.model_folder import Bundle


def make_tools(bundle: Bundle, device: str | torch.device) -> tuple[Features, Ranks, Any]:
    """Return the model's features, to be applied to raw ones, the ranker of labels, and the model that it ranks by."""
    if not isinstance(bundle.weights, Linear):
        tools = make_network_tools(bundle.task, bundle.seeds, bundle.labels, device)
        return *tools, torch.tensor(bundle.weights).to(device)
    assert bundle.terms is not None
    # Sparse weights are multiplied on the CPU.
    buckets = torch.from_numpy(bundle.task.label_map(bundle.seeds, bundle.labels.keys).buckets)
    features = SlotFeatures(bundle.terms.slots(bundle.seeds))
    ranker = LinearRanker(buckets, bundle.task.num_outputs)
    beside = bundle.networks
    if beside is None:
        return features, ranker, bundle.weights
    feature_map, networks = make_network_tools(beside.task, beside.seeds, bundle.labels, device)
    model = Corrected(bundle.weights, torch.tensor(beside.weights).float(), beside.weight)
    return CorrectedFeatures(features, feature_map), CorrectedRanker(ranker, networks), model
