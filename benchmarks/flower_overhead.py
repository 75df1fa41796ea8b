"""What the product adds to Flower: seconds per round, and memory of the server's process.

    python benchmarks/flower_overhead.py            # eurlex-4k and wiki10-31k, four sites each
    python benchmarks/flower_overhead.py --large    # FedAvg at amazontitles-131k, one site: memory of all processes

All processes are on this machine, over TLS and with registered keys. A run of the product is compared with two no-op
apps (`flower_echo.py`) that send messages of the same size through the same SuperLink:

- `flower`: Flower's own SuperNodes, which start Python and import torch for each message, and its own
  `send_and_receive`, which looks for replies every three seconds;
- `lean`: the product's SuperNodes, which fork a process for each message, and its own way of looking for replies. It is
  a round of the product without training, checks, averages, evaluation or storage.

A round lasts from one line in `metrics.jsonl` to the next. What training itself takes is known from a run in one
process with the same clients in every round (`seconds_training` of its records), which must end with the same model.
The first round is left out: its broadcast holds no model, since the initial model follows from the seed.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import numpy as np
from flwr.cli.build import build_fab_from_files
from flwr.supercore.fab import Fab

from fedmlh.config import Config
from fedmlh.data.dataset import Dataset
from fedmlh.data.source import open_dataset
from fedmlh.sites.federation import Federation
from fedmlh.sites.flower import control
from fedmlh.sites.flower.credential import VARIABLE, Credential
from fedmlh.sites.flower.grid import PAUSE
from fedmlh.sites.flower.loopback import create_loopback, replay_loopback, running_sites
from fedmlh.sites.flower.processes import environment, free_port, stop, supervise, write_identity

HERE = Path(__file__).parent
MIB = 1 << 20
#: Points to train on: fewer for larger models, since time and memory depend on the model.
POINTS = {"eurlex-4k": 15539, "wiki10-31k": 1000, "amazontitles-131k": 500}
FOUR_SITES = ["eurlex-4k", "wiki10-31k"]


def make_echo_bundle() -> Fab:
    """Return the no-op app in the form that Flower carries."""
    from flower_echo import PROJECT

    files = {"pyproject.toml": PROJECT, "flower_echo.py": (HERE / "flower_echo.py").read_bytes()}
    content, _ = build_fab_from_files(files)
    return Fab(hashlib.sha256(content).hexdigest(), content, {})


@contextmanager
def carrying_echo(module: ModuleType) -> Iterator[None]:
    """Have the server's control, or a site's SuperNode, carry the no-op app."""
    # Neither takes the name of another app, on purpose: whoever could give one would choose what runs at sites.
    product, module.make_bundle = module.make_bundle, make_echo_bundle  # type: ignore[attr-defined]
    try:
        yield
    finally:
        module.make_bundle = product  # type: ignore[attr-defined]


def find_processes(folder: Path) -> dict[int, str]:
    """Return the command of each process that Flower runs for a federation in this folder."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if str(folder.resolve()).encode() in (entry / "environ").read_bytes():
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
    return found


def read_memory(pid: int, file: str, field: str) -> int:
    """Return a line of /proc/PID/FILE in bytes; 0 once the process is gone."""
    try:
        for line in (Path("/proc") / str(pid) / file).read_text().splitlines():
            if line.startswith(field + ":"):
                return 1024 * int(line.split()[1])
    except OSError:
        pass
    return 0


