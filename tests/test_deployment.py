"""Sites agree before they train: terms, a site's points and labels in them, what it keeps, and its refusals."""

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_matrix

pytest.importorskip("flwr", reason="the extra `flower` is not installed")

from command_line import call
from fedmlh.config import Config
from fedmlh.data.dataset import Dataset, Labels
from fedmlh.data.readers.formats import load
from fedmlh.data.source import open_dataset
from fedmlh.errors import UserError
from fedmlh.evaluation.evaluate import Evaluator, LabelCounts
from fedmlh.evaluation.metrics import Metrics, summarize_sums
from fedmlh.evaluation.questions import Report, ask, read_report, write_report
from fedmlh.federated import messages
from fedmlh.federated.client import Client, Memory
from fedmlh.federated.messages import QuestionHeader, Reason, Rejected, unpack
from fedmlh.federated.server import Server
from fedmlh.sites.agreement import Agreement
from fedmlh.sites.federation import Enrolment, Federation, ServerPoints
from fedmlh.sites.memory import MemoryFile
from fedmlh.sites.site import Site, create_site, read_points
from fedmlh.storage import read_checked, write_checked
from texts import CATALOGUE, TEXTS, write_text

CPU = torch.device("cpu")
BASE = Config(
    name="tiny",
    device="cpu",
    partition="folder",
    num_clients=2,
    clients_per_round=2,
    rounds=3,
    local_epochs=1,
    batch_size=8,
    num_tables=2,
    num_buckets=5,
    feature_dim=16,
    hidden_sizes=(8,),
    label_key="name",
    text_dim=512,
    top_k=(1, 3),
)


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    data = load(write_text(tmp_path / "data/server", TEXTS["server"], CATALOGUE), text_dim=BASE.text_dim)
    points = ServerPoints(data, LabelCounts.of(data.train))
    return Federation.create(tmp_path / "fed", BASE, points, address="127.0.0.1:9092", sites=("north", "south"))


def make_site(federation: Federation, name: str) -> Site:
    data = write_text(federation.path.parent / "data" / name, TEXTS[name])
    folder = federation.path.parent / name
    agreement = Agreement.load(federation.path / "public")
    create_site(folder, agreement, name, read_points(agreement, data, "auto"))
    return Site(folder)


def test_an_agreement_is_read_as_it_was_written(federation: Federation) -> None:
    again = Agreement.load(federation.path / "public")
    assert again == federation.agreement
    assert again.terms == federation.agreement.terms
    assert again.labels.keys == CATALOGUE
    assert again.task.fingerprint == federation.agreement.task.fingerprint


def test_labels_are_the_same_by_name_whatever_list_a_site_has(federation: Federation) -> None:
    """A site's own list, in its own order and writing, gives the buckets of the federation's catalogue."""
    site, task = make_site(federation, "north"), federation.agreement.task
    seeds = task.draw_seeds()
    own = task.label_map(seeds, site.points.labels.keys)
    all_labels = task.label_map(seeds, CATALOGUE)
    places = [CATALOGUE.index(key) for key in site.points.labels.keys]
    assert sorted(places) == [0, 1, 3]
    np.testing.assert_array_equal(own.buckets, all_labels.buckets[:, places])
    # Held-out points are measured against the catalogue, in its order.
    assert [CATALOGUE[label] for label in site.points.held_out.Y.indices] == ["oil", "cereal", "Ångström"]


def test_a_label_outside_the_catalogue_is_trained_on_and_never_measured(federation: Federation) -> None:
    said: list[str] = []
    data = write_text(federation.path.parent / "data/south", TEXTS["south"])
    points = read_points(federation.agreement, data, "auto", said.append)
    assert set(points.labels.keys) == {"cereal", "dairy", "goat"}
    assert points.train.Y.sum() == 3
    assert points.held_out.Y.shape == (3, len(CATALOGUE))
    assert points.held_out.Y.sum() == 2
    assert len(said) == 1
    assert said[0].startswith("1 labels")


