"""A place for libraries that do not clean up, in tests that take every warning for an error."""

import gc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def careless() -> Iterator[None]:
    """Ignore warnings: Ray closes neither the files nor the processes that it opens."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()
