"""Bytes on the wire of a federation over Flower, against the bytes that its messages count.

    python benchmarks/flower_wire.py            # as root: every site has its own network namespace

Each site has an address and a link to the server of limited rate and with a delay; what the link's counters say is
compared with the lengths of the encoded messages. First all sites but one wait for the last, which shows what Flower's
polling costs per second; then a small model is trained, which shows what a round costs beside its messages, and a
larger one, whose messages are nearly all of its bytes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from fedmlh.config import Config
from fedmlh.data.source import open_dataset
from fedmlh.sites.flower.loopback import create_loopback
from fedmlh.sites.flower.processes import stop

SERVER = "10.213.255.1"
COMMON = {
    "device": "cpu",
    "synthetic_points": 600,
    "synthetic_features": 2000,
    "synthetic_labels": 400,
    "partition": "iid",
    "local_epochs": 1,
    "num_tables": 4,
    "num_buckets": 200,
    "deadline": 600,
}
MODELS = {"small": {"feature_dim": 64, "hidden_sizes": (16,)}, "large": {"feature_dim": 1000, "hidden_sizes": (256,)}}


def ip(*arguments: str) -> None:
    """Run a command of iproute2."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Network:
    """A namespace for the server and one per site, joined by shaped links; they are removed when the block ends."""

    def __init__(self, sites: int, rate: str, delay: str) -> None:
        self.prefix, self.sites, self.shape = f"fm{os.getpid() % 100000}", sites, (rate, delay)
        self.link = "not limited"

    def __enter__(self) -> "Network":
        ip("netns", "add", f"{self.prefix}s")
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _build(self) -> None:
        server = f"{self.prefix}s"
        ip("-n", server, "link", "set", "lo", "up")
        ip("-n", server, "addr", "add", f"{SERVER}/32", "dev", "lo")
        for number in range(self.sites):
            site, here, there = f"{self.prefix}{number}", f"{self.prefix}v{number}", "eth0"
            ip("netns", "add", site)
            ip("link", "add", here, "netns", server, "type", "veth", "peer", "name", there, "netns", site)
            for space, device, address in ((server, here, 1), (site, there, 2)):
                ip("-n", space, "addr", "add", f"10.213.{number}.{address}/24", "dev", device)
                ip("-n", space, "link", "set", device, "up")
                self._shape(space, device)
            ip("-n", site, "link", "set", "lo", "up")
            ip("-n", site, "route", "add", "default", "via", f"10.213.{number}.1")

    def _shape(self, space: str, device: str) -> None:
        """Limit the rate, and delay packets where the kernel can."""
        rate, delay = self.shape
        both, only = ["netem", "rate", rate, "delay", delay], ["tbf", "rate", rate, "burst", "64kb", "latency", "400ms"]
        for shape, name in ((both, f"{rate}, {delay} each way"), (only, rate)):
            command = ["ip", "netns", "exec", space, "tc", "qdisc", "add", "dev", device, "root", *shape]
            if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                self.link = name
                return

    def __exit__(self, *reason: object) -> None:
        for name in ["s", *map(str, range(self.sites))]:
            subprocess.run(["ip", "netns", "del", f"{self.prefix}{name}"], capture_output=True, check=False)

    def call(self, where: str, *arguments: object) -> list[str]:
        """Run a command of fedmlh in a namespace."""
        command = [sys.executable, "-m", "fedmlh", *map(str, arguments)]
        return ["ip", "netns", "exec", f"{self.prefix}{where}", *command]

    def count(self, number: int) -> int:
        """Return all bytes that have passed a site's link, both ways."""
        show = ["ip", "-n", f"{self.prefix}{number}", "-s", "-j", "link", "show", "eth0"]
        stats = json.loads(subprocess.run(show, check=True, capture_output=True).stdout)[0]["stats64"]
        return int(stats["rx"]["bytes"] + stats["tx"]["bytes"])


def measure(network: Network, model: str, rounds: int, idle: float, folder: Path) -> dict[str, float]:
    """Train one model; return the bytes counted, the bytes on the wire, and what waiting costs."""
    sites = network.sites
    settings = COMMON | MODELS[model] | {"num_clients": sites, "clients_per_round": sites, "quorum": sites}
    config = Config(name=model, rounds=rounds, **settings)  # type: ignore[arg-type]
    federation = create_loopback(config, open_dataset(config), folder, f"{SERVER}:9092")
    with ExitStack() as stack:

        def start(where: str, *arguments: object) -> "subprocess.Popen[bytes]":
            log = stack.enter_context(open(folder / f"{where}.log", "wb"))
            process = subprocess.Popen(network.call(where, *arguments), stdout=log, stderr=log)
            stack.callback(stop, process, seconds=30)
            return process

        server = start("s", "federation", "start", folder, "--min-sites", sites - 1)
        for number in range(sites - 1):
            start(str(number), "federation", "join", folder / f"site-{number}")
        # Until all connected sites have answered the first broadcast, which holds no model.
        while not all((folder / f"site-{n}" / "memory").exists() or _has_sent(folder, n) for n in range(sites - 1)):
            time.sleep(1)
        time.sleep(5)
        before = [network.count(number) for number in range(sites - 1)]
        time.sleep(idle)
        waited = [network.count(number) - begin for number, begin in enumerate(before)]
        start(str(sites - 1), "federation", "join", folder / f"site-{sites - 1}")
        while federation.run.count_rounds() < 1:
            time.sleep(0.2)
        began, first = time.monotonic(), [network.count(number) for number in range(sites)]
        while federation.run.count_rounds() < rounds and server.poll() is None:
            time.sleep(0.2)
        seconds = time.monotonic() - began
        wire = sum(network.count(number) - begin for number, begin in enumerate(first))
    records = [json.loads(line) for line in (federation.run.path / "metrics.jsonl").read_text().splitlines()]
    counted = sum(record["bytes_up"] + record["bytes_down"] for record in records[1:])
    return {
        "counted_bytes": counted,
        "wire_bytes": wire,
        "rounds": rounds - 1,
        "seconds": seconds,
        "bytes_a_second_of_waiting_and_site": sum(waited) / (sites - 1) / idle,
    }


def _has_sent(folder: Path, number: int) -> bool:
    log = folder / f"site-{number}" / "supernode.log"
    return log.exists() and b"Sent successfully" in log.read_bytes()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--rate", default="100mbit")
    parser.add_argument("--delay", default="10ms")
    parser.add_argument("--idle", type=float, default=30.0)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "flower_wire.json")
    options = parser.parse_args()
    results = {}
    with tempfile.TemporaryDirectory() as folder, Network(options.sites, options.rate, options.delay) as network:
        for model in MODELS:
            results[model] = measure(network, model, options.rounds, options.idle, Path(folder) / model)
    small, large = results["small"], results["large"]
    waiting = max(result["bytes_a_second_of_waiting_and_site"] for result in results.values())

    def rest(result: dict[str, float]) -> float:
        return result["wire_bytes"] - waiting * options.sites * result["seconds"]

    constant = (rest(small) - small["counted_bytes"]) / (small["rounds"] * options.sites)
    over = (rest(large) - constant * options.sites * large["rounds"]) / large["counted_bytes"] - 1
    results["verdict"] = {
        "sites": options.sites,
        "link": network.link,
        "bytes_a_second_of_waiting_and_site": waiting,
        "bytes_a_round_and_site": constant,
        "over_counted": over,
    }
    options.out.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results["verdict"], indent=1))


if __name__ == "__main__":
    main()
