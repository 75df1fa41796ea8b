"""A case of a faulty input, and the damage that chance does to a file."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """A command line, and what must be true of it beside what holds for all."""

    name: str
    build: Callable  # (world, box, rng) -> arguments
    plots: bool = False  # curves are drawn, which takes a second
    says: str = ""  # what the one line must tell
    passes: Callable | None = None  # (world, box, stdout, stderr): what must hold if the exit code is 0; None: it is 2
    must_pass: bool = False
    usage: bool = False  # the command line's own complaint, with its usage line
    begins: bool = False  # the run starts and fails on the way, so that its folder is there


class Cases(list[Case]):
    """Those of one subject."""

    def add(self, name, build, **options):
        self.append(Case(name, build, **options))


def cut(content, rng):
    return content[: int(rng.integers(1, len(content)))]


def flip(content, rng):
    changed = bytearray(content)
    bit = int(rng.integers(8 * len(content)))
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def garble(content, rng):
    start = int(rng.integers(len(content)))
    return content[:start] + rng.bytes(8) + content[start + 8 :]


def lose(content, rng):
    start, stop = sorted(rng.integers(0, len(content), 2).tolist())
    return content[:start] + content[stop + 1 :]


def swap(content, rng):
    """Swap two neighbouring bytes, as typing fingers do."""
    place = int(rng.integers(len(content) - 1))
    return content[:place] + content[place + 1 : place + 2] + content[place : place + 1] + content[place + 2 :]


def repeat(content, rng):
    return content + content[int(rng.integers(len(content))) :]


def append(content, rng):
    return content + rng.bytes(20)
