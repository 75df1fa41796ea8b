"""Folders under attack: two writers at once, a stranger's files, planted links, names that lead out, kills.

Commands that may hang or swell run in processes of their own, with an alarm and a limit on memory.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from command_line import call_apart
from faulty_inputs.models import seal
from fedmlh import drafts, lock
from fedmlh.data.public.download import download
from fedmlh.data.readers import cache
from fedmlh.data.readers.convert import write
from fedmlh.data.readers.formats import load
from fedmlh.data.source import open_dataset
from fedmlh.errors import UserError
from fedmlh.federated.task import Task
from fedmlh.lock import LOCK
from fedmlh.runs.checkpoint import Checkpoints
from fedmlh.runs.folder import RunFolder
from fedmlh.serving.predictor import Model
from fedmlh.storage import write_atomically, write_sealed
from golden.cases import KEPT
from tiny import TINY

FOLDERS = Path(__file__).parent / "golden" / "folders"
SMALL = open_dataset(TINY)

#: Runs the commands that come in, one per line, each with an alarm and with 1 GiB more than it has so far.
DRIVER = """
import json, resource, signal, sys
from command_line import invoke

def ring(number, frame):
    raise RuntimeError("HANGS")

signal.signal(signal.SIGALRM, ring)
for line in sys.stdin:
    size = int(open("/proc/self/status").read().split("VmSize:")[1].split()[0]) * 1024
    resource.setrlimit(resource.RLIMIT_AS, (size + 2**30, resource.RLIM_INFINITY))
    signal.alarm(60)
    try:
        code, _, err = invoke(*json.loads(line))
    except BaseException as error:
        code, err = f"{type(error).__name__}: {error}", ""
    signal.alarm(0)
    print(json.dumps([code, err]), flush=True)
"""

Command = Sequence[object]
Answer = tuple[Any, str]
Invoke = Callable[[Sequence[Command]], list[Answer]]


@pytest.fixture(scope="module")
def invoke_all() -> Iterator[Invoke]:
    """Yield a function that runs commands in a separate process, and returns exit codes and standard errors."""
    driver = start_script(DRIVER)

    def invoke(commands: Sequence[Command]) -> list[Answer]:
        answers = []
        assert driver.stdin is not None
        assert driver.stdout is not None
        for command in commands:
            print(json.dumps([str(part) for part in command]), file=driver.stdin, flush=True)
            answers.append(tuple(json.loads(driver.stdout.readline())))
        return answers

    yield invoke
    driver.communicate()


def run_script(code: str, *arguments: object, **options: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=600, **options
    )


def start_script(code: str, *arguments: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent,
    )


def is_one_sentence(said: str) -> bool:
    return said.startswith("fedmlh: ") and said.count("\n") == 1 and "Traceback" not in said


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Return a copy of whole folders of every kind that a test may change."""
    shutil.copytree(FOLDERS, tmp_path / "kept")
    return tmp_path / "kept"


@pytest.fixture
def points(tmp_path: Path) -> Path:
    """Return a file with a point that the kept model can label."""
    (tmp_path / "points.txt").write_text("1 60 40\n0 1:1\n")
    return tmp_path / "points.txt"


# 6: two processes on one folder.

#: `fedmlh` that says when its run has begun its second round, and continues when a line comes in.
PAUSED = """
import sys
from fedmlh import cli
from fedmlh.runs import rounds
write_metrics = rounds.RunFolder.write_metrics
def pause(folder, history):
    write_metrics(folder, history)
    if len(history) == 1:
        print("trained", flush=True)
        sys.stdin.readline()
rounds.RunFolder.write_metrics = pause
cli.main()
"""


