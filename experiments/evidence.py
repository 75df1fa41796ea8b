"""`recommended` and other methods on test: every point goes to one client, and every byte is counted, both ways.

    python experiments/evidence.py OUT.jsonl DATA_FOLDER... --stage sets|alone|tuned|grid|many|parts|changes
        [--seeds 3] [--jobs 12] [--device cuda] [--minutes M]

sets: every method on every set. alone: a linear model in closed form for each of 10 clients alone, tested on the whole
test part, and the average of all these models. tuned: what `fedmlh tune` found for networks with hashed labels and for
FedAvg (results/evidence/searches). grid: partitions and numbers of clients, networks of a quarter of the default's
bytes. many: `recommended` with 1,000 clients. parts: what label hashing, feature hashing, an ensemble and the loss
give, in a federation and on pooled data, all with models of the same bytes, a quarter of the default's. changes: the
networks of `recommended`, of a quarter of its bytes, with one setting changed.

Rounds are selected on validation. Test figures are written for every round, so that methods can be compared at equal
bytes: at the round that validation would have selected among those that the bytes allow. Each run adds a
line to OUT.jsonl when it ends; runs that the file holds are not repeated.
"""

import math
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix
from script import Rows, load, make_parser, run_missing, train

import fedmlh
from fedmlh.data.dataset import Split
from fedmlh.data.division import divide
from fedmlh.evaluation.evaluate import Evaluator, LabelCounts
from fedmlh.evaluation.label_recall import LabelRecall
from fedmlh.model.ranking import best_labels
from fedmlh.planning.choices import settle
from fedmlh.runs.jobs import Job, describe_machine
from fedmlh.runs.model_folder import load_bundle
from fedmlh.runs.model_tools import make_tools
from fedmlh.sizing import RULE, Shape

Settings = dict[str, Any]

IN_ROUNDS: Settings = {"training": "rounds"}
FEDAVG: Settings = {"training": "rounds", "algorithm": "fedavg"}
#: Settings on top of `recommended`; `share` scales the budget that the rule gives.
METHODS: dict[str, Settings] = {
    "recommended": {},
    "one round": {"training": "one-round", "correct": 0},
    "networks": IN_ROUNDS,
    "networks, half": {**IN_ROUNDS, "share": 0.5},
    "networks, a quarter": {**IN_ROUNDS, "share": 0.25},
    "FedAvg": FEDAVG,
    # Messages of FedAvg are shorter: a larger model may send as much.
    "FedAvg, larger": {**FEDAVG, "share": 1.5},
    "FedAvg, a quarter": {**FEDAVG, "share": 0.25},
    "FedAvg, half": {**FEDAVG, "share": 0.5},
}
#: The paper's set-up, with its sizes for the data set of about this many labels.
PAPER = {"FedMLH, paper": "fedmlh", "FedAvg, paper": "fedavg"}
PAPER_PRESETS = ((10_000, "eurlex-4k"), (math.inf, "wiki10-31k"))
#: Settings that `fedmlh tune` found, by the kind of labels that it searched.
TUNED = {"networks, tuned": "hashed", "FedAvg, tuned": "identity"}
SEARCHES = Path(__file__).parent / "results" / "evidence" / "searches"
#: Partition, clients, and how many of them a round asks.
CELLS: dict[str, Settings] = {
    f"{name}, K {clients}": {**partition, "num_clients": clients, "clients_per_round": sampled}
    for (name, partition), (clients, sampled) in product(
        {
            "iid": {"partition": "iid"},
            "Dirichlet 0.3": {"partition": "dirichlet", "dirichlet_alpha": 0.3},
            "Dirichlet 0.05": {"partition": "dirichlet", "dirichlet_alpha": 0.05},
        }.items(),
        ((10, 4), (100, 10), (1000, 10)),
    )
}
GRID = {cell: CELLS[cell] for cell in CELLS if not cell.endswith("K 1000")}
MANY = {cell: CELLS[cell] for cell in CELLS if cell.endswith("K 1000")}
GRID_METHODS = ("recommended", "networks, a quarter", "FedAvg, a quarter")
_PLAIN: Settings = {**FEDAVG, "loss": "bce", "loss_tau": 0.0}
_HASHED_FEATURES: Settings = {"feature_map": "per-table"}
#: From FedAvg to the networks of `recommended`, a part at a time.
PARTS: dict[str, Settings] = {
    "one network, BCE": _PLAIN,
    "one network": FEDAVG,
    "ensemble": {**IN_ROUNDS, "label_map": "identity", "feature_map": "none"},
    "ensemble, features hashed": {**IN_ROUNDS, "label_map": "identity"},
    "ensemble, labels hashed": {**IN_ROUNDS, "feature_map": "none"},
    "ensemble, both hashed": IN_ROUNDS,
    "ensemble, both hashed, one feature map": {**IN_ROUNDS, "feature_map": "shared"},
    "ensemble, both hashed, BCE": {**IN_ROUNDS, "loss": "bce", "loss_tau": 0.0},
}
#: One changed setting each; learning rates are relative to the rule's.
CHANGES: dict[str, Settings] = {
    "as they are": {},
    "BCE": {"loss": "bce", "loss_tau": 0.0},
    "softmax": {"loss": "softmax", "loss_tau": 0.0, "output_bias": "random"},
    "balanced softmax, τ 0.5": {"loss": "balanced-softmax", "loss_tau": 0.5, "output_bias": "random"},
    "biases around zero": {"output_bias": "random"},
    "one feature map": {"feature_map": "shared"},
    "no signs": {"feature_signed": False},
    "no normalisation": {"normalize": False},
    "balanced label map": {"label_map": "balanced"},
    "decoding by probabilities": {"decoding": "probs"},
    "decoding by log-probabilities": {"decoding": "log-probs"},
    "half the step": {"step": 0.5},
    "twice the step": {"step": 2.0},
    "a step that does not fall": {"learning_rate_decay": 1.0},
    # BCE is a mean over buckets: gradients are small, so SGD needs a large learning rate.
    "SGD, step 300": {"optimizer": "sgd", "learning_rate": 300.0},
    "2 epochs": {"local_epochs": 2},
    "no average of models": {"model_average": 0.0},
    "average of models 0.8": {"model_average": 0.8},
    "weighted by points": {"weighting": "examples"},
    "FedProx, μ 1e-5": {"prox_mu": 1e-5},
    # At this learning rate, its controls exceed the bound within five rounds.
    "SCAFFOLD, no bound": {"correction": "scaffold", "clip": "off"},
    "5 % shared points": {"shared_fraction": 0.05},
    "server momentum 0.5": {"server_optimizer": "momentum", "server_momentum": 0.5},
    "server Adam": {
        **{"server_optimizer": "adam", "server_momentum": 0.5},
        **{"server_learning_rate": 0.1, "server_tau": 1e-2},
    },
    "FedExP": {"server_optimizer": "fedexp"},
    "messages of 4 bits": {"update_codec": "int4+zlib", "broadcast_codec": "int4+zlib"},
}
POOLED: Settings = {"pooled": True, "num_clients": 10, "clients_per_round": 1, "local_epochs": 2}
_KEPT = (
    *("precision", "psp", "precision_infrequent", "recall_macro", "recall_by_count", "best_round", "rounds"),
    *("model_bytes", "bytes_up", "bytes_down", "bytes_up_to_best", "bytes_down_to_best", "algorithm", "correction"),
    *("ridge", "count_power", "slots", "seconds_per_round"),
)


