"""Where a run's data comes from: the folder that the config names, or the built-in set."""

from fedmlh.config import Config
from fedmlh.data.dataset import Dataset
from fedmlh.data.readers.formats import load
from fedmlh.data.synthetic import synthesize


def open_dataset(config: Config, *, training_only: bool = False) -> Dataset:
    """Open the data set of a config; the built-in one does not depend on the run's seed.

    With `training_only` no file of the test part is opened, and one training point takes its place.
    """
    if config.data:
        return load(
            config.data,
            data_format=config.data_format,
            text_features=config.text_features,
            text_dim=config.text_dim,
            training_only=training_only,
        )
    return synthesize(
        num_points=config.synthetic_points,
        num_features=config.synthetic_features,
        num_labels=config.synthetic_labels,
    )
