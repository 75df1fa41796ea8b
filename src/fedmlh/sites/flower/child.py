"""A process that ends with its parent, even if the parent is killed.

`python -m fedmlh.sites.flower.child PARENT MODULE ARGUMENT …` binds itself to its parent before any slow import,
then runs the module's main(). The thread that starts it must live as long as its process, as the main thread does: the
kernel watches the thread.
"""

import ctypes
import os
import signal
import sys
from importlib import import_module

_PR_SET_PDEATHSIG = 1


def make_command(module: str, *arguments: str) -> list[str]:
    """Return the command for a child of this process."""
    return [sys.executable, "-m", __name__, str(os.getpid()), module, *arguments]


def end_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != parent:  # it ended before the call above
        os._exit(1)


def main() -> None:
    """Run a module as the child of a process."""
    _, parent, module, *arguments = sys.argv
    end_with_parent(int(parent))
    sys.argv = [module, *arguments]
    import_module(module).main()


if __name__ == "__main__":
    main()
