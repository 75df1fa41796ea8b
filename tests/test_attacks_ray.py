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
import tempfile
from pathlib import Path

import pytest
import torch

from careless import careless
from command_line import call_apart, make_command
from fedmlh import lock
from fedmlh.data.division import divide
from fedmlh.data.source import open_dataset
from fedmlh.errors import UserError
from fedmlh.federated.task import Task
from fedmlh.runs.population import Population
from tiny import TINY
from waiting import wait_for

ray = pytest.importorskip("ray", reason="the extra 'ray' is not installed")
from fedmlh.engines import ray as engine  # noqa: E402
from fedmlh.engines import ray_cluster  # noqa: E402

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
    """Yield the cluster of a run, started in the same way as by `fedmlh run --engine ray`."""
    with contextlib.ExitStack() as life:
        with careless():
            clients = life.enter_context(engine.live_on_ray(populate(), 2))
        node = ray._private.worker._global_node
        node.workers = ray.get([worker.pid.remote() for worker in clients.workers])
        yield node
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
    """Yield each descriptor of a process, as its path in /proc and what it leads to."""
    for path in Path(f"/proc/{process}/fd").iterdir():
        try:
            yield path, os.readlink(path)
        except OSError:
            continue


def listeners(root):
    """Return the addresses on which a process and its children listen, and which process does."""
    owners = {
        target: process
        for process in descendants(root)
        for _, target in open_files(process)
        if target.startswith("socket:")
    }
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and (owner := owners.get(f"socket:[{fields[9]}]")):
                address, port = fields[1].split(":")
                words = [bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8)]
                place = ipaddress.ip_address(b"".join(words))
                found.append((getattr(place, "ipv4_mapped", None) or place, int(port, 16), owner))
    return found


