"""Real sites in one round: the bits of one process, a server that dies at any moment, and what sites do not send."""

import json
import shutil
import signal
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from flwr.app import Message
from flwr.supercore.task_identity import TaskIdentity

from command_line import call
from fedmlh.config import Config
from fedmlh.data.division import divide
from fedmlh.engines.replay import read_log, replay
from fedmlh.engines.run import run
from fedmlh.errors import UserError
from fedmlh.evaluation.questions import ask
from fedmlh.federated.messages import Reason, Rejected
from fedmlh.federated.task import Task
from fedmlh.oneround import budget
from fedmlh.oneround.desk import Desk
from fedmlh.oneround.exchange import COUNTS, HELD_OUT, SUMS, Respondent
from fedmlh.oneround.holding import is_held_out
from fedmlh.oneround.terms import Counts, Terms
from fedmlh.runs.folder import RunFolder
from fedmlh.serving.predictor import Model
from fedmlh.sites.agreement import Agreement
from fedmlh.sites.federation import Enrolment, Federation
from fedmlh.sites.flower import client as client_app
from fedmlh.sites.flower import grid as grid_module
from fedmlh.sites.flower.evaluation import answer_question
from fedmlh.sites.flower.loopback import create_loopback, replay_loopback, train_loopback
from fedmlh.sites.flower.processes import largest_reply
from fedmlh.sites.flower.training import train_federation
from fedmlh.sites.site import Site
from fedmlh.sites.site_model import make_site_model
from fedmlh.sizing import list_open
from fedmlh.storage import read_checked, write_checked
from once import BASE, DATA, VARIANTS, differing, left
from rehearsal import Rehearsal
from texts import CATALOGUE, TEXTS, write_text
from waiting import PATIENCE, wait_for

NODE = 100  # that of site 0


