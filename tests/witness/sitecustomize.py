"""Python runs this first in every process of a federation that a test has begun (rehearsal.py).

A process signs a register: a file named by its number, with Flower's home and the words of its command. A site's
process stops before it answers a message if the test holds that site: it says so at a socket, and continues when the
test closes it.
"""

import contextlib
import os
import socket
import sys
from pathlib import Path

REGISTER = Path(os.environ["FEDMLH_REGISTER"])


def sign() -> None:
    words = [os.environ.get("FLWR_HOME", ""), *sys.orig_argv]
    draft = REGISTER / f".{os.getpid()}"
    draft.write_text("\0".join(words))
    draft.rename(REGISTER / str(os.getpid()))


def hold_answers() -> None:
    """Have each process that is forked from this one stop before it answers."""
    import fedmlh.sites.flower.origin  # noqa: F401  # it has to come before what takes time
    from fedmlh.sites.site import Site

    answer = Site.answer

    def stop_and_answer(self: Site, message: bytes) -> bytes:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as gate:  # nobody holds this site
            gate.connect(str(REGISTER / self.name))
            gate.sendall(f"{self.name} {os.getpid()}".encode())
            gate.recv(1)
        return answer(self, message)

    Site.answer = stop_and_answer  # type: ignore[method-assign]


sign()
os.register_at_fork(after_in_child=sign)
if any("multiprocessing.forkserver" in word for word in sys.orig_argv):
    hold_answers()