class Watcher:
    """Looks at a federation while it trains: when rounds end, and what its processes hold."""

    def __init__(self, federation: Federation, everything: bool = False) -> None:
        self.federation = federation
        self.everything = everything
        self.ends: list[float] = []
        self.server = 0  # the most that the ServerApp's process ever held, in bytes
        self.total = 0  # the most that all processes held at a moment
        self.parts: dict[str, int] = {}
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._watch_rounds), threading.Thread(target=self._watch_memory)]

    def __enter__(self) -> "Watcher":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _watch_rounds(self) -> None:
        while not self._stop.wait(0.02):
            if self.federation.run.count_rounds() > len(self.ends):
                self.ends.append(time.monotonic())

    def _watch_memory(self) -> None:
        while not self._stop.wait(0.3):
            found = find_processes(self.federation.path)
            for pid, command in found.items():
                if "flower.serverapp" in command:
                    self.server = max(self.server, read_memory(pid, "status", "VmHWM"))
            if self.everything:
                self._add_up(found)

    def _add_up(self, found: dict[int, str]) -> None:
        parts: dict[str, int] = {}
        for pid, command in [*found.items(), (os.getpid(), "this script")]:
            kinds = {"flower.serverapp": "server app", "flower.superlink": "superlink", "forkserver": "client app"}
            kinds |= {"flower.supernode": "supernode", "this script": "this script"}
            kind = next((name for word, name in kinds.items() if word in command), "others")
            parts[kind] = parts.get(kind, 0) + read_memory(pid, "smaps_rollup", "Pss")
        if sum(parts.values()) > self.total:
            self.total, self.parts = sum(parts.values()), parts

    def rounds(self) -> list[float]:
        """Return the seconds of each round except the first."""
        return [later - earlier for earlier, later in pairwise(self.ends)]


@contextmanager
def echoing_sites(federation: Federation, lean: bool) -> Iterator[None]:
    """Run SuperNodes of the no-op app, until the block ends."""
    with ExitStack() as stack:
        nodes: list[subprocess.Popen[bytes]] = []
        stack.callback(lambda: stop(*nodes))
        for number, site in enumerate(federation.agreement.sites):
            folder = (federation.path / site).resolve()
            command = [sys.executable, str(HERE / "flower_echo.py")] if lean else ["flower-supernode"]
            command += ["--superlink", federation.agreement.address, "--host", "127.0.0.1", "--port", str(free_port())]
            command += ["--root-certificates", str(folder / "agreement" / "ca.crt")]
            command += ["--auth-supernode-private-key", str(folder / "node.key")]
            command += ["--node-config", f"partition-id={number}"]
            settings = environment(folder / "flower", PYTHONPATH=str(HERE))
            if lean:
                credential = Credential(folder / "credential")
                credential.renew()
                settings[VARIABLE] = str(credential.path)
                command += write_identity(folder / "flower")
            else:
                del settings["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"]
            log = stack.enter_context(open(folder / "supernode.log", "ab"))
            nodes.append(subprocess.Popen(command, stdout=log, stderr=log, env=settings))
        yield


def open_some(config: Config) -> Dataset:
    """Open the preset's synthetic data with all its labels, and use some of its points."""
    # Fewer points could not carry all labels.
    points = max(POINTS[config.name], config.synthetic_labels // 4)
    data = open_dataset(config.replace(synthetic_points=points))
    train, test = (split.take(np.arange(min(len(split), POINTS[config.name]))) for split in (data.train, data.test))
    return replace(data, train=train, test=test)


def run_echo(config: Config, folder: Path, message: int, lean: bool) -> Watcher:
    """Run rounds of the no-op app with messages of this many bytes."""
    federation = create_loopback(config, open_some(config), folder)
    plan = {"rounds": config.rounds, "bytes": message, "pause": PAUSE if lean else None}
    (federation.server / "echo.json").write_text(json.dumps(plan))
    with carrying_echo(control), Watcher(federation) as watcher:
        supervise(federation, print, sites=echoing_sites(federation, lean))
    return watcher


def run_product(config: Config, folder: Path, everything: bool = False) -> tuple[Watcher, Callable[[], list[float]]]:
    """Run over Flower, then repeat the run in one process to learn the seconds of training in each round."""
    data = open_some(config)
    federation = create_loopback(config, data, folder)
    with Watcher(federation, everything) as watcher:
        supervise(federation, print, sites=running_sites(federation))

    def repeat() -> list[float]:
        if not replay_loopback(federation, data, folder / "replay"):
            raise SystemExit("the model differs from that of one process")
        records = (folder / "replay" / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line)["seconds_training"] for line in records[1:]]

    return watcher, repeat


