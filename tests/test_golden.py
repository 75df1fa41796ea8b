"""Runs give the bits they gave before, on every engine, and folders written before are read as they were.

A change that is meant to alter them records new hashes, in a commit that says why:
(cd tests && env NAME=VALUE … python -m golden.measure process CASE …), with the variables of golden/cases.py.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedmlh.data.source import open_dataset
from fedmlh.runs.folder import RunFolder
from fedmlh.serving.predictor import Model
from golden.cases import CASES, KEPT, PINNED

HERE = Path(__file__).parent
FOLDERS = HERE / "golden" / "folders"
GOLDEN = json.loads((HERE / "golden" / "hashes.json").read_text())
#: Where an engine takes long to start, a few stand for all; the others are for `make test-all`.
QUICK = {"process": list(CASES), "replay": ["scaffold", "int4"], "ray": ["scaffold", "recommended"], "flower": ["int4"]}

pytestmark = pytest.mark.skipif(
    not {"avx2", "fma"} <= set(Path("/proc/cpuinfo").read_text().split() if sys.platform == "linux" else ()),
    reason="golden hashes are of processors with AVX2 and FMA",
)


def measure(engine: str, *cases: str) -> dict[str, object]:
    """Return what these runs give in their own process, whose bits do not depend on the machine."""
    command = [sys.executable, "-m", "golden.measure", engine, *cases]
    environment = {**os.environ, **PINNED, "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(command, cwd=HERE, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_every_case_has_its_hashes() -> None:
    assert GOLDEN.keys() == CASES.keys()


def check(engine: str, cases: list[str]) -> None:
    if engine in ("ray", "flower"):
        pytest.importorskip({"flower": "flwr"}.get(engine, engine), reason=f"the extra '{engine}' is not installed")
    assert measure(engine, *cases) == {case: GOLDEN[case] for case in cases}


@pytest.mark.parametrize("engine", QUICK)
def test_runs_give_the_golden_bits(engine: str) -> None:
    check(engine, QUICK[engine])


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["replay", "ray", "flower"])
def test_all_runs_give_the_golden_bits(engine: str) -> None:
    check(engine, [case for case in CASES if case not in QUICK[engine]])


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Return a copy of the folders of earlier versions that a test may change."""
    shutil.copytree(FOLDERS, tmp_path / "kept")
    return tmp_path / "kept"


def test_kept_folders_are_small() -> None:
    assert sum(path.stat().st_size for path in FOLDERS.rglob("*")) < 1_000_000


def test_a_run_stopped_before_resumes_to_the_golden_bits(kept: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from golden.cases import *; from fedmlh.data.source import open_dataset;"
        "from fedmlh.engines.run import run;"
        "run(KEPT, open_dataset(KEPT), sys.argv[1], resume=True, progress=False);"
        "print(json.dumps(describe(Path(sys.argv[1]))))"
    )
    command = [sys.executable, "-c", code, str(kept / "stopped-run")]
    done = subprocess.run(command, cwd=HERE, env={**os.environ, **PINNED}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == GOLDEN["int4"]


def test_a_run_and_a_model_of_before_are_read_and_used(kept: Path) -> None:
    run = RunFolder(kept / "finished-run").read()
    model, dataset = Model.load(run_folder := kept / "finished-run" / "model"), open_dataset(KEPT)
    assert model.evaluate(dataset)["precision"] == pytest.approx(run.summary["precision"])
    assert len(Model.load(run_folder).predict(dataset.test.X[:3], k=2)) == 3


def test_a_federation_and_a_site_of_before_are_read(kept: Path) -> None:
    pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
    from fedmlh.sites.federation import Federation
    from fedmlh.sites.site import Site

    federation = Federation(kept / "federation")
    site = Site(kept / "federation" / "site-0")
    assert federation.agreement.config == KEPT.replace(data="")
    assert federation.all_enrolments()[0].examples == len(site.points.train)
    assert federation.run.read().summary["best_round"] >= 1
    assert site.agreement.terms == federation.agreement.terms
