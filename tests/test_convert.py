"""What is written is read back bit by bit, from the files and from the cache; and a data set is described."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from fedmlh.data.dataset import Dataset, Labels, Split
from fedmlh.data.readers import cache, formats
from fedmlh.data.readers.convert import format_values, write
from fedmlh.data.readers.formats import load
from fedmlh.data.statistics import describe
from fedmlh.errors import UserError


def draw_split(rng: np.random.Generator, n: int, d: int, p: int) -> Split:
    X = np.where(rng.random((n, d)) < 0.2, rng.normal(size=(n, d)) * 10.0 ** rng.integers(-30, 30, (n, d)), 0)
    Y = rng.random((n, p)) < 0.15
    X[1], Y[1] = 0, 0
    X[:, -1] = 0
    Y[:, -1] = 0
    return Split(csr_matrix(X.astype(np.float32)), csr_matrix(Y.astype(np.float32)))


def draw(seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)
    names = tuple(f"näme {number}\twith a tab" for number in range(9))
    parts = [draw_split(rng, n, 30, 9) for n in (40, 20)]
    excluded = csr_matrix((rng.random((40, 9)) < 0.1).astype(np.float32))
    train = dataclasses.replace(parts[0], excluded=excluded)
    return Dataset("out", train, parts[1], Labels(tuple("abcdefghi"), names))


def with_sites(data: Dataset) -> Dataset:
    parts = [
        dataclasses.replace(split, sites=np.repeat([0, 1], len(split) // 2).astype(np.int32))
        for split in (data.train, data.test)
    ]
    return dataclasses.replace(data, train=parts[0], test=parts[1], site_names=("east", "west"))


def assert_same_matrix(a: Any, b: Any) -> None:
    assert a.shape == b.shape
    for field in ("data", "indices", "indptr"):
        np.testing.assert_array_equal(getattr(a, field), getattr(b, field))


def assert_same(a: Dataset, b: Dataset) -> None:
    for mine, other in ((a.train, b.train), (a.test, b.test)):
        assert_same_matrix(mine.X, other.X)
        assert_same_matrix(mine.Y, other.Y)
        assert (mine.excluded is None or mine.excluded.nnz) == (other.excluded is None or other.excluded.nnz)
        if mine.excluded is not None:
            assert_same_matrix(mine.excluded, other.excluded)
        np.testing.assert_array_equal(mine.sites, other.sites)
    for field in ("name", "labels", "text", "notes", "site_names"):
        assert getattr(a, field) == getattr(b, field)


@pytest.mark.parametrize("data_format", ["npz", "xmc", "svmlight"])
def test_round_trip(tmp_path: Path, data_format: str) -> None:
    data = draw()
    write(data, tmp_path / "out", data_format)
    assert_same(load(tmp_path / "out"), data)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("data_format", ["npz", "xmc", "svmlight"])
def test_round_trip_of_sites(tmp_path: Path, data_format: str) -> None:
    data = with_sites(draw())
    write(data, tmp_path / "out", data_format)
    loaded = load(tmp_path / "out")
    assert_same(loaded, data)


def test_every_float32_is_written_to_be_read_back() -> None:
    rng = np.random.default_rng(0)
    values = rng.integers(0, 2**32, 50_000, dtype=np.uint32).view(np.float32)
    # The shortest decimal of one of its neighbours is 7.038531e-26, which float64 rounds to the other side.
    twice = np.nextafter(np.float32(7.038531e-26), np.float32([0, 1]))
    values = np.concatenate([values[np.isfinite(values)], twice, np.float32([1e-45, 3.4028235e38])])
    texts = format_values(values)
    np.testing.assert_array_equal(np.float32([float(text) for text in texts]), values)


def test_write_refusals(tmp_path: Path) -> None:
    data = draw()
    with pytest.raises(UserError, match="choose one of npz, xmc, svmlight"):
        write(data, tmp_path / "out", "csv")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for taken in (tmp_path / "full", tmp_path / "full" / "file"):
        with pytest.raises(UserError, match="is there already and not empty"):
            write(data, taken, "npz")
    with pytest.raises(UserError, match="cannot be written"):
        write(data, tmp_path / "full" / "file" / "below", "npz")
    broken = dataclasses.replace(data, labels=Labels(("a\nb", *data.labels.keys[1:]), data.labels.names))
    with pytest.raises(UserError, match="a tab or line break"):
        write(broken, tmp_path / "out", "xmc")
    with pytest.raises(UserError, match="cannot be the name of a folder"):
        write(dataclasses.replace(with_sites(data), site_names=("..", "west")), tmp_path / "out", "xmc")
    assert not (tmp_path / "out").exists()


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(values: np.ndarray) -> list[str]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedmlh.data.readers.convert.format_values", fail)
    with pytest.raises(UserError, match=r"cannot be written \(No space left on device\)"):
        write(draw(), tmp_path / "out", "xmc")
    assert list(tmp_path.iterdir()) == []


def age(folder: Path) -> None:
    for path in folder.rglob("*.*"):
        os.utime(path, ns=(10**18, 10**18))


def refuse_to_read(*_: object) -> Dataset:
    raise AssertionError("the cache should have answered")


def test_a_second_load_comes_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(with_sites(draw()), tmp_path / "out", "xmc")
    age(tmp_path / "out")
    first = load(tmp_path / "out")
    monkeypatch.setattr(formats, "read", refuse_to_read)
    assert_same(load(tmp_path / "out"), first)
    os.utime(tmp_path / "out" / "east" / "test.txt", ns=(1, 1))
    with pytest.raises(AssertionError):
        load(tmp_path / "out")


def test_a_file_changed_this_moment_is_not_cached(tmp_path: Path) -> None:
    write(draw(), tmp_path / "out", "xmc")
    load(tmp_path / "out")
    assert not (tmp_path / "cache").exists()


def test_text_settings_have_a_cache_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out").mkdir()
    for name in ("trn", "tst"):
        (tmp_path / "out" / f"{name}.jsonl").write_text('{"text": "red fish", "labels": [1]}\n' * 2)
    age(tmp_path / "out")
    ways: list[dict[str, Any]] = [{"text_dim": 8}, {"text_dim": 16}, {"text_features": "tfidf"}]
    loaded = [load(tmp_path / "out", **way) for way in ways]
    assert [data.num_features for data in loaded] == [8, 16, 3]
    monkeypatch.setattr(formats, "read", refuse_to_read)
    for way, data in zip(ways, loaded, strict=True):
        assert_same(load(tmp_path / "out", **way), data)
    monkeypatch.setattr(cache, "PARSER_VERSION", -1)
    with pytest.raises(AssertionError):
        load(tmp_path / "out", **ways[0])


def test_a_damaged_cache_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = draw()
    write(data, tmp_path / "out", "xmc")
    age(tmp_path / "out")
    load(tmp_path / "out")
    (kept,) = (tmp_path / "cache").iterdir()
    whole = kept.read_bytes()
    rng = np.random.default_rng(0)
    flips = [whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :] for at in rng.integers(len(whole), size=60)]
    for damaged in (b"", b"junk", whole[: len(whole) // 2], whole[:-1], *flips):
        kept.write_bytes(damaged)
        assert_same(load(tmp_path / "out"), data)
    kept.write_bytes(whole[:-1])
    load(tmp_path / "out")
    monkeypatch.setattr(formats, "read", refuse_to_read)
    assert_same(load(tmp_path / "out"), data)


def test_a_cache_that_cannot_be_written_is_no_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(draw(), tmp_path / "out", "xmc")
    age(tmp_path / "out")
    (tmp_path / "file").touch()
    monkeypatch.setenv("FEDMLH_CACHE", str(tmp_path / "file" / "cache"))
    assert_same(load(tmp_path / "out"), draw())


def test_the_cache_goes_where_caches_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDMLH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache.find_cache() == Path("/x/fedmlh")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.find_cache() == Path.home() / ".cache" / "fedmlh"


def test_describe_counts_what_is_there() -> None:
    data = with_sites(draw())
    figures = json.loads(json.dumps(describe(data)))
    frequency = data.train.Y.toarray().sum(axis=0)
    assert figures["labels"] == 9
    assert figures["labels_without_training_point"] == (frequency == 0).sum() == 1
    assert figures["labels_with_at_most_5_training_points"] == (frequency <= 5).sum()
    assert figures["label_frequency_quantile"]["1"] == frequency.max()
    assert figures["train"]["points_without_label"] == (data.train.Y.toarray().sum(axis=1) == 0).sum()
    assert figures["train"]["labels_per_point"] == pytest.approx(frequency.sum() / 40)
    assert figures["sites"] == {"east": {"train": 20, "test": 10}, "west": {"train": 20, "test": 10}}


def test_describe_shares_of_the_tail() -> None:
    Y = csr_matrix(np.ones((1000, 1), np.float32))
    rare = csr_matrix(np.eye(1000, 2, dtype=np.float32))
    split = Split(csr_matrix((1000, 1), dtype=np.float32), csr_matrix(np.hstack([Y.toarray(), rare.toarray()])))
    figures = describe(Dataset("tail", split, split, Labels.numbered(3)))
    assert figures["share_of_positives_of_labels_under"] == {"1.00%": 2 / 1002, "0.10%": 0.0, "0.01%": 0.0}