def test_by_number_a_label_outside_the_catalogue_is_refused(federation: Federation) -> None:
    numbered = _changed(federation.agreement, config=BASE.replace(label_key="id"))
    data = write_text(federation.path.parent / "data/south", TEXTS["south"])
    with pytest.raises(UserError, match=r"labels differ: 1 labels .* such as 'goat'"):
        read_points(numbered, data, "auto")


def _changed(agreement: Agreement, **changes: object) -> Agreement:
    fields = ("address", "sites", "config", "num_features", "labels", "text", "first_feature", "authority")
    return Agreement(**{name: getattr(agreement, name) for name in fields} | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("learning_rate", {"config": BASE.replace(learning_rate=0.5)}),
        ("num_features", {"num_features": 513}),
        ("labels", {"labels": Labels(CATALOGUE[::-1], CATALOGUE[::-1])}),
        ("text", {"text": None}),
        ("sites", {"sites": ("south", "north")}),
        ("first_feature", {"first_feature": 1}),
    ],
)
def test_an_enrolment_under_other_terms_is_refused_with_the_field(
    federation: Federation, field: str, change: dict[str, object]
) -> None:
    enrolment = federation.path / "enrolled" / "north.json"
    shutil.copy(make_site(federation, "north").folder / "enrolment.json", enrolment)
    assert Enrolment.load(enrolment, federation.agreement).examples == 3
    with pytest.raises(UserError, match=f": {field} differs: "):
        Enrolment.load(enrolment, _changed(federation.agreement, **change))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"labels": Labels(("\u00e9", "e\u0301"), ("a", "b"))}, "two labels of the catalogue differ only in"),
        ({"sites": ("north", "north")}, "two sites have the same name"),
        ({"sites": ("north", "../south")}, "site name '../south'"),
        ({"sites": ("north",)}, "num_clients is 2, but there are 1 sites"),
        ({"address": "server"}, "say host:port"),
        ({"address": "server:70000"}, "say host:port"),
        ({"config": BASE.replace(text_features="tfidf")}, "text_features is 'tfidf'"),
        ({"config": BASE.replace(shared_fraction=0.1)}, "shared_fraction is 0.1"),
        ({"config": BASE.replace(selection="paper")}, "selection is 'paper'"),
        ({"config": BASE.replace(data="/home/me")}, "data is '/home/me'"),
    ],
)
def test_terms_that_real_sites_cannot_keep_are_refused(
    federation: Federation, change: dict[str, object], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        _changed(federation.agreement, **change)


def test_another_message_format_is_refused_first(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedmlh.sites.agreement.MESSAGE_VERSION", 99)
    with pytest.raises(UserError, match="message_version differs"):
        Agreement.load(federation.path / "public")


def test_data_that_does_not_fit_is_refused_with_the_field(federation: Federation, tmp_path: Path) -> None:
    features = tmp_path / "features"
    assert call("data", "synth", features, "--points", 20, "--features", 30, "--labels", 10) == 0
    with pytest.raises(UserError, match="text differs: this site has prepared features, the federation trains on text"):
        read_points(federation.agreement, features, "auto")
    with pytest.raises(UserError, match="num_features differs: 30 here, 512 in the federation"):
        read_points(_changed(federation.agreement, text=None), features, "auto")


def test_missing_and_doubled_enrolments_are_named(federation: Federation) -> None:
    site = make_site(federation, "north")
    with pytest.raises(UserError, match="not enrolled yet: north, south"):
        federation.all_enrolments()
    shutil.copy(site.folder / "enrolment.json", federation.path / "enrolled" / "a.json")
    with pytest.raises(UserError, match="not enrolled yet: south;"):
        federation.all_enrolments()
    shutil.copy(site.folder / "enrolment.json", federation.path / "enrolled" / "b.json")
    with pytest.raises(UserError, match="site north has enrolled already"):
        federation.enrolments()
    forged = json.loads((site.folder / "enrolment.json").read_text()) | {"site": "south"}
    (federation.path / "enrolled" / "b.json").write_text(json.dumps(forged))
    with pytest.raises(UserError, match="site south has the key of site north"):
        federation.enrolments()


def test_nothing_of_a_site_s_data_is_in_what_it_hands_out(federation: Federation) -> None:
    content = (make_site(federation, "south").folder / "enrolment.json").read_text()
    assert "goat" not in content
    assert "cheese" not in content
    assert "PRIVATE" not in content


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"update_codec": "fp16"},
        {"update_codec": "topk-10%", "broadcast_codec": "int8"},
        {"update_codec": "grid-100%", "broadcast_codec": "grid-150%"},
        {"correction": "scaffold"},
    ],
    ids=["plain", "residual", "changes", "grid", "scaffold"],
)
def test_a_site_answers_as_a_client_in_process_does(
    federation: Federation, changes: dict[str, str], tmp_path: Path
) -> None:
    """Every message to a fresh life of the site: what it keeps is on disk; an attempt that fails changes nothing."""
    agreement = _changed(federation.agreement, config=BASE.replace(**changes))
    shutil.rmtree(federation.path / "public")
    agreement.save(federation.path / "public")
    site = make_site(Federation(federation.path), "north")
    points = site.points.train
    client = Client(agreement.task, 0, points.X, points.Y, site.points.labels, CPU)
    server, memory = Server(agreement.task, {0: len(points)}, CPU), Memory()
    state = server.begin()

    def exchange(reply: Callable[[bytes], bytes]) -> Callable[..., list[tuple[int, bytes]]]:
        return lambda sampled, outbox: [(0, reply(outbox(0)))]

    def answer(message: bytes) -> bytes:
        nonlocal memory
        update, memory = client.answer(message, memory)
        return update

    server.sample = lambda round_index, attempt: [0]  # type: ignore[method-assign]
    for number in range(1, 4):
        # A broadcast that is answered and comes to nothing.
        lost = server.broadcast(state, 7, 0)
        assert Site(site.folder).answer(lost) == client.answer(lost, memory)[0]
        both: list[bytes] = []

        def compare(message: bytes, both: list[bytes] = both) -> bytes:
            both += [Site(site.folder).answer(message), answer(message)]
            return both[0]

        state, report = server.run_round(state, exchange(compare))
        assert both[0] == both[1]
        assert report.accepted == [0]
        assert state.round == number


