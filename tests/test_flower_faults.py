"""Processes that die, stall or lie while a federation trains, and nodes that should not be let in.

Commands run as users run them; whatever happens to their processes, the run ends, and one process that is told who took
part trains the same model.
"""

import json
import os
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from fedmlh.config import Config
from fedmlh.data.source import open_dataset
from fedmlh.runs.folder import RunFolder
from fedmlh.runs.model_folder import load_bundle
from fedmlh.sites.federation import Federation
from fedmlh.sites.flower.control import Control
from fedmlh.sites.flower.loopback import create_loopback
from fedmlh.sites.flower.processes import environment, free_port, start_superlink, start_supernode, stop
from fedmlh.sites.keys import make_node_key, make_server_identity
from fedmlh.sites.site import Site
from rehearsal import Rehearsal
from waiting import wait_for, wait_for_words

pytestmark = pytest.mark.slow

CONFIG = Config(
    name="faults",
    device="cpu",
    synthetic_points=4000,
    synthetic_features=300,
    synthetic_labels=100,
    partition="iid",
    num_clients=4,
    clients_per_round=3,
    quorum=2,
    rounds=5,
    local_epochs=1,
    num_tables=2,
    num_buckets=30,
    feature_dim=100,
    hidden_sizes=(64,),
    update_codec="fp16",
    top_k=(1, 3),
    deadline=60,
    max_attempts=10,
)


@pytest.fixture
def rehearsal(tmp_path: Path) -> Rehearsal:
    return Rehearsal(tmp_path / "federation", CONFIG)


def test_a_site_that_is_killed_comes_back(rehearsal: Rehearsal) -> None:
    with rehearsal.running() as (commands, start):
        wait_for(lambda: rehearsal.rounds() >= 1, start)
        with commands.holding(start) as wait_for_next:
            site = wait_for_next().site
            commands.send(signal.SIGKILL, site, "supernode")
        refused = rehearsal.check(start)
    assert {entry["client"] for entry in refused} >= {rehearsal.federation.agreement.find_client_id(site)}


def test_a_client_s_process_that_is_killed_alone(rehearsal: Rehearsal) -> None:
    with rehearsal.running() as (commands, start):
        wait_for(lambda: rehearsal.rounds() >= 1, start)
        with commands.holding(start) as wait_for_next:
            held = wait_for_next()
            os.kill(held.process, signal.SIGKILL)
        refused = rehearsal.check(start)
    assert {entry["client"] for entry in refused} >= {rehearsal.federation.agreement.find_client_id(held.site)}


def test_a_site_that_stops_until_a_round_has_ended_without_it(rehearsal: Rehearsal) -> None:
    with rehearsal.running() as (commands, start):
        wait_for(lambda: rehearsal.rounds() >= 1, start)
        with commands.holding(start) as wait_for_next:
            site, before = wait_for_next().site, rehearsal.rounds()
            commands.send(signal.SIGSTOP, site)
        wait_for(lambda: rehearsal.rounds() > before, start)
        commands.send(signal.SIGCONT, site)
        refused = rehearsal.check(start)
    missed = {entry["client"] for entry in refused if entry["round"] == before + 1}
    assert missed >= {rehearsal.federation.agreement.find_client_id(site)}


def test_a_site_that_sends_garbage(rehearsal: Rehearsal, tmp_path: Path) -> None:
    """Its packer is replaced by one that makes updates of random bytes."""
    (tmp_path / "lies").mkdir()
    (tmp_path / "lies" / "sitecustomize.py").write_text(
        "import os\n"
        "from fedmlh.federated import messages\n"
        "honest = messages.pack\n"
        "def pack(header, payload):\n"
        "    update = isinstance(header, messages.UpdateHeader)\n"
        "    return os.urandom(5000) if update else honest(header, payload)\n"
        "messages.pack = pack\n"
    )
    with rehearsal.running("site-2", tmp_path / "lies") as (_, start):
        refused = rehearsal.check(start)
    assert "malformed" in {entry["reason"] for entry in refused if entry["client"] == 2}
    log = RunFolder(rehearsal.federation.run.path).read_participation()
    assert not any(2 in line.accepted for line in log)


@pytest.mark.parametrize("module", ["serverapp", "superlink"])
def test_a_process_of_the_server_is_killed_while_sites_work(rehearsal: Rehearsal, module: str) -> None:
    with rehearsal.running() as (commands, start):
        wait_for(lambda: rehearsal.rounds() >= 2, start)
        with commands.holding(start) as wait_for_next:
            wait_for_next()
            commands.send(signal.SIGKILL, "server", module)
        rehearsal.check(start)
    assert "resuming from there" in (rehearsal.federation.path / "start.log").read_text()


def test_the_start_command_is_killed_and_called_again(rehearsal: Rehearsal) -> None:
    with rehearsal.running() as (commands, start):
        wait_for(lambda: rehearsal.rounds() >= 2, start)
        start.kill()
        start.wait()
        rehearsal.check(commands.start())


