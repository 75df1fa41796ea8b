"""Clients added to finished runs of one round, and taken out: the bits of the other set of clients."""

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.sparse import save_npz

from command_line import invoke
from fedmlh.data.division import divide
from fedmlh.data.readers.convert import write
from fedmlh.engines.run import run
from fedmlh.errors import UserError
from fedmlh.evaluation.evaluate import LabelCounts
from fedmlh.oneround.choose import Choice
from fedmlh.oneround.exchange import Respondent
from fedmlh.oneround.sums import Adder
from fedmlh.runs.model_folder import load_bundle
from fedmlh.runs.one_round.closing import Closing
from fedmlh.runs.one_round.revise import read_client, revise
from fedmlh.runs.rounds import ignore
from fedmlh.serving.predictor import Model
from once import BASE, DATA, VARIANTS, differing


def weights(folder: Path) -> bytes:
    return (folder / "model" / "weights.safetensors").read_bytes()


@pytest.mark.parametrize("name", VARIANTS)
def test_a_client_that_leaves_and_comes_back_changes_nothing(name: str, tmp_path: Path) -> None:
    config = VARIANTS[name]
    run(config, DATA, tmp_path / "run")
    revise(tmp_path / "run", DATA, tmp_path / "less", remove=[2, 4])
    shards = divide(DATA.train, config).shards
    revise(tmp_path / "less", DATA, tmp_path / "again", add=[shards[4], shards[2]])
    assert weights(tmp_path / "run") == weights(tmp_path / "again") != weights(tmp_path / "less")


def test_without_a_client_the_model_is_that_of_the_others(tmp_path: Path) -> None:
    """As solved here from the points of the others, under the terms, λ and power of the run."""
    run(BASE, DATA, tmp_path / "run")
    summary = revise(tmp_path / "run", DATA, tmp_path / "less", remove=[1]).summary
    bundle = load_bundle(tmp_path / "run" / "model")
    division = divide(DATA.train, BASE)
    adder = Adder(bundle.terms.slots(bundle.seeds).count, DATA.num_labels)
    for split in (division.validation, *(shard for client, shard in division.shards.items() if client != 1)):
        adder.add(Respondent(bundle.task, 0, split.X, split.Y, DATA.labels).sum(bundle.terms, bundle.seeds))
    closing = Closing(
        bundle.task, bundle.seeds, bundle.terms, DATA, LabelCounts.of(DATA.train), torch.device("cpu"), ignore
    )
    choice = Choice.given(bundle.task.config.ridge, bundle.task.config.count_power)
    model = closing.solve(adder.result(), choice).model
    kept = load_bundle(tmp_path / "less" / "model").weights
    assert model.encode() == kept.encode()
    assert summary["training_points"] == sum(len(s) for c, s in division.shards.items() if c != 1)
    assert summary["precision"] == Model.load(tmp_path / "less").evaluate(DATA)["precision"]


def test_a_data_folder_becomes_a_client(tmp_path: Path) -> None:
    run(BASE, DATA, tmp_path / "run")
    source = tmp_path / "data"
    source.mkdir()
    for name, matrix in (
        ("X.trn", DATA.train.X),
        ("Y.trn", DATA.train.Y),
        ("X.tst", DATA.test.X),
        ("Y.tst", DATA.test.Y),
    ):
        save_npz(source / f"{name}.npz", matrix)
    points = read_client(source, DATA)
    assert (points.X != DATA.train.X).nnz == (points.Y != DATA.train.Y).nnz == 0
    revise(tmp_path / "run", DATA, tmp_path / "more", add=[points])
    # Every point counts twice now: the same answers but for λ, which counts half as much.
    assert weights(tmp_path / "more") != weights(tmp_path / "run")
    # Labels are found by their keys, wherever they stand in the new folder.
    order = np.arange(DATA.num_labels)[::-1]
    save_npz(source / "Y.trn.npz", DATA.train.Y[:, order].tocsr())
    save_npz(source / "Y.tst.npz", DATA.test.Y[:, order].tocsr())
    (source / "labels.txt").write_text("".join(f"{DATA.labels.keys[label]}\n" for label in order))
    assert (read_client(source, DATA).Y != DATA.train.Y).nnz == 0


def test_a_client_s_folder_in_a_format_that_is_named(tmp_path: Path) -> None:
    """The result is the one without the option; another format is refused, and nothing is made of the folder."""
    run(BASE, DATA, tmp_path / "run")
    write(DATA, tmp_path / "data", "npz")

    def add(out: str, *options: str) -> tuple[int, str]:
        given = ("--data", tmp_path / "data", "--out", tmp_path / out)
        code, _, said = invoke("one-round", "add", tmp_path / "run", *given, *options)
        return code, " ".join(said.split())

    assert add("found")[0] == add("named", "--format", "npz")[0] == 0
    assert differing(tmp_path / "found", tmp_path / "named") == []
    assert weights(tmp_path / "found") != weights(tmp_path / "run")
    for name, says in (("xmc", "no data set recognised in the format xmc"), ("npy", "did you mean 'npz'?")):
        code, said = add("refused", "--format", name)
        assert code == 2
        assert says in said
        assert said.count("fedmlh: ") == 1
        assert not (tmp_path / "refused").exists()


def test_what_cannot_be_revised_is_said(tmp_path: Path) -> None:
    run(BASE, DATA, tmp_path / "run")
    with pytest.raises(UserError, match="no sums of client 77"):
        revise(tmp_path / "run", DATA, tmp_path / "new", remove=[77])
    with pytest.raises(UserError, match=r"no client of .* would be left"):
        revise(tmp_path / "run", DATA, tmp_path / "new", remove=range(BASE.num_clients))
    journal = tmp_path / "run" / "checkpoint" / "sums.bin"
    content = bytearray(journal.read_bytes())
    content[300] ^= 1
    journal.write_bytes(content)
    with pytest.raises(UserError, match="does not have the sums of"):
        revise(tmp_path / "run", DATA, tmp_path / "new", remove=[1])
    assert not (tmp_path / "new" / "config.toml").exists()


def test_a_run_that_keeps_no_sums_has_the_same_model_and_cannot_be_revised(tmp_path: Path) -> None:
    run(BASE, DATA, tmp_path / "kept")
    run(BASE.replace(keep_sums=False), DATA, tmp_path / "run")
    assert weights(tmp_path / "run") == weights(tmp_path / "kept")
    assert {path.name for path in (tmp_path / "run" / "checkpoint").iterdir()} == {"terms.bin"}
    with pytest.raises(UserError, match="does not have the sums of"):
        revise(tmp_path / "run", DATA, tmp_path / "less", remove=[1])
    assert not (tmp_path / "less" / "config.toml").exists()
