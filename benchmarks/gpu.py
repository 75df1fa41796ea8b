"""A step on one GPU compared with its floor, and a client's local round compared with the paper's seconds.

    python benchmarks/gpu.py [PRESET …]

Floor: each parameter, its gradient and its two moments read once and written once (32 bytes) at the bandwidth of a
large copy, or the products' operations at the rate of a large TF32 product, whichever takes longer; both are measured
first. S = 4 clients are batched. The product never writes gradients, so it may be faster than this floor.
"""

import argparse
import json
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
import torch
from rounds import draw

from fedmlh.model.kernels.cuda import CudaTrainer
from fedmlh.model.local_training import HashedShard, train_plain
from fedmlh.model.recipe import Recipe
from fedmlh.model.stack import Stack

CLIENTS, BATCH, EPOCHS = 4, 100, 5
STEPS = 2  # an epoch of the points that are drawn; a step takes as long whatever comes before it
#: stack of FedMLH, labels p, nonzeros per point (hashed), labels per point, training points N, P100 seconds of both
PRESETS = {
    "eurlex-4k": (Stack(4, 300, (150, 150), 250), 3993, 22, 5, 15539, (4.67, 5.38)),
    "wiki10-31k": (Stack(4, 5000, (500, 500), 1000), 30938, 90, 18, 14146, (5.44, 5.73)),
    "amazontitles-131k": (Stack(4, 5000, (1000, 1000), 4000), 131073, 8, 2, 294805, (5.97, 6.21)),
    "wikiseealsotitles-320k": (Stack(8, 10000, (1000, 1000), 5000), 312330, 8, 2, 693082, (5.82, 7.26)),
}


def time_gpu(work: object, repeats: int) -> list[float]:
    """Return the seconds of each of several calls, by device events, after a warm-up."""
    assert callable(work)
    work()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return times


def measure_ceilings() -> tuple[float, float]:
    """Return bytes per second of a large copy (read plus written), operations per second of a large TF32 product."""
    a, b = torch.randn(1 << 30, device="cuda"), torch.empty(1 << 30, device="cuda")
    bandwidth = 2 * a.nbytes / median(time_gpu(lambda: b.copy_(a), 20))
    torch.set_float32_matmul_precision("high")
    x, y, z = (torch.randn(8192, 8192, device="cuda") for _ in range(3))
    rate = 2 * 8192**3 / median(time_gpu(lambda: torch.mm(x, y, out=z), 20))
    return bandwidth, rate


def make_shards(stack: Stack, nonzeros: int, positives: int, points: int, clients: int) -> dict[int, HashedShard]:
    """Return clients with points of the given numbers of nonzeros and positives."""
    shards = {}
    for client in range(clients):
        rng = np.random.default_rng(client)
        x = draw(rng, points, stack.num_inputs, nonzeros)
        shards[client] = HashedShard(
            (x,), tuple(draw(rng, points, stack.num_outputs, positives) for _ in range(stack.num_tables))
        )
    return shards


def count_operations(stack: Stack) -> int:
    """Count operations of one step of one client: forward, gradient of activations (not of the input), of weights."""
    widths = (stack.num_inputs, *stack.hidden, stack.num_outputs)
    sizes = [i * o for i, o in pairwise(widths)]
    return 2 * BATCH * stack.num_tables * (3 * sum(sizes) - sizes[0])


