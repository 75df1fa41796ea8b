"""Real sites over Flower: who is asked, late, absent or talking nonsense, and the same bits as in one process."""

import json
import signal
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

import httpx
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.supercore.fab import Fab
from flwr.supercore.run import RunNotRunningException

from fedmlh.data.source import open_dataset
from fedmlh.engines.run import run
from fedmlh.errors import UserError
from fedmlh.federated.messages import Reason, Rejected
from fedmlh.runs.model_folder import load_bundle
from fedmlh.sites.flower import client as client_app
from fedmlh.sites.flower import supernode as supernode_module
from fedmlh.sites.flower.bundle import make_bundle
from fedmlh.sites.flower.control import Control
from fedmlh.sites.flower.envelope import unwrap, wrap, wrap_refusal
from fedmlh.sites.flower.grid import GridSites
from fedmlh.sites.flower.loopback import create_loopback, train_loopback
from fedmlh.sites.flower.supernode import check_bundle
from grid_here import act_as_flower
from tiny import TINY

NODES = {0: 100, 1: 101, 2: 102, 3: 103}
CONFIG = TINY.replace(
    synthetic_points=400,
    partition="dirichlet",
    num_clients=4,
    clients_per_round=3,
    quorum=3,
    label_key="name",
    update_codec="fp16",
    broadcast_codec="int8",
    deadline=300,
    local_baseline=True,
)


class FakeGrid:
    """A Grid with nodes that answer as told: with a reply, an error, or never."""

    def __init__(self, online: Iterable[int], answers: dict[int, RecordDict | Error | None]) -> None:
        self.online = list(online)
        self.answers = answers
        self.asked: dict[str, tuple[int, Message]] = {}

    def get_node_ids(self) -> list[int]:
        return list(self.online)

    def push_messages(self, messages: list[Message]) -> list[str]:
        names = [f"m{len(self.asked) + place}" for place in range(len(messages))]
        self.asked |= {
            name: (message.metadata.dst_node_id, message) for name, message in zip(names, messages, strict=True)
        }
        return names

    def pull_messages(self, names: Iterable[str]) -> list[Message]:
        replies = []
        for name in names:
            node, question = self.asked[name]
            answer = self.answers.get(node)
            if answer is not None:
                question.metadata.__dict__.update(_message_id=name, _src_node_id=1, _run_id=1)
                replies.append(Message(answer, reply_to=question))
        return replies


@pytest.fixture(autouse=True)
def _as_in_flower(monkeypatch: pytest.MonkeyPatch) -> None:
    act_as_flower(monkeypatch)


def ask(grid: FakeGrid, *, deadline: float = 60.0, quorum: int = 1) -> dict[int, bytes | Reason]:
    sites = GridSites(grid, NODES, deadline=deadline, quorum=quorum)
    replies = list(sites.exchange([0, 1, 2], lambda client: b"broadcast %d" % client))
    assert len(replies) == 3
    return {client: reply.reason if isinstance(reply, Rejected) else reply for client, reply in replies}


def test_each_site_is_sent_its_own_broadcast_at_its_own_node() -> None:
    grid = FakeGrid(NODES.values(), {node: wrap(b"update %d" % node) for node in NODES.values()})
    assert ask(grid) == {0: b"update 100", 1: b"update 101", 2: b"update 102"}
    sent = {node: unwrap(question) for node, question in grid.asked.values()}
    assert sent == {100: b"broadcast 0", 101: b"broadcast 1", 102: b"broadcast 2"}
    assert all(0 < question.metadata.ttl <= 60 for _, question in grid.asked.values())


def test_a_site_that_never_answers_is_late_at_the_deadline() -> None:
    grid = FakeGrid(NODES.values(), {100: wrap(b"x"), 101: None, 102: wrap(b"y")})
    assert ask(grid, deadline=0.2) == {0: b"x", 2: b"y", 1: Reason.LATE}


def test_an_absent_site_is_not_waited_for_once_the_quorum_has_answered() -> None:
    """The deadline of an hour would fail the test."""
    grid = FakeGrid([100, 102], {100: wrap(b"x"), 102: wrap(b"y")})
    assert ask(grid, deadline=3600, quorum=2) == {0: b"x", 2: b"y", 1: Reason.ABSENT}


def test_a_site_that_has_not_enrolled_is_absent_and_not_waited_for() -> None:
    """Neither the deadline of an hour nor a quorum that needs it would end before the test's patience."""
    grid = FakeGrid(NODES.values(), {node: wrap(b"x") for node in NODES.values()})
    sites = GridSites(grid, {0: 100, 2: 102}, deadline=3600, quorum=3)
    replies = dict(sites.exchange([0, 1, 2], lambda client: b"b"))
    assert (replies[0], replies[2]) == (b"x", b"x")
    assert isinstance(replies[1], Rejected)
    assert replies[1].reason == Reason.ABSENT


def test_with_nobody_there_the_attempt_ends_at_the_deadline() -> None:
    assert set(ask(FakeGrid([], {}), deadline=0.1).values()) == {Reason.ABSENT}


