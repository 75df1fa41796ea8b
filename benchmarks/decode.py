"""Exact top-5: the decoder against torch (index_select accumulate + topk, all threads), side by side in one run.

    python benchmarks/decode.py [--trained PRESET=DIR …]

Scores are drawn for each shape in two ways. "trained" is like a trained model's log-probabilities: log-sigmoid of
bucket logits from N(-7, 1.5), where a point has 1 to 5 labels, drawn evenly, whose bucket in each table has a logit
from N(0, 2) instead. "random" is N(0, 1). "identity" is random with FedAvg's label map; there torch does topk alone.
With --trained, the preset is also trained for 10 rounds on the data of that folder, and scores are those of its test
points: eurlex-4k=(EurLex titles), wiki10-31k=(CiteULike).

Every result is compared with a full sort first. Times are for a batch (torch: 64 points, 8 of the largest shape; the
decoder: 128 to 1,024), in µs per point; every turn times all ways once, each after a call to warm up, so that other
programs on the machine slow all of them.
"""

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numba
import numpy as np
import torch
from torch import Tensor

import fedmlh
from fedmlh.model.forward import forward_sparse
from fedmlh.model.kernels.plain import label_scores
from fedmlh.model.losses import find_loss
from fedmlh.model.ranking import Decoder

K = 5
SHAPES = [(4_000, 4, 250, 1024), (131_073, 4, 4_000, 256), (312_330, 8, 5_000, 256), (3_000_000, 8, 20_000, 128)]
#: Label scores that torch holds at once: what the plain path of this package allows itself.
TORCH_SCORES = 1 << 23
RESULTS = Path(__file__).parent / "results" / "decode.json"


def draw(kind: str, buckets: Tensor, n: int, B: int, rng: np.random.Generator) -> Tensor:
    """Draw bucket scores as the head of this file says.  # [R, n, B]"""
    R, p = buckets.shape
    if kind != "trained":
        return torch.from_numpy(rng.standard_normal((R, n, B), dtype=np.float32))
    logits = rng.standard_normal((R, n, B), dtype=np.float32) * np.float32(1.5) - 7
    for i in range(n):
        labels = rng.integers(0, p, rng.integers(1, 6))
        for r in range(R):
            logits[r, i, buckets[r].numpy()[labels]] = rng.normal(0, 2, len(labels))
    return torch.nn.functional.logsigmoid(torch.from_numpy(logits))


def train_model(preset: str, folder: str) -> tuple[Tensor, Tensor, int]:
    """Train a model for a few rounds; return its label map and test scores.  # [R, p], [R, n, B]"""
    data = fedmlh.load(folder)
    with tempfile.TemporaryDirectory() as out:
        fedmlh.run(fedmlh.Config.load(preset).replace(rounds=10), data, f"{out}/run", progress=False)
        bundle = fedmlh.Model.load(f"{out}/run").bundle
    features = bundle.task.feature_map(bundle.seeds).apply(data.test.X)
    buckets = torch.from_numpy(bundle.task.label_map(bundle.seeds, bundle.labels.keys).buckets)
    with torch.no_grad():
        logits = forward_sparse(
            bundle.task.stack.views(torch.tensor(bundle.weights)), tuple(x[:1024] for x in features)
        )
        return buckets, find_loss(bundle.task.config.loss).log_likelihood(logits), bundle.task.stack.num_outputs


