"""The preset `recommended` as it was when the runs of the reproduction were made."""

import math
from typing import Any

from fedmlh.config import Config
from fedmlh.sizing import FEWEST_INPUTS, NARROWEST, WIDEST, fit_width, parameters_within

_LARGE = 8 << 20
_SETTINGS: dict[str, Any] = {
    "name": "recommended",
    "loss": "balanced-bce",
    "decoding": "logits",
    "feature_map": "per-table",
    "feature_signed": True,
    "normalize": True,
    "rounds": 40,
}


def recommend(budget: int, num_features: int, num_labels: int, **settings: Any) -> Config:
    """Return that preset for a model of at most `budget` bytes."""
    large = budget >= _LARGE
    tables = 16 if large else 8
    buckets = min(num_labels, max(32, round((4 if large else 6) * math.sqrt(num_labels))))
    parameters = parameters_within(budget, tables)
    width = min(WIDEST, max(NARROWEST, round(0.07 * parameters**0.6)))
    inputs = min(num_features, max(FEWEST_INPUTS, (parameters - buckets) // width - buckets - 1))
    width = min(WIDEST, fit_width(parameters, inputs, buckets))
    found = _SETTINGS | {"feature_map": "none"} if inputs == num_features else _SETTINGS
    return Config(
        **found,
        num_tables=tables,
        num_buckets=buckets,
        feature_dim=inputs,
        hidden_sizes=(width,),
        learning_rate=round(0.07 / math.sqrt(width), 4),
        learning_rate_decay=0.95 if large else 1.0,
        output_bias="random" if large else "rare",
        **settings,
    )
