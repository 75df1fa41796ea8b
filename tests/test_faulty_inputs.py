"""Damaged files and wrong words on the command line: an exact parse, or one sentence, exit code 2, nothing written."""

import errno
import os
import re
import shutil
import zlib

import numpy as np
import pytest

from faulty_inputs import checkpoints, data, models, questions, settings
from faulty_inputs.plain_reading import plain_read, same_data
from faulty_inputs.world import World, invoke, toml, write_sound_data

CASES = [*data.CASES, *settings.CASES, *models.CASES, *checkpoints.CASES, *questions.CASES]

#: What a run may say before it finds a fault.
REMARK = r"(data: [^\n]+|learning_rate is [^\n]+|[^\n]+ holds no run to resume: this is a new one)"


def snapshot(folder):
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    place = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDMLH_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.chdir(tmp_path_factory.mktemp("here"))
        write_sound_data(place)
        for name, changes in {
            "run": {"data": str(place / "xmc")},
            "three": {"data": str(place / "xmc"), "rounds": 3},
            "other": {"data": str(place / "xmc"), "seed": 1, "num_buckets": 6},
            "textrun": {"data": str(place / "jsonl"), "rounds": 1},
        }.items():
            (place / f"{name}.toml").write_text(toml(**changes))
            code, _, stderr = invoke(["run", str(place / f"{name}.toml"), "--out", str(place / name)])
            assert code == 0, stderr
        # As if the run of three rounds had been killed in its third.
        shutil.copytree(place / "run", place / "stopped")
        for name in ("summary.json", "report.html", "curves.png"):
            (place / "stopped" / name).unlink()
        shutil.rmtree(place / "stopped" / "model")
        shutil.copy(place / "three" / "config.toml", place / "stopped" / "config.toml")
        yield World(place)


def test_there_are_enough_cases():
    assert len(CASES) >= 300
    assert len({case.name for case in CASES}) == len(CASES)


def test_sound_data_converts_to_what_a_plain_reading_gives(world, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDMLH_CACHE", str(tmp_path / "cache"))
    for kind in data.FILES:
        code, _, stderr = invoke(["data", "convert", str(world.place / kind), str(tmp_path / kind), "--to", "npz"])
        assert (code, stderr) == (0, "")
        same_data(tmp_path / kind, plain_read(world.place / kind, kind))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.encode("unicode_escape").decode()[:60])
def test_a_faulty_input_is_parsed_exactly_or_refused_in_one_line(world, tmp_path, monkeypatch, case):
    monkeypatch.setenv("FEDMLH_CACHE", str(tmp_path / "cache"))
    box = tmp_path / "box"
    box.mkdir()
    monkeypatch.chdir(box)
    arguments = case.build(world, box, np.random.default_rng(zlib.crc32(case.name.encode("utf-8", "replace"))))
    before = snapshot(box)
    code, stdout, stderr = invoke(arguments, case.plots)
    assert "Traceback" not in stdout + stderr
    if code == 0:
        assert case.passes is not None, f"accepted: {stdout}{stderr}"
        case.passes(world, box, stdout, stderr)
        return
    assert code == 2
    assert not case.must_pass, stderr
    left = snapshot(box)
    if case.begins:
        # A run that can be resumed: what it was told, a whole checkpoint, and who was asked.
        new = {name for name in left.keys() - before.keys() if not name.startswith("out/checkpoint/round-000000")}
        files = {"config.toml", "checkpoint", "metrics.jsonl", "participation.jsonl", "events.jsonl"}
        assert new <= {"out", *(f"out/{name}" for name in files)}
    else:
        assert left == before
    if case.usage:
        assert re.match("Usage: |╭─ Error", stderr)
        return
    assert re.fullmatch(rf"({REMARK}\n)*fedmlh: [^\n]+\n", stderr), stderr
    assert case.says in stderr


@pytest.mark.parametrize("command", ["convert npz", "convert xmc", "convert svmlight", "synth", "predict", "report"])
def test_a_disk_that_fills_up_leaves_nothing_behind(world, tmp_path, monkeypatch, command):
    monkeypatch.setenv("FEDMLH_CACHE", str(tmp_path / "cache"))
    box = tmp_path / "box"
    box.mkdir()
    out = str(box / "out")
    arguments = {
        "synth": ["data", "synth", out, "--points", "50", "--labels", "10", "--features", "50"],
        "predict": [
            "predict",
            str(world.place / "run"),
            "--input",
            str(world.place / "xmc" / "test.txt"),
            "--out",
            f"{out}.csv",
        ],
        "report": ["report", str(world.place / "run"), "--out", out],
    }
    chosen = arguments.get(command) or ["data", "convert", str(world.place / "xmc"), out, "--to", command.split()[1]]
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def fail(*arguments, **options):
        raise full

    monkeypatch.setattr(os, "fsync", fail)
    monkeypatch.setattr("fedmlh.data.readers.convert.write_lines", fail)
    code, _, stderr = invoke(chosen)
    assert code == 2
    assert re.fullmatch(rf"fedmlh: [^\n]*{full.strerror}[^\n]*\n", stderr)
    assert snapshot(box) == {}