@pytest.fixture
def paused(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """Yield a process in the middle of a run in the folder `out`, which ends well once it gets a line."""
    (tmp_path / "config.toml").write_text(KEPT.to_toml())
    process = start_script(PAUSED, "run", tmp_path / "config.toml", "--out", tmp_path / "out")
    assert process.stdout is not None
    assert process.stdout.readline() == "trained\n", process.communicate()[1]
    yield process
    process.kill()
    process.communicate()


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_attack_06_a_folder_in_use_is_refused_and_its_run_ends_as_if_alone(
    invoke_all: Invoke, tmp_path: Path, paused: "subprocess.Popen[str]"
) -> None:
    config, out = tmp_path / "config.toml", tmp_path / "out"
    (tmp_path / "other.toml").write_text(KEPT.replace(seed=1).to_toml())
    before = snapshot(out)
    answers = invoke_all(
        [
            ["run", config, "--out", out, "--resume"],
            ["run", config, "--out", out],
            ["run", tmp_path / "other.toml", "--out", out],
            ["replay", FOLDERS / "finished-run", "--out", out],
        ]
    )
    for code, said in answers:
        assert code == 2, said
        assert is_one_sentence(said), said
        assert f"{out} is in use by process {paused.pid}" in said
    assert snapshot(out) == before
    assert paused.communicate("\n")[1].count("Traceback") == 0
    assert paused.returncode == 0
    assert RunFolder(out).read().config.seed == Model.load(out).bundle.task.config.seed == KEPT.seed
    golden = FOLDERS / "finished-run" / "participation.jsonl"
    assert (out / "participation.jsonl").read_bytes() == golden.read_bytes()
    assert not (out / LOCK).exists()


def test_attack_06_of_three_runs_that_begin_at_once_exactly_one_trains(tmp_path: Path) -> None:
    """With runs of a moment, all of them would be in time to pass a check that nobody guards."""
    code = (
        "import sys; from fedmlh.cli.terminal import fail; from fedmlh.errors import UserError\n"
        "from fedmlh.engines.run import run\n"
        "from fedmlh.data.source import open_dataset; from fedmlh.runs.folder import RunFolder; from tiny import TINY\n"
        "config = TINY.replace(seed=int(sys.argv[2]), rounds=1); data = open_dataset(config); check = RunFolder.check\n"
        "def slow(folder, *arguments, **options):\n"
        "    check(folder, *arguments, **options); print('checked', flush=True); sys.stdin.readline()\n"
        "RunFolder.check = slow\n"
        "try: run(config, data, sys.argv[1])\n"
        "except UserError as problem: print('refused', flush=True); fail(str(problem), 2)\n"
    )
    processes = [start_script(code, tmp_path / "out", seed) for seed in range(3)]
    said = [process.stdout.readline().strip() for process in processes if process.stdout is not None]
    problems = [process.communicate("\n")[1] for process in processes]
    assert sorted(said) == ["checked", "refused", "refused"], problems
    assert sorted(process.returncode for process in processes) == [0, 2, 2], problems
    winner = said.index("checked")
    for number, problem in enumerate(problems):
        assert number == winner or (is_one_sentence(problem) and "is in use by process" in problem)
    assert RunFolder(tmp_path / "out").read_config().seed == winner
    assert Model.load(tmp_path / "out").bundle.task.config.seed == winner


HOLD = """
import sys
from pathlib import Path
from fedmlh.lock import hold
with hold(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holding() -> Iterator[Callable[[Path], "subprocess.Popen[str]"]]:
    """Have another process hold folders for as long as the test runs."""
    processes = []

    def hold(folder: Path) -> "subprocess.Popen[str]":
        processes.append(start_script(HOLD, folder))
        assert processes[-1].stdout is not None
        assert processes[-1].stdout.readline() == "held\n"
        return processes[-1]

    yield hold
    for process in processes:
        process.kill()
        process.communicate()


def test_attack_06_every_command_that_makes_a_folder_is_its_only_writer(
    invoke_all: Invoke, tmp_path: Path, kept: Path, holding: Callable[[Path], "subprocess.Popen[str]"]
) -> None:
    pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
    config, out = tmp_path / "config.toml", tmp_path / "out"
    config.write_text(TINY.to_toml())
    write(SMALL, tmp_path / "data", "npz")
    process = holding(out)
    prepare = ["site", "prepare", kept / "federation" / "public", "--site", "site-1", "--data", tmp_path / "data"]
    init = ["federation", "init", out, config, "--data", tmp_path / "data", "--address", "127.0.0.1:9092"]
    answers = invoke_all(
        [
            ["compare", config, "--out", out],
            ["compare", config, "--out", out, "--resume"],
            ["reproduce", "--only", "table1", "--out", out],
            ["data", "convert", tmp_path / "data", out],
            [*init, "--sites", "a,b"],
            [*prepare, "--out", out],
        ]
    )
    for code, said in answers:
        assert code == 2, said
        assert f"{out} is in use by process {process.pid}" in said
        assert said.splitlines()[-1].startswith("fedmlh: ")
        assert "Traceback" not in said
    assert [path.name for path in out.iterdir()] == [LOCK]


def test_attack_06_a_federation_has_one_way_to_lock(
    kept: Path, holding: Callable[[Path], "subprocess.Popen[str]"], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedmlh.sites import federation

    process = holding(kept / "federation" / "run")
    monkeypatch.setattr(federation, "_PATIENCE", 0.5)
    with (
        pytest.raises(UserError, match=f"in use by process {process.pid}"),
        federation.Federation(kept / "federation").lock(),
    ):
        pass
    process.kill()
    monkeypatch.setattr(federation, "_PATIENCE", 600)
    with federation.Federation(kept / "federation").lock():
        pass


def test_attack_06_a_folder_that_vanishes_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that found nothing to do removes the folders that it had made, also under the feet of the next."""
    acquire = lock._acquire

    def vanish(path: Path, deadline: float) -> int:
        monkeypatch.setattr(lock, "_acquire", acquire)
        path.parent.rmdir()
        path.parent.parent.rmdir()
        return acquire(path, deadline)

    monkeypatch.setattr(lock, "_acquire", vanish)
    with lock.hold(tmp_path / "runs" / "out"):
        assert (tmp_path / "runs" / "out" / LOCK).exists()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match="cannot write to"), lock.hold(Path("/proc/nowhere/out")):
        pass