def test_a_site_that_comes_in_time_is_asked() -> None:
    grid = FakeGrid([100], {node: wrap(b"x") for node in NODES.values()})
    replies = GridSites(grid, NODES, deadline=60, quorum=3).exchange([0, 1, 2], lambda client: b"b")
    assert next(iter(replies))[0] == 0
    grid.online += [101, 102]
    assert sorted(client for client, reply in replies if reply == b"x") == [1, 2]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (wrap_refusal(Reason.STATE), Reason.STATE),
        (RecordDict({"fedmlh": ConfigRecord({"refused": "something a site made up"})}), Reason.FAILED),
        (RecordDict({"fedmlh": ConfigRecord({"refused": 3})}), Reason.FAILED),
        (RecordDict({"fedmlh": ConfigRecord({})}), Reason.FAILED),
        (RecordDict(), Reason.MALFORMED),
        (RecordDict({"other": ConfigRecord({"refused": "late"})}), Reason.MALFORMED),
        (RecordDict({"fedmlh": ArrayRecord({"other": Array("bytes", (1,), "x", b"x")})}), Reason.MALFORMED),
        (Error(ErrorCode.NODE_UNAVAILABLE, "secret"), Reason.ABSENT),
        (Error(ErrorCode.CLIENT_APP_CRASHED, "secret"), Reason.FAILED),
        (Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "secret"), Reason.FAILED),
        (Error(ErrorCode.MESSAGE_UNAVAILABLE, "secret"), Reason.LATE),
    ],
)
def test_whatever_is_not_a_message_is_a_refusal_with_a_reason(answer: RecordDict | Error, reason: Reason) -> None:
    grid = FakeGrid(NODES.values(), {100: answer, 101: wrap(b"x"), 102: wrap(b"y")})
    assert ask(grid) == {0: reason, 1: b"x", 2: b"y"}


def test_a_failure_at_a_site_leaves_it_as_a_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No folder there, a message that is none: the exception's text, which may hold anything, stays at the site."""
    question = Message(wrap(b"nonsense"), 1, "train")
    question.metadata.__dict__.update(_message_id="m", _src_node_id=1, _run_id=1)
    context = type("Context", (), {"node_config": {"site": str(tmp_path / "canary")}})()
    reply = client_app.answer_broadcast(question, context)
    record = reply.content["fedmlh"]
    assert dict(record) == {"refused": "client failed"}
    assert "canary" not in repr(reply.content)
    assert "canary" in capsys.readouterr().err


def test_a_site_runs_no_app_but_its_own() -> None:
    own = make_bundle()
    assert check_bundle(lambda fab_hash, run_id: own)(own.hash_str, 1) == own
    other = Fab(own.hash_str, own.content + b"x", {})
    with pytest.raises(RunNotRunningException):
        check_bundle(lambda fab_hash, run_id: other)(own.hash_str, 1)


def test_sites_train_to_the_bits_of_one_process(tmp_path: Path) -> None:
    """A SuperLink and four SuperNodes over TLS with registered keys; state on disk, codecs that keep something."""
    data = open_dataset(CONFIG)
    federation = create_loopback(CONFIG, data, tmp_path / "federation")
    train_loopback(federation, print)
    run(CONFIG, data, tmp_path / "local")
    folders = [federation.run.path, tmp_path / "local"]
    real, simulated = (load_bundle(folder / "model") for folder in folders)
    assert np.array_equal(real.weights, simulated.weights)
    assert real.seeds == simulated.seeds
    records = [[json.loads(line) for line in (f / "metrics.jsonl").read_text().splitlines()] for f in folders]
    for one, other in zip(*records, strict=True):
        assert {k: v for k, v in one.items() if "seconds" not in k} == {
            k: v for k, v in other.items() if "seconds" not in k
        }
    assert len(records[0]) == 3
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in folders]
    # Each site was sent the model to measure it, and a line to ask what it reaches alone.
    model, asked = summaries[0]["model_bytes"], len(summaries[0]["clients"])
    assert asked * model < summaries[0]["evaluation_bytes_down"] < asked * (model + 2000)
    assert 0 < summaries[0]["evaluation_bytes_up"] < asked * 20_000
    rows = [summary["clients"] for summary in summaries]
    assert [row.pop("site") for row in rows[0]] == [f"site-{row['client']}" for row in rows[1]]
    assert rows[0] == rows[1]
    assert all("precision_alone" in row for row in rows[1])
    logs = [(folder / "participation.jsonl").read_text() for folder in folders]
    assert logs[0] == logs[1]
    said: list[str] = []
    train_loopback(federation, said.append)
    assert said == ["this run has finished already"]


@pytest.mark.slow
def test_a_federation_of_which_nobody_comes_ends_with_a_sentence(tmp_path: Path) -> None:
    from fedmlh.sites.flower.processes import supervise
    from fedmlh.sites.flower.waiting import Patience

    config = CONFIG.replace(deadline=1, max_attempts=2)
    federation = create_loopback(config, open_dataset(config), tmp_path / "federation")
    with pytest.raises(UserError, match=r"round 1 was given up after 2 attempts .* not connected"):
        supervise(federation, print, patience=Patience(minutes=0))
    assert federation.read_outcome()[0]


def test_a_superlink_that_fails_for_a_moment_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    request = httpx.Request("POST", "https://127.0.0.1")
    statuses = [500, 503, 200]

    class Client:
        def ListNodes(self, question: object) -> object:  # noqa: N802
            httpx.Response(statuses.pop(0), request=request).raise_for_status()
            return question

    monkeypatch.setattr("fedmlh.sites.flower.control.time.sleep", lambda seconds: None)
    control = Control.__new__(Control)
    control._client = Client()
    assert control.answers()
    assert statuses == []
    statuses[:] = [403]
    assert not control.answers()


def test_a_supernode_that_has_left_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[int] = []
    monkeypatch.setattr(supernode_module, "flower_supernode", lambda: None)
    monkeypatch.setattr(supernode_module.internal, "_init_connection", supernode_module.internal._init_connection)
    monkeypatch.setattr(supernode_module.internal, "subprocess", supernode_module.internal.subprocess)
    monkeypatch.setattr(supernode_module.interface, "create_app", supernode_module.interface.create_app)
    monkeypatch.setattr(supernode_module.credential, "read_own", lambda: "word")
    monkeypatch.setattr(supernode_module.signal, "raise_signal", raised.append)
    supernode_module.main()
    assert raised == [signal.SIGTERM]
