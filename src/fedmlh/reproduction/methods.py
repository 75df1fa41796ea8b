"""The contestants: the paper's two, the preset `recommended`, and a FedAvg that was tuned as well as FedMLH."""

import tomllib
from importlib import resources
from typing import Any

from fedmlh.config import Config
from fedmlh.data.dataset import Dataset
from fedmlh.reproduction.former import recommend
from fedmlh.reproduction.paper import model_bytes
from fedmlh.reproduction.sources import Source
from fedmlh.sizing import fit_width

#: Keys in results, with names in tables.
METHODS = {"fedmlh": "FedMLH", "fedavg": "FedAvg", "recommended": "recommended", "tuned": "tuned FedAvg"}
#: Methods for which the paper has figures.
PAPER = ("fedmlh", "fedavg")


def make_config(method: str, source: Source, dataset: Dataset) -> Config:
    """Return the complete config of a contestant on a data set, sizes included."""
    base = source.config
    if method in ("fedmlh", "fedavg"):
        return base.replace(algorithm=method)
    budget = model_bytes(base, dataset.num_features, dataset.num_labels)
    # Settings of the data and of the federation are the same for all.
    common: dict[str, Any] = {
        "data": base.data,
        "patience": 0,
        "propensity_a": base.propensity_a,
        "propensity_b": base.propensity_b,
    }
    common |= {name: value for name, value in source.settings.items() if name.startswith(("synthetic_", "local_"))}
    if method == "recommended":
        return recommend(
            budget, dataset.num_features, dataset.num_labels, **common
        )  # without codecs, as all methods here
    search = find_search(source)
    dim = max(64, round(search["feature_share"] * dataset.num_features))
    whole = dim >= dataset.num_features
    inputs = dataset.num_features if whole else dim
    width = fit_width(budget // 4, inputs, dataset.num_labels, search["depth"])
    return Config(
        name="tuned FedAvg",
        label_map="identity",
        num_tables=1,
        feature_map="none" if whole else "shared",
        feature_dim=inputs,
        hidden_sizes=(max(1, width),) * search["depth"],
        **search["settings"],
        **common,
    )


def find_search(source: Source) -> dict[str, Any]:
    """Return the search whose winner is the tuned FedAvg on this set."""
    text = (resources.files("fedmlh") / "reproduction" / "tuned.toml").read_text("utf-8")
    searches: list[dict[str, Any]] = tomllib.loads(text)["search"]
    for key, value in (("set", source.name), ("preset", source.preset)):
        for search in searches:
            if search[key] == value:
                return search
    return searches[-1]