def test_attack_06_a_lock_that_is_another_file_as_well_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("dear to me")
    (tmp_path / "out").mkdir()
    os.link(tmp_path / "victim", tmp_path / "out" / LOCK)
    with pytest.raises(UserError, match="cannot write to"), lock.hold(tmp_path / "out"):
        pass
    assert (tmp_path / "victim").read_text() == "dear to me"


def test_attack_06_readers_never_lock(
    invoke_all: Invoke, kept: Path, tmp_path: Path, points: Path, holding: Callable[[Path], "subprocess.Popen[str]"]
) -> None:
    run = kept / "finished-run"
    holding(run)
    answers = invoke_all(
        [
            ["report", run, "--out", tmp_path / "report.html"],
            ["predict", run, "--input", points],
            ["eval", run],
        ]
    )
    assert [code for code, _ in answers] == [0, 0, 0], answers


def test_attack_06_a_lock_that_a_kill_left_makes_no_folder_full(tmp_path: Path) -> None:
    from fedmlh.engines.run import run

    for name in ("run", "data"):
        (tmp_path / name).mkdir()
        (tmp_path / name / LOCK).write_text("99999999\n")
    run(TINY.replace(rounds=1), SMALL, tmp_path / "run")
    write(SMALL, tmp_path / "data", "npz")
    assert not (tmp_path / "run" / LOCK).exists()
    assert not (tmp_path / "data" / LOCK).exists()


#: Loads a folder, says when the cache did not have it and when it parses, and parses only once a line comes in.
LOAD = """
import sys
from fedmlh.data.readers import formats
read, fetch = formats.read, formats.cache.fetch
def slow(*arguments):
    print("parses", flush=True)
    sys.stdin.readline()
    return read(*arguments)
def look(key):
    found = fetch(key)
    if found is None:
        print("missing", flush=True)
    return found
formats.read, formats.cache.fetch = slow, look
print(formats.load(sys.argv[1]).fingerprint, flush=True)
"""


def test_attack_06_a_cache_entry_in_the_making_is_waited_for(tmp_path: Path) -> None:
    write(SMALL, tmp_path / "data", "xmc")
    for path in (tmp_path / "data").iterdir():
        os.utime(path, ns=(10**18, 10**18))
    first = start_script(LOAD, tmp_path / "data")
    assert first.stdout is not None
    while first.stdout.readline() != "parses\n":
        assert first.poll() is None
    second = start_script(LOAD, tmp_path / "data")
    assert second.stdout is not None
    assert second.stdout.readline() == "missing\n"
    made, problem = first.communicate("\n")
    assert problem == ""
    assert second.communicate("\n") == (made, "")
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".npz"]


def test_attack_06_a_cache_entry_whose_maker_was_killed_is_made_by_the_next(tmp_path: Path) -> None:
    write(SMALL, tmp_path / "data", "xmc")
    for path in (tmp_path / "data").iterdir():
        os.utime(path, ns=(10**18, 10**18))
    first = start_script(LOAD, tmp_path / "data")
    assert first.stdout is not None
    while first.stdout.readline() != "parses\n":
        assert first.poll() is None
    first.kill()
    first.communicate()
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]
    assert load(tmp_path / "data").fingerprint == SMALL.fingerprint
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".npz"]


# 13: a folder from a stranger.


def plant_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def plant_device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def plant_link(path: Path) -> None:
    """Link to the very same file, outside of the folder: nothing else is wrong with it."""
    outside = path.parents[3] / f"outside-{path.parent.name}-{path.name}"
    path.rename(outside)
    path.symlink_to(outside)


def plant_inner_link(path: Path) -> None:
    path.rename(path.with_name("inside"))
    path.symlink_to("inside")


def plant_hole(path: Path) -> None:
    """Make a file of a terabyte that takes no room on the disk."""
    path.unlink()
    with open(path, "wb") as file:
        file.truncate(2**40)


PLANTS = (plant_pipe, plant_device, plant_link, plant_inner_link, plant_hole)


def attack_each(
    invoke_all: Invoke, tmp_path: Path, source: Path, names: Sequence[str], command: Callable[[Path], list[object]]
) -> list[tuple[str, Any, str]]:
    """Run a command on copies of a folder; in each copy something else replaces one file."""
    commands, titles = [], []
    for name in names:
        for plant in PLANTS:
            box = tmp_path / f"{len(titles)}"
            shutil.copytree(source, box / "folder")
            plant(box / "folder" / name)
            commands.append(command(box / "folder"))
            titles.append(f"{plant.__name__} {name}")
    answers = [(title, *answer) for title, answer in zip(titles, invoke_all(commands), strict=True)]
    for box in tmp_path.iterdir():
        for path in box.rglob("*") if box.is_dir() else ():
            if path.is_fifo() or path.is_symlink():
                path.unlink()  # pytest would hang on its way out as well
    return answers


