"""Attacks on a federation of real sites: from other accounts of the machine, from sites, and by killing processes."""

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")
if not Path("/proc/self/environ").exists():
    pytest.skip("what other accounts see of processes, and which are left, is read in /proc", allow_module_level=True)

import httpx
import torch
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message as Proto
from flwr.proto.message_pb2 import Metadata, ObjectTree, PullObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata
from starlette.exceptions import HTTPException

from command_line import call
from fedmlh.cli.federation import _gather as gather
from fedmlh.config import Config
from fedmlh.data.source import open_dataset
from fedmlh.errors import UserError
from fedmlh.federated.messages import Reason, Rejected
from fedmlh.federated.server import Server
from fedmlh.lock import hold
from fedmlh.sites.federation import Federation
from fedmlh.sites.flower import bounded, waiting
from fedmlh.sites.flower.bounded import BoundedGrid, collect
from fedmlh.sites.flower.control import Control
from fedmlh.sites.flower.credential import HEADER, Credential
from fedmlh.sites.flower.envelope import unwrap
from fedmlh.sites.flower.guard import FOR_NODES, Guard
from fedmlh.sites.flower.limits import Limits, check_reply
from fedmlh.sites.flower.loopback import create_loopback, replay_loopback, train_loopback
from fedmlh.sites.flower.processes import joined, largest_reply
from fedmlh.sites.flower.supernode import guard_interface
from fedmlh.sites.flower.waiting import Patience, choose_sites, wait_for_sites
from fedmlh.sites.keys import make_node_key
from fedmlh.sites.site import Site
from lying_site import CHUNK, LyingSite, Reply
from once import BASE as ONCE
from rehearsal import Commands, running
from waiting import PATIENCE, wait_for, wait_for_words

HERE = Path(__file__).parent
SMALL = Config(
    name="attacked",
    device="cpu",
    synthetic_points=400,
    synthetic_features=60,
    synthetic_labels=40,
    partition="iid",
    num_clients=2,
    clients_per_round=2,
    quorum=1,
    rounds=2,
    local_epochs=1,
    num_tables=2,
    num_buckets=10,
    feature_dim=16,
    hidden_sizes=(8,),
    top_k=(1, 3),
    deadline=60,
    max_attempts=10,
)


@pytest.fixture
def open_path() -> Iterator[Path]:
    """Yield a folder that every account can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


def intrude(told: dict[str, Any]) -> dict[str, Any]:
    """Return what the script intruder.py finds as another account."""
    command = [sys.executable, HERE / "intruder.py"]
    done = subprocess.run(command, input=json.dumps(told), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = dict(json.loads(done.stdout))
    assert found["account"] == 65534
    return found


def read_credential(folder: Path) -> dict[str, str]:
    return {HEADER: Credential(folder / "credential").read()}


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another account")
def test_attack_01_02_22_23_another_account_gets_nothing(open_path: Path) -> None:
    """Everything but `public/` and the addresses has to be found; with the credential the same calls are answered."""
    config = SMALL.replace(num_clients=1, clients_per_round=1)
    federation = create_loopback(config, open_dataset(config), open_path / "federation")
    with running(federation) as commands, ExitStack() as stack:
        start = commands.start()
        commands.join("site-0")
        stack.enter_context(commands.holding(start))()
        (words,) = commands.signed("site-0", "supernode").values()
        port = words[words.index("--port") + 1]
        with sqlite3.connect(f"file:{federation.server / 'superlink.db'}?mode=ro", uri=True) as database:
            ((token,),) = database.execute("select token from task where token is not null").fetchall()
        with closing(Control(federation)) as control:
            (run,) = control.runs()
        scheme, authority = ("https", "") if "--ssl-certfile" in words else ("http", "")
        told: dict[str, Any] = {
            "server": {
                "base": f"https://{federation.agreement.address}",
                "authority": federation.agreement.authority.decode(),
                "token": token,
                "credential": {},
            },
            "site": {"base": f"{scheme}://127.0.0.1:{port}", "authority": authority, "token": "x", "credential": {}},
            "folders": [str(federation.path)],
            "key": public_bytes().hex(),
            "run": run,
            "secrets": [token, "--token"],
        }
        found = intrude(told)
        assert found["secrets"] == []
        assert found["server"] == []
        assert found["site"] == []
        assert found["readable"] == []
        with closing(Control(federation)) as control:
            assert list(control.runs()) == [run]
            assert len(control.list_nodes()) == 1
        for name, folder in (("server", federation.server), ("site", federation.path / "site-0")):
            told[name]["credential"] = read_credential(folder)
            told["secrets"] += told[name]["credential"].values()
        logs = b"".join(path.read_bytes() for path in federation.path.rglob("*.log"))
        assert not [secret for secret in told["secrets"] if secret.encode() in logs]
        found = intrude(told)
        assert found["secrets"] == []
        assert len(found["server"]) == 10
        assert len(found["site"]) == 4


def public_bytes() -> bytes:
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    return bytes(public_key_to_bytes(load_ssh_public_key(make_node_key()[1])))


def ask(guard: Guard, path: str, *, method: str = "POST", body: Iterable[bytes] = (), **headers: str) -> int:
    """Return the status with which a guarded interface answers; what it takes in goes to `guard.app.taken`."""
    pieces, statuses = list(body) or [b""], []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    async def send(event: Any) -> None:
        statuses.extend([event["status"]] if "status" in event else [])

    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    asyncio.run(guard({"type": "http", "method": method, "path": path, "headers": raw}, receive, send))
    (status,) = statuses
    return int(status)


class Inner:
    """What is guarded: it reads a request's body as Flower does, whole."""

    def __init__(self) -> None:
        self.taken = b""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        from starlette.requests import Request

        self.taken = await Request(scope, receive).body()
        await send({"type": "http.response.start", "status": 200, "headers": []})


