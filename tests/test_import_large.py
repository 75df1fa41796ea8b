"""A large file is imported in the memory that a small one takes."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from peak_memory import PEAK

PROBE = (
    PEAK
    + """
import json, sys
from fedmlh.data.importing.folder import write_folder
from fedmlh.data.importing.reading import Columns, understand
from fedmlh.data.importing.sources import Marks

reading = understand([Path(sys.argv[1])], Columns(("title",), ("subjects",), ";", sys.argv[3] or None), Marks())
counts = write_folder(reading, None, Path(sys.argv[2])).counts
print(json.dumps([counts.rows, counts.pairs, peak()]))
"""
)


def write(path: Path, megabytes: int) -> int:
    """Write a table of this size, every fifth cell of text in quotes and on two lines; how many records it has."""
    count, size = 0, 0
    with path.open("w", newline="\n") as file:
        size += file.write("id,title,subjects\n")
        while size < megabytes * 1_000_000:
            words = " ".join(f"word{(count * step) % 4999}" for step in range(1, 11))
            title = words if count % 5 else f'"{words},\n""again"""'
            size += file.write(f"{count},{title},{';'.join(f'label {(count * step) % 3989}' for step in (1, 7, 11))}\n")
            count += 1
    return count


def measure(path: Path, out: Path, key: str) -> tuple[int, int, float]:
    """Import in a process of its own; rows, pairs and the memory of the process, in MiB."""
    done = subprocess.run([sys.executable, "-c", PROBE, path, out, key], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows, pairs, memory = json.loads(done.stdout)
    return rows, pairs, memory


@pytest.mark.parametrize("key", ["id", ""])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, key: str) -> None:
    memory = []
    for megabytes in (8, 16):
        path = tmp_path / f"{megabytes}.csv"
        count = write(path, megabytes)
        rows, pairs, peak = measure(path, tmp_path / f"out{megabytes}", key)
        assert rows == count
        assert 2.99 * count < pairs <= 3 * count  # some have a label twice
        memory.append(peak)
    assert memory[1] < memory[0] + 3


@pytest.mark.slow
def test_two_hundred_megabytes_take_minutes(tmp_path: Path) -> None:
    small, large = tmp_path / "small.csv", tmp_path / "large.csv"
    write(small, 8)
    count = write(large, 200)
    *_, memory = measure(small, tmp_path / "small", "id")
    began = time.monotonic()
    rows, _, peak = measure(large, tmp_path / "large", "id")
    assert time.monotonic() - began < 600
    assert rows == count
    assert peak < memory + 5
    lines = sum((tmp_path / "large" / name).read_bytes().count(b"\n") for name in ("trn.jsonl", "tst.jsonl"))
    assert lines == count