def measure(preset: str, rounds: int, sites: int, place: Path) -> dict[str, Any]:
    """Measure the product and both no-op apps, one after the other."""
    config = Config.load(preset).replace(
        device="cpu",
        rounds=rounds,
        num_clients=sites,
        clients_per_round=sites,
        quorum=sites,
        partition="iid",
    )
    product, repeat = run_product(config, place / f"{preset}-product")
    training = repeat()
    record = json.loads((place / f"{preset}-product" / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    message = record["bytes_down"] // sites
    assert abs(record["bytes_up"] // sites - message) < 1000, "the no-op app echoes messages of one size"
    flower, lean = (
        run_echo(config, place / f"{preset}-{name}", message, lean=name == "lean") for name in ("flower", "lean")
    )
    print({"product": product.rounds(), "training": training, "flower": flower.rounds(), "lean": lean.rounds()})
    runs = {"product": product, "flower": flower, "lean": lean}
    seconds = {name: watcher.rounds() for name, watcher in runs.items()}
    middle = {name: median(values) for name, values in seconds.items()}
    model = load_size(place / f"{preset}-product")
    return {
        "sites": sites,
        "load_average": os.getloadavg(),  # of the machine, at the end: more than its cores makes seconds mean little
        "message_bytes": message,
        "model_bytes": model,
        "rounds_s": seconds,
        "training_s": training,
        "round_s": middle,
        "training_round_s": median(training),
        "overhead_s": {name: middle["product"] - median(training) - middle[name] for name in ("flower", "lean")},
        "server_peak_bytes": {name: watcher.server for name, watcher in runs.items()},
        "server_beyond_in_models": {name: (product.server - runs[name].server) / model for name in ("flower", "lean")},
    }


def load_size(folder: Path) -> int:
    """Return the bytes of the model that a run trained."""
    return int(json.loads((folder / "run" / "summary.json").read_text())["model_bytes"])


def measure_large(place: Path) -> dict[str, Any]:
    """Measure two rounds of the largest FedAvg model with one site; in the second, the model travels both ways."""
    config = Config.load("amazontitles-131k").replace(
        algorithm="fedavg",
        device="cpu",
        rounds=2,
        num_clients=1,
        clients_per_round=1,
        quorum=1,
        partition="iid",
        local_epochs=1,
        deadline=3600,
    )
    watcher, _ = run_product(config, place / "large", everything=True)
    return {
        "model_bytes": load_size(place / "large"),
        "round_s": watcher.rounds(),
        "server_peak_bytes": watcher.server,
        "total_peak_bytes": watcher.total,
        "total_parts_bytes": watcher.parts,
    }


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--presets", nargs="+", choices=FOUR_SITES, default=FOUR_SITES)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "flower_overhead.json")
    options = parser.parse_args()
    results = json.loads(options.out.read_text()) if options.out.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        if options.large:
            results["large"] = measure_large(Path(folder))
        else:
            for preset in options.presets:
                results[preset] = measure(preset, options.rounds, options.sites, Path(folder))
    if results.keys() >= set(FOUR_SITES):
        results["server_growth_in_models"] = compare_growth(*(results[preset] for preset in FOUR_SITES))
    options.out.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))


def compare_growth(small: dict[str, Any], large: dict[str, Any]) -> dict[str, float]:
    """Return by how many models the server's process grows more than a no-op's, from a small model to a large one.

    Imports of a process and the points on which it evaluates are in both sizes, and cancel.
    """
    models = large["model_bytes"] - small["model_bytes"]
    growth = {name: large["server_peak_bytes"][name] - small["server_peak_bytes"][name] for name in ("flower", "lean")}
    own = large["server_peak_bytes"]["product"] - small["server_peak_bytes"]["product"]
    return {name: (own - other) / models for name, other in growth.items()}


if __name__ == "__main__":
    main()