def by_torch(scores: Tensor, buckets: Tensor) -> None:
    """Decode as one would write it, without care for ties."""
    at_once = max(1, TORCH_SCORES // buckets.shape[1])
    for begin in range(0, scores.shape[1], at_once):
        part = scores[:, begin : begin + at_once]
        identity = len(buckets) == 1 and scores.shape[2] == buckets.shape[1]
        (part[0] if identity else label_scores(part, buckets)).topk(K, dim=1)


def check(decoder: Decoder, scores: Tensor, points: int) -> None:
    """Compare the decoder's answers, to the bit, with a full sort by score and id."""
    for begin in range(0, points, 8):
        part = scores[:, begin : begin + 8]
        whole = label_scores(part, decoder.buckets).numpy()
        expected = np.argsort(-whole, axis=1, kind="stable")[:, :K]
        one_by_one = [decoder(part[:, i : i + 1], K) for i in range(part.shape[1])]
        alone = [np.concatenate(column) for column in zip(*one_by_one, strict=True)]
        together = [column[begin : begin + 8] for column in decoder(scores[:, :points], K)]
        for labels, values in (alone, together):
            assert (labels == expected).all()
            assert (values.view(np.int32) == np.take_along_axis(whole, expected, axis=1).view(np.int32)).all()


def measure(ways: dict[str, tuple[Callable[[], object], int, int]], turns: int) -> dict[str, dict[str, float]]:
    """Return median, least and most µs per point of each way: (call, threads, points)."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(turns):
        for name, (call, threads, points) in ways.items():
            torch.set_num_threads(threads)
            call()
            begin = time.perf_counter()
            call()
            seconds[name].append((time.perf_counter() - begin) / points)
    return {
        name: {"median": 1e6 * float(np.median(s)), "least": 1e6 * min(s), "most": 1e6 * max(s)}
        for name, s in seconds.items()
    }


def compare(name: str, buckets: Tensor, scores: Tensor, B: int, cores: int, turns: int) -> dict[str, object]:
    (R, p), n = buckets.shape, scores.shape[1]
    decoder = Decoder(buckets, B)
    begin = time.perf_counter()
    decoder(scores[:, :64], K)
    prepared = time.perf_counter() - begin
    check(decoder, scores, 16 if p > 1_000_000 else 64)
    few = scores[:, : 8 if p > 1_000_000 else 64].contiguous()
    single = scores[:, :1].contiguous()
    times = measure(
        {
            "torch": (lambda: by_torch(few, buckets), cores, few.shape[1]),
            "decoder, 1 core": (lambda: decoder(scores, K), 1, n),
            f"decoder, {cores} cores": (lambda: decoder(scores, K), cores, n),
            "torch, single": (lambda: by_torch(single, buckets), cores, 1),
            "decoder, single": (lambda: decoder(single, K), 1, 1),
        },
        turns,
    )
    ratio = {way: times["torch"]["median"] / times[way]["median"] for way in times if "single" not in way}
    ratio["decoder, single"] = times["torch, single"]["median"] / times["decoder, single"]["median"]
    print(f"{p:>9,} {R} {B:>6,} {name:>8} " + " ".join(f"{times[way]['median']:>9,.1f}" for way in times), end="")
    print("   " + " ".join(f"{ratio[way]:5.1f}x" for way in list(ratio)[1:]), flush=True)
    return {
        "labels": p, "tables": R, "buckets": B, "scores": name, "points": n, "seconds_to_prepare": prepared,
        "us_a_point": times, "times_faster": ratio,
    }  # fmt: skip


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trained", nargs="*", default=[], metavar="PRESET=DIR", help="really trained models")
    parser.add_argument("--turns", type=int, default=9)
    arguments = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    head = ["torch", "1 core", f"{cores} cores", "torch", "decoder"]
    print(f"{'':28}µs per point, median of {arguments.turns}{'':11}single point        faster than torch")
    print(f"{'labels':>9} R {'B':>6} {'scores':>8} " + " ".join(f"{title:>9}" for title in head), end="")
    print(f"   1 core  {cores} cores  single")
    rng = np.random.default_rng(0)
    rows = []
    for preset, _, folder in (entry.partition("=") for entry in arguments.trained):
        buckets, scores, B = train_model(preset, folder)
        rows.append(compare(f"{preset} on {Path(folder).name}", buckets, scores, B, cores, arguments.turns))
    for p, R, B, n in SHAPES:
        buckets = torch.from_numpy(rng.integers(0, B, (R, p)))
        for kind in ("trained", "random"):
            turns = arguments.turns if p < 1_000_000 else max(3, arguments.turns // 3)
            rows.append(compare(kind, buckets, draw(kind, buckets, n, B, rng), B, cores, turns))
    for p in (4_000, 312_330):
        identity = torch.arange(p)[None]
        rows.append(compare("identity", identity, draw("identity", identity, 256, p, rng), p, cores, arguments.turns))
    machine = {
        "processor": processor(), "cores": cores, "python": platform.python_version(), "torch": torch.__version__,
        "numba": numba.__version__, "load_before": load,
    }  # fmt: skip
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"machine": machine, "k": K, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