def make_guard(**settings: Any) -> Guard:
    return Guard(Inner(), **{"word": "secret", "most_bytes": 100, "open_paths": FOR_NODES} | settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/v1/fleet/pull-messages", {}, 200),
        ("/v1/control/start-run", {}, 403),
        ("/v1/control/start-run", {"fedmlh_credential": "secret"}, 200),
        ("/v1/control/start-run", {"fedmlh_credential": "secre"}, 403),
        ("/v1/control/start-run", {"fedmlh_credential": "Secret"}, 403),
        ("/v1/control/start-run", {"fedmlh_credential": ""}, 403),
        ("/v1/runtime/acquire-task", {}, 403),
        ("/v1/runtime/acquire-task", {"flwr_task_token": "secret"}, 403),
        ("/docs", {}, 403),
        ("/openapi.json", {}, 403),
        ("/health", {}, 403),
        ("/", {}, 403),
        ("", {}, 403),
        ("/v1/fleet/../control/start-run", {}, 403),
        ("/v1/fleet/%2e%2e/control/start-run", {}, 403),
        ("/v1/fleet/", {}, 403),
        ("/v1/fleet", {}, 403),
        ("//v1/fleet/pull-messages", {}, 403),
        ("/v1/fleet/pull-messages/", {}, 403),
        ("/V1/FLEET/PULL-MESSAGES", {}, 403),
        ("/v1/fleet/register-node", {}, 403),
        ("/v1/control/v1/fleet/pull-messages", {}, 403),
    ],
)
def test_attack_02_only_the_paths_of_nodes_answer_without_the_credential(
    path: str, headers: dict[str, str], status: int
) -> None:
    assert ask(make_guard(), path, **headers) == status


def test_attack_02_two_credentials_other_methods_and_web_sockets_are_refused() -> None:
    assert ask(make_guard(), "/v1/fleet/pull-messages", method="GET") == 403
    both = {"fedmlh_credential": "secret", "fedmlh-credential": "other"}
    assert ask(make_guard(), "/v1/control/start-run", **both) == 403
    seen: list[Any] = []

    async def send(event: Any) -> None:
        seen.append(event)

    scope = {"type": "websocket", "path": "/v1/fleet/pull-messages", "headers": []}
    asyncio.run(make_guard()(scope, None, send))  # type: ignore[arg-type]
    assert [event["type"] for event in seen] == ["websocket.close"]


