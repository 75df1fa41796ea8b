"""fedmlh.run from Python: folders, what is printed, and what is refused in words of Python."""

import re

import numpy as np
import pytest

import fedmlh
from fedmlh import UserError
from fedmlh.data.source import open_dataset
from tiny import TINY

DATA = open_dataset(TINY)


def test_without_a_folder_the_run_lies_in_a_temporary_one(capsys):
    runs = [fedmlh.run(TINY, DATA) for _ in range(2)]
    assert runs[0].folder != runs[1].folder
    models = [(run.folder / "model" / "weights.safetensors").read_bytes() for run in runs]
    assert models[0] == models[1]
    printed = capsys.readouterr().out.splitlines()
    assert sum(bool(re.match(r"round \d of at most 3: P@1/3 \d", line)) for line in printed) == 6
    fedmlh.run(TINY, DATA, progress=False)
    assert capsys.readouterr().out == ""


def test_a_run_is_replaced_only_if_that_is_asked_for(tmp_path):
    first = fedmlh.run(TINY, DATA, tmp_path / "run", progress=False)
    with pytest.raises(UserError, match="is not empty"):
        fedmlh.run(TINY.replace(seed=1), DATA, tmp_path / "run", progress=False)
    again = fedmlh.run(TINY.replace(seed=1), DATA, tmp_path / "run", overwrite=True, progress=False)
    assert again.summary["seed"] != first.summary["seed"]
    assert re.fullmatch(rf"<Run '.+': P@1/3 [\d./]+ % on test points, in '{tmp_path / 'run'}'>", repr(again))
    more = fedmlh.run(TINY.replace(seed=1, rounds=4), DATA, tmp_path / "run", resume=True, progress=False)
    assert more.summary["rounds"] == 4


def test_only_runs_are_replaced(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="holds no run"):
        fedmlh.run(TINY, DATA, tmp_path, overwrite=True, progress=False)
    assert (tmp_path / "thesis.tex").exists()
    with pytest.raises(UserError, match="choose one"):
        fedmlh.run(TINY, DATA, tmp_path, overwrite=True, resume=True)


def test_a_run_takes_the_name_of_a_config_and_a_misspelt_one_names_what_was_meant(tmp_path):
    (tmp_path / "mine.toml").write_text(TINY.replace(rounds=1).to_toml())
    found = fedmlh.run(tmp_path / "mine.toml", DATA, progress=False)
    assert found.summary == fedmlh.run(TINY.replace(rounds=1), DATA, progress=False).summary | {
        name: found.summary[name] for name in found.summary if name.startswith(("seconds", "peak"))
    }
    with pytest.raises(UserError, match="did you mean 'recommended'"):
        fedmlh.run("recomended", DATA)
    (tmp_path / "odd.toml").write_text("num_tabels = 3\n")
    with pytest.raises(UserError, match=r"odd\.toml: there is no setting 'num_tabels'; did you mean 'num_tables'"):
        fedmlh.run(tmp_path / "odd.toml", DATA)


def test_a_folder_in_use_is_refused_before_anything_is_printed(tmp_path, capsys):
    fedmlh.run(TINY, DATA, tmp_path, progress=False)
    with pytest.raises(UserError, match="pass resume=True, overwrite=True or another out"):
        fedmlh.run(TINY, DATA, tmp_path)
    assert capsys.readouterr().out == ""


def test_to_resume_needs_a_folder_and_an_empty_one_begins_a_new_run(tmp_path, capsys):
    with pytest.raises(UserError, match="resume=True needs out, the folder of the run"):
        fedmlh.run(TINY, DATA, resume=True)
    new = f"{tmp_path / 'run'} holds no run to resume: this is a new one"
    fedmlh.run(TINY, DATA, tmp_path / "run", resume=True)
    assert capsys.readouterr().out.splitlines()[0] == new
    fedmlh.run(TINY, DATA, tmp_path / "run", resume=True)
    assert new not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"dataset": "data/books"}, r"'data/books' is not a Dataset: pass fedmlh\.load\(path\)"),
        ({"dataset": DATA.train}, r"is not a Dataset: pass fedmlh\.load\(path\)"),
        ({"engine": "ray"}, "engine is 'ray': it must be a function, such as live_on_ray"),
        ({"watch": 3}, "watch is 3: it must be a function"),
        ({"tell": "yes"}, "tell is 'yes': it must be a function"),
    ],
)
def test_an_argument_of_a_wrong_type_is_refused_in_one_sentence(given, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence):
        fedmlh.run(TINY, **{"dataset": DATA, "out": tmp_path / "run", **given})
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def model():
    """Return a model with probabilities, made from rows of features."""
    return fedmlh.Model.load(fedmlh.run(TINY, DATA, progress=False).folder)


@pytest.mark.parametrize(
    "points", [(row for row in [1, 2]), DATA, DATA.test, 3.5, None], ids=lambda x: type(x).__name__
)
def test_what_holds_no_points_is_refused(model, points):
    with pytest.raises(UserError, match=f"predict takes a list of texts, or rows .* not a {type(points).__name__}"):
        model.predict(points)


@pytest.mark.parametrize("threshold", ["a", -1, 1.5, float("nan"), None, True])
def test_a_threshold_is_from_0_to_1(model, threshold):
    with pytest.raises(UserError, match="it must be a number from 0 to 1"):
        model.predict(DATA.test.X, threshold=threshold)


@pytest.mark.parametrize("k", [0, -1, 1.0, "3", True, np.float64(2), np.bool_(True)])
def test_k_is_a_whole_number(model, k):
    with pytest.raises(UserError, match="it must be a whole number of at least 1"):
        model.predict(DATA.test.X, k=k)


def test_numbers_of_numpy_are_numbers(model):
    X = DATA.test.X[:5]
    plain = model.predict(X, k=3, threshold=0.25)
    assert model.predict(X, k=np.int64(3), threshold=np.float32(0.25)) == plain
    assert model.predict(X.toarray().astype(object).astype(np.float32), k=3, threshold=0.25) == plain


def test_a_model_is_loaded_not_made(tmp_path):
    with pytest.raises(UserError, match=r"Model\.load\(folder\)"):
        fedmlh.Model("runs/books")
    with pytest.raises(UserError, match="holds no model: name a run folder, or the model folder inside one"):
        fedmlh.Model.load(tmp_path)


def test_a_model_is_evaluated_on_a_dataset(model):
    with pytest.raises(UserError, match=r"'data/books' is not a Dataset: pass fedmlh\.load\(path\)"):
        model.evaluate("data/books")
