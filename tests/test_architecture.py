"""docs/architecture.md shows the rooms that import-linter holds the code to, and files that there are."""

import re
import tomllib
from pathlib import Path

import pytest
import torch

import fedmlh
from fedmlh import parts
from fedmlh.data.source import open_dataset
from fedmlh.engines.run import run
from fedmlh.federated import optimizers
from fedmlh.federated.task import Task
from fedmlh.runs.model_folder import load_bundle
from tiny import TINY

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
CODE = Path(fedmlh.__file__).parent


def test_the_picture_is_the_contract():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    expected = [sorted(re.findall(r"\w+", layer)) for layer in layers if layer != "__main__"]
    (picture,) = re.findall(r"```\n(cli\n.*?)```", PAGE, re.DOTALL)
    assert [sorted(line.split()) for line in picture.splitlines()] == expected


def test_every_room_is_described():
    rooms = {path.stem for path in CODE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    table = PAGE.split("| room | holds |")[1].split("\n\n")[0]
    described = {Path(name.rstrip("/")).stem for row in table.splitlines()[2:] for name in _names(row.split("|")[1])}
    assert described == rooms - {"__init__", "__main__"}


@pytest.mark.parametrize("name", sorted({name for name in re.findall(r"`([\w/]+\.py)", PAGE) if "/" in name}))
def test_files_that_are_named_exist(name):
    assert (CODE / name).is_file() or (ROOT / name).is_file(), name


def _names(cell: str) -> list[str]:
    return re.findall(r"`([\w./]+)`", cell)


def test_the_complete_example_is_one(tmp_path, monkeypatch):
    """Its code and a name in the registry are all that a server optimizer takes."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    monkeypatch.setattr(parts, "_parts", dict(parts._parts))
    monkeypatch.setitem(parts.OWN["server optimizer"], "sign", optimizers.__name__)
    exec(code, vars(optimizers) | {})
    config = TINY.replace(server_optimizer="sign", server_learning_rate=0.25, rounds=1)
    data = open_dataset(config)
    ended = run(config, data, tmp_path / "run")
    start = Task(config, data.num_features, data.num_labels).initial(config.seed)
    moved = torch.tensor(load_bundle(ended.folder / "model").weights) - start
    torch.testing.assert_close(moved[moved != 0].abs(), torch.full_like(moved[moved != 0], 0.25), rtol=0, atol=1e-6)
    assert (moved != 0).float().mean() > 0.5
