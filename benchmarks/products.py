"""The dense products of a compiled training step, at their real sizes, against one large product on one core.

python benchmarks/products.py
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
from numba import njit
from rounds import BATCH, SHAPES

from fedmlh.model.kernels.training import _ROWS
from fedmlh.model.threads import one_thread


@njit(nogil=True)
def multiply(a: np.ndarray, b: np.ndarray, out: np.ndarray, times: int) -> None:
    """Multiply with the call that the training loop makes."""
    for _ in range(times):
        np.dot(a, b, out)


def rate(a: np.ndarray, b: np.ndarray) -> float:
    """Return the GFLOP/s of a · b."""
    out = np.empty((a.shape[0], b.shape[1]), np.float32)
    operations = 2 * a.shape[0] * a.shape[1] * b.shape[1]
    times = max(1, int(5e8 / operations))
    multiply(a, b, out, 1)
    seconds = [_clock(lambda: multiply(a, b, out, times)) / times for _ in range(9)]
    return operations / median(seconds) / 1e9


def _clock(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    """Measure the rates of forward product, hidden gradient and weight gradient, layer by layer."""
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, np.float32)

    with one_thread():
        large = rate(draw(2000, 2000), draw(2000, 2000))
        print(f"large product: {large:.0f} GFLOP/s on one core")
        rows = []
        for name in ("eurlex-4k", "wiki10-31k", "amazontitles-131k"):
            _, hidden, _, outputs, *_ = SHAPES[name]
            for inner, width in zip(hidden, (*hidden[1:], outputs), strict=True):
                weight = draw(inner, width)
                found = {
                    "forward": rate(draw(BATCH, inner), weight),
                    "hidden gradient": rate(draw(BATCH, width), weight.T),
                    "weight gradient": rate(draw(min(_ROWS, inner), BATCH), draw(BATCH, width)),
                }
                shares = {key: value / large for key, value in found.items()}
                rows.append({"shape": name, "layer": [inner, width], "share_of_large": shares})
                print(name, (inner, width), {key: f"{share:.0%}" for key, share in shares.items()}, flush=True)
    target = Path(__file__).parent / "results" / "products.json"
    target.write_text(json.dumps({"large_gflops": large, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