@pytest.fixture(scope="module")
def in_process(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the folder of each variant, run in process."""
    folder = tmp_path_factory.mktemp("in-process")
    for name, config in VARIANTS.items():
        run(config, DATA, folder / name)
    return {name: folder / name for name in VARIANTS}


class Killed(BaseException):
    """Stands for the end of the server's process."""


class SiteGrid:
    """A Grid whose nodes are the sites of a federation on this machine, without Flower's processes."""

    def __init__(self, federation: Federation, *, away: Iterable[int] = (), silent: Iterable[int] = ()) -> None:
        self.folders = {NODE + n: federation.path / name for n, name in enumerate(federation.agreement.sites)}
        self.away, self.silent = {NODE + n for n in away}, {NODE + n for n in silent}
        self.asked: dict[str, tuple[int, Message]] = {}
        #: How often the server looks before all are connected.
        self.looks = sys.maxsize
        #: How many replies the server's process lives to see.
        self.life = sys.maxsize

    def get_node_ids(self) -> list[int]:
        if self.looks == 0:
            self.away = set()
        self.looks -= 1
        return [node for node in self.folders if node not in self.away]

    def push_messages(self, messages: list[Message]) -> list[str]:
        names = [f"m{len(self.asked) + place}" for place in range(len(messages))]
        for name, message in zip(names, messages, strict=True):
            message.metadata.__dict__.update(_message_id=name, _src_node_id=1, _run_id=1)
            self.asked[name] = (message.metadata.dst_node_id, message)
        return names

    def pull_messages(self, names: Iterable[str]) -> list[Message]:
        replies = []
        for name in names:
            node, question = self.asked[name]
            if node in self.silent:
                continue
            if self.life == 0:
                raise Killed
            self.life -= 1
            context = type("Context", (), {"node_config": {"site": str(self.folders[node])}})()
            replies.append(client_app.answer_broadcast(question, context))
        return replies


@pytest.fixture(autouse=True)
def _as_in_flower(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set what Flower sets in its processes before it calls an app; and no long pauses."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    monkeypatch.setattr(grid_module, "PAUSE", 0.01)


def make(folder: Path, config: Config = BASE) -> Federation:
    federation = create_loopback(config, DATA, folder)
    federation.write_nodes({number: NODE + number for number in range(config.num_clients)})
    return federation


def test_sites_give_the_bits_of_one_process(in_process: dict[str, Path], tmp_path: Path) -> None:
    for name, config in VARIANTS.items():
        federation = make(tmp_path / name, config)
        train_federation(federation, SiteGrid(federation))
        assert differing(federation.run.path, in_process[name]) == []
        assert replay_loopback(federation, DATA, tmp_path / f"{name}-replay")


def test_every_site_can_make_the_model_of_what_it_was_sent(tmp_path: Path) -> None:
    """By solving for the sums of all, or as it came: the server's model to the bit, and it predicts."""
    few = BASE.replace(label_map="murmur3", num_tables=1, num_buckets=8)  # outputs: the model is smaller than the sums
    sent = set()
    for name, config in (VARIANTS | {"few": few}).items():
        federation = make(tmp_path / name, config)
        with pytest.raises(UserError, match="no result of one round"):
            make_site_model(Site(federation.path / "site-0"), tmp_path / "early", print)
        train_federation(federation, SiteGrid(federation))
        sent.add(federation.run.read_summary()["delivered"]["what"])
        expected = (federation.run.model / "weights.safetensors").read_bytes()
        for site in ("site-0", "site-3"):
            out = tmp_path / f"{name}-{site}"
            make_site_model(Site(federation.path / site), out, print)
            assert (out / "weights.safetensors").read_bytes() == expected
            ours, theirs = (list(Model.load(path).rank(DATA.test.X[:3])) for path in (out, federation.run.path))
            assert [(a.tolist(), b.tolist()) for a, b in ours] == [(a.tolist(), b.tolist()) for a, b in theirs]
        result = federation.path / "site-0" / "result"
        write_checked(result, read_checked(result)[:-9])
        with pytest.raises(UserError, match="cannot be used"):
            make_site_model(Site(federation.path / "site-0"), tmp_path / "bad", print)
        assert not (tmp_path / "bad").exists()
    assert sent == {"sums", "model"}


def test_a_server_that_dies_at_any_reply_continues_from_there(
    in_process: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each life sees one reply; a reply that has come is asked for no more."""
    federation = make(tmp_path / "fed")
    grids = []
    for _ in range(2 * BASE.num_clients - 1):
        grids.append(SiteGrid(federation))
        grids[-1].life = 1
        with pytest.raises(Killed):
            train_federation(federation, grids[-1])
    assert [len(grid.asked) for grid in grids[: BASE.num_clients]] == [6, 5, 4, 3, 2, 1 + 6]
    with monkeypatch.context() as patch:  # killed when all but the summary is written
        patch.setattr(RunFolder, "write_summary", lambda folder, summary: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            train_federation(federation, SiteGrid(federation))
    last = SiteGrid(federation)
    train_federation(federation, last)
    assert len(last.asked) == BASE.num_clients  # sent the result once more, and asked for nothing
    assert differing(federation.run.path, in_process["labels"]) == []


def test_a_journal_that_was_cut_or_changed_costs_no_more_than_asking_again(
    in_process: dict[str, Path], tmp_path: Path
) -> None:
    federation = make(tmp_path / "fed")
    train_federation(federation, SiteGrid(federation))
    for name in ("counts.bin", "sums.bin", "terms.bin"):
        path = federation.run.checkpoints / name
        whole = bytearray(path.read_bytes())
        whole[200] ^= 1  # in the first message
        path.write_bytes(whole[:-5])
    grid = SiteGrid(federation)
    train_federation(federation, grid)
    assert len(grid.asked) == 4 + BASE.num_clients  # and the result for all
    found, expected = (
        folder / "model" / "weights.safetensors" for folder in (federation.run.path, in_process["labels"])
    )
    assert found.read_bytes() == expected.read_bytes()


def test_absent_and_late_sites_are_named_and_the_run_continues(in_process: dict[str, Path], tmp_path: Path) -> None:
    federation = make(tmp_path / "fed", BASE.replace(deadline=1, quorum=4))
    train_federation(federation, SiteGrid(federation, away=[1], silent=[4]))
    *asked, sent = federation.run.read_participation()
    assert sent.sampled == sent.accepted == [0, 2, 3, 5]
    for line in asked:
        assert line.accepted == [0, 2, 3, 5]
        assert [(entry.client, entry.reason) for entry in line.refused] == [(1, Reason.ABSENT), (4, Reason.LATE)]
    config, log = read_log(federation.run)
    replay(config, log, DATA, tmp_path / "replay")
    weights = [left(folder)["weights.safetensors"] for folder in (federation.run.path, tmp_path / "replay")]
    assert weights[0] == weights[1] != left(in_process["labels"])["weights.safetensors"]


def test_a_site_that_connects_before_the_deadline_is_asked(in_process: dict[str, Path], tmp_path: Path) -> None:
    """All others have answered by then, which would be enough for the quorum."""
    federation = make(tmp_path / "fed", BASE.replace(deadline=60, quorum=4))
    grid = SiteGrid(federation, away=[1])
    grid.looks = 10
    train_federation(federation, grid)
    assert differing(federation.run.path, in_process["labels"]) == []


def test_below_the_quorum_the_run_ends_with_a_sentence_and_can_continue(
    in_process: dict[str, Path], tmp_path: Path
) -> None:
    federation = make(tmp_path / "fed", BASE.replace(deadline=1, quorum=6))
    with pytest.raises(UserError, match=r"only 5 clients sent counts that can be used, .*\(client 1: not connected"):
        train_federation(federation, SiteGrid(federation, away=[1]))
    train_federation(federation, SiteGrid(federation))
    assert left(federation.run.path)["weights.safetensors"] == left(in_process["labels"])["weights.safetensors"]


def requests(task: Task, client: int) -> list[bytes]:
    """Return what a site can be asked for."""
    terms = Terms(Counts.of(DATA.train.X), task.config.feature_slots, weigh=False)
    desk = Desk(task, {client: 10**6})
    return [desk.request(COUNTS, client, b""), desk.request(SUMS, client, terms.encode())]


def test_a_site_without_consent_or_with_few_points_sends_neither_counts_nor_sums(tmp_path: Path) -> None:
    federation = make(tmp_path / "fed", BASE.replace(min_site_points=10))
    site = Site(federation.path / "site-2")
    whole, enough, few = (
        replace(site.points, train=site.points.train.take(np.arange(n))) for n in (len(site.points.train), 10, 9)
    )
    for request in requests(site.agreement.task, 2):
        for points in (whole, enough):
            site.points = points
            assert site.answer(request)
        site.points = few
        with pytest.raises(Rejected, match="9 points are fewer than min_site_points = 10") as refusal:
            site.answer(request)
        assert refusal.value.reason == Reason.EXAMPLES
    site.points, site.open_statistics = whole, False
    for request in requests(site.agreement.task, 2):
        with pytest.raises(Rejected, match="has not agreed to open statistics") as refusal:
            site.answer(request)
        assert refusal.value.reason == Reason.CONFIG


def test_sites_that_hold_few_points_out_do_not_send_them_and_the_run_continues(tmp_path: Path) -> None:
    """With a minimum of 2 points one site has too few, and with one of 16 all have."""
    base = VARIANTS["labels, held out"]
    held = {client: int(is_held_out(shard.X).sum()) for client, shard in divide(DATA.train, base).shards.items()}
    for least in (2, 16):
        config = base.replace(min_site_points=least)
        federation = make(tmp_path / f"{least}", config)
        train_federation(federation, SiteGrid(federation))
        small = [client for client, count in sorted(held.items()) if count < least]
        assert len(small) == (1 if least == 2 else 6)
        lines = federation.run.read_participation()
        assert [(entry.client, entry.reason) for entry in lines[2].refused] == [(c, Reason.EXAMPLES) for c in small]
        assert lines[1].accepted == lines[2].sampled == list(range(6))
        summary = federation.run.read_summary()
        assert (summary["ridge"], summary["ridge_from"]) == (1.0, "default")
        assert summary["training_points"] == len(DATA.train)
        assert replay_loopback(federation, DATA, tmp_path / f"{least}-replay")
    with pytest.raises(Rejected, match=r"\d of \d+ points are held out: fewer than min_site_points = 16 on one side"):
        Site(federation.path / "site-3").answer(held_out_request(federation.agreement.task, 3))


def held_out_request(task: Task, client: int) -> bytes:
    terms = Terms(Counts.of(DATA.train.X), task.config.feature_slots, weigh=False)
    return Desk(task, {client: 10**6}).request(HELD_OUT, client, terms.encode())


def test_a_site_holds_nothing_out_where_the_server_has_points(tmp_path: Path) -> None:
    federation = make(tmp_path / "fed")
    with pytest.raises(Rejected, match="sums over held-out points were not agreed on") as refusal:
        Site(federation.path / "site-2").answer(held_out_request(federation.agreement.task, 2))
    assert refusal.value.reason == Reason.CONFIG


def test_a_server_without_points_says_so_and_sites_are_told_what_it_asks_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server, fed = write_text(tmp_path / "server", TEXTS["server"], CATALOGUE), tmp_path / "fed"
    init = ("federation", "init", fed, "one-round", "--data", server, "--address", "127.0.0.1:9092", "--sites", "north")
    assert call(*init, "--set", "min_site_points=2", "--set", "validation_fraction=0") == 0
    assert "are not used, neither to choose nor to train" in capsys.readouterr().err.replace("\n", " ")
    points = Federation(fed).server_points()
    assert len(points.dataset.train) == 0 < len(points.dataset.test)
    assert points.frequencies.counts.sum() > 0
    prepare = ("site", "prepare", fed / "public", "--site", "north", "--data", server, "--out", tmp_path / "north")
    assert call(*prepare) == 2
    assert "with each other word at this site, and the same in a tenth of its points;" in (
        capsys.readouterr().err.replace("\n", " ")
    )


def test_consent_is_sealed_and_an_enrolment_without_it_is_refused(tmp_path: Path) -> None:
    """Whoever changes the word by hand breaks the seal, and an enrolment without it is not taken."""
    federation = make(tmp_path / "fed")
    folder = federation.path / "site-0"
    about = json.loads((folder / "shard" / "site.json").read_text())
    assert about == {"site": "site-0", "number": 0, "open_statistics": True}
    (folder / "shard" / "site.json").write_text(json.dumps({**about, "open_statistics": False}))
    with pytest.raises(UserError, match=r"site\.json"):
        Site(folder)
    enrolment = federation.path / "enrolled" / "site-0.json"
    content = json.loads(enrolment.read_text())
    assert content["open_statistics"] is True
    for other in ({"open_statistics": False}, {"open_statistics": "yes"}):
        enrolment.write_text(json.dumps(content | other))
        with pytest.raises(UserError, match="has not agreed to open statistics"):
            Enrolment.load(enrolment, federation.agreement)
    del content["open_statistics"]
    enrolment.write_text(json.dumps(content))
    with pytest.raises(UserError, match="has not agreed to open statistics"):
        federation.enrolments()


def test_a_site_of_one_round_warms_nothing_up_and_measures_no_networks(tmp_path: Path) -> None:
    federation = make(tmp_path / "fed")
    site, task = Site(federation.path / "site-0"), federation.agreement.task
    site.warm_up()
    assert not (site.folder / "prepared").exists()
    with pytest.raises(Rejected, match="networks only"):
        answer_question(site, ask(task, task.draw_seeds(), "run", 1, 0, task.stack.initial(0)))


def test_a_site_below_the_minimum_stops_a_rehearsal_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"site site-\d has \d+ training points, fewer than min_site_points = 100"):
        create_loopback(BASE.replace(min_site_points=100), DATA, tmp_path / "fed")
    assert not (tmp_path / "fed").exists()


def test_the_terms_are_those_of_one_round(tmp_path: Path) -> None:
    terms = make(tmp_path / "fed").agreement.terms
    assert {"label_map", "num_buckets", "point_bits", "feature_slots", "validation_fraction"} <= terms.keys()
    assert "learning_rate" not in terms
    agreement = Agreement.load(tmp_path / "fed" / "public")
    with pytest.raises(UserError, match="min_site_points differs"):
        agreement.check(terms | {"min_site_points": 2}, "site")


def test_no_honest_reply_is_larger_than_the_largest(in_process: dict[str, Path]) -> None:
    for name, config in VARIANTS.items():
        task = Task(config, DATA.num_features, DATA.num_labels)
        found = left(in_process[name])
        replies = [len(message) for part in ("counts", "sums") for _, message in found[part]]
        assert max(replies) < largest_reply(task, [300])
    assert largest_reply(task) > 0


@pytest.mark.parametrize(
    ("points", "features", "labels", "density"), [(1, 1, 1, 1.0), (1, 9, 3, 1.0), (40, 30, 5, 0.9)]
)
def test_dense_points_are_within_the_largest_reply(points: int, features: int, labels: int, density: float) -> None:
    """Payloads, without the room that a reply has for a long header."""
    rng = np.random.default_rng(points)
    X = csr_matrix((rng.random((points, features)) * (rng.random((points, features)) < density)).astype(np.float32))
    Y = csr_matrix((rng.random((points, labels)) < density).astype(np.float32))
    for bits in (4, 12):
        task = Task(BASE.replace(point_bits=bits), features, labels)
        desk = Desk(task, {0: points})
        respondent = Respondent(task, 0, X, Y, DATA.labels)
        terms = Terms(Counts.of(X), 0, weigh=False)
        slots = terms.slots(desk.seeds).count
        reply = respondent.reply(desk.request(SUMS, 0, terms.encode()))
        assert desk.read_sums(0, reply, terms, slots).points == points
        assert len(reply) < largest_reply(task, [points]) - 60_000


@pytest.mark.parametrize("room", [(2**28, 2**25), (2**12, 2**25), (2**28, 50), (300, 10)])
def test_slots_are_never_more_than_their_bound(room: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MOST_WEIGHTS", room[0])
    monkeypatch.setattr(budget, "MOST_PAIRS", room[1])
    rng = np.random.default_rng(0)
    for features in (1, 5, 63, 64, 65, 1000):
        for outputs in (1, 7, 100):
            frequencies = rng.integers(0, 50, features)
            chosen = budget.choose_slots(frequencies, 100, outputs) or np.count_nonzero(frequencies)
            assert chosen <= budget.most_slots(features, outputs)


def test_consent_is_asked_for_and_written_down(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server, fed = write_text(tmp_path / "data" / "server", TEXTS["server"], CATALOGUE), tmp_path / "fed"
    init = ("federation", "init", fed, "one-round", "--data", server, "--address", "127.0.0.1:9092")
    assert call(*init, "--sites", "north,south,west,east,mid,far", "--set", "min_site_points=2") == 0
    assert "must agree" in capsys.readouterr().err.replace("\n", " ")
    config = Federation(fed).agreement.config
    assert (config.num_clients, config.clients_per_round, config.quorum) == (6, 6, 4)
    data = write_text(tmp_path / "data" / "north", TEXTS["north"])
    prepare = ("site", "prepare", fed / "public", "--site", "north", "--data", data, "--out", tmp_path / "north")
    assert call(*prepare) == 2
    said = capsys.readouterr().err.replace("\n", " ")
    assert "the server will see how often each word occurs together with each label and with each other word" in said
    assert "--open-statistics" in said
    assert not (tmp_path / "north").exists()
    assert call(*prepare, "--open-statistics") == 0
    shutil.copy(tmp_path / "north" / "enrolment.json", fed / "enrolled" / "north.json")
    assert list(Federation(fed).enrolments()) == [0]
    assert Site(tmp_path / "north").open_statistics
    few = write_text(tmp_path / "data" / "few", TEXTS["north"][:1])
    prepare = ("site", "prepare", fed / "public", "--site", "south", "--data", few, "--out", tmp_path / "south")
    assert call(*prepare, "--open-statistics") == 2
    assert "1 training points, fewer than min_site_points = 2" in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "south").exists() or not any((tmp_path / "south").iterdir())


def test_recommended_asks_real_sites_for_no_statistics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = write_text(tmp_path / "server", TEXTS["server"], CATALOGUE)
    init = ("federation", "init", tmp_path / "fed", "recommended", "--data", server, "--address", "127.0.0.1:9092")
    assert call(*init, "--sites", "north,south", "--set", "top_k=1") == 0
    shown = capsys.readouterr().err.replace("\n", " ")
    assert "trains networks in rounds: training=one-round needs sites that agree" in shown
    assert "sites know labels by name, so even these few are hashed" in shown
    settled = Config.load(tmp_path / "fed" / "public" / "config.toml")
    assert (settled.training, settled.label_key, settled.label_map) == ("rounds", "name", "murmur3")
    assert (settled.num_clients, settled.clients_per_round) == (2, 2)
    assert not list_open(settled)


def test_consent_to_what_nobody_asks_for_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = write_text(tmp_path / "server", TEXTS["server"], CATALOGUE)
    init = ("federation", "init", tmp_path / "fed", "eurlex-4k", "--data", server, "--address", "127.0.0.1:9092")
    assert call(*init, "--sites", "north", "--set", "num_buckets=3", "--set", "hidden_sizes=8") == 0
    prepare = ("site", "prepare", tmp_path / "fed" / "public", "--site", "north", "--data", server, "--out")
    assert call(*prepare, tmp_path / "north", "--open-statistics") == 2
    assert "--open-statistics has no effect" in capsys.readouterr().err.replace("\n", " ")
    assert call(*prepare, tmp_path / "north") == 0
    for file in ("shard/site.json", "enrolment.json"):
        assert "open_statistics" not in (tmp_path / "north" / file).read_text()


@pytest.mark.slow
def test_over_flower_the_run_is_that_in_process_and_so_is_its_replay(
    in_process: dict[str, Path], tmp_path: Path
) -> None:
    """A SuperLink and six SuperNodes over TLS with registered keys."""
    federation = create_loopback(BASE, DATA, tmp_path / "fed")
    train_loopback(federation, print)
    assert differing(federation.run.path, in_process["labels"]) == []
    assert replay_loopback(federation, DATA, tmp_path / "replay")


@pytest.mark.slow
def test_a_server_that_is_killed_while_it_asks_continues(in_process: dict[str, Path], tmp_path: Path) -> None:
    """Once between the counts of two sites and once between their sums."""
    rehearsal = Rehearsal(tmp_path / "fed", BASE)
    with rehearsal.running() as (commands, start):
        with commands.holding(start, "site-2") as wait_for_next:
            for part in ("counts", "sums"):
                journal = rehearsal.federation.run.checkpoints / f"{part}.bin"
                held = wait_for_next()
                wait_for(lambda journal=journal: journal.exists() and journal.stat().st_size, start)  # type: ignore[misc]
                commands.send(signal.SIGKILL, "server", "serverapp")
                held.release()
                wait_for_next().release()
        assert start.wait(PATIENCE) == 0, (rehearsal.federation.path / "start.log").read_text()
    said = (rehearsal.federation.path / "start.log").read_text()
    assert said.count("resuming from there") == 2
    assert differing(rehearsal.federation.run.path, in_process["labels"]) == []
    assert replay_loopback(rehearsal.federation, DATA, tmp_path / "replay")