def test_attack_02_every_path_that_flower_serves_is_closed_or_a_node_s() -> None:
    """If a later Flower serves nodes elsewhere, this says so before a site does."""
    from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

    fleet = {path for method, path in PROTOBUF_REQUEST_TYPES if path.startswith("/v1/fleet/")}
    assert fleet - FOR_NODES == {"/v1/fleet/register-node", "/v1/fleet/unregister-node"}
    assert fleet >= FOR_NODES


def test_attack_23_a_site_s_interface_hands_out_no_task_without_the_credential() -> None:
    """The app as Flower makes it for a SuperNode, asked over HTTP."""
    from flwr.supernode.main import create_app
    from flwr.supernode.nodestate import NodeStateFactory

    states = NodeStateFactory(objectstore_factory=ObjectStoreFactory())
    app = guard_interface(create_app, "secret")(state_factory=states)
    headers = dict(RuntimeVersionMetadata.from_local_component("flwr-clientapp").as_metadata())
    headers["content-type"] = "application/protobuf"
    known = headers | {"fedmlh-credential": "secret"}

    async def ask_all() -> dict[str, int]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://site") as client:
            posts = ["/v1/runtime/acquire-task", "/v1/runtime/pull-task-input", "/v1/runtime/responses"]
            answers = {path: await client.post(path, content=b"", headers=headers) for path in posts}
            answers |= {path: await client.get(path) for path in ("/docs", "/openapi.json", "/health")}
            answers["known"] = await client.post(posts[0], content=b"", headers=known)
            return {path: answer.status_code for path, answer in answers.items()}

    statuses = asyncio.run(ask_all())
    assert statuses.pop("known") == 200
    assert set(statuses.values()) == {403}


def test_attack_01_the_credential_is_new_each_time_and_for_its_owner_only(tmp_path: Path) -> None:
    credential = Credential(tmp_path / "credential")
    words = []
    for _ in range(2):
        credential.renew()
        words.append(credential.read())
        assert credential.path.stat().st_mode & 0o777 == 0o600
    assert words[0] != words[1]
    assert min(map(len, words)) >= 64


@pytest.mark.parametrize("path", ["/v1/fleet/push-object", "/v1/control/start-run"])
def test_attack_07_a_request_is_refused_while_it_comes_in(path: str) -> None:
    known = {"fedmlh_credential": "secret"}
    guard = make_guard()
    assert ask(guard, path, body=[b"x" * 100], **known) == 200
    assert guard.app.taken == b"x" * 100  # type: ignore[attr-defined]
    for body, headers in (
        ([b"x" * 101], {"content_length": "101"}),
        ([b"x" * 60, b"x" * 60], {}),
        ([b"x" * 60, b"x" * 60], {"content_length": "5"}),
        ([b"x"], {"content_length": "-1"}),
        ([b"x"], {"content_length": "9" * 5000}),
    ):
        guard = make_guard()
        assert ask(guard, path, body=body, **known, **headers) == 413
        assert guard.app.taken == b""  # type: ignore[attr-defined]


LIMITS = Limits(12 * 2**20)


def make_reply(**settings: Any) -> Reply:
    return Reply(Metadata(run_id=1, reply_to_message_id="question", message_type="train"), **settings)


def take_apart(reply: Reply, missing: str = "") -> bytes:
    """Return what the server's app makes of a reply."""
    contents = collect(reply.root, lambda name: None if name == missing else reply.content(name), LIMITS)
    record = inflate_object_from_contents(reply.root, contents).content["fedmlh"]
    return bytes(record["message"].data)


def test_attack_07_an_honest_reply_comes_whole() -> None:
    reply = make_reply(blocks=[b"a", b"b"], shape=[2 * CHUNK])
    assert take_apart(reply) == b"a" * CHUNK + b"b" * CHUNK


@pytest.mark.parametrize("shape", [[300 * CHUNK], [CHUNK], [-1]])
def test_attack_07_equal_blocks_are_refused_before_they_are_laid_out(shape: list[int]) -> None:
    """1.5 GB of one chunk on the wire, with a head that says so or lies about it."""
    reply = make_reply(blocks=[b"0"], repeats=300, shape=shape)
    tracemalloc.start()
    try:
        with pytest.raises(Rejected, match="too large"):
            take_apart(reply)
        assert tracemalloc.get_traced_memory()[1] < 8 * CHUNK
    finally:
        tracemalloc.stop()


