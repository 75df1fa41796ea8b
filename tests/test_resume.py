"""A run that is stopped, at any moment and in any way, continues to the same bits.

Runs that die do so in children of one helper process (this file run as a script), which imports torch once and forks.
"""

import dataclasses
import errno
import functools
import itertools
import json
import mmap
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import numpy as np
import pytest
import torch

from fedmlh.config import Config
from fedmlh.data.source import open_dataset
from fedmlh.engines import local
from fedmlh.engines.run import run
from fedmlh.errors import UserError
from fedmlh.evaluation.evaluate import Evaluator
from fedmlh.federated.server import Server
from fedmlh.federated.task import Task
from fedmlh.federated.validate import Expected
from fedmlh.lock import LOCK
from fedmlh.runs import rounds
from fedmlh.runs.checkpoint import Checkpoints
from fedmlh.runs.folder import RunFolder
from fedmlh.storage import Sealed
from tiny import TINY

BASE = TINY.replace(
    synthetic_points=200,
    partition="iid",
    num_clients=5,
    clients_per_round=3,
    rounds=6,
    learning_rate=0.2,  # so large that the best round is not the last, and has to be remembered
)
#: With fp16 clients carry a residual from round to round, which has to survive as well; with changes also the model
#: that they hold, and the server what it may still have to send them.
VARIANTS = {
    "fp32": BASE,
    "fp16": BASE.replace(update_codec="fp16", broadcast_codec="fp16", weighting="examples"),
    "changes": BASE.replace(update_codec="topk-20%+zlib", broadcast_codec="int8+zlib", clients_per_round=2),
    "grid": BASE.replace(update_codec="grid-100%", broadcast_codec="grid-150%", clients_per_round=2),
}
#: What a run does, in order; the helper can tell when a child has begun one of these.
PHASES = {
    "open": (RunFolder, "open"),
    "train": (Server, "run_round"),
    "evaluate": (Evaluator, "evaluate"),
    "checkpoint": (Checkpoints, "save"),
    "metrics": (RunFolder, "write_metrics"),
    "model": (rounds, "save_bundle"),
    "summary": (RunFolder, "write_summary"),
}
#: Every call that changes the disk, but for the writes themselves, which all end in an fsync.
DISK = "mkdir link fsync rename replace unlink rmdir".split()
CRASHED = 77
#: Fields that say what a run took, which is never the same twice.
TAKEN = ("seconds", "peak_memory")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked processes")


@functools.cache
def data():
    return open_dataset(BASE)


def outcome(folder):
    """Return all that a run leaves except time and memory, by name: files of the model, metrics, summary."""
    found = {f"model/{path.name}": path.read_bytes() for path in (folder / "model").iterdir()}
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((folder / "summary.json").read_text())
    found["participation"] = (folder / "participation.jsonl").read_text()
    for source, record in [
        ("summary", summary),
        *((f"round {number}", record) for number, record in enumerate(metrics)),
    ]:
        found |= {f"{source} {key}": value for key, value in record.items() if not key.startswith(TAKEN)}
    return found


def differing(folder, expected):
    """Return the names of what a run left that is not as expected."""
    found = outcome(folder)
    return sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))


