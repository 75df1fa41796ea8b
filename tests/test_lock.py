"""One writer at a time: the second is told who the first is, and a lock never outlives its process."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedmlh.errors import UserError
from fedmlh.lock import LOCK, InUse, hold, is_empty

HOLD = """
import sys
from pathlib import Path
from fedmlh.lock import hold
with hold(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path):
    """Start another process that holds the folder `mine`."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "mine")]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def test_the_second_writer_is_told_who_the_first_is(tmp_path: Path, holder: "subprocess.Popen[bytes]") -> None:
    with pytest.raises(InUse, match=f"in use by process {holder.pid}") as caught, hold(tmp_path / "mine"):
        pass
    assert caught.value.process == holder.pid
    assert is_empty(tmp_path / "mine")


def test_a_lock_ends_with_its_process_however_that_ends(tmp_path: Path, holder: "subprocess.Popen[bytes]") -> None:
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert (tmp_path / "mine" / LOCK).exists()
    with hold(tmp_path / "mine"):
        pass
    assert list((tmp_path / "mine").iterdir()) == []


def test_a_holder_that_is_about_to_end_is_waited_for(tmp_path: Path, holder: "subprocess.Popen[bytes]") -> None:
    holder.kill()
    with hold(tmp_path / "mine", wait=60):
        pass


def test_a_folder_made_for_the_lock_alone_is_removed_and_any_other_stays(tmp_path: Path) -> None:
    with hold(tmp_path / "a" / "b"):
        pass
    assert not (tmp_path / "a").exists()
    with hold(tmp_path / "a" / "b"):
        (tmp_path / "a" / "b" / "result").write_text("")
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["result"]
    (tmp_path / "mine").mkdir()
    with hold(tmp_path / "mine"):
        pass
    assert (tmp_path / "mine").is_dir()


def test_one_process_cannot_hold_a_folder_twice(tmp_path: Path) -> None:
    with hold(tmp_path), pytest.raises(InUse, match=f"process {os.getpid()}"), hold(tmp_path):
        pass


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / LOCK).symlink_to(tmp_path / "target")
    with pytest.raises(UserError, match="cannot write to"), hold(tmp_path / "mine"):
        pass
    assert not (tmp_path / "target").exists()
