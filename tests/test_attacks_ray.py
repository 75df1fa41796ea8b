"""What others on the machine or in the network can do to a Ray cluster that a run starts: nothing.

Another account is played by a process that has given up root's rights for those of nobody.
"""

import contextlib
import importlib
import ipaddress
import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from careless import careless
from fedmlh.data.division import divide
from fedmlh.data.source import open_dataset
from fedmlh.engines.population import Population
from fedmlh.federated.task import Task
from tiny import TINY

ray = pytest.importorskip("ray", reason="the extra 'ray' is not installed")
from fedmlh.engines import ray as engine  # noqa: E402

pytestmark = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="looks for sockets and files in /proc")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another account")

HERE = Path(__file__).parent
NOBODY = 65534
#: One worker, so that the cluster of two has a CPU left.
CONFIG = TINY.replace(num_clients=3, clients_per_round=1, partition="iid", rounds=1)


def populate():
    data = open_dataset(CONFIG)
    task = Task(CONFIG, data.num_features, data.num_labels)
    return Population(task, task.draw_seeds(), divide(data.train, CONFIG).shards, b"", data.labels, torch.device("cpu"))


@pytest.fixture(scope="module")
def cluster():
    """The cluster of a run, started as `fedmlh run --engine ray` does it."""
    with contextlib.ExitStack() as life:
        with careless():
            life.enter_context(engine.live_on_ray(populate(), 2))
        yield ray._private.worker._global_node
        with careless():
            life.close()


def descendants(root):
    parents = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [root]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found


def open_files(process):
    """Each descriptor of a process, as its path in /proc and what it leads to."""
    for path in Path(f"/proc/{process}/fd").iterdir():
        try:
            yield path, os.readlink(path)
        except OSError:
            continue


def listeners(root):
    """The addresses on which a process and those that it started listen, and the name of each process."""
    names = {
        target: Path(f"/proc/{process}/comm").read_text().strip()
        for process in descendants(root)
        for _, target in open_files(process)
        if target.startswith("socket:")
    }
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and (name := names.get(f"socket:[{fields[9]}]")):
                address, port = fields[1].split(":")
                words = [bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8)]
                place = ipaddress.ip_address(b"".join(words))
                found.append((getattr(place, "ipv4_mapped", None) or place, int(port, 16), name))
    return found


#: What another account's programs need is loaded before they give up their rights: Python may lie in root's own folder.
DROP = f"""
import json, os, socket, sys
import ray
from ray._raylet import GcsClient
from ray.exceptions import AuthenticationError
try:
    import grpc
except ImportError:
    pass
os.setgroups([])
os.setgid({NOBODY})
os.setuid({NOBODY})
"""


def as_nobody(code, *arguments, **variables):
    """What a program prints, as JSON, that runs as an account without any rights."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    command = [sys.executable, "-c", DROP + code, *map(str, arguments)]
    done = subprocess.run(command, cwd="/", env=environment | variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_attack_03_every_socket_of_the_cluster_is_on_loopback(cluster):
    found = listeners(os.getpid())
    names = {name for _, _, name in found}
    assert {"gcs_server", "raylet"} <= names, "the cluster was looked at"
    assert any(name.startswith("ray::") for name in names), "and so were its workers"
    assert [entry for entry in found if not entry[0].is_loopback] == []


#: The attack as it was seen: read and overwrite what the key-value store holds, the pickled class of the workers.
KEY_VALUES = """
found = {}
def attempt(name, call):
    try:
        found[name] = call()
    except AuthenticationError as error:
        found[name] = "refused"
attempt("connect", lambda: bool(GcsClient(address=sys.argv[1])))
if found["connect"] is True:
    store = GcsClient(address=sys.argv[1])
    attempt("actors", lambda: len(store.internal_kv_keys(b"ActorClass:", b"fun")))
    attempt("write", lambda: store.internal_kv_put(b"planted", b"x", True, b"fun"))
    attempt("read", lambda: store.internal_kv_get(b"planted", b"fun").decode())
print(json.dumps(found))
"""


@needs_root
def test_attack_03_another_account_neither_reads_nor_writes_the_pickled_classes(cluster):
    assert as_nobody(KEY_VALUES, cluster.gcs_address) == {"connect": "refused"}
    guess = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
    assert as_nobody(KEY_VALUES, cluster.gcs_address, **guess) == {"connect": "refused"}


#: Every method of every service, whether or not a port has it, straight over gRPC and with an empty request.
EVERY_METHOD = """
found = {}
for port in sys.argv[2].split(","):
    channel = grpc.insecure_channel(f"127.0.0.1:{port}")
    for name in sys.argv[1].split(","):
        try:
            channel.unary_unary(name)(b"", timeout=60)
            answer = "OK"
        except grpc.RpcError as error:
            answer = error.code().name
        found.setdefault(answer, []).append(name)
