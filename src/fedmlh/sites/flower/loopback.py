"""A whole federation on one machine, over TLS and with registered keys as if it were many."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from fedmlh.config import Config
from fedmlh.data.dataset import Dataset, Split
from fedmlh.data.division import divide
from fedmlh.engines.replay import read_log, replay
from fedmlh.errors import UserError
from fedmlh.evaluation.evaluate import LabelCounts
from fedmlh.planning.choices import settle
from fedmlh.runs.folder import RunFolder
from fedmlh.runs.model_folder import have_same_weights
from fedmlh.sites.consent import check_points
from fedmlh.sites.federation import Federation, ServerPoints
from fedmlh.sites.flower.processes import Tell, free_port, joined, start_supernode, stop, supervise
from fedmlh.sites.site import SitePoints, create_site, translate


def create_loopback(config: Config, dataset: Dataset, out: Path, address: str = "") -> Federation:
    """Create a federation whose sites have the points that a simulation would give to its clients."""
    config, _ = settle(config, dataset)
    division = divide(dataset.train, config)
    if len(division.shards) < config.num_clients:
        raise UserError(
            f"partition '{config.partition}' leaves {config.num_clients - len(division.shards)} of "
            f"{config.num_clients} sites without a training point: use fewer sites or another partition"
        )
    once = config.training == "one-round"
    sites = tuple(f"site-{client_id}" for client_id in range(config.num_clients))
    measured_on = Dataset(
        dataset.name,
        division.validation,
        Split(dataset.test.X, dataset.test.Y, dataset.test.excluded),
        dataset.labels,
        dataset.text,
        first_feature=dataset.first_feature,
    )
    for client_id, shard in division.shards.items():
        check_points(config, sites[client_id], len(shard))
    federation = Federation.create(
        out,
        config.replace(data=""),
        ServerPoints(measured_on, LabelCounts.of(dataset.train)),
        address=address or f"127.0.0.1:{free_port()}",
        sites=sites,
    )
    for client_id, shard in division.shards.items():
        own = (
            division.validation.take(division.held_out[client_id])
            if client_id in division.held_out
            else shard.take(np.array([], int))
        )
        points = translate(federation.agreement, SitePoints(shard, dataset.labels, own), sites[client_id])
        folder = out / sites[client_id]
        # The user who simulates sites owns their data, and agrees for all of them.
        create_site(folder, federation.agreement, sites[client_id], points, open_statistics=once)
        shutil.copyfile(folder / "enrolment.json", out / "enrolled" / f"{sites[client_id]}.json")
    federation.confirm()
    return federation


@contextmanager
def running_sites(federation: Federation) -> Iterator[dict[str, "subprocess.Popen[bytes]"]]:
    """Run the SuperNodes of all sites of a federation on this machine until the block ends."""
    with ExitStack() as stack:
        nodes: dict[str, subprocess.Popen[bytes]] = {}
        stack.callback(lambda: stop(*nodes.values()))
        for name in federation.agreement.sites:
            folder = federation.path / name
            log = stack.enter_context(open(folder / "supernode.log", "ab"))
            nodes[name] = start_supernode(stack.enter_context(joined(folder)), log)
        yield nodes


def train_loopback(federation: Federation, tell: Tell, watch: Callable[[int], None] = lambda rounds: None) -> None:
    """Train a federation of this machine from start to end."""
    supervise(federation, tell, watch, running_sites(federation))


def replay_loopback(federation: Federation, dataset: Dataset, out: Path) -> bool:
    """Repeat the run in one process from its participation log; return whether the model is the same to the bit."""
    config, log = read_log(federation.run)
    replay(config, log, dataset, out)
    return have_same_weights(federation.run.model, RunFolder(out).model)