def test_attack_07_a_few_equal_blocks_count_as_what_they_come_to() -> None:
    with pytest.raises(Rejected, match="too large"):
        take_apart(make_reply(blocks=[b"0"], repeats=3, shape=[CHUNK]))


def test_attack_07_many_objects_or_large_ones_are_refused() -> None:
    with pytest.raises(Rejected, match="too large"):
        take_apart(make_reply(blocks=[b"%d" % number for number in range(9)], shape=[1], chunk=1))
    with pytest.raises(Rejected, match="an object of"):
        take_apart(make_reply(blocks=[b"0"], shape=[CHUNK], chunk=2 * CHUNK))


def test_attack_07_a_reply_that_is_not_there_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its last piece it is asked for again later; after it, only for a moment."""
    monkeypatch.setattr(bounded, "_REST", 0.0)
    reply = make_reply(blocks=[b"a"], shape=[CHUNK])
    with pytest.raises(bounded.Unfinished):
        take_apart(reply, missing=reply.root)
    with pytest.raises(Rejected, match="did not come whole"):
        take_apart(reply, missing=next(iter(reply.chunks)))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no head",
        b"Message  3\0xyz",
        b"Array x 2\0{}",
        b'Array  14\0{"shape": [1]}',
        # A careless product of the shape would be a list of as many items.
        b'Array  1\0{"dtype": "", "shape": [[0], 10000000000], "stype": "", "arraychunk_ids": []}',
        b'Array  1\0{"dtype": "", "shape": [[0]], "stype": "", "arraychunk_ids": []}',
        b'Array  1\0{"dtype": "", "shape": [1], "stype": "", "arraychunk_ids": [0]}',
        b"Nothing  1\0x",
        b"\xff  1\0x",
    ],
)
def test_attack_07_whatever_cannot_be_taken_apart_is_refused_as_malformed(content: bytes) -> None:
    grid = object.__new__(BoundedGrid)
    confirmed: list[str] = []

    class Client:
        def PullMessages(self, request: Any) -> Any:  # noqa: N802
            proto = Proto(metadata=Metadata(run_id=1, message_id="root", reply_to_message_id="question"))
            return PullAppMessagesResponse(messages_list=[proto], message_object_trees=[ObjectTree(object_id="root")])

        def PullObject(self, request: Any) -> Any:  # noqa: N802
            return PullObjectResponse(object_found=True, object_available=True, object_content=content)

        def ConfirmMessageReceived(self, request: Any) -> None:  # noqa: N802
            confirmed.append(request.message_object_id)

    grid._limits, grid._coming, grid._client, grid.node = LIMITS, {}, Client(), Node(node_id=1)
    grid._run = Run.create_empty(1)
    (message,) = grid.pull_messages(["question"])
    refusal = unwrap(message)
    assert isinstance(refusal, Rejected)
    assert refusal.reason == Reason.MALFORMED
    assert confirmed == ["root"]
    assert grid._coming == {}


def test_attack_07_the_superlink_takes_one_reply_of_the_node_itself() -> None:
    """Nothing that was not asked for, nothing under another's name, no more pieces than a reply can have."""
    reply = make_reply(blocks=[b"a", b"b"], shape=[1], chunk=1)

    def check(messages: int = 1, tree: Any = reply.tree, content: int = 0, **changes: Any) -> int:
        about = {"run_id": 1, "src_node_id": 7, "reply_to_message_id": "question"} | changes
        proto = Proto(metadata=Metadata(**about))
        proto.metadata.message_type = "x" * content
        request = PushMessagesRequest(
            node=Node(node_id=7), messages_list=[proto] * messages, message_object_trees=[tree]
        )
        try:
            check_reply(request, LIMITS)
        except HTTPException as refusal:
            return refusal.status_code
        return 200

    assert check() == 200
    assert check(messages=2) == 400
    assert check(messages=0) == 400
    assert check(src_node_id=8) == 403
    assert check(reply_to_message_id="") == 403
    assert check(content=100_000) == 413
    assert check(tree=make_reply(blocks=[b"%d" % n for n in range(9)], shape=[1], chunk=1).tree) == 413