@pytest.fixture
def open_link(tmp_path: Path) -> Iterator[tuple[Federation, Control]]:
    """Yield a federation whose SuperLink runs and has its sites registered, and nothing else."""
    config = CONFIG.replace(synthetic_points=100, num_clients=1, clients_per_round=1, quorum=1)
    federation = create_loopback(config, open_dataset(config), tmp_path / "federation")
    with open(federation.server / "superlink.log", "wb") as log:
        link = start_superlink(federation, log)
        try:
            with closing(Control(federation)) as control:
                wait_for(control.answers, link)
                control.register(federation.all_enrolments())
                yield federation, control
        finally:
            stop(link)


def try_to_join(federation: Federation, refusal: str, *arguments: str, said_in: str = "node.log") -> str:
    """Have a node of site-0's folder try to get in until a log has the words of its refusal; what the node says."""
    path = federation.path / "node.log"
    with open(path, "wb") as log:
        if arguments:
            command = ["flower-supernode", *arguments, "--port", str(free_port())]
            node = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment(federation.path / "site-0" / "flower")
            )
        else:
            node = start_supernode(Site(federation.path / "site-0"), log)
        try:
            wait_for_words(federation.path / said_in, refusal, node)
        finally:
            stop(node)
    return path.read_text()


def count_online(control: Control) -> int:
    return sum(status == "online" for _, status in control.list_nodes().values())


def test_a_registered_node_is_let_in(open_link: tuple[Federation, Control]) -> None:
    """The others would be refused by anything; this one shows that they are refused for what they are."""
    federation, control = open_link
    with open(federation.path / "join.log", "wb") as log:
        node = start_supernode(Site(federation.path / "site-0"), log)
        try:
            wait_for(lambda: count_online(control) == 1, node)
        finally:
            stop(node)


def test_an_unregistered_node_is_refused(open_link: tuple[Federation, Control]) -> None:
    federation, control = open_link
    (federation.path / "site-0" / "node.key").write_bytes(make_node_key()[0])
    said = try_to_join(federation, "No SuperNode found with the given public key", said_in="server/superlink.log")
    assert count_online(control) == 0
    assert "SuperNode ID" not in said


def test_a_node_that_trusts_another_authority_is_refused(open_link: tuple[Federation, Control]) -> None:
    federation, control = open_link
    other = make_server_identity(["127.0.0.1"], 1).authority
    (federation.path / "site-0" / "other.crt").write_bytes(other)
    key, address = federation.path / "site-0" / "node.key", federation.agreement.address
    said = try_to_join(
        federation,
        "CERTIFICATE_VERIFY_FAILED",
        *("--superlink", address, "--root-certificates", str(federation.path / "site-0" / "other.crt")),
        *("--auth-supernode-private-key", str(key)),
    )
    assert count_online(control) == 0
    assert "SuperNode ID" not in said


def test_a_plain_text_node_is_refused(open_link: tuple[Federation, Control]) -> None:
    federation, control = open_link
    refusal = "Connection attempt failed"
    said = try_to_join(federation, refusal, "--insecure", "--superlink", federation.agreement.address)
    assert count_online(control) == 0
    assert "SuperNode ID" not in said


def test_a_server_with_an_expired_certificate_is_refused(tmp_path: Path) -> None:
    config = CONFIG.replace(synthetic_points=100, num_clients=1, clients_per_round=1, quorum=1)
    federation = create_loopback(config, open_dataset(config), tmp_path / "federation")
    expired = make_server_identity(["127.0.0.1"], 0)
    for name, content in (("server.pem", expired.certificate), ("ca.crt", expired.authority)):
        (federation.server / name).write_bytes(content)
    (federation.server / "server.key").write_bytes(expired.key)
    (federation.path / "site-0" / "old.crt").write_bytes(expired.authority)
    with open(federation.server / "superlink.log", "wb") as log:
        link = start_superlink(federation, log)
        try:
            host, port = federation.agreement.address.split(":")
            wait_for_words(federation.server / "superlink.log", "Uvicorn running", link)
            trust = ssl.create_default_context(cadata=expired.authority.decode())
            with (
                socket.create_connection((host, int(port))) as plain,
                pytest.raises(ssl.SSLCertVerificationError, match="expired"),
            ):
                trust.wrap_socket(plain, server_hostname=host)
            said = try_to_join(
                federation,
                "certificate has expired",
                *("--superlink", federation.agreement.address),
                *("--root-certificates", str(federation.path / "site-0" / "old.crt")),
                *("--auth-supernode-private-key", str(federation.path / "site-0" / "node.key")),
            )
        finally:
            stop(link)
    assert "SuperNode ID" not in said


def test_the_weights_of_a_replay_are_not_trivially_equal(tmp_path: Path) -> None:
    """Another set of participants gives another model, so that the equalities above say something."""
    from fedmlh.engines.run import run

    small = CONFIG.replace(rounds=2, local_epochs=1)
    data = open_dataset(small)
    run(small, data, tmp_path / "a")
    run(small.replace(clients_per_round=2), data, tmp_path / "b")
    models = [load_bundle(tmp_path / name / "model").weights for name in "ab"]
    assert not np.array_equal(*models)
    assert json.loads((tmp_path / "a" / "participation.jsonl").read_text().splitlines()[0])["accepted"]
