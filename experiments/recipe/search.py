"""One search for both sides: FedMLH, FedAvg or a central model, under a byte budget, judged on validation alone.

    python experiments/recipe/search.py DATA_FOLDER SIDE OUT.json --budget-mib 1.61 [--start OTHER.json …] [--more]
        [--candidates 48] [--jobs 2] [--device cpu]

SIDE is fedmlh, fedavg or central. Every side gets the same number of candidates, rounds and neighbours, drawn by the
same generator from the same choices where a choice exists on that side; the width of the hidden layers is what the
byte budget leaves. Three stages: random candidates for a few rounds; the best quarter of them for all rounds; then,
twice, neighbours of the best, one choice changed. --start puts the winner of the same side on another set, or its leads
in leads.json, among the first candidates; --more goes on from what OUT.json holds: the starts (a lead need only name
what it changes about the winner so far), then two more stages of neighbours. Only validation figures are read or
written. The winner has the best mean of P@1, P@3 and P@5; of those within 0.1 point of it, the one that was best after
the fewest rounds.
"""

import argparse
import itertools
import json
import multiprocessing
import platform
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

import fedmlh
from fedmlh.federated.task import TRAINING
from fedmlh.sizing import fit_width

#: What both sides choose from.
COMMON: dict[str, list[Any]] = {
    "learning_rate": [1e-3, 3e-3, 5e-3, 7e-3, 1e-2],
    "learning_rate_decay": [1.0, 0.95, 0.9],
    "loss": ["bce", "softmax", "balanced-bce", "balanced-softmax"],
    "loss_tau": [0.25, 0.5, 0.75, 1.0],  # of the balanced ones
    "output_bias": ["random", "rare"],
    "depth": [1, 1, 2],
    "normalize": [False, True],
    "feature_signed": [False, True],
    "feature_share": [1 / 16, 1 / 8, 3 / 16, 1 / 4, 3 / 8, 1 / 2, 3 / 4, 1],  # of the data's own features
    "model_average": [0.0, 0.5, 0.8],
    "server_optimizer": ["average", "fedexp"],
}
#: What only hashed labels have.
HASHED: dict[str, list[Any]] = {
    "num_tables": [2, 4, 6, 8, 12, 16, 32],
    "label_share": [1 / 128, 1 / 64, 1 / 32, 1 / 16, 1 / 10, 1 / 8],  # buckets a table, of the labels
    "feature_map": ["shared", "per-table"],
    "decoding": ["log-probs", "logits", "probs"],
}
#: What a choice was before it was one.
ONCE: dict[str, Any] = {
    "learning_rate_decay": 1.0,
    "output_bias": "random",
    "decoding": "log-probs",
    "loss_tau": 1.0,
}
FEDERATED = {"num_clients": 10, "clients_per_round": 4, "local_epochs": 5, "partition": "paper-code"}
#: Rounds of one pass over all points; a client of the federation makes two passes over its own a round, on average.
CENTRAL = {"num_clients": 10, "clients_per_round": 1, "local_epochs": 1, "partition": "paper-code", "pooled": True}
FEW, ALL, PATIENCE = 8, 40, 8
#: Scores this close are level: the one that is best after the fewest rounds then sends the least.
LEVEL = 0.001
LEAST_WIDTH = 16