def measure(
    name: str, stack: Stack, setup: tuple[int, int, int, float], ceilings: tuple[float, float]
) -> dict[str, object]:
    """Measure one stack: the time of a step of S clients, its floor, and a whole local round of one client."""
    nonzeros, positives, num_points, paper_seconds = setup
    shards = make_shards(stack, nonzeros, positives, STEPS * BATCH, CLIENTS)
    recipe = Recipe("bce", "adam", 1e-3, 1, BATCH)
    device = torch.device("cuda")
    torch.cuda.reset_peak_memory_stats()
    trainer = CudaTrainer(stack, recipe, shards, device, tf32=True)
    start = stack.initial(0).to(device)
    orders = [np.random.default_rng(c).permutation(STEPS * BATCH)[None] for c in range(CLIENTS)]
    results = trainer.train_clients([start] * CLIENTS, list(range(CLIENTS)), orders, recipe.learning_rate)
    plain, plain_loss = train_plain(stack, start, shards[1].features, shards[1].buckets, orders[1], recipe)
    moved = float((plain - start).norm())
    apart = float((results[1][0] - plain).norm()) / moved
    assert abs(results[1][1] / plain_loss - 1) < 1e-3, (results[1][1], plain_loss)
    del results, plain
    bench = trainer._bench
    assert bench is not None

    def steps() -> None:
        bench.step.zero_()
        for _ in range(STEPS):
            bench.graphs[CLIENTS]()

    times = [seconds / STEPS for seconds in time_gpu(steps, 25)]
    bytes_floor = CLIENTS * 32 * stack.num_parameters / ceilings[0]
    operations_floor = CLIENTS * count_operations(stack) / ceilings[1]
    floor = max(bytes_floor, operations_floor)
    # A local round of one client: its points, 5 epochs, from a model on the device to a model on the device.
    alone = CudaTrainer(stack, Recipe("bce", "adam", 1e-3, EPOCHS, BATCH), {0: shards[0]}, device, tf32=True)
    few = np.stack([np.random.default_rng(e).permutation(STEPS * BATCH) for e in range(EPOCHS)])
    alone.train_clients([start], [0], [few], recipe.learning_rate)
    torch.cuda.synchronize()
    began = time.perf_counter()
    alone.train_clients([start], [0], [few], recipe.learning_rate)
    torch.cuda.synchronize()
    per_step = (time.perf_counter() - began) / (EPOCHS * STEPS)
    full_round = per_step * EPOCHS * -(-(num_points // 10) // BATCH)
    row = {
        "preset": name,
        "tables": stack.num_tables,
        "step_ms": 1e3 * median(times),
        "spread_ms": [1e3 * min(times), 1e3 * max(times)],
        "floor_ms": 1e3 * floor,
        "bound_by": "bytes" if floor == bytes_floor else "operations",
        "step_over_floor": median(times) / floor,
        "round_of_a_client_s": full_round,
        "p100_s": paper_seconds,
        "faster_than_p100": paper_seconds / full_round,
        "relative_distance_from_plain": apart,
        "peak_memory_gib": torch.cuda.max_memory_allocated() / 2**30,
    }
    return row


def main() -> None:
    """Measure the presets that were named, or all, with both algorithms."""
    parser = argparse.ArgumentParser()
    parser.add_argument("presets", nargs="*", metavar="PRESET")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "gpu.json")
    arguments = parser.parse_args()
    ceilings = measure_ceilings()
    print(f"copy {ceilings[0] / 1e12:.2f} TB/s, TF32 product {ceilings[1] / 1e12:.0f} TFLOP/s", flush=True)
    rows = []
    for name in arguments.presets or PRESETS:
        stack, labels, nonzeros, positives, points, seconds = PRESETS[name]
        wide = Stack(1, stack.num_inputs, stack.hidden, labels)
        for algorithm, shape, paper in (("fedmlh", stack, seconds[0]), ("fedavg", wide, seconds[1])):
            row = {"algorithm": algorithm, **measure(name, shape, (nonzeros, positives, points, paper), ceilings)}
            rows.append(row)
            print(
                f"{name} {algorithm}: step {row['step_ms']:.3f} ms, floor {row['floor_ms']:.3f} ms "
                f"({row['bound_by']}), {row['step_over_floor']:.2f}×; local round {row['round_of_a_client_s']:.2f} s, "
                f"{row['faster_than_p100']:.0f}× P100; off plain by {row['relative_distance_from_plain']:.1e}; "
                f"{row['peak_memory_gib']:.1f} GiB",
                flush=True,
            )
    machine = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    found = {"machine": machine, "copy_bytes_per_s": ceilings[0], "tf32_flop_per_s": ceilings[1], "rows": rows}
    arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