#: What another account's programs need is loaded before they give up their rights: Python may lie in root's own folder.
DROP = f"""
import encodings.idna, json, os, socket, sys, urllib.error, urllib.request
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
    """Return what a program prints, as JSON, when it runs as an account without any rights."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    command = [sys.executable, "-c", DROP + code, *map(str, arguments)]
    done = subprocess.run(command, cwd="/", env=environment | variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_attack_03_every_socket_of_the_cluster_is_on_loopback(cluster):
    found = listeners(os.getpid())
    servers = {cluster.all_processes[name][0].process.pid for name in ("gcs_server", "raylet")}
    owners = {owner for _, _, owner in found}
    assert servers <= owners, "the cluster was looked at"
    assert set(cluster.workers) <= owners, "and so were its workers"
    assert cluster.runtime_env_agent_port in {port for _, port, _ in found}, "and so was what installs packages"
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
    token = Path(os.environ["RAY_AUTH_TOKEN_PATH"]).read_text()
    asked = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    everything = {"connect": True, "actors": 1, "write": 1, "read": "x"}
    assert as_nobody(KEY_VALUES, cluster.gcs_address, **asked) == everything, "it is the token that counts"
    assert as_nobody(KEY_VALUES, cluster.gcs_address) == {"connect": "refused"}
    guessed = asked | {"RAY_AUTH_TOKEN": "0" * len(token)}
    assert as_nobody(KEY_VALUES, cluster.gcs_address, **guessed) == {"connect": "refused"}


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
#: The one that speaks HTTP can install packages for workers.
EVERY_PATH = """
found = []
for path in ("", "get_or_create_runtime_env", "delete_runtime_env_if_possible", "get_runtime_envs_info"):
    for data in (None, b""):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/{path}", data, timeout=60)
        except urllib.error.HTTPError as error:
            found.append(error.code)
print(json.dumps(found))
"""
#: They say that a process lives and which services it has.
HARMLESS = {"/grpc.health.v1.Health/Check", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"}


def methods():
    """Return the name of every method that Ray's processes have for each other."""
    generated = importlib.import_module("ray.core.generated")
    names = {f"/ray.rpc.ObjectManagerService/{name}" for name in ("Push", "Pull", "FreeObjects")} | HARMLESS
    for path in Path(generated.__path__[0]).glob("*_pb2.py"):
        module = importlib.import_module(f"ray.core.generated.{path.stem}")
        for service in module.DESCRIPTOR.services_by_name.values():
            names |= {f"/{service.full_name}/{method.name}" for method in service.methods}
    return sorted(names)


@needs_root
def test_attack_03_no_process_of_the_cluster_answers_without_the_token(cluster):
    """If the store is open this stops at once: it asks every process for everything, to exit as well."""
    pytest.importorskip("grpc", reason="the extra 'flower' is not installed")
    assert as_nobody(KEY_VALUES, cluster.gcs_address) == {"connect": "refused"}
    ports = {port for _, port, _ in listeners(os.getpid())}
    http = cluster.runtime_env_agent_port
    names = methods()
    found = as_nobody(EVERY_METHOD, ",".join(names), ",".join(map(str, ports - {http})))
    assert len(names) > 100
    assert set(found.pop("OK")) <= HARMLESS
    assert set(found) == {"UNAUTHENTICATED", "UNIMPLEMENTED"}
    refused = set(found["UNAUTHENTICATED"])
    assert {"/ray.rpc.InternalKVGcsService/InternalKVPut", "/ray.rpc.CoreWorkerService/PushTask"} <= refused
    assert set(as_nobody(EVERY_PATH, http)) == {401}


#: What can be read and which sockets answer.
LOOK = """
found = []
for path in sys.argv[1:]:
    try:
        if path.endswith((".sock", "raylet", "plasma_store")):
            socket.socket(socket.AF_UNIX).connect(path)
        elif os.path.isdir(path):
            os.listdir(path)
        else:
            open(path).close()
        found.append(path)
    except PermissionError:
        continue
print(json.dumps(found))
"""


@needs_root
def test_attack_03_another_account_cannot_look_into_the_folder_of_the_cluster(cluster):
    token, session = Path(os.environ["RAY_AUTH_TOKEN_PATH"]), Path(cluster.get_session_dir_path())
    logs, sockets = list((session / "logs").glob("*.log")), list((session / "sockets").iterdir())
    assert logs
    assert len(sockets) == 2
    assert session.is_relative_to(token.parent)
    assert as_nobody(LOOK, token.parent, token, session.parent, session, *logs, *sockets) == []
    assert [stat.S_IMODE(path.stat().st_mode) for path in (token.parent, token)] == [0o700, 0o600]


def test_attack_03_the_token_is_written_nowhere_else(cluster):
    token, session = Path(os.environ["RAY_AUTH_TOKEN_PATH"]).read_text(), Path(cluster.get_session_dir_path())
    assert len(bytes.fromhex(token)) == 32
    processes = descendants(os.getpid())
    assert len(processes) > 5
    assert not any(token.encode() in Path(f"/proc/{process}/cmdline").read_bytes() for process in processes)
    files = [path for path in session.rglob("*") if path.is_file()]
    assert files
    assert not any(token.encode() in path.read_bytes() for path in files)


def test_attack_03_the_memory_that_workers_share_is_closed_to_other_accounts(cluster):
    files = [
        (target, stat.S_IMODE(path.stat().st_mode))
        for process in descendants(os.getpid())
        for path, target in open_files(process)
        if "plasma" in target and not target.startswith("socket:")
    ]
    assert files, "the object store was looked at"
    assert [entry for entry in files if entry[1] & 0o077] == []


def in_own_process(code, **variables):
    """Return what a program prints that runs in its own process, which must end well."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=HERE, env=os.environ | variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


JOIN = """
import ray
from fedmlh.engines.ray_cluster import join_cluster
with join_cluster("ADDRESS"):
    print(ray.get_runtime_context().gcs_address)
"""


def test_attack_03_a_cluster_of_the_users_own_is_joined_with_the_users_own_token(cluster):
    assert os.environ["RAY_AUTH_MODE"] == "token", "the process to come inherits what a user would set"
    assert in_own_process(JOIN.replace("ADDRESS", cluster.gcs_address)) == [cluster.gcs_address]


TWICE = """
import os, ray
from fedmlh.engines.ray_cluster import start_cluster
def describe():
    mode = ray.get(ray.remote(lambda: os.environ.get("RAY_AUTH_MODE")).remote())
    token = ray._raylet.AuthenticationTokenLoader.instance().get_raw_token(ignore_auth_mode=True)
    print(mode, len(token), ray.get_runtime_context().gcs_address.startswith("127."))
before = {name: value for name, value in os.environ.items() if name.startswith("RAY_")}
for own in (True, False, True):
    if own:
        with start_cluster(1):
            describe()
    else:
        redis = os.environ.pop("RAY_REDIS_ADDRESS")
        ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        describe()
        ray.shutdown()
        os.environ.pop("RAY_USAGE_STATS_ENABLED")
        os.environ["RAY_REDIS_ADDRESS"] = redis
    assert before == {name: value for name, value in os.environ.items() if name.startswith("RAY_")}
"""


def test_attack_03_what_the_user_set_for_another_cluster_is_neither_used_nor_lost():
    """A closed cluster, then one that the user starts in the same process, then a closed one again."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("RAY_")]:
            patch.delenv(name)
        lines = in_own_process(TWICE, RAY_AUTH_TOKEN="mine", RAY_REDIS_ADDRESS="192.0.2.1:1")
    assert lines == ["token", "64", "True", "None", "4", "False", "token", "64", "True"]


def test_attack_03_folders_of_killed_runs_are_swept_and_no_others(tmp_path):
    folders = {name: tmp_path / f"fmray-{name}" for name in ("left", "held", "foreign", "linked")}
    for name in ("left", "held", "foreign"):
        (folders[name] / "r").mkdir(parents=True)
        (folders[name] / "token").write_text("x")
    (tmp_path / "other").mkdir()
    folders["linked"].symlink_to(tmp_path / "other")
    if os.geteuid() == 0:
        os.chown(folders["foreign"], NOBODY, NOBODY)
    else:
        folders.pop("foreign")
    with lock.hold(folders["held"]):
        ray_cluster._sweep(tmp_path)
        assert [name for name, folder in folders.items() if not folder.exists()] == ["left"]
        assert (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("folder", "parent"), [("/var/tmp", "/var/tmp"), (f"/var/tmp/{'x' * 40}", "/tmp"), ("relative" * 9, "/tmp")]
)
def test_attack_03_sockets_have_paths_that_are_short_enough(folder, parent, monkeypatch):
    monkeypatch.setenv("RAY_TMPDIR", folder)
    assert ray_cluster._choose_parent() == Path(parent)


@pytest.mark.parametrize(
    "change", [lambda folder: folder.chmod(0o755), lambda folder: os.chown(folder, NOBODY, NOBODY)]
)
@needs_root
def test_attack_03_a_folder_that_was_replaced_is_not_used(change, short, monkeypatch):
    @contextlib.contextmanager
    def hold(folder):
        change(folder)
        yield

    monkeypatch.setenv("RAY_TMPDIR", str(short))
    monkeypatch.setattr(ray_cluster, "hold", hold)
    with pytest.raises(UserError, match="has just replaced"), ray_cluster._make_folder():
        pass
    assert list(short.iterdir()) == []


@pytest.mark.parametrize(("place", "mode"), [("192.0.2.1", 1), ("0.0.0.0", 1), ("127.0.0.1", 0)])
def test_attack_03_a_version_of_ray_that_opens_its_clusters_is_refused(place, mode, monkeypatch):
    monkeypatch.setattr(ray._raylet, "get_authentication_mode", lambda: mode)
    with pytest.raises(UserError, match="would be open to others"):
        ray_cluster._check_closed({"node_ip_address": place})


@pytest.fixture
def short():
    """Yield a folder whose path leaves room for Ray's sockets, where a run makes its own."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t") as folder:
        yield Path(folder)


@contextlib.contextmanager
def running(short, out):
    """Start a run of the command line that would take long."""
    command = make_command("run", "demo", "--engine", "ray", "--out", out, "--rounds", 500)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment["RAY_TMPDIR"] = str(short)
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as run:
        try:
            yield run
        finally:
            run.kill()


def is_training(short, out):
    metrics = out / "metrics.jsonl"
    return metrics.exists() and metrics.read_text()


def is_starting(short, out):
    """Say whether Ray's C++ part is in this process and waits for its cluster."""
    return list(short.glob("fmray-*/r/session_latest/logs/python-core-driver-*"))


@pytest.mark.parametrize("reached", [is_starting, is_training])
def test_attack_21_sigterm_ends_a_run_on_ray_as_ctrl_c_does(reached, short, tmp_path):
    out = tmp_path / "run"
    with running(short, out) as run:
        wait_for(lambda: reached(short, out), run)
        family = descendants(run.pid)
        run.send_signal(signal.SIGTERM)
        said = run.communicate()[1]
    assert len(family) > 3, "the cluster was there"
    assert "SIGTERM" not in said
    assert "    @ " not in said
    assert said.splitlines()[-1] == "fedmlh: stopped; --resume continues from the last finished round"
    assert run.returncode in (130, 143)
    assert list(short.iterdir()) == []
    if reached is is_training:
        done = len((out / "metrics.jsonl").read_text().splitlines())
        assert call_apart("run", "demo", "--out", out, "--rounds", done + 1, "--resume").returncode == 0
        assert len((out / "metrics.jsonl").read_text().splitlines()) == done + 1


ANSWER = """
import os, signal
from fedmlh.engines.ray_cluster import start_cluster
def answer(number, frame):
    print("mine")
signal.signal(signal.SIGTERM, answer)
with start_cluster(1):
    os.kill(os.getpid(), signal.SIGTERM)
os.kill(os.getpid(), signal.SIGTERM)
"""


def test_attack_21_a_program_keeps_its_own_answer_to_sigterm():
    assert in_own_process(ANSWER) == ["mine", "mine"]


@pytest.mark.slow
def test_attack_03_a_killed_run_leaves_no_process_and_a_closed_folder(short, tmp_path):
    with running(short, tmp_path / "run") as run:
        wait_for(lambda: is_training(short, tmp_path / "run"), run)
        family = descendants(run.pid)
        run.kill()
        run.communicate()
    assert len(family) > 5
    wait_for(lambda: not any(str(short).encode() in read_environment(process) for process in family), patience=300)
    (folder,) = short.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    ray_cluster._sweep(short)
    assert list(short.iterdir()) == []


def read_environment(process):
    try:
        return Path(f"/proc/{process}/environ").read_bytes()
    except OSError:
        return b""