def settings_of(choice: dict[str, Any], side: str, dataset: fedmlh.Dataset, budget: int) -> dict[str, Any] | None:
    """The config that a choice stands for; None where the budget leaves no width worth training."""
    settings = {key: choice[key] for key in COMMON if key not in ("depth", "feature_share")}
    dim = max(64, round(choice["feature_share"] * dataset.num_features))
    tables, outputs = 1, dataset.num_labels
    if side == "fedmlh":
        tables = choice["num_tables"]
        outputs = max(32, round(choice["label_share"] * dataset.num_labels))
        settings |= {"num_tables": tables, "num_buckets": outputs, "decoding": choice["decoding"]}
    if dim == dataset.num_features:
        settings["feature_map"] = "none"
        del settings["feature_signed"]  # of hashed features alone: with it the same candidate would be tried twice
    else:
        settings |= {"feature_map": choice.get("feature_map", "shared"), "feature_dim": dim}
    if "softmax" in choice["loss"]:
        settings["output_bias"] = "random"  # it does not see what all biases have in common
    if "balanced" not in choice["loss"]:
        del settings["loss_tau"]
    width = fit_width(budget // 4 // tables, dim, outputs, choice["depth"])
    if width < LEAST_WIDTH:
        return None
    fixed = CENTRAL if side == "central" else FEDERATED
    algorithm = "fedmlh" if side == "fedmlh" else "fedavg"
    return {"algorithm": algorithm, "hidden_sizes": [width] * choice["depth"], **settings, **fixed}


def draw(rng: np.random.Generator, side: str) -> dict[str, Any]:
    """A random choice; FedAvg and central simply have fewer things to choose."""
    space = {**COMMON, **HASHED} if side == "fedmlh" else COMMON
    return {key: values[int(rng.integers(len(values)))] for key, values in space.items()}


def neighbours(best: dict[str, Any], rng: np.random.Generator, side: str) -> Iterable[dict[str, Any]]:
    """Choices that differ from the best in one thing, or where those are used up in two, in random order."""
    space = {**COMMON, **HASHED} if side == "fedmlh" else COMMON
    for count in itertools.count():
        changed = dict(best)
        for _ in range(1 if count < 200 else 2):
            key = list(space)[int(rng.integers(len(space)))]
            changed[key] = space[key][int(rng.integers(len(space[key])))]
        yield changed


_dataset: fedmlh.Dataset


def _open(folder: str) -> None:
    global _dataset
    torch.set_num_threads(1)
    _dataset = fedmlh.load(folder)


def _measure(settings: dict[str, Any], rounds: int, device: str) -> dict[str, Any]:
    config = fedmlh.Config(**settings, rounds=rounds, patience=PATIENCE, device=device)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        summary = fedmlh.run(config, _dataset, Path(folder) / "run", workers=1).summary
    return {
        "settings": settings,
        "rounds": rounds,
        "best_round": summary["best_round"],
        "model_bytes": summary["model_bytes"],
        "validation_precision": summary["validation"]["precision"],
        "seconds": time.perf_counter() - began,
    }


def score(entry: dict[str, Any]) -> float:
    """What candidates are compared by: the mean of P@1, P@3 and P@5 on validation."""
    return fmean(entry["validation_precision"].values())


def main() -> None:
    """Search one side of one data set."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("side", choices=["fedmlh", "fedavg", "central"])
    parser.add_argument("out", type=Path)
    parser.add_argument("--budget-mib", type=float, required=True)
    parser.add_argument("--start", type=Path, nargs="*", default=[])
    parser.add_argument("--more", action="store_true")
    parser.add_argument("--candidates", type=int, default=48)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    budget = int(arguments.budget_mib * 2**20)
    dataset = fedmlh.load(arguments.data)
    before = json.loads(arguments.out.read_text()) if arguments.more else {"tried": [], "training": TRAINING}
    if before["training"] != TRAINING:
        raise SystemExit(f"{arguments.out} was made when the same settings gave other models: begin a new file")
    tried: list[dict[str, Any]] = before["tried"]
    for entry in tried:
        entry["choice"] = {**ONCE, **entry["choice"]}
        entry["settings"] = {**ONCE, **entry["settings"]}
    known = {
        json.dumps(settings_of(entry["choice"], arguments.side, dataset, budget), sort_keys=True) for entry in tried
    }
    rng = np.random.default_rng(len(tried))

    def fresh(choices: Iterable[dict[str, Any]], count: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for choice in choices:
            settings = settings_of(choice, arguments.side, dataset, budget)
            name = json.dumps(settings, sort_keys=True)
            if settings is not None and name not in known:
                known.add(name)
                found.append({"choice": choice, "settings": settings})
            if len(found) == count:
                break
        return found

    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.jobs, spawn, _open, (str(arguments.data),)) as pool:

        def run_all(candidates: list[dict[str, Any]], rounds: int, stage: str) -> list[dict[str, Any]]:
            jobs = {
                pool.submit(_measure, candidate["settings"], rounds, arguments.device): candidate["choice"]
                for candidate in candidates
            }
            done = []
            for job in as_completed(jobs):
                done.append({"stage": stage, "choice": jobs[job], **job.result()})
                shown = "/".join(f"{100 * value:.1f}" for value in done[-1]["validation_precision"].values())
                print(f"{stage}: {shown} after {done[-1]['seconds']:.0f} s  {done[-1]['settings']}", flush=True)
                tried.append(done[-1])
                write(arguments, budget, tried)
            return sorted(done, key=score, reverse=True)

        start = [choice for path in arguments.start for choice in find_starts(path, arguments.side)]
        if arguments.more:
            winner = find_winner(tried)["choice"]
            run_all(fresh([{**winner, **choice} for choice in start], len(start)), ALL, "start")
        else:
            whole = ({**ONCE, **choice} for choice in start)
            endless = itertools.chain(whole, iter(lambda: draw(rng, arguments.side), None))
            first = run_all(fresh(endless, arguments.candidates), FEW, "random")
            run_all(first[: arguments.candidates // 4], ALL, "best quarter")
        for _ in range(2):
            best = find_winner(tried)
            near = fresh(neighbours(best["choice"], rng, arguments.side), arguments.candidates // 4)
            run_all(near, ALL, "neighbours")


def find_starts(path: Path, side: str) -> list[dict[str, Any]]:
    """The winner of a search on another set, or a side's leads."""
    found = json.loads(path.read_text())
    return [found["winner"]["choice"]] if "winner" in found else found[side if side == "fedmlh" else "fedavg"]


def find_winner(tried: list[dict[str, Any]]) -> dict[str, Any]:
    """Of the full-length runs, or of all where there are none yet, the best; of those level with it the quickest."""
    longest = [entry for entry in tried if entry["rounds"] == ALL] or tried
    level = max(map(score, longest)) - LEVEL
    return min((e for e in longest if score(e) >= level), key=lambda entry: (entry["best_round"], -score(entry)))


def write(arguments: argparse.Namespace, budget: int, tried: list[dict[str, Any]]) -> None:
    """All that was tried so far, the winner first named."""
    result = {
        "data": arguments.data.name,
        "side": arguments.side,
        "budget_bytes": budget,
        "training": TRAINING,
        "space": {**COMMON, **HASHED} if arguments.side == "fedmlh" else COMMON,
        "machine": f"{platform.machine()}, torch {torch.__version__}, {arguments.device}",
        "winner": find_winner(tried),
        "tried": tried,
    }
    lines = ",\n".join(f"  {json.dumps(entry)}" for entry in result.pop("tried"))
    head = json.dumps(result, indent=1).removesuffix("\n}")
    arguments.out.write_text(f'{head},\n "tried": [\n{lines}\n ]\n}}\n')


if __name__ == "__main__":
    main()