def assert_refused(answers: Sequence[tuple[str, Any, str]]) -> None:
    for title, code, said in answers:
        name = Path(title.split()[1]).name
        assert code == 2, (title, code, said)
        assert said.splitlines()[-1].startswith("fedmlh: "), (title, said)
        assert name in said, (title, said)
        assert "not enough memory" not in said, title
        assert "Traceback" not in said, title


def test_attack_13_a_model_holds_files_of_its_own_only(invoke_all: Invoke, tmp_path: Path, points: Path) -> None:
    names = ["manifest.json", "model.json", "config.toml", "labels.json", "weights.safetensors"]
    source = FOLDERS / "finished-run" / "model"
    assert_refused(
        attack_each(invoke_all, tmp_path / "a", source, names, lambda folder: ["predict", folder, "--input", points])
        + attack_each(
            invoke_all,
            tmp_path / "b",
            FOLDERS / "finished-run",
            ["model/labels.json"],
            lambda folder: ["predict", folder, "--input", points],
        )
    )


def test_attack_13_a_run_folder_holds_files_of_its_own_only(invoke_all: Invoke, tmp_path: Path) -> None:
    source = FOLDERS / "finished-run"
    assert_refused(
        attack_each(
            invoke_all,
            tmp_path / "a",
            source,
            ["config.toml", "metrics.jsonl", "summary.json"],
            lambda folder: ["report", folder, "--out", folder.parent / "report.html"],
        )
        + attack_each(
            invoke_all,
            tmp_path / "b",
            source,
            ["participation.jsonl", "config.toml"],
            lambda folder: ["replay", folder, "--out", folder.parent / "out"],
        )
    )


