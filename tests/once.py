"""Runs of one round that are small enough to be repeated, and what they leave."""

import json
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

from fedmlh.data.source import open_dataset
from fedmlh.federated.messages import StatisticsHeader, unpack
from fedmlh.runs.journal import Journal
from tiny import TINY

BASE = TINY.replace(
    training="one-round",
    rounds=1,
    partition="dirichlet",
    dirichlet_alpha=1.0,
    num_clients=6,
    clients_per_round=6,
    label_map="identity",
    min_site_points=1,
)
#: Labels as they are; labels that clients hash by name into buckets while rare features share slots; both with a server
#: that has no points, so that λ is chosen from held-out sums; and networks beside the linear model.
VARIANTS = {
    "labels": BASE,
    "buckets": BASE.replace(label_map="murmur3", label_key="name", feature_slots=40),
}
VARIANTS |= {f"{name}, held out": config.replace(validation_fraction=0.0) for name, config in VARIANTS.items()}
VARIANTS["corrected"] = BASE.replace(
    correct=2,
    budget_mib=0.1,
    ridge=1e4,
    count_power=0.0,
    loss="balanced-bce",
    loss_tau=1.0,
    decoding="logits",
    learning_rate=0.0,
    feature_map="per-table",
    feature_signed=True,
    normalize=True,
    update_codec="grid-100%",
    broadcast_codec="grid-100%",
)
DATA = open_dataset(BASE)


def left(folder: Path) -> dict[str, Any]:
    """Return all that a run leaves, without time, memory and rows of clients: model, metrics, participation."""
    records = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    summary = json.loads((folder / "summary.json").read_text())
    found = {f"metrics {record['round']} {key}": value for record in records for key, value in record.items()}
    found |= {f"summary {key}": value for key, value in summary.items()}
    found = {key: value for key, value in found.items() if "seconds" not in key and "memory" not in key}
    found.pop("summary clients", None)  # in a simulation only
    found["participation"] = (folder / "participation.jsonl").read_text()
    for path in sorted((folder / "model").iterdir()):
        if path.suffix in (".safetensors", ".bin") or path.name == "labels.json":
            found[path.name] = path.read_bytes()
    for part in ("counts", "sums", "held-out"):
        with Journal(folder / "checkpoint" / f"{part}.bin") as journal:
            found[part] = sorted((client, open_message(message)) for client, message in journal.read())
    return found


def open_message(message: bytes) -> tuple[Any, ...]:
    """Return the content of a message, without the name of its run, in which a simulation counts its data."""
    header, payload = unpack(StatisticsHeader, message, len(message))
    return (*astuple(replace(header, run="")), bytes(payload))


def differing(a: Path, b: Path) -> list[str]:
    one, two = left(a), left(b)
    return sorted(name for name in one.keys() | two.keys() if one.get(name) != two.get(name))