def snapshot(folder):
    """Return every file below a folder by its name, except a lock that a kill left."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != LOCK)
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def generations(folder):
    return sorted(path.name for path in (folder / "checkpoint").glob("round-??????"))


def is_whole(folder):
    """Say whether the two newest generations can be read; an older one may be half removed."""
    try:
        sealed = [Sealed(folder / "checkpoint" / name) for name in generations(folder)[-2:]]
        return all(one.read(name, 2**20) for one in sealed for name in one.digests)
    except UserError:
        return False


def copy_linked(source, target):
    """Copy a folder so that files that were one before are one again, as generations of checkpoints share files."""
    copies = {}
    for path in sorted(source.rglob("*")):
        place = target / path.relative_to(source)
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            place.mkdir(exist_ok=True)
        elif path.stat().st_ino in copies:
            os.link(copies[path.stat().st_ino], place)
        else:
            shutil.copyfile(path, place)
            copies[path.stat().st_ino] = place


# The helper process.


def serve():
    """Do what the lines on stdin say, one forked child each, and answer with how it ended."""
    torch.set_num_threads(1)
    place = Path(sys.argv[1])
    obey({"cli": True, "config": dataclasses.asdict(BASE.replace(rounds=1)), "out": str(place / "warm")}, place)
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        calls = mmap.mmap(-1, 4)  # the child counts its calls of the disk there
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            live(order, place, calls, writer)
        os.close(writer)
        if order.get("signal"):
            await_moment(order, reader)
            os.kill(pid, order["signal"])
        status = os.waitpid(pid, 0)[1]
        os.close(reader)
        answer = {
            "killed": os.WIFSIGNALED(status) and os.WTERMSIG(status),
            "code": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
            "stderr": (place / "stderr").read_text(),
            "calls": int.from_bytes(calls[:], "little"),
        }
        print(json.dumps(answer), flush=True)


def live(order, place, calls, marks):
    """Run a child's whole life; it says into the pipe `marks` which phases begin, and closes it when it is done."""
    for handle, path in ((1, os.devnull), (2, place / "stderr")):
        with open(path, "wb") as file:
            os.dup2(file.fileno(), handle)
    code = 1
    try:
        code = obey(order, place, calls, marks)
    except (UserError, OSError) as error:
        print(error, file=sys.stderr)
        code = 2
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.close(marks)
        if order.get("signal") == signal.SIGKILL:
            signal.pause()  # A kill that comes at the very end still finds somebody.
        os._exit(code or 0)


def await_moment(order, marks):
    """Wait until the child has begun a phase this many times, and a little longer."""
    phase, times, delay = order["moment"]
    while phase != "start" and times and (mark := os.read(marks, 1)):
        times -= list(PHASES)[mark[0]] == phase
    time.sleep(delay)  # not to wait for anything: a test draws how far into the phase the signal comes


def obey(order, place, calls=None, marks=None):
    """Make one attempt at a run: through the engine or the command line, with whatever is to go wrong in it."""
    config, out = Config(**order["config"]), Path(order["out"])
    toml = place / "config.toml"
    toml.write_text(config.to_toml())
    if marks is not None:
        for number, (owner, name) in enumerate(PHASES.values()):
            setattr(owner, name, marked(getattr(owner, name), marks, number))
        watch_disk(order.get("crash"), calls)
    if "fsize" in order:
        resource.setrlimit(resource.RLIMIT_FSIZE, (order["fsize"], resource.RLIM_INFINITY))
    if not order.get("cli"):
        run(
            config,
            data(),
            out,
            resume=True,
            workers=order.get("workers", 1),
            tell=lambda line: print(line, file=sys.stderr),
        )
        return 0
    from fedmlh import cli

    sys.argv = ["fedmlh", "run", str(toml), "--out", str(out), "--resume"]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    stdout, sys.stdout = sys.stdout, open(os.devnull, "w")  # noqa: SIM115
    try:
        cli.main()
    except SystemExit as stop:
        return stop.code
    finally:
        sys.stdout = stdout
    return 0


def marked(function, marks, number):
    @functools.wraps(function)
    def wrapper(*args, **options):
        os.write(marks, bytes([number]))
        return function(*args, **options)

    return wrapper


def watch_disk(crash, calls):
    """Count the calls that change the disk; at the one that `crash` names, die or fail before it is done.

    SIGKILL loses nothing that the system has taken, so that an fsync is only counted, not waited for.
    """
    target, mode = crash or (-1, "")
    counter = itertools.count()

    def wrap(name, function):
        def wrapper(*args, **options):
            number = next(counter)
            calls[:] = (number + 1).to_bytes(4, "little")
            if number == target and mode == "error":
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            if number == target:
                if mode == "torn" and name == "fsync":
                    tear(args[0])
                os._exit(CRASHED)
            return None if name == "fsync" else function(*args, **options)

        return wrapper

    for name in DISK:
        setattr(os, name, wrap(name, getattr(os, name)))


