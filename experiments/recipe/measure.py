"""Methods, codecs and ablations on one data set: every run tested once, at the round that validation selected.

    python experiments/recipe/measure.py DATA_FOLDER OUT.json --preset eurlex-4k
        --searches FOLDER/NAME [--what methods|ablation] [--only METHOD …] [--seeds 5] [--jobs 2] [--device cpu]

methods: the paper's FedAvg and FedMLH (the preset's sizes), FedAvg and FedMLH with what the search found for each
(FOLDER/NAME-fedavg.json, …), and the preset `recommended` at the same budget, each as it is and with codecs both ways;
and, of the same bytes, a central model with what its search found, and `recommended` on the same pooled data.
ablation: `recommended` with one part changed at a time. OUT.json is written after every run, and what it already holds
is not run again.
"""

import argparse
import itertools
import json
import multiprocessing
import platform
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

import fedmlh
from fedmlh.federated.task import TRAINING
from fedmlh.reproduction import former

Settings = dict[str, Any]
Run = dict[str, Any]
Measure = Callable[[fedmlh.Config, fedmlh.Dataset], Run]

FEDERATED: Settings = {
    "num_clients": 10,
    "clients_per_round": 4,
    "local_epochs": 5,
    "partition": "paper-code",
    "rounds": 40,
}
CODECS = {"update_codec": "int4+zlib", "broadcast_codec": "int4+zlib"}
METRICS = ("precision", "precision_frequent", "precision_infrequent", "psp")


def grid(common: Settings, **choices: list[Any]) -> list[Settings]:
    """All combinations of some choices."""
    return [{**common, **dict(zip(choices, values, strict=True))} for values in itertools.product(*choices.values())]


def adaptive(name: str) -> list[Settings]:
    """A server optimizer that divides by √v + τ: with a small τ, and with ones that make it more like an average."""
    common = {"server_optimizer": name, "server_momentum": 0.5}
    steps = [(0.03, 1e-3), (0.1, 1e-2), (0.3, 0.1)]
    return [{**common, "server_learning_rate": step, "server_tau": tau} for step, tau in steps]


#: One part of `recommended` changed; a part that has a strength of its own is tried with several.
ABLATION: dict[str, list[Settings]] = {
    "recommended": [{}],
    "output biases around zero": [{"output_bias": "random"}],
    "output biases that start rare": [{"output_bias": "rare"}],
    "BCE": [{"loss": "bce", "output_bias": "random"}],
    "BCE, output biases that start rare": [{"loss": "bce", "output_bias": "rare"}],
    "less of the frequencies": grid({}, loss_tau=[0.25, 0.5, 0.75]),
    "softmax": [{"loss": "softmax", "output_bias": "random"}],
    "balanced softmax": grid({"loss": "balanced-softmax", "output_bias": "random"}, loss_tau=[0.5, 1.0]),
    "one feature map": [{"feature_map": "shared"}],
    "no signs": [{"feature_signed": False}],
    "no normalisation": [{"normalize": False}],
    "step 1e-3": [{"learning_rate": 1e-3}],
    "step 3e-3": [{"learning_rate": 3e-3}],
    "step 2e-2": [{"learning_rate": 2e-2}],
    "step that falls": [{"learning_rate_decay": 0.95}],
    "step that does not fall": [{"learning_rate_decay": 1.0}],
    # BCE is a mean over buckets, so a gradient is small and a step of SGD large.
    "SGD": grid({"optimizer": "sgd"}, learning_rate=[100.0, 300.0, 1000.0]),
    "balanced label map": [{"label_map": "balanced"}],
    "decoding: log-probabilities": [{"decoding": "log-probs"}],
    "decoding: probabilities": [{"decoding": "probs"}],
    "average of models": grid({}, model_average=[0.5, 0.8]),
    "FedExP": [{"server_optimizer": "fedexp"}],
    "server momentum": grid({"server_optimizer": "momentum"}, server_momentum=[0.3, 0.5]),
    "server Adam": adaptive("adam"),
    "server Yogi": adaptive("yogi"),
    "server Adagrad": adaptive("adagrad"),
    "FedProx": grid({}, prox_mu=[1e-6, 1e-5]),
    "SCAFFOLD": grid({"correction": "scaffold"}, learning_rate=[3e-3, 1e-2]),
    "SCAFFOLD with SGD": grid({"correction": "scaffold", "optimizer": "sgd"}, learning_rate=[30.0, 100.0, 300.0]),
    "shared points": [{"shared_fraction": 0.05}],
    "update int8": [{"update_codec": "int8+zlib"}],
    "update int2": [{"update_codec": "int2+zlib"}],
    "update top 1 %": [{"update_codec": "topk-1%"}],
    "update sketch 10 %": [{"update_codec": "sketch-10%"}],
}


def find_methods(
    preset: str, budget_mib: float, searched: dict[str, dict[str, Any]], dataset: fedmlh.Dataset
) -> dict[str, fedmlh.Config]:
    """The methods by name, those that send anything with and without codecs."""
    paper = fedmlh.Config.load(preset).replace(**FEDERATED, label_seeds="drawn", feature_seeds="drawn")
    found = {
        "FedAvg, paper": paper.replace(algorithm="fedavg"),
        "FedMLH, paper": paper,
        "FedAvg, searched": fedmlh.Config(**{**searched["fedavg"], **FEDERATED}),
        "FedMLH, searched": fedmlh.Config(**{**searched["fedmlh"], **FEDERATED}),
        "recommended": recommend(budget_mib, dataset),
    }
    coded = {f"{name} + codecs": config.replace(**CODECS) for name, config in found.items()}
    central = fedmlh.Config(**searched["central"], rounds=FEDERATED["rounds"])
    pooled = {key: getattr(central, key) for key in ("pooled", "clients_per_round", "local_epochs")}
    return {
        **found,
        **coded,
        "central, searched": central,
        "central, recommended": found["recommended"].replace(**pooled),
    }


