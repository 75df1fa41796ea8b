"""The number of threads, which is part of a result: sums that are split over threads round differently."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module

import torch
from threadpoolctl import ThreadpoolController


@contextmanager
def one_thread() -> Iterator[None]:
    """Let clients train with one thread of torch and BLAS, in whatever threads of Python they run."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _controller().limit(limits=1, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(threads)


@cache
def _controller() -> ThreadpoolController:
    # It looks through the loaded libraries, which takes a while: once is enough. scipy's BLAS, which the compiled loops
    # call, must be among them.
    import_module("scipy.linalg.cython_blas")
    return ThreadpoolController()
