"""Arrays in mapped files: all of an array is looked at, and memory holds a part of its file at a time."""

import re
from pathlib import Path

import numpy as np
import pytest

from fedmlh import tensors
from fedmlh.config import Config
from fedmlh.data.dataset import Labels
from fedmlh.federated.task import Task
from fedmlh.oneround.linear import Linear
from fedmlh.oneround.terms import Counts, Terms
from fedmlh.runs.model_folder import Bundle
from fedmlh.serving.predictor import Model
from fedmlh.tensors import look_through
from fedmlh.untrusted import map_bytes

MIB = 1 << 20
MAPS = Path("/proc/self/smaps")
needs_maps = pytest.mark.skipif(not MAPS.exists(), reason="this system does not say what memory a file takes")


def resident(name: str) -> float:
    """Return how many MiB of a mapped file are in the memory of this process."""
    found = re.search(
        rf"/{re.escape(name)}\n(?:Size|KernelPageSize|MMUPageSize).*?^Rss: +(\d+) kB", MAPS.read_text(), re.S | re.M
    )
    assert found is not None, f"{name} is not mapped"
    return int(found[1]) / 1024


@pytest.mark.parametrize("count", [0, 1, MIB // 16, MIB // 16 + 1, 3 * MIB])
def test_all_of_an_array_is_looked_at_once_and_in_order(count):
    array = np.random.default_rng(count).integers(0, 2**32, count, np.uint32)
    parts = list(look_through(array))
    assert all(part.nbytes <= tensors._PART for part in parts)
    assert np.array_equal(np.concatenate([array[:0], *parts]), array)


@needs_maps
def test_memory_holds_a_part_of_a_file_that_is_looked_through(tmp_path):
    path = tmp_path / "many-numbers"
    path.write_bytes(np.random.default_rng(0).bytes(32 * MIB))
    array = np.frombuffer(map_bytes(path, 2**30), np.uint16)[3:]
    total = np.uint64(0)
    for part in look_through(array):
        total += part.sum(dtype=np.uint64)
        assert resident(path.name) <= 4
    assert resident(path.name) == 0
    assert total == array.sum(dtype=np.uint64)  # the pages come back
    assert resident(path.name) > 30


@needs_maps
def test_a_large_linear_model_is_checked_without_being_in_memory(tmp_path):
    slots, labels = 8000, 300
    task = Task(Config.load("one-round"), slots, labels)
    rng, rows, outputs = np.random.default_rng(0), slots + 1, task.num_tables * task.num_outputs
    weights = Linear(
        np.arange(rows + 1) * outputs,
        np.tile(np.arange(outputs, dtype=np.uint16), rows),
        rng.integers(-127, 128, rows * outputs).astype(np.int8),
        rng.random(rows).astype(np.float32),
        outputs,
    )
    names = tuple(map(str, range(labels)))
    terms = Terms(Counts(5, np.ones(slots, np.int64)), 0, weigh=False)
    bundle = Bundle(task, task.draw_seeds(), weights, Labels(names, names), None, "drawn", None, terms)
    Model(bundle).save(tmp_path / "model")
    model = Model.load(tmp_path / "model")
    assert resident("weights.safetensors") <= 2  # of 23: it was hashed, and its columns were checked
    points = np.eye(slots, dtype=np.float32)[:2]
    assert model.predict(points, 5) == Model(bundle).predict(points, 5)
