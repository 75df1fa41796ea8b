"""fedmlh.run from Python: folders, what is printed, and what is refused in words of Python."""

import re

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