def list_runs(stage: str) -> Iterator[tuple[str, str, Settings]]:
    """Yield method, cell and settings of all runs of a stage on one data set."""
    if stage == "sets":
        yield from ((method, "", settings) for method, settings in METHODS.items())
        yield from ((method, "", {"paper": algorithm}) for method, algorithm in PAPER.items())
    elif stage == "grid":
        for (cell, federation), method in product(GRID.items(), GRID_METHODS):
            yield method, cell, {**METHODS[method], **federation}
    elif stage == "many":
        yield from (("recommended", cell, federation) for cell, federation in MANY.items())
    elif stage == "changes":
        for change, settings in CHANGES.items():
            yield change, "", {**METHODS["networks, a quarter"], **settings}
    elif stage == "tuned":
        yield from ((method, "", {"tuned": labels}) for method, labels in TUNED.items())
    elif stage == "alone":
        yield "alone", "", {}
    else:
        for (cell, more), (method, settings) in product({"federated": {}, "pooled": POOLED}.items(), PARTS.items()):
            yield method, cell, {"share": 0.25, **settings, **more}


def list_jobs(stage: str, folders: list[str], seeds: int, device: str) -> Iterator[Job]:
    """Yield all runs of a stage, seed after seed."""
    for seed, folder in product(range(seeds), folders):
        for method, cell, settings in list_runs(stage):
            key = {"job": [Path(folder).name, method, cell, seed]}
            if stage == "alone":
                yield Job(key, measure_alone, (folder, seed, device))
            else:
                yield Job(key, measure, (folder, settings, seed, device))


