"""Jobs run once, whatever becomes of the others and of the process that waits for them."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedmlh.errors import UserError
from fedmlh.runs.jobs import Found, Job, run_jobs


class Kept(dict[str, Found]):
    """Results by the names of their jobs, which outlive a call."""

    def find(self, job: Job) -> Found | None:
        return self.get(job.name)

    def keep(self, job: Job, found: Found) -> None:
        self[job.name] = found


def note(log: Path, name: str) -> dict[str, Any]:
    with log.open("a") as file:
        file.write(f"{name}\n")
    return {"process": os.getpid()}


def fail(name: str) -> dict[str, Any]:
    raise ValueError(f"{name} cannot be divided")


def die() -> dict[str, Any]:
    os._exit(1)


def stay(pipe: Path) -> dict[str, Any]:
    """Hold the pipe open for as long as this process lives."""
    with pipe.open("w") as file:
        file.write("here\n")
        file.flush()
        signal.pause()
    return {}


def make_jobs(log: Path, *names: str, **options: Any) -> list[Job]:
    return [Job({"method": name}, note, (log, name), **options) for name in names]


def test_what_an_earlier_call_has_finished_is_not_run_again(tmp_path: Path):
    log, kept = tmp_path / "log", Kept()
    first = run_jobs(make_jobs(log, "a", "b"), kept, processes=2)
    again = run_jobs(make_jobs(log, "b", "c", "a"), kept, processes=1)
    assert sorted(log.read_text().split()) == ["a", "b", "c"]
    assert first.missing == again.missing == {}
    assert again.found == kept
    assert again.found["a"] == first.found["a"]


def test_a_failure_is_named_and_does_not_cost_the_others(tmp_path: Path):
    kept, told = Kept(), []
    jobs = [Job({"set": "odd", "seed": 3}, fail, ("three",)), *make_jobs(tmp_path / "log", "a", "b")]
    results = run_jobs(jobs, kept, processes=1, watch=lambda job, outcome, *done: told.append((job.name, *done)))
    assert results.missing == {"odd, 3": "failed: ValueError: three cannot be divided"}
    assert set(results.found) == set(kept) == {"a", "b"}
    assert told == [("odd, 3", 1, 3), ("a", 2, 3), ("b", 3, 3)]


def test_timings_come_first_and_in_processes_of_their_own(tmp_path: Path):
    log, works = tmp_path / "log", []
    jobs = make_jobs(log, "short") + make_jobs(log, "long", work=2.0) + make_jobs(log, "c", "d", alone=True)
    found = run_jobs(jobs, Kept(), processes=1, begin=works.append).found
    assert log.read_text().split() == ["c", "d", "long", "short"]
    assert found["long"]["process"] == found["short"]["process"]
    assert len({row["process"] for row in found.values()}) == 3
    assert works == [5]


def test_no_job_begins_when_time_is_over(tmp_path: Path):
    results = run_jobs(make_jobs(tmp_path / "log", "a"), Kept(), processes=1, minutes=0)
    assert results.missing == {"a": "not begun within 0 minutes"}
    assert not list(tmp_path.iterdir())


def test_what_is_finished_is_kept_when_a_worker_dies(tmp_path: Path):
    kept, jobs = Kept(), [*make_jobs(tmp_path / "log", "a"), Job({"set": "large"}, die)]
    with pytest.raises(UserError, match="fewer jobs"):
        run_jobs(jobs, kept, processes=1)
    assert list(kept) == ["a"]


PARENT = """
import sys
from pathlib import Path
from fedmlh.runs.jobs import Job, run_jobs
from test_jobs import Kept, stay
if __name__ == "__main__":
    run_jobs([Job({"number": number}, stay, (Path(sys.argv[1]),)) for number in range(2)], Kept(), processes=2)
"""


def test_workers_end_with_a_parent_that_is_killed(tmp_path: Path):
    pipe, script = tmp_path / "pipe", tmp_path / "parent.py"
    os.mkfifo(pipe)
    script.write_text(PARENT)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    parent = subprocess.Popen([sys.executable, script, pipe], env=environment)
    reader, said = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), b""
    try:
        while said.count(b"here") < 2:
            assert select.select([reader], [], [], 120)[0], "the workers did not begin"
            said += os.read(reader, 100)
        parent.send_signal(signal.SIGKILL)
        # The pipe ends when nobody holds it any more.
        assert select.select([reader], [], [], 60)[0], "a worker is still there"
        assert os.read(reader, 100) == b""
    finally:
        os.close(reader)
        parent.kill()
        parent.wait()