def tear(handle):
    """Cut a file to what may be left without a sync after a loss of power: its first half."""
    size = os.fstat(handle).st_size
    try:
        os.truncate(f"/proc/self/fd/{handle}", size // 2)
    except OSError:
        return


class Helper:
    """The process that forks runs, as the tests see it."""

    def __init__(self, place):
        self.place = place
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(place)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert self._answer() == "ready"

    def run(self, config, out, **order):
        print(
            json.dumps({"config": dataclasses.asdict(config), "out": str(out), **order}),
            file=self.process.stdin,
            flush=True,
        )
        return self._answer()

    def _answer(self):
        line = self.process.stdout.readline()
        assert line, "the helper process has died"
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(20)


@pytest.fixture(scope="module")
def helper(tmp_path_factory):
    helper = Helper(tmp_path_factory.mktemp("helper"))
    yield helper
    helper.close()


@pytest.fixture(scope="module")
def unbroken(helper, tmp_path_factory):
    """Return what each variant gives when nothing disturbs it, by number of rounds."""
    place = tmp_path_factory.mktemp("unbroken")

    @functools.cache
    def finish(variant, rounds=BASE.rounds):
        out = place / f"{variant}-{rounds}"
        assert helper.run(VARIANTS[variant].replace(rounds=rounds), out)["code"] == 0
        return outcome(out)

    return finish


# Killed from outside, at random moments.

ROUTE = [
    ("start", 0),
    ("open", 1),
    ("train", 1),
    ("evaluate", 1),
    ("checkpoint", 1),
    ("metrics", 1),
    ("train", 2),
    ("evaluate", 2),
    ("checkpoint", 2),
    ("metrics", 2),
    ("model", 1),
    ("summary", 1),
]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_run_killed_at_random_moments_gives_the_same_bits(helper, unbroken, tmp_path, variant):
    """Twelve SIGKILLs a variant on one folder, each a random moment after another phase of the run has begun."""
    rng = np.random.default_rng(len(variant) + ord(variant[2]))
    kills = []
    for phase, times in ROUTE:
        moment = [phase, times, float(rng.uniform(0, 0.15 if phase == "start" else 0.015))]
        end = helper.run(VARIANTS[variant], tmp_path / "run", signal=signal.SIGKILL, moment=moment)
        kills.append(end["killed"])
    assert kills == [signal.SIGKILL] * len(ROUTE)
    assert helper.run(VARIANTS[variant], tmp_path / "run")["code"] == 0
    assert differing(tmp_path / "run", unbroken(variant)) == []


def test_the_kills_are_more_than_twenty_and_the_best_round_is_not_the_last(unbroken):
    assert len(ROUTE) * len(VARIANTS) > 20
    assert all(unbroken(variant)["summary best_round"] < BASE.rounds for variant in VARIANTS)


# Dead or failed at every single change of the disk.

SHORT = 3
FEW = {"rounds": SHORT, "num_clients": 3, "clients_per_round": 2}


@pytest.fixture(scope="module")
def disk_calls(helper, tmp_path_factory):
    """Return how often a short run touches the disk, from its first to its last call, and what it gives."""
    out = tmp_path_factory.mktemp("calls") / "run"
    calls = helper.run(VARIANTS["fp16"].replace(**FEW), out)["calls"]
    return calls, outcome(out)


@pytest.mark.parametrize("mode", ["torn", "error"])
def test_a_run_that_dies_at_any_change_of_the_disk_gives_the_same_bits(helper, disk_calls, tmp_path, mode):
    """torn: dies before the call, and what was being written is cut in half; error: the call fails."""
    config = VARIANTS["fp16"].replace(**FEW)
    calls, expected = disk_calls
    assert calls > 50
    wrong = []
    for number in range(calls):
        out = tmp_path / str(number)
        end = helper.run(config, out, crash=[number, mode])
        again = helper.run(config, out)
        if again["code"] != 0 or differing(out, expected) or not is_whole(out):
            wrong.append((number, end["stderr"][-300:], again["stderr"][-300:]))
        shutil.rmtree(out)
    assert wrong == []


# Files that rot.


@pytest.fixture(scope="module")
def stopped(helper, tmp_path_factory):
    """Return a run of five rounds as a crash in the sixth would leave it."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    config = VARIANTS["fp16"]
    assert helper.run(config, out, signal=signal.SIGKILL, moment=["train", 6, 0.0])["killed"]
    assert generations(out) == ["round-000004", "round-000005"]
    return out


def load(out):
    """Return the checkpoints of a run folder, opened under the run's own name, which the oldest one tells."""
    oldest = json.loads((out / "checkpoint" / generations(out)[0] / "state.json").read_bytes())
    stack = Task(BASE, data().num_features, data().num_labels).stack
    return Checkpoints(out / "checkpoint", oldest["run"], stack, torch.device("cpu"), BASE.num_clients).load()


def freeze(progress):
    """Return a checkpoint's content in a form that can be compared."""

    def bits(tensors):
        return {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}

    memories = {n: (bits(m.kept), bits(m.staged), m.staged_in, m.kept_in) for n, m in progress.memories.items()}
    return (
        progress.server.round,
        dict(progress.server.accepted),
        bits({"model": progress.server.model, "best": progress.best_model, **progress.server.vectors}),
        dict(progress.server.changes),
        progress.best_round,
        progress.best_score,
        memories,
        progress.history,
    )


def flip(path, bit):
    content = bytearray(path.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    with open(path, "r+b") as file:  # In place, as rot comes: what is linked elsewhere rots there too.
        file.write(content)


def draw_flips(folder, count, seed):
    """Draw bits of all files of a folder, as many of each file, so that the small ones are hit as well."""
    rng = np.random.default_rng(seed)
    files = sorted(folder.iterdir())
    return [
        (file.name, int(rng.integers(8 * file.stat().st_size))) for file, _ in zip(itertools.cycle(files), range(count))
    ]


def test_two_hundred_bit_flips_are_found(stopped, tmp_path):
    """The generation before the damaged one counts; where both share the damaged file, nothing does."""
    newest, before = stopped / "checkpoint" / "round-000005", tmp_path / "before"
    copy_linked(stopped, before)
    shutil.rmtree(before / "checkpoint" / "round-000005")
    sound, fallback = freeze(load(stopped)[0]), freeze(load(before)[0])
    assert (sound[0], fallback[0]) == (5, 4)
    shared = set()
    for number, (name, bit) in enumerate(draw_flips(newest, 200, 1)):
        out = tmp_path / str(number)
        copy_linked(stopped, out)
        damaged = out / "checkpoint" / "round-000005" / name
        linked = damaged.stat().st_nlink > 1
        flip(damaged, bit)
        if linked:
            shared.add(name)
            with pytest.raises(UserError, match="no checkpoint of this run can be used"):
                load(out)
        else:
            progress, problems = load(out)
            assert freeze(progress) == fallback, (name, bit)
            assert len(problems) == 1
            assert "round-000005" in problems[0]
        shutil.rmtree(out)
    assert shared < {path.name for path in newest.iterdir()} - {"manifest.json", "state.json", "model.safetensors"}


def test_a_run_falls_back_a_generation_says_so_and_gives_the_same_bits(helper, unbroken, stopped, tmp_path):
    newest = stopped / "checkpoint" / "round-000005"
    for number, (name, bit) in enumerate(draw_flips(newest, 2 * len(list(newest.iterdir())), 2)):
        out = tmp_path / str(number)
        shutil.copytree(stopped, out)  # No links, so that one generation always stays whole.
        flip(out / "checkpoint" / "round-000005" / name, bit)
        end = helper.run(VARIANTS["fp16"], out)
        assert end["code"] == 0, end
        assert "round-000005" in end["stderr"]
        assert "resuming from the checkpoint before it" in end["stderr"]
        assert differing(out, unbroken("fp16")) == []
        assert is_whole(out)


def test_a_run_falls_back_two_generations_where_there_are_three(helper, unbroken, stopped, tmp_path):
    """A crash between writing a generation and dropping the oldest leaves three; rot in two of them is survived."""
    early, config = tmp_path / "early", VARIANTS["fp16"]
    assert helper.run(config, early, signal=signal.SIGKILL, moment=["train", 4, 0.0])["killed"]
    assert generations(early) == ["round-000002", "round-000003"]
    for name in sorted(path.name for path in (stopped / "checkpoint" / "round-000005").iterdir()):
        out = tmp_path / name
        shutil.copytree(stopped, out)
        shutil.copytree(early / "checkpoint" / "round-000003", out / "checkpoint" / "round-000003")
        for generation in ("round-000004", "round-000005"):
            flip(out / "checkpoint" / generation / name, 500)
        end = helper.run(config, out)
        assert end["code"] == 0, (name, end)
        assert end["stderr"].count("resuming from the checkpoint before it") == 2
        assert differing(out, unbroken("fp16")) == []
        assert is_whole(out), name


def test_with_both_generations_damaged_the_run_says_so_and_touches_nothing(helper, stopped, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(stopped, out)
    for generation in generations(out):
        flip(out / "checkpoint" / generation / "model.safetensors", 800)
    before = snapshot(out)
    end = helper.run(VARIANTS["fp16"].replace(rounds=9), out, cli=True)
    assert end["code"] == 2
    assert end["stderr"].startswith("fedmlh: no checkpoint of this run can be used")
    assert end["stderr"].count("\n") == 1
    assert snapshot(out) == before


def test_a_lost_file_or_generation_is_like_a_damaged_one(helper, unbroken, stopped, tmp_path):
    for number, name in enumerate(
        ["state.json", "manifest.json", "model.safetensors", "client-000000.safetensors", ""]
    ):
        out = tmp_path / str(number)
        shutil.copytree(stopped, out)
        lost = out / "checkpoint" / "round-000005" / name
        shutil.rmtree(lost) if lost.is_dir() else lost.unlink()
        assert helper.run(VARIANTS["fp16"], out)["code"] == 0
        assert differing(out, unbroken("fp16")) == []


# One result, however the work is done.


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_number_of_workers_changes_no_bit(helper, unbroken, tmp_path, variant):
    for workers in (1, 2, 3):
        assert helper.run(VARIANTS[variant], tmp_path / str(workers), workers=workers)["code"] == 0
        assert differing(tmp_path / str(workers), unbroken(variant)) == []


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.usefixtures("one_thread")
def test_the_order_of_arrival_changes_no_bit(tmp_path, monkeypatch, variant):
    config = VARIANTS[variant].replace(rounds=4, clients_per_round=5)
    orders = []
    rng = np.random.default_rng(5)
    shuffles = [list, lambda jobs: jobs[::-1], *[lambda jobs: [jobs[i] for i in rng.permutation(len(jobs))]] * 3]

    for number, shuffle in enumerate(shuffles):
        arrivals = []

        def heard(expected, client_id, *rest, check=Expected.check, arrivals=arrivals):
            arrivals.append(client_id)
            return check(expected, client_id, *rest)

        with monkeypatch.context() as patch:
            patch.setattr(local, "as_completed", lambda jobs, shuffle=shuffle: shuffle(list(jobs)))
            patch.setattr(Expected, "check", heard)
            run(config, data(), tmp_path / str(number), workers=2)
        orders.append(tuple(arrivals))
    assert len(set(orders)) == len(orders)
    expected = outcome(tmp_path / "0")
    assert [differing(tmp_path / str(number), expected) for number in range(len(shuffles))] == [[]] * len(shuffles)


# Resuming with other settings.


@pytest.fixture(scope="module")
def finished(helper, tmp_path_factory):
    out = tmp_path_factory.mktemp("finished") / "run"
    assert helper.run(BASE.replace(rounds=1), out)["code"] == 0
    return out


@pytest.mark.parametrize("changes", [{"seed": 1}, {"label_map": "universal"}, {"clip": "off"}], ids=str)
def test_resume_with_another_setting_is_refused_and_touches_nothing(finished, changes):
    """Which settings these are: test_settings.py."""
    (name,), before = changes, snapshot(finished)
    with pytest.raises(UserError, match=rf"holds a run with {name} = .*same settings"):
        run(BASE.replace(rounds=1, **changes), data(), finished, resume=True)
    assert snapshot(finished) == before


def test_resume_with_other_data_is_refused(finished, tmp_path):
    """Data of other sizes, though the settings are the same, would be another run."""
    other = open_dataset(BASE.replace(synthetic_features=61))
    shutil.copytree(finished, tmp_path / "run")
    before = snapshot(tmp_path / "run")
    with pytest.raises(UserError, match="belongs to another run, with other settings or other data"):
        run(BASE.replace(rounds=1), other, tmp_path / "run", resume=True)
    assert snapshot(tmp_path / "run") == before


def test_without_resume_a_run_is_not_touched(finished):
    before = snapshot(finished)
    with pytest.raises(UserError, match=r"is not empty: pass resume=True, overwrite=True or another out"):
        run(BASE.replace(rounds=1), data(), finished)
    assert snapshot(finished) == before


@pytest.mark.parametrize("variant", VARIANTS)
def test_three_rounds_and_then_six_equal_six_at_once(helper, unbroken, tmp_path, variant):
    for most in (1, 3, 4, 6, 6):
        assert helper.run(VARIANTS[variant].replace(rounds=most), tmp_path / "run")["code"] == 0
        assert differing(tmp_path / "run", unbroken(variant, most)) == []


# A disk that is full, a user who has had enough.


@pytest.mark.parametrize("limit", [2_500, 3_500, 4_600])
def test_a_full_disk_leaves_the_last_good_checkpoint(helper, unbroken, tmp_path, limit):
    """No file may grow beyond the limit: the state, which grows with the rounds, hits it after some of them."""
    out, config = tmp_path / "run", VARIANTS["fp32"]
    end = helper.run(config, out, cli=True, fsize=limit)
    assert end["code"] == 2, end
    *remarks, sentence = end["stderr"].splitlines()
    assert "this is a new one" in remarks[0]
    assert not any(line.startswith("fedmlh") for line in remarks)
    assert sentence.startswith("fedmlh: ")
    assert os.strerror(errno.EFBIG) in sentence
    kept = generations(out)
    if kept:
        progress, problems = load(out)
        assert not problems
        assert progress.server.round == int(kept[-1][-6:])
        metrics = (out / "metrics.jsonl").read_text() if (out / "metrics.jsonl").exists() else ""
        assert all(json.loads(line) for line in metrics.splitlines())
    assert helper.run(config, out)["code"] == 0
    assert differing(out, unbroken("fp32")) == []


@pytest.mark.parametrize(
    ("phase", "times"), [("open", 1), ("train", 2), ("evaluate", 3), ("checkpoint", 2), ("model", 1)]
)
def test_an_interrupted_run_says_how_to_continue_and_continues(helper, unbroken, tmp_path, phase, times):
    out = tmp_path / "run"
    end = helper.run(VARIANTS["fp16"], out, cli=True, signal=signal.SIGINT, moment=[phase, times, 0.002])
    assert end["code"] == 130, end
    *remarks, sentence = end["stderr"].splitlines()
    assert "this is a new one" in remarks[0]
    assert not any(line.startswith("fedmlh") for line in remarks)
    assert sentence.startswith("fedmlh: stopped")
    assert "--resume" in sentence
    assert helper.run(VARIANTS["fp16"], out)["code"] == 0
    assert differing(out, unbroken("fp16")) == []


if __name__ == "__main__":
    serve()