def test_a_site_reads_a_broadcast_once(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    site = make_site(federation, "north")
    server = Server(federation.agreement.task, {0: len(site.points.train)}, CPU)
    message = server.broadcast(dataclasses.replace(server.begin(), round=1), 0, 0)
    hashed: list[int] = []

    def spy(content: bytes) -> Any:
        hashed.append(len(content))
        return hashlib.sha256(content)

    monkeypatch.setattr(messages, "hashlib", SimpleNamespace(sha256=spy))
    site.answer(message)
    assert hashed.count(len(message) - 32) == 1
    assert max(hashed) == len(message) - 32


def test_a_site_that_lost_what_it_kept_says_so(federation: Federation) -> None:
    agreement = _changed(federation.agreement, config=BASE.replace(update_codec="fp16"))
    shutil.rmtree(federation.path / "public")
    agreement.save(federation.path / "public")
    site = make_site(Federation(federation.path), "north")
    server = Server(agreement.task, {0: len(site.points.train)}, CPU)
    server.sample = lambda round_index, attempt: [0]  # type: ignore[method-assign]
    state, _ = server.run_round(server.begin(), lambda sampled, outbox: [(0, site.answer(outbox(0)))])
    message = server.broadcast(state, 0, 0)
    assert site.answer(message)
    content = bytearray((site.folder / "memory").read_bytes())
    content[len(content) // 2] ^= 1
    (site.folder / "memory").write_bytes(content)
    with pytest.raises(Rejected) as refusal:
        site.answer(message)
    assert refusal.value.reason == Reason.STATE


def test_memory_is_kept_by_run_and_whole(tmp_path: Path) -> None:
    file = MemoryFile(tmp_path / "memory")
    assert file.load("a") == Memory()
    memory = Memory({"x": torch.arange(3.0)}, {"x": torch.ones(3), "n": torch.tensor(4)}, (2, 1), (1, 0))
    file.save("a", memory)
    again = file.load("a")
    assert (again.staged_in, again.kept_in) == ((2, 1), (1, 0))
    assert again.kept["x"].tolist() == [0, 1, 2]
    assert again.staged["n"].item() == 4
    assert file.load("b") == Memory()
    whole = (tmp_path / "memory").read_bytes()
    for cut in (0, 1, 31, 32, 33, len(whole) // 2, len(whole) - 1):
        (tmp_path / "memory").write_bytes(whole[:cut])
        assert file.load("a") == Memory()


def test_a_checked_file_is_whole_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_checked(path, b"content")
    assert read_checked(path) == b"content"
    stored = path.read_bytes()
    for place in range(len(stored)):
        path.write_bytes(stored[:place] + bytes([stored[place] ^ 1]) + stored[place + 1 :])
        with pytest.raises(UserError, match="is damaged"):
            read_checked(path)


def test_the_points_of_the_server_are_read_as_they_were_written(federation: Federation, tmp_path: Path) -> None:
    data = open_dataset(Config(synthetic_points=50, synthetic_features=20, synthetic_labels=12))
    counts = LabelCounts.of(data.train)
    ServerPoints(data, counts).save(tmp_path / "yardstick")
    plain = _changed(federation.agreement, labels=data.labels, text=None)
    again = ServerPoints.load(tmp_path / "yardstick", plain)
    assert again.dataset.fingerprint == data.fingerprint
    assert again.frequencies.counts.tolist() == counts.counts.tolist()
    assert isinstance(again.dataset, Dataset)


def test_secrets_are_for_the_owner_only(federation: Federation) -> None:
    site = make_site(federation, "north")
    for path in (site.folder / "node.key", federation.server / "server.key"):
        assert path.stat().st_mode & 0o777 == 0o600
    for path in (site.folder, federation.server):
        assert path.stat().st_mode & 0o777 == 0o700
    open_to_all = federation.path.parent / "there already"
    open_to_all.mkdir(mode=0o755)
    create_site(open_to_all, federation.agreement, "south", site.points)
    assert open_to_all.stat().st_mode & 0o777 == 0o700


def test_the_commands_lead_from_init_to_an_enrolled_site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = write_text(tmp_path / "server-data", TEXTS["server"], CATALOGUE)
    north = write_text(tmp_path / "north-data", TEXTS["north"])
    fed = tmp_path / "fed"
    settings = ["--set", "num_buckets=3", "--set", "feature_dim=16", "--set", "hidden_sizes=8"]
    init = ("federation", "init", fed, "eurlex-4k", "--data", server, "--address", "127.0.0.1:9092")
    assert call(*init, "--sites", "north,south", *settings) == 0
    config = Agreement.load(fed / "public").config
    assert (config.label_key, config.num_clients, config.clients_per_round, config.data) == ("name", 2, 2, "")
    prepare = ("site", "prepare", fed / "public", "--data", north, "--out")
    assert call(*prepare, tmp_path / "n", "--site", "north") == 0
    shutil.copy(tmp_path / "n" / "enrolment.json", fed / "enrolled" / "north.json")
    capsys.readouterr()
    assert call("federation", "status", fed) == 0
    shown = capsys.readouterr().out
    assert "the server is not running" in shown
    assert "round 0 of at most 70" in shown
    for arguments, sentence in (
        ((*init, "--sites", "a"), "is not empty"),
        ((*prepare, tmp_path / "n", "--site", "north"), "is not empty"),
        ((*prepare, tmp_path / "m", "--site", "west"), "its sites are north, south"),
        (("federation", "start", fed), "not enrolled yet: south"),
        (("federation", "start", tmp_path), "is not a federation's folder"),
        (("federation", "join", tmp_path), "is not there"),
    ):
        assert call(*arguments) == 2
        message = capsys.readouterr().err
        assert sentence in message.replace("\n", " ")
        assert "Traceback" not in message


def test_a_site_measures_a_model_on_its_own_points_and_reports_sums(federation: Federation) -> None:
    from fedmlh.sites.flower.evaluation import answer_question

    site, task = make_site(federation, "south"), federation.agreement.task
    seeds = task.draw_seeds()
    model = task.stack.initial(5)
    message = ask(task, seeds, "run", 3, 1, model)
    question, _ = unpack(QuestionHeader, message, len(message))
    answer = answer_question(site, message)
    report = read_report(answer, question, BASE.top_k, 3, BASE.rounds)
    nobody = LabelCounts(np.zeros(len(CATALOGUE), np.int64), 1)
    evaluator = Evaluator.of_task(task, seeds, federation.agreement.labels, nobody, CPU)
    expected = evaluator.evaluate(model, evaluator.prepare(site.points.held_out))
    assert summarize_sums(report.sums) == expected
    assert report.round == 3
    assert b"goat" not in answer
    with pytest.raises(Rejected, match="other configuration"):
        answer_question(site, ask(_changed(federation.agreement, num_features=513).task, seeds, "run", 3, 1, model))
    with pytest.raises(Rejected, match="not sampled"):
        answer_question(site, ask(task, seeds, "run", 3, 0, model))
    with pytest.raises(Rejected, match="not finite"):
        answer_question(site, ask(task, seeds, "run", 3, 1, model * float("nan")))
    with pytest.raises(Rejected, match="training alone was not agreed on"):
        answer_question(site, ask(task, seeds, "run", 3, 1, None))
    with pytest.raises(Rejected, match="another question"):
        read_report(answer, dataclasses.replace(question, alone=1), BASE.top_k, 3, BASE.rounds)


@pytest.mark.parametrize(
    "change",
    [
        lambda sums: sums.update(points=[4]),
        lambda sums: sums.update(points=[0]),
        lambda sums: sums.update(k=[1, 5]),
        lambda sums: sums.update(precision_infrequent=[2**80, 2**80]),
        lambda sums: sums.update(ndcg_infrequent=[-1, 0]),
        lambda sums: sums.update(psp_best=[2**200, 0]),
        lambda sums: sums.update(recall_infrequent=[0.5, 0]),
        lambda sums: sums.update(recall_infrequent=["x", 0]),
        lambda sums: sums.pop("recall_infrequent"),
        lambda sums: sums.update(more=[1, 1]),
        lambda sums: sums.clear(),
    ],
)
def test_sums_that_cannot_be_are_refused(federation: Federation, change: Callable[[dict[str, object]], None]) -> None:
    question = QuestionHeader("run", federation.agreement.task.fingerprint, 3, 1, 0, [], [], 0)
    metrics = Metrics(BASE.top_k, np.zeros(5, bool), np.ones(5))
    metrics.add(np.array([[0, 1, 2]]), csr_matrix(np.array([[1, 0, 0, 0, 1]], np.float32)))
    sums = metrics.sums()
    assert read_report(write_report(question, Report(sums, 3)), question, BASE.top_k, 3, BASE.rounds).sums == sums
    change(sums)  # type: ignore[arg-type]
    with pytest.raises(Rejected, match="malformed"):
        read_report(write_report(question, Report(sums, 3)), question, BASE.top_k, 3, BASE.rounds)
