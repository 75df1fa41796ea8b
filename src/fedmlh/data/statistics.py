"""Statistics of a data set: its sizes, and how long the tail of its labels is."""

from typing import Any

import numpy as np

from fedmlh.data.dataset import Dataset, Split

RARE = 5
QUANTILES = (0.0, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
TAILS = (0.01, 0.001, 0.0001)


def describe(dataset: Dataset) -> dict[str, Any]:
    """Return the figures of `fedmlh data info`, ready for JSON."""
    frequency = np.bincount(dataset.train.Y.indices, minlength=dataset.num_labels)  # [p]
    positives = int(frequency.sum())
    n = len(dataset.train)
    return {
        "name": dataset.name,
        "features": dataset.num_features,
        "labels": dataset.num_labels,
        "train": describe_split(dataset.train),
        "test": describe_split(dataset.test),
        "label_frequency_quantile": {
            f"{quantile:g}": float(value)
            for quantile, value in zip(QUANTILES, np.quantile(frequency, QUANTILES), strict=True)
        },
        "labels_without_training_point": int((frequency == 0).sum()),
        f"labels_with_at_most_{RARE}_training_points": int((frequency <= RARE).sum()),
        "share_of_positives_of_labels_under": {
            f"{share:.2%}": float(frequency[frequency < share * n].sum() / positives) if positives else 0.0
            for share in TAILS
        },
        "sites": describe_sites(dataset),
        "text_features": None if dataset.text is None else dataset.text.kind,
        "notes": list(dataset.notes),
    }


def describe_split(split: Split) -> dict[str, Any]:
    """Return sizes and densities of one part."""
    features, labels = np.diff(split.X.indptr), np.diff(split.Y.indptr)
    n = max(len(split), 1)
    return {
        "points": len(split),
        "features_per_point": float(features.sum() / n),
        "labels_per_point": float(labels.sum() / n),
        "points_without_feature": int((features == 0).sum()),
        "points_without_label": int((labels == 0).sum()),
        "pairs_not_scored": 0 if split.excluded is None else int(split.excluded.nnz),
    }


def describe_sites(dataset: Dataset) -> dict[str, dict[str, int]]:
    """Count the points that each site owns, if the data came by site."""
    sizes = {
        part: np.bincount(split.sites, minlength=len(dataset.site_names))
        for part, split in (("train", dataset.train), ("test", dataset.test))
        if split.sites is not None
    }
    return {
        name: {part: int(counts[number]) for part, counts in sizes.items()}
        for number, name in enumerate(dataset.site_names)
    }