def recommend(budget_mib: float, dataset: fedmlh.Dataset) -> fedmlh.Config:
    """The preset under the budget of the paper's model, without its codecs."""
    # As the preset was when these runs were made.
    return former.recommend(int(budget_mib * 2**20), dataset.num_features, dataset.num_labels, **FEDERATED)


_dataset: fedmlh.Dataset


def _open(folder: str) -> None:
    global _dataset
    torch.set_num_threads(1)
    _dataset = fedmlh.load(folder)


def _call(measure: Measure, config: fedmlh.Config) -> Run:
    return measure(config, _dataset)


def run_all(measure: Measure, jobs: list[tuple[Run, fedmlh.Config]], arguments: argparse.Namespace) -> Iterator[Run]:
    """What was asked about each job and what was found, as they end."""
    machine = f"{platform.machine()}, torch {torch.__version__}, {arguments.device}"
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(arguments.jobs, spawn, _open, (str(arguments.data),)) as pool:
        asked = {
            pool.submit(_call, measure, config.replace(seed=about["seed"], device=arguments.device)): about
            for about, config in jobs
        }
        for job in as_completed(asked):
            yield asked[job] | {"machine": machine} | job.result()


def read(arguments: argparse.Namespace) -> dict[str, Any]:
    """What the result file holds, or a new one."""
    if not arguments.out.is_file():
        return {"data": arguments.data.name, "training": TRAINING, "runs": []}
    result: dict[str, Any] = json.loads(arguments.out.read_text())
    if result["training"] != TRAINING:
        raise SystemExit(f"{arguments.out} was made when the same settings gave other models: begin a new file")
    return result


def _measure(config: fedmlh.Config, dataset: fedmlh.Dataset) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        run = fedmlh.run(config, dataset, Path(folder) / "run", workers=1)
        lines = (run.folder / "metrics.jsonl").read_text().splitlines()
    curve, total = [], 0
    for record in map(json.loads, lines):
        total += record["bytes_up"] + record["bytes_down"]
        curve.append({"bytes": total, "validation": record["validation"]["precision"]})
    summary = run.summary
    kept = {key: summary[key] for key in ("best_round", "model_bytes", "num_parameters", *METRICS) if key in summary}
    return {**kept, "curve": curve}


def settings_of(config: fedmlh.Config) -> Settings:
    """What of a config is not as by default, as JSON has it."""
    default = tomllib.loads(fedmlh.Config().to_toml())
    return {name: value for name, value in tomllib.loads(config.to_toml()).items() if value != default[name]}


def write(out: Path, result: dict[str, Any]) -> None:
    """One line a run."""
    lines = ",\n".join(f"  {json.dumps(entry)}" for entry in result["runs"])
    head = json.dumps({key: value for key, value in result.items() if key != "runs"}, indent=1).removesuffix("\n}")
    out.write_text(f'{head},\n "runs": [\n{lines}\n ]\n}}\n')


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--preset", required=True)
    parser.add_argument("--searches", type=Path, required=True)
    parser.add_argument("--what", choices=["methods", "ablation"], default="methods")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    name = arguments.searches.name
    files = {side: arguments.searches.with_name(f"{name}-{side}.json") for side in ("fedavg", "fedmlh", "central")}
    searches = {side: json.loads(path.read_text()) for side, path in files.items()}
    budget_mib = searches["fedmlh"]["budget_bytes"] / 2**20
    dataset = fedmlh.load(arguments.data)
    if arguments.what == "methods":
        settings = {side: search["winner"]["settings"] for side, search in searches.items()}
        chosen = list(find_methods(arguments.preset, budget_mib, settings, dataset).items())
    else:
        recommended = recommend(budget_mib, dataset)
        chosen = [(name, recommended.replace(**change)) for name, changes in ABLATION.items() for change in changes]
    result = read(arguments)
    wanted = [(name, settings_of(config), config) for name, config in chosen]
    if arguments.what == "ablation":  # of two ways a part may be, one is what `recommended` has
        wanted = [wanted[0], *(entry for entry in wanted if entry[1] != wanted[0][1])]
    # A method whose settings have changed since is measured anew.
    known = [(name, settings) for name, settings, _ in wanted]
    result["runs"] = [run for run in result["runs"] if (run["method"], run["settings"]) in known]
    done = [(run["method"], run["settings"], run["seed"]) for run in result["runs"]]
    jobs = [
        ({"method": name, "seed": seed, "settings": settings}, config)
        for seed in range(arguments.seeds)
        for name, settings, config in wanted
        if (name, settings, seed) not in done and (not arguments.only or name in arguments.only)
    ]
    for run in run_all(_measure, jobs, arguments):
        result["runs"].append(run)
        result["runs"].sort(key=lambda run: (known.index((run["method"], run["settings"])), run["seed"]))
        write(arguments.out, result)
        shown = "/".join(f"{100 * value:.1f}" for value in run["precision"].values())
        print(f"{run['method']}, seed {run['seed']}: {shown}, best round {run['best_round']}", flush=True)


if __name__ == "__main__":
    main()