def test_attack_07_limits_follow_from_the_federation_s_own_messages(tmp_path: Path) -> None:
    federation = create_loopback(SMALL, open_dataset(SMALL), tmp_path / "federation")
    task = federation.agreement.task
    server = Server(task, {0: 1000, 1: 1000}, torch.device("cpu"))
    update = Site(federation.path / "site-0").answer(server.broadcast(server.begin(), 0, 0))
    assert len(update) < largest_reply(task) < len(update) + 2**18
    assert Limits(largest_reply(task)).objects == 5


@pytest.mark.slow
def test_updates_of_several_chunks_come_whole(tmp_path: Path) -> None:
    """Within the limits that refuse larger ones: the same bits as in one process."""
    config = SMALL.replace(synthetic_features=2000, feature_dim=2000, hidden_sizes=(500,), quorum=2)
    data = open_dataset(config)
    federation = create_loopback(config, data, tmp_path / "federation")
    assert largest_reply(federation.agreement.task) > CHUNK
    train_loopback(federation, print)
    assert replay_loopback(federation, data, tmp_path / "replay")
    assert not any(attempt.refused for attempt in federation.run.read_participation())


def peak(pid: int) -> int:
    """Return the most memory that a process has had, in bytes."""
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


@pytest.mark.slow
@pytest.mark.parametrize("blocks", ["equal", "random"])
def test_attack_07_a_very_large_reply_costs_the_server_nothing(tmp_path: Path, blocks: str) -> None:
    """1.5 GB from one of two sites: the other's updates count in every round."""
    config = SMALL.replace(deadline=30)
    federation = create_loopback(config, open_dataset(config), tmp_path / "federation")
    with running(federation) as commands:
        start = commands.start("--min-sites", 1)
        wait_for((federation.server / "nodes.json").exists, start)
        liar = commands.stack.enter_context(closing(LyingSite(federation, "site-1")))
        commands.join("site-0")
        about = liar.receive()
        (link,), (app,) = (commands.signed("server", module) for module in ("superlink", "serverapp"))
        before = {process: peak(process) for process in (link, app)}
        if blocks == "equal":
            # Chunks that an honest update of this small model could have, so that the SuperLink lets them pass.
            liar.send(Reply(about, [b"0"], repeats=12_000, shape=[12_000 * 2**17], chunk=2**17))
        else:
            reply = Reply(about, [number.to_bytes(64) for number in range(300)], shape=[300 * CHUNK])
            large = Reply(about, [b"1"], chunk=50 * CHUNK)
            with pytest.raises(httpx.HTTPStatusError, match="413"):
                liar.send(reply)
            with pytest.raises(httpx.HTTPStatusError, match="413"):
                liar.push(large, next(iter(large.chunks)), "")
        # Written after the metrics of each round.
        wait_for_words(federation.run.path / "participation.jsonl", '"accepted": [0]', start)
        growth = {process: peak(process) - before[process] for process in before}
        model = 4 * federation.agreement.task.stack.num_parameters
        assert growth[app] < 3 * model + 100 * 2**20
        assert growth[link] < 2 * model + 100 * 2**20
        log = federation.run.read_participation()
        (reason,) = [entry.reason for entry in log[0].refused if entry.client == 1]
        assert reason == (Reason.TOO_LARGE if blocks == "equal" else Reason.LATE)
        assert next(list(attempt.accepted) for attempt in log if attempt.accepted) == [0]


def find_processes(word: str) -> list[int]:
    """Find processes with a word in their command or environment, whoever began them."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                command = (entry / "cmdline").read_bytes()
                if command and word.encode() in command + (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


#: A process that starts another, both as the product starts its own.
PARENT = """
import signal, subprocess, sys
from fedmlh.sites.flower.child import make_command
def main():
    depth = int(sys.argv[1])
    if depth:
        subprocess.Popen(make_command("parent_of_many", str(depth - 1), sys.argv[2]))
    print(depth, flush=True)
    signal.pause()
