"""A model's door: what it is asked is checked before it answers."""

from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from fedmlh import Config, Model, run
from fedmlh.data.readers.formats import load
from fedmlh.data.source import open_dataset
from fedmlh.errors import UserError

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = Config(
    synthetic_points=200, synthetic_features=60, synthetic_labels=40, num_buckets=10, num_tables=2, feature_dim=16,
    hidden_sizes=(8,), num_clients=4, clients_per_round=2, local_epochs=1, rounds=1,
)  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("model") / "run"
    return Model.load(run(SMALL, open_dataset(SMALL), folder).folder)


def test_more_labels_than_there_are_is_all_of_them(model: Model) -> None:
    points = np.eye(3, 60, dtype=np.float32)
    everything = model.predict(points, k=10**9)
    assert [len(labels) for labels in everything] == [40] * 3
    assert [labels[:4] for labels in everything] == model.predict(csr_matrix(points), k=4)


@pytest.mark.parametrize("k", [0, -1, 2.5, True])
def test_fewer_labels_than_one_are_refused(model: Model, k: int) -> None:
    with pytest.raises(UserError, match="ask for at least 1 label"):
        model.predict(np.eye(3, 60, dtype=np.float32), k=k)


@pytest.mark.parametrize("number", [np.nan, np.inf, 1e300])
def test_numbers_that_are_none_are_refused(model: Model, number: float) -> None:
    points = np.eye(3, 60)
    points[1, 1] = number
    with pytest.raises(UserError, match="NaN or infinity"):
        model.predict(points)


def test_texts_are_texts_however_they_come(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for part in ("trn", "tst"):
        lines = [f'{{"text": "on {word}", "labels": ["{word}"]}}\n' for word in ("oil", "fish", "rail") * 10]
        (tmp_path / "data" / f"{part}.jsonl").write_text("".join(lines))
    config = SMALL.replace(num_buckets=3, feature_dim=200, partition="iid", text_dim=4096)
    model = Model.load(run(config, load(tmp_path / "data", text_dim=4096), tmp_path / "run").folder)
    texts = ["on oil", "fish"]
    assert model.predict(np.array(texts)) == model.predict(tuple(texts)) == model.predict(texts)
    for odd in ([None], [1, 2], np.array([None, "x"], object), [b"bytes"]):
        with pytest.raises(UserError, match="not all of the texts are strings"):
            model.predict(odd)