print(json.dumps(found))
"""
#: They say that a process lives and which services it has.
HARMLESS = {"/grpc.health.v1.Health/Check", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"}


def methods():
    """The name of every method that Ray's processes have for each other."""
    generated = importlib.import_module("ray.core.generated")
    names = {f"/ray.rpc.ObjectManagerService/{name}" for name in ("Push", "Pull", "FreeObjects")} | HARMLESS
    for path in Path(generated.__path__[0]).glob("*_pb2.py"):
        module = importlib.import_module(f"ray.core.generated.{path.stem}")
        for service in module.DESCRIPTOR.services_by_name.values():
            names |= {f"/{service.full_name}/{method.name}" for method in service.methods}
    return sorted(names)


@needs_root
def test_attack_03_no_process_of_the_cluster_answers_without_the_token(cluster):
    """Without the fix this test ends the cluster: it asks every process to do everything, exit among it."""
    pytest.importorskip("grpc", reason="the extra 'flower' is not installed")
    ports = [port for _, port, name in listeners(os.getpid()) if not name.startswith("ray::Runtime")]
    if as_nobody(KEY_VALUES, cluster.gcs_address)["connect"] != "refused":
        pytest.fail("the key-value store is open: the other methods were not tried")
    names = methods()
    found = as_nobody(EVERY_METHOD, ",".join(names), ",".join(map(str, ports)))
    assert set(found.pop("OK")) <= HARMLESS
    assert len(names) > 100
    assert set(found) == {"UNAUTHENTICATED", "UNIMPLEMENTED"}
    assert {"/ray.rpc.InternalKVGcsService/InternalKVPut", "/ray.rpc.CoreWorkerService/PushTask"} <= set(
        found["UNAUTHENTICATED"]
    )


#: What can be opened under a folder, and which sockets answer.
LOOK = """
found = []
for folder in sys.argv[1:]:
    try:
        found += [os.path.join(folder, name) for name in os.listdir(folder)]
    except PermissionError:
        continue
print(json.dumps(found))
"""


@needs_root
def test_attack_03_another_account_cannot_look_into_the_folder_of_the_cluster(cluster):
    session = Path(cluster.get_session_dir_path())
    folders = [session.parent, session, session / "logs", session / "sockets"]
    assert all(any(folder.iterdir()) for folder in folders), "there is something to find"
    assert as_nobody(LOOK, *folders) == []


def test_attack_03_the_memory_that_workers_share_is_closed_to_other_accounts(cluster):
    files = [
        (target, stat.S_IMODE(path.stat().st_mode))
        for process in descendants(os.getpid())
        for path, target in open_files(process)
        if "plasma" in target and not target.startswith("socket:")
    ]
    assert files, "the object store was looked at"
    assert [entry for entry in files if entry[1] & 0o077] == []


def wait_for(condition, process):
    while not condition():
        assert process.poll() is None, "it ended before"
        time.sleep(0.2)


def test_attack_21_sigterm_ends_a_run_on_ray_as_ctrl_c_does(tmp_path):
    command = [sys.executable, "-m", "fedmlh", "run", "demo", "--engine", "ray", "--out", str(tmp_path / "run")]
    metrics = tmp_path / "run" / "metrics.jsonl"
    with subprocess.Popen([*command, "--rounds", "500"], stderr=subprocess.PIPE, text=True) as run:
        wait_for(lambda: metrics.exists() and metrics.read_text(), run)
        family = descendants(run.pid)
        run.send_signal(signal.SIGTERM)
        said = run.communicate()[1]
    assert len(family) > 5, "the cluster was there"
    assert "SIGTERM" not in said
    assert "    @ " not in said
    assert said.splitlines()[-1] == "fedmlh: stopped; --resume goes on from the last finished round"
    assert run.returncode in (130, 143)
    assert [process for process in family if Path(f"/proc/{process}/exe").exists()] == []
    done = len(metrics.read_text().splitlines())
    subprocess.run([*command, "--rounds", str(done + 1), "--resume"], check=True, capture_output=True)
    assert len(metrics.read_text().splitlines()) == done + 1