"""


def test_attack_08_all_descendants_end_with_a_process_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "parent_of_many.py").write_text(PARENT)
    settings = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    code = "import sys, parent_of_many; sys.argv = ['', '3', sys.argv[1]]; parent_of_many.main()"
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=settings) as process:
        assert process.stdout is not None
        assert sorted(int(process.stdout.readline()) for _ in range(4)) == [0, 1, 2, 3]
        assert len(find_processes(str(tmp_path))) == 4
        process.kill()
    try:
        wait_for(lambda: not find_processes(str(tmp_path)), patience=10)
    finally:
        for left in find_processes(str(tmp_path)):
            os.kill(left, signal.SIGKILL)


def test_attack_08_a_child_whose_parent_is_gone_already_does_not_begin() -> None:
    command = [sys.executable, "-m", "fedmlh.sites.flower.child", "1", "no_such_module"]
    assert subprocess.run(command, capture_output=True).returncode == 1
    command[3] = str(os.getpid())
    assert b"no_such_module" in subprocess.run(command, capture_output=True).stderr


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return create_loopback(SMALL, open_dataset(SMALL), tmp_path / "federation")


def test_attack_08_a_second_join_says_who_has_joined(
    federation: Federation, capsys: pytest.CaptureFixture[str]
) -> None:
    with joined(federation.path / "site-1"):
        assert call("federation", "join", federation.path / "site-1") == 2
        said = capsys.readouterr().err
        assert f"site site-1 is already joined by process {os.getpid()}" in said.replace("\n", " ")


def test_attack_08_a_second_start_says_who_trains(federation: Federation, capsys: pytest.CaptureFixture[str]) -> None:
    with hold(federation.path):
        assert call("federation", "start", federation.path) == 2
        assert f"in use by process {os.getpid()}" in capsys.readouterr().err.replace("\n", " ")


def test_attack_11_keys_compare_as_keys(federation: Federation) -> None:
    """A comment is no part of a key; a key of another kind is refused with the site and the file."""
    path = federation.path / "enrolled" / "site-1.json"
    handed_in = json.loads(path.read_text())
    other = json.loads((federation.path / "enrolled" / "site-0.json").read_text())["public_key"]

    def enrol(key: object) -> str:
        path.write_text(json.dumps(handed_in | {"public_key": key}))
        with pytest.raises(UserError) as refusal:
            federation.enrolments()
        return str(refusal.value)

    def write(key: Any) -> str:
        return str(key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode())

    assert "site site-1 has the key of site site-0" in enrol(f"{other} somebody@somewhere")
    for key in (
        write(ed25519.Ed25519PrivateKey.generate().public_key()),
        write(ec.generate_private_key(ec.SECP256R1()).public_key()),
        write(rsa.generate_private_key(65537, 2048).public_key()),
    ):
        sentence = enrol(key)
        assert str(path) in sentence
        assert "site-1 is not of the kind" in sentence
    for key in ("", "ssh-ed25519", "ssh-ed25519 AAAA", "x" * 2000, f"{other}\n{other}"):
        sentence = enrol(key)
        assert str(path) in sentence
        assert "site-1 cannot be read" in sentence
    own = handed_in["public_key"]
    path.write_text(json.dumps(handed_in | {"public_key": f"{own} a comment"}))
    assert federation.enrolments()[1].public_key == own


def modes(folder: Path, *but: str) -> set[int]:
    """Return what other accounts may do with anything in a folder."""
    found = [path for path in folder.rglob("*") if not set(but) & set(path.relative_to(folder).parts)]
    assert found
    return {path.lstat().st_mode & 0o077 for path in (folder, *found)}


def test_attack_22_a_federation_s_files_are_its_owner_s(federation: Federation) -> None:
    assert modes(federation.path, "public", "enrolled") == {0}  # what the operator puts into it is closed by `start`
    assert modes(federation.path / "site-0") == {0}


def test_attack_22_folders_of_before_are_closed(federation: Federation) -> None:
    federation.run.path.mkdir()
    (federation.run.path / "model").write_bytes(b"weights")
    elsewhere = federation.path.parent / "elsewhere"
    elsewhere.write_bytes(b"not ours")
    elsewhere.chmod(0o644)
    (federation.server / "link").symlink_to(elsewhere)
    for path in (federation.path, *federation.path.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755)
    federation.close()
    own = [federation.server, federation.path / "enrolled", federation.run.path]
    assert federation.path.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o077 for folder in own for path in folder.rglob("*") if not path.is_symlink()} == {0}
    assert elsewhere.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize(
    ("config", "why"),
    [(SMALL.replace(weighting="examples"), "weighting is 'examples'"), (ONCE, "in one round a site weighs as much as")],
)
def test_attack_05_numbers_that_weigh_are_confirmed_once(
    config: Config, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    federation = create_loopback(config, open_dataset(config), tmp_path / "federation")
    federation.check_confirmed(federation.enrolments())  # a rehearsal's are its own
    (federation.server / "confirmed.json").unlink()
    examples = federation.enrolments()[0].examples
    assert call("federation", "start", federation.path) == 2
    said = capsys.readouterr().err.replace("\n", " ")
    assert why in said
    assert f"site-0 {examples:,}, site-1 " in said
    assert "federation confirm" in said
    assert call("federation", "confirm", federation.path) == 0
    assert f"{examples:,}" in capsys.readouterr().out
    assert (federation.server / "confirmed.json").stat().st_mode & 0o777 == 0o600
    federation.check_confirmed(federation.enrolments())
    path = federation.path / "enrolled" / "site-0.json"
    handed_in = json.loads(path.read_text())
    for change in ({"examples": 2**31 - 1}, {"public_key": make_node_key()[1].decode()}):
        path.write_text(json.dumps(handed_in | change))
        with pytest.raises(UserError, match="claims"):
            federation.check_confirmed(federation.enrolments())
    uniform = create_loopback(SMALL, open_dataset(SMALL), tmp_path / "uniform")
    (uniform.server / "confirmed.json").unlink()
    uniform.check_confirmed(uniform.enrolments())


class FakeControl:
    """A SuperLink at which sites come one after the other."""

    def __init__(self, *turns: set[int]) -> None:
        self.turns = list(turns)

    def statuses(self, enrolments: dict[int, Any]) -> dict[int, str]:
        if not self.turns:
            raise httpx.ConnectError("gone")
        online = self.turns.pop(0) if len(self.turns) > 1 else self.turns[0]
        return {number: "online" if number in online else "offline" for number in enrolments}


def wait(federation: Federation, control: FakeControl, patience: Patience) -> list[str]:
    said: list[str] = []
    enrolments = choose_sites(federation, patience)
    assert wait_for_sites(federation, control, enrolments, patience, said.append)  # type: ignore[arg-type]
    return said


def test_start_says_who_is_missing_until_all_are_there(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "PAUSE", 0.0)
    assert wait(federation, FakeControl(set(), set(), {1}, {0, 1}), Patience()) == [
        "waits until 2 sites are connected; missing: site-0 (not connected), site-1 (not connected)",
        "waits until 2 sites are connected; missing: site-0 (not connected)",
    ]
    assert wait(federation, FakeControl({1}), Patience(1)) == [
        "begins with 1 of 2 sites; missing: site-0 (not connected)"
    ]
    said = wait(federation, FakeControl(set()), Patience(minutes=0.0))
    assert said[-1].startswith("begins with 0 of 2 sites")
    gone: Any = FakeControl()
    assert not wait_for_sites(federation, gone, federation.enrolments(), Patience(), said.append)


def test_start_continues_without_a_site_that_has_not_enrolled(federation: Federation) -> None:
    (federation.path / "enrolled" / "site-0.json").unlink()
    with pytest.raises(UserError, match="not enrolled yet: site-0"):
        choose_sites(federation, Patience())
    with pytest.raises(UserError, match="only 1 sites have enrolled, --min-sites wants 2; not enrolled yet: site-0"):
        choose_sites(federation, Patience(2))
    with pytest.raises(UserError, match="--min-sites is 3: this federation has 2 sites"):
        choose_sites(federation, Patience(3))
    assert list(choose_sites(federation, Patience(1))) == [1]
    assert list(choose_sites(federation, Patience(minutes=5))) == [1]
    (federation.path / "enrolled" / "site-1.json").unlink()
    with pytest.raises(UserError, match=r"only 0 sites have enrolled, a round needs 1 \(quorum\)"):
        choose_sites(federation, Patience(minutes=5))


def test_start_names_a_site_that_has_not_enrolled(federation: Federation) -> None:
    (federation.path / "enrolled" / "site-0.json").unlink()
    assert wait(federation, FakeControl({1}), Patience(1)) == [
        "begins with 1 of 2 sites; missing: site-0 (not enrolled)"
    ]


@pytest.mark.slow
def test_a_federation_trains_without_a_site_that_has_not_enrolled(tmp_path: Path) -> None:
    """It is sampled like the others, so that one process can repeat the run from its log."""
    config = SMALL.replace(num_clients=3, clients_per_round=3, quorum=2, synthetic_points=600)
    data = open_dataset(config)
    federation = create_loopback(config, data, tmp_path / "federation")
    (federation.path / "enrolled" / "site-2.json").unlink()
    with running(federation) as commands:
        start = commands.start("--min-sites", 2)
        for site in federation.agreement.sites:
            commands.join(site)
        assert start.wait(PATIENCE) == 0, (federation.path / "start.log").read_text()
    log = federation.run.read_participation()
    assert {tuple(attempt.accepted) for attempt in log} == {(0, 1)}
    assert {(entry.client, entry.reason) for attempt in log for entry in attempt.refused} == {(2, Reason.ABSENT)}
    assert replay_loopback(federation, data, tmp_path / "replay")


def test_a_round_counts_with_more_than_half_of_the_sites_it_asks() -> None:
    five = SMALL.replace(num_clients=5, clients_per_round=5, quorum=1)
    for sites, quorum in ((1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (9, 3)):
        assert gather(five, sites, None).quorum == quorum
    assert gather(five, 4, ["quorum=1"]).quorum == 1
    assert gather(five.replace(quorum=5), 4, None).quorum == 4


def kill_when(reached: Callable[[], object], process: "subprocess.Popen[bytes]", folder: Path) -> None:
    """Kill a command at a moment; within ten seconds, in which nobody is told to end, nothing of it is left."""
    wait_for(reached, process)
    process.kill()
    process.wait()
    wait_for(lambda: not find_processes(str(folder.resolve())), patience=10)


def kill_as_processes_begin(begin: Callable[[], "subprocess.Popen[bytes]"], commands: Commands, place: str) -> None:
    """Kill a command as its first process begins, as its second does, and so on: a new one has yet to bind itself."""
    for number in (1, 2, 3) if place == "server" else (1, 2, 3, 4, 5):
        for _ in range(2):
            most = len(commands.signed(place)) + number
            kill_when(
                lambda most=most: len(commands.signed(place)) >= most,  # type: ignore[misc]
                begin(),
                commands.federation.path / place,
            )


@pytest.mark.slow
def test_attack_08_a_join_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    config = SMALL.replace(rounds=3, deadline=10, max_attempts=100, quorum=2)
    federation = create_loopback(config, open_dataset(config), tmp_path / "federation")
    with running(federation) as commands:
        start = commands.start("--wait", 0)
        commands.join("site-0")
        kill_as_processes_begin(lambda: commands.join("site-1"), commands, "site-1")
        commands.join("site-1")
        assert start.wait(PATIENCE) == 0, (federation.path / "start.log").read_text()


@pytest.mark.slow
def test_attack_08_a_start_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    config = SMALL.replace(rounds=10, quorum=2)
    federation = create_loopback(config, open_dataset(config), tmp_path / "federation")
    with running(federation) as commands:
        for site in federation.agreement.sites:
            commands.join(site)
        kill_as_processes_begin(commands.start, commands, "server")
        for finished in (1, 2, 3):
            kill_when(
                lambda finished=finished: federation.run.count_rounds() >= finished,  # type: ignore[misc]
                commands.start(),
                federation.server,
            )
        assert commands.start().wait(PATIENCE) == 0, (federation.path / "start.log").read_text()
    assert federation.read_outcome() == (True, None)