def configure(folder: str, settings: Settings) -> fedmlh.Config:
    """Return the settings of a run, with all choices made."""
    dataset, settings = load(folder), dict(settings)
    if "tuned" in settings:
        return fedmlh.Config.load(SEARCHES / f"{Path(folder).name}-{settings['tuned']}.toml")
    algorithm, share, step = (settings.pop(name, None) for name in ("paper", "share", "step"))
    if algorithm:
        name = next(name for most, name in PAPER_PRESETS if dataset.num_labels <= most)
        federation = {"partition": "dirichlet", "num_clients": 10, "clients_per_round": 4}
        paper = fedmlh.Config.load(name)
        return paper.replace(
            algorithm=algorithm,
            num_buckets=min(paper.num_buckets, dataset.num_labels // 4),
            feature_dim=min(paper.feature_dim, dataset.num_features),
            rounds=40,
            data="",
            label_seeds="drawn",
            feature_seeds="drawn",
            **federation,
        )
    if share:
        settings["budget_mib"] = share * RULE.budget(Shape.of(dataset.train)) / 2**20
    config = settle(fedmlh.Config.load("recommended").replace(**settings), dataset)[0]
    return config.replace(learning_rate=step * config.learning_rate) if step else config


def measure(folder: str, settings: Settings, seed: int, device: str) -> dict[str, Any]:
    """Train with these settings."""
    config = configure(folder, settings).replace(seed=seed, device=device, test_every_round=True)
    began = time.perf_counter()
    summary, records = train(config, folder)
    return {
        **{name: summary[name] for name in _KEPT if name in summary},
        "validation": summary["validation"]["precision"],
        "curve": [
            {
                "bytes": [record["bytes_up"], record["bytes_down"]],
                "delivered": record.get("bytes_delivered", 0),
                **{part: list(record[part]["precision"].values()) for part in ("validation", "test") if part in record},
            }
            for record in records
        ],
        "seconds": time.perf_counter() - began,
        "machine": describe_machine(device),
    }


def measure_alone(folder: str, seed: int, device: str) -> dict[str, Any]:
    """Let each client train by itself; test each model, and the mean of their scores, on the whole test part."""
    dataset, began = load(folder), time.perf_counter()
    preset = fedmlh.Config.load("recommended").replace(training="one-round", correct=0, seed=seed, device=device)
    settled = settle(preset, dataset)[0]
    shards = divide(dataset.train, settled).shards
    counts, test = LabelCounts.of(dataset.train), dataset.test
    models, clients = [], {}
    for number, shard in shards.items():
        own = replace(dataset, train=Split(shard.X, shard.Y))
        with tempfile.TemporaryDirectory() as out:
            run = fedmlh.run(
                settled.replace(partition="iid", num_clients=1, clients_per_round=1),
                own,
                Path(out) / "run",
                progress=False,
            )
            bundle = load_bundle(run.folder / "model")
        models.append(make_tools(bundle, device))
        evaluator = Evaluator(settled, counts, *models[-1][:2])
        prepared = evaluator.prepare(test)
        ranked = evaluator.ranker.rank(models[-1][2], prepared.features, 5, test.excluded)
        labels = np.concatenate([best for _, best, _ in ranked])
        clients[str(number)] = {"points": len(shard), **_judge(evaluator, labels, test.Y, counts)}
    best = []
    for begin in range(0, len(test), 256):
        rows = slice(begin, min(begin + 256, len(test)))
        scores = sum(ranker.score(weights, *features.apply(test.X[rows])) for features, ranker, weights in models)
        excluded = None if test.excluded is None else test.excluded[rows]
        best.append(best_labels(models[0][1].decoder, scores, 5, excluded)[0])
    return {
        **_judge(evaluator, np.concatenate(best), test.Y, counts),
        "clients": clients,
        "seconds": time.perf_counter() - began,
        "machine": describe_machine(device),
    }


def _judge(evaluator: Evaluator, labels: np.ndarray, Y: csr_matrix, counts: LabelCounts) -> dict[str, Any]:
    recall = LabelRecall(evaluator.ks, counts.counts)
    recall.add(labels, Y)
    values = {**evaluator.judge(labels, Y), **recall.values()}
    return {name: values[name] for name in ("precision", "psp", "recall_macro", "recall_by_count")}


def main() -> None:
    """Run what is missing, as long as there is time."""
    parser = make_parser(__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("data", nargs="+")
    parser.add_argument(
        "--stage", choices=["sets", "alone", "tuned", "grid", "many", "parts", "changes"], required=True
    )
    parser.add_argument("--only", nargs="*", default=[], help="methods")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no run after this many minutes")
    arguments = parser.parse_args()
    jobs = list_jobs(arguments.stage, arguments.data, arguments.seeds, arguments.device)
    wanted = (job for job in jobs if not arguments.only or job.key["job"][1] in arguments.only)
    run_missing(wanted, Rows(arguments.out), arguments)


if __name__ == "__main__":
    main()