def test_attack_13_a_checkpoint_holds_files_of_its_own_only(invoke_all: Invoke, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(FOLDERS / "stopped-run", source)
    generations = sorted((source / "checkpoint").iterdir())
    for old in generations[:-1]:
        shutil.rmtree(old)
    (tmp_path / "config.toml").write_text(KEPT.to_toml())
    names = [f"checkpoint/{generations[-1].name}/{name}" for name in ("manifest.json", "state.json")]
    names += [
        f"checkpoint/{generations[-1].name}/{name}" for name in ("model.safetensors", "client-000000.safetensors")
    ]
    assert_refused(
        attack_each(
            invoke_all,
            tmp_path / "a",
            source,
            [*names, "config.toml"],
            lambda folder: ["run", tmp_path / "config.toml", "--out", folder, "--resume"],
        )
    )


def test_attack_13_a_federations_folder_holds_files_of_its_own_only(invoke_all: Invoke, tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
    source = FOLDERS / "federation"
    write(SMALL, tmp_path / "data", "npz")
    prepare = ["--site", "site-0", "--data", tmp_path / "data", "--out", tmp_path / "site"]
    assert_refused(
        attack_each(
            invoke_all,
            tmp_path / "a",
            source,
            ["enrolled/site-1.json", "public/labels.json"],
            lambda folder: ["federation", "status", folder],
        )
        + attack_each(
            invoke_all,
            tmp_path / "b",
            source / "public",
            ["federation.json", "labels.json", "ca.crt"],
            lambda folder: ["site", "prepare", folder, *prepare],
        )
    )


def test_attack_13_a_site_and_a_server_read_files_of_their_own_only(kept: Path) -> None:
    pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
    from fedmlh.sites.federation import Federation
    from fedmlh.sites.site import Site
    from fedmlh.storage import read_checked

    federation = Federation(kept / "federation")
    site = kept / "federation" / "site-0"
    for path, read in (
        (federation.server / "nodes.json", federation.read_nodes),
        (federation.server / "outcome.json", federation.read_outcome),
        (federation.server / "yardstick" / "about.json", federation.server_points),
        (site / "shard" / "labels.json", lambda: Site(site)),
        (site / "agreement" / "labels.json", lambda: Site(site)),
        (site / "shard", lambda: Site(site)),
        (site / "agreement", lambda: Site(site)),
        (site / "prepared", lambda: read_checked(site / "prepared")),
    ):
        read()
        plant_inner_link(path)
        with pytest.raises(UserError, match=f"{path.name} is a link"):
            read()
        path.unlink()
        path.with_name("inside").rename(path)


def test_attack_13_a_folder_inside_is_no_link_and_the_folder_itself_may_be_one(
    invoke_all: Invoke, kept: Path, tmp_path: Path, points: Path
) -> None:
    (tmp_path / "mine").symlink_to(kept / "finished-run")
    (tmp_path / "model").symlink_to(kept / "finished-run" / "model")
    commands: list[list[object]] = [
        ["predict", tmp_path / "mine", "--input", points],
        ["predict", tmp_path / "model", "--input", points],
        ["report", tmp_path / "mine", "--out", tmp_path / "report.html"],
    ]
    assert [code for code, _ in invoke_all(commands)] == [0, 0, 0]
    shutil.copytree(kept / "finished-run", tmp_path / "theirs")
    (tmp_path / "theirs" / "model").rename(tmp_path / "elsewhere")
    (tmp_path / "theirs" / "model").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "config.toml").write_text(KEPT.to_toml())
    stopped = kept / "stopped-run"
    (stopped / "checkpoint").rename(tmp_path / "checkpoint")
    (stopped / "checkpoint").symlink_to(tmp_path / "checkpoint")
    before = snapshot(tmp_path / "checkpoint")
    answers = invoke_all(
        [
            ["predict", tmp_path / "theirs", "--input", points],
            ["run", tmp_path / "config.toml", "--out", stopped, "--resume"],
        ]
    )
    for (code, said), name in zip(answers, ("model", "checkpoint"), strict=True):
        assert code == 2, said
        assert is_one_sentence(said)
        assert f"{name} is a link" in said
    assert snapshot(tmp_path / "checkpoint") == before


def test_attack_13_half_characters_are_refused_wherever_names_are_read(
    invoke_all: Invoke, kept: Path, tmp_path: Path, points: Path
) -> None:
    model = kept / "finished-run" / "model"
    names = json.loads((model / "labels.json").read_bytes())
    commands: list[list[object]] = []
    for number, half in enumerate((r"\ud800", r"\uDC00x", r"\udc00\ud800", r"\\\ud83d")):
        for part in ("keys", "names"):
            shutil.copytree(model, tmp_path / f"{number}-{part}")
            changed = {**names, part: ["HALF", *names[part][1:]]}
            content = json.dumps(changed).replace("HALF", half).encode()
            seal(tmp_path / f"{number}-{part}", labels__json=content)
            commands.append(["predict", tmp_path / f"{number}-{part}", "--input", points, "--top", 40])
    summary = kept / "finished-run" / "summary.json"
    summary.write_text(summary.read_text().replace('"tiny"', r'"\ud800"'))
    commands.append(["report", kept / "finished-run", "--out", tmp_path / "report.html"])
    for code, said in invoke_all(commands):
        assert code == 2, (code, said)
        assert is_one_sentence(said), said


def test_attack_13_characters_of_two_halves_and_escaped_backslashes_are_whole(
    invoke_all: Invoke, tmp_path: Path, points: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(FOLDERS / "finished-run" / "model", model)
    names = json.loads((model / "labels.json").read_bytes())
    names["names"][:2] = ["😀", r"\ud800"]
    seal(model, labels__json=json.dumps(names).encode())
    assert Model.load(model).bundle.labels.names[:2] == ("😀", r"\ud800")
    assert [code for code, _ in invoke_all([["predict", model, "--input", points, "--top", 40]])] == [0]


def test_attack_13_a_model_never_takes_more_than_its_settings_say(
    invoke_all: Invoke, tmp_path: Path, points: Path
) -> None:
    """A file that is honest about its SHA-256, and yet far larger than the weights of the settings beside it."""
    model = tmp_path / "model"
    shutil.copytree(FOLDERS / "finished-run" / "model", model)
    with open(model / "weights.safetensors", "r+b") as file:
        file.truncate(64 << 20)
    seal(model)
    ((code, said),) = invoke_all([["predict", model, "--input", points]])
    assert code == 2
    assert is_one_sentence(said)


def test_attack_13_a_checkpoint_is_no_larger_than_its_run_can_make_it(kept: Path) -> None:
    """Files and clients that are sealed with the rest, more and larger than a run of these sizes has."""
    task = Task(KEPT, SMALL.num_features, SMALL.num_labels)
    for out in (kept / "stopped-run", kept / "finished-run"):
        newest = max((out / "checkpoint").iterdir())
        state = json.loads((newest / "state.json").read_bytes())
        arguments = (state["run"], task.stack, torch.device("cpu"), KEPT.num_clients)
        shutil.copytree(newest, kept / newest.name)
        assert Checkpoints(kept, *arguments).load()[0] is not None
        if out.name == "stopped-run":
            for number in range(100):
                with open(kept / newest.name / f"more-{number}", "wb") as file:
                    file.truncate(100_000)
            seal(kept / newest.name)
            expected = "that such a file may have"
        else:
            state["memories"]["4"] = [[], []]
            seal(kept / newest.name, state__json=json.dumps(state).encode())
            expected = "a client that the run does not have"
        with pytest.raises(UserError, match=expected):
            Checkpoints(kept, *arguments).load()
        shutil.rmtree(kept / newest.name)


def test_attack_13_pipes_and_devices_in_a_data_folder_are_named(invoke_all: Invoke, tmp_path: Path) -> None:
    commands: list[list[object]] = []
    paths = []
    for number, name in enumerate(("train.txt", "test.txt", "labels.txt", "filter_labels_test.txt")):
        folder = tmp_path / str(number)
        write(SMALL, folder, "xmc")
        (folder / name).unlink(missing_ok=True)
        if number % 2:
            (folder / name).symlink_to("/dev/zero")
        else:
            os.mkfifo(folder / name)
        paths.append(folder / name)
        commands.append(["data", "info", folder])
    for path, (code, said) in zip(paths, invoke_all(commands), strict=True):
        path.unlink()
        assert code == 2, said
        assert is_one_sentence(said)
        assert f"{path}: is not a file" in said


# 16: drafts.


def test_attack_16_planted_links_are_not_written_through(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("dear to me")
    place = tmp_path / "place"
    place.mkdir()
    for name in ("report.html.writing", "report.html", "model.writing", "model.old", "model"):
        (place / name).symlink_to(victim)
    write_atomically(place / "report.html", b"new")
    write_sealed(place / "model", {"a": b"1"})
    write_sealed(place / "model", {"a": b"2"})
    assert victim.read_text() == "dear to me"
    assert (place / "report.html").read_bytes() == b"new"
    assert not (place / "report.html").is_symlink()
    assert not (place / "model").is_symlink()
    assert (place / "model" / "a").read_bytes() == b"2"


def test_attack_16_a_planted_draft_is_neither_used_nor_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if somebody guessed the name."""
    victim = tmp_path / "victim"
    victim.mkdir()
    for name in ("1" * 16, "3" * 16):
        (tmp_path / f".fedmlh-{name}.draft").symlink_to(victim)
    tokens = iter(["1" * 16, "2" * 16, "3" * 16, "4" * 16])
    monkeypatch.setattr(drafts.secrets, "token_hex", lambda size: next(tokens))
    write_atomically(tmp_path / "file", b"new")
    write_sealed(tmp_path / "folder", {"a": b"1"})
    assert next(tokens, None) is None
    assert list(victim.iterdir()) == []
    assert (tmp_path / "file").read_bytes() == b"new"
    assert (tmp_path / "folder" / "a").read_bytes() == b"1"


def test_attack_16_drafts_have_names_that_say_nothing_and_files_the_usual_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    fsync = os.fsync

    def look(handle: int) -> None:
        seen.extend(path.name for path in tmp_path.iterdir() if path.name.startswith(".fedmlh"))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", look)
    monkeypatch.setenv("FEDMLH_CACHE", str(tmp_path / "cache"))
    before = os.umask(0o027)
    try:
        for _ in range(2):
            write_atomically(tmp_path / "report.html", b"new")
            write_sealed(tmp_path / "model", {"a": b"1"})
        cache.store({"folder": "x", "settings": {}, "files": []}, SMALL)
    finally:
        os.umask(before)
    assert len(set(seen)) == 4
    assert all(drafts.is_draft(name) for name in seen)
    assert (tmp_path / "report.html").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "model").stat().st_mode & 0o777 == 0o750
    assert (tmp_path / "model" / "a").stat().st_mode & 0o777 == 0o640
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "cache").iterdir()] == [0o600]


#: Begins a draft file and a draft folder, and waits.
DRAFT = """
import sys, time
from pathlib import Path
from fedmlh.drafts import draft_file, draft_folder
place = Path(sys.argv[1])
with draft_file(place / "file") as file, draft_folder(place) as folder:
    file.write(b"x" * 100_000)
    (folder / "part").write_bytes(b"x")
    print("begun", flush=True)
    sys.stdin.readline()
    folder.rename(place / "folder")
"""


def list_drafts(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if drafts.is_draft(path.name))


def test_attack_16_only_the_drafts_of_the_dead_are_swept(tmp_path: Path) -> None:
    living, dying = (start_script(DRAFT, tmp_path) for _ in range(2))
    for process in (living, dying):
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
    assert len(list_drafts(tmp_path)) == 4
    write_atomically(tmp_path / "other", b"")
    assert len(list_drafts(tmp_path)) == 4
    dying.kill()
    dying.communicate()
    write_atomically(tmp_path / "other", b"")
    assert len(list_drafts(tmp_path)) == 2
    assert living.communicate("\n") == ("", "")
    assert living.returncode == 0
    assert (tmp_path / "file").stat().st_size == 100_000
    assert {path.name for path in tmp_path.iterdir()} == {"file", "folder", "other"}


#: Puts many files and folders in place, in a folder in which others do the same.
WRITE = """
import sys
from pathlib import Path
from fedmlh.storage import Sealed, write_atomically, write_sealed
place, mine = Path(sys.argv[1]), sys.argv[2]
for number in range(150):
    write_atomically(place / "shared", b"1" * 1000)
    write_sealed(place / mine, {"a": b"%d" % number})
    assert Sealed(place / mine).read("a", 10) == b"%d" % number
"""


def test_attack_16_writers_in_one_folder_never_sweep_each_other(tmp_path: Path) -> None:
    processes = [start_script(WRITE, tmp_path, f"sealed-{number}") for number in range(3)]
    assert [process.communicate()[1] for process in processes] == [""] * 3
    assert {path.name for path in tmp_path.iterdir()} == {"shared", "sealed-0", "sealed-1", "sealed-2"}


def test_attack_16_a_download_goes_into_no_planted_link(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("dear to me")
    for name, plant in (("link", lambda path: path.symlink_to(tmp_path / "victim")), ("pipe", os.mkfifo)):
        plant(tmp_path / f"{name}.zip.part")
        with pytest.raises(UserError, match=f"{name}.zip.part: cannot be written"):
            download("http://127.0.0.1:9/never-asked", tmp_path / f"{name}.zip", lambda done, size: None)
    assert (tmp_path / "victim").read_text() == "dear to me"


# 17: a name that leads out.

NAMES = ["../..", "../x", "/tmp/x", "a/b", "[/x]", "$5^^$", "x" * 400, "é" * 200]


def test_attack_17_no_name_leads_out_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fedmlh.cli import runs

    monkeypatch.chdir(tmp_path)
    seen: list[Path] = []
    monkeypatch.setattr(runs, "_run", lambda config, dataset, out, resume, **options: seen.append(out))
    monkeypatch.setattr(runs, "print_report", lambda folders, target, **options: None)
    monkeypatch.setattr(runs, "check_begun", lambda out, what, named: None)
    config = tmp_path / "config.toml"
    for name in (*NAMES, "", ".", ".."):
        config.write_text(TINY.replace(name=name).to_toml())
        runs.run(str(config))
        runs.compare([str(config)], resume=True)  # two names may give one folder
    assert len(seen) == 3 * (len(NAMES) + 3)
    for path in seen:
        inside = path.relative_to("runs").parts
        assert len(inside) == 1 + (inside[-1] in ("fedmlh-seed0", "fedavg-seed0"))
        assert not inside[0].startswith(".")
        assert inside[0].isprintable()
        path.mkdir(parents=True, exist_ok=True)
        assert path.resolve() == tmp_path / path


@pytest.mark.parametrize("name", ["demo", "eurlex-4k", "naïve", "set-up 2", "a.b_c", "x" * 40])
def test_attack_17_an_ordinary_name_is_the_folders_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    from fedmlh.cli import runs

    monkeypatch.chdir(tmp_path)
    seen: list[Path] = []
    monkeypatch.setattr(runs, "_run", lambda config, dataset, out, resume, **options: seen.append(out))
    monkeypatch.setattr(runs, "print_report", lambda folders, target, tables=None: None)
    (tmp_path / "config.toml").write_text(TINY.replace(name=name, seed=3).to_toml())
    runs.run(str(tmp_path / "config.toml"))
    assert seen == [Path("runs") / f"{name}-fedmlh-seed3"]


# 20: a run folder that lost a file, or holds one too many.


@pytest.mark.parametrize("lost", ["config.toml", "checkpoint"])
def test_attack_20_resume_names_what_is_missing(kept: Path, lost: str) -> None:
    path = kept / "stopped-run" / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    before = snapshot(kept)
    with pytest.raises(UserError, match=f"has no {lost}") as caught:
        RunFolder(kept / "stopped-run").check(KEPT, resume=True)
    assert "--resume" not in str(caught.value)
    assert "pass another out (on the command line: another --out)" in str(caught.value)
    assert snapshot(kept) == before


def test_attack_20_only_folders_are_checkpoints(kept: Path) -> None:
    from fedmlh.engines.run import run

    out, told = kept / "stopped-run", list[str]()
    newest = max(path.name for path in (out / "checkpoint").iterdir())
    for name in ("round-000000", "round-000003", "round-000007"):
        if name != newest:
            (out / "checkpoint" / name).write_text("not a checkpoint")
    (out / "checkpoint" / "round-000008").symlink_to(newest)
    run(KEPT, SMALL, out, resume=True, tell=told.append)
    assert RunFolder(out).read_summary()["rounds"] == KEPT.rounds
    assert any("round-000007 is not a folder" in line for line in told)
    assert any("round-000008 is a link" in line for line in told)
    assert Model.load(out).bundle.data == SMALL.fingerprint


# 21: signals, and sources without an end.

#: `fedmlh`, to which a signal is sent while it writes the file that the second argument names; SIGTERM, as `timeout`
#: does, a second time while it tidies up.
STRUCK = """
import os, shutil, signal, sys
from fedmlh import cli
from fedmlh.data.readers import convert
number, name, sys.argv = int(sys.argv[1]), sys.argv[2], ["fedmlh", *sys.argv[3:]]
write_lines = convert.write_lines
def struck(path, lines):
    write_lines(path, lines)
    if path.name == name:
        os.kill(os.getpid(), number)
convert.write_lines = struck
if number == signal.SIGTERM:
    rmtree = shutil.rmtree
    def struck_again(path, **options):
        os.kill(os.getpid(), number)
        rmtree(path, **options)
    shutil.rmtree = struck_again
cli.main()
"""


@pytest.mark.parametrize(
    "stop",
    [signal.SIGTERM, signal.SIGINT],
)
def test_attack_21_convert_leaves_nothing_when_it_is_ended(tmp_path: Path, stop: signal.Signals) -> None:
    write(SMALL, tmp_path / "in" / "data", "npz")
    (tmp_path / "out").mkdir()
    command = ["data", "convert", tmp_path / "in" / "data", tmp_path / "out" / "data", "--to", "xmc"]
    done = run_script(STRUCK, stop.value, "train.txt", *command)
    assert done.returncode == 128 + stop, done.stderr
    assert "Traceback" not in done.stderr
    assert list((tmp_path / "out").iterdir()) == []


def test_attack_21_what_a_kill_leaves_is_swept_by_the_next_writer(invoke_all: Invoke, tmp_path: Path) -> None:
    write(SMALL, tmp_path / "in" / "data", "npz")
    (tmp_path / "out").mkdir()
    command = ["data", "convert", tmp_path / "in" / "data", tmp_path / "out" / "data", "--to", "xmc"]
    assert run_script(STRUCK, signal.SIGKILL.value, "train.txt", *command).returncode == -signal.SIGKILL
    assert len(list((tmp_path / "out").iterdir())) == 1
    assert invoke_all([command])[0][0] == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["data"]


def test_attack_21_a_run_that_is_ended_says_how_to_go_on(tmp_path: Path, paused: "subprocess.Popen[str]") -> None:
    paused.send_signal(signal.SIGTERM)
    _, said = paused.communicate()
    assert paused.returncode == 128 + signal.SIGTERM
    assert said.splitlines()[-1] == "fedmlh: stopped; --resume continues from the last finished round"
    assert "Traceback" not in said
    assert not (tmp_path / "out" / LOCK).exists()


def test_attack_21_a_source_without_an_end_is_refused(invoke_all: Invoke, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    sources = ["/dev/zero", "/dev/tty", tmp_path / "pipe"]
    fetch = ["data", "fetch", "eurlex-4k", "--to", tmp_path / "data"]
    for source, (code, said) in zip(
        sources, invoke_all([[*fetch, "--from", source] for source in sources]), strict=True
    ):
        assert code == 2, (code, said)
        assert is_one_sentence(said)
        assert f"{source}: is neither a file nor a folder" in said
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == ["pipe"]


def see_drafts(out: Path) -> list[str]:
    names = []
    for folder in (out, out / "checkpoint"):
        with contextlib.suppress(OSError):
            names += [name for name in os.listdir(folder) if drafts.is_draft(name)]
    return names


#: A run that kills itself in its n-th draft in the run folder: as soon as it is made, or when it is full.
KILLED = """
import itertools, os, signal, sys
from pathlib import Path
from fedmlh import cli, drafts
number, full, out, sys.argv = int(sys.argv[1]), sys.argv[2] == "full", Path(sys.argv[3]), ["fedmlh", *sys.argv[4:]]
create, replace, counter = drafts._create, os.replace, itertools.count(1)
def die_in(folder):
    if folder in (out, out / "checkpoint") and next(counter) == number:
        os.kill(os.getpid(), signal.SIGKILL)
def create_and_die(folder, make):
    created = create(folder, make)
    if not full:
        die_in(folder)
    return created
def die_and_replace(source, target):
    if full and drafts.is_draft(Path(source).name):
        die_in(Path(target).parent)
    replace(source, target)
drafts._create, os.replace = create_and_die, die_and_replace
cli.main()
"""


@pytest.mark.slow
def test_attack_16_a_run_killed_ten_times_in_its_drafts_leaves_none(tmp_path: Path) -> None:
    """Ten SIGKILLs of one run in drafts drawn at random, then a run to the end."""
    out = tmp_path / "out"
    (tmp_path / "config.toml").write_text(KEPT.replace(rounds=100).to_toml())
    command = ["run", tmp_path / "config.toml", "--out", out, "--resume"]
    rng = np.random.default_rng(16)
    for moment in ("made", "full") * 5:
        assert run_script(KILLED, rng.integers(1, 12), moment, out, *command).returncode == -signal.SIGKILL
        assert see_drafts(out)
        assert (out / LOCK).exists()
    done = call_apart(*command)
    assert done.returncode == 0, done.stderr
    assert RunFolder(out).read_summary()["rounds"] == 100
    assert [path for path in out.rglob("*") if path.name.startswith(".")] == []
